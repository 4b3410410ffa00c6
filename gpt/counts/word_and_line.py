"""Two contexts of the next character that are no n-grams: the word, and the character above it.

The first context is the part of the current word that is already known; it helps in prose. The
second is the character at the same column of the previous line, and the last two characters; it
helps in tables and code. Both are contexts of the PAQ compressors (Mahoney 2005, "Adaptive weighing
of context models for lossless data compression").

A context is represented by a key of 64 bits. Different contexts can share a key, but hardly ever
do: with T = 16,384 the probability is below 1e-10 for a window.

W: ids of a window, V: number of distinct ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys64 = NDArray[np.uint64]
NAMES = ("the current word", "the character above and the last 2")
MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
INVERSE = pow(MULTIPLIER, -1, 2**64)
MISSING = -1  # instead of an id or a place that does not exist


@dataclass(frozen=True)
class Characters:
    """Which ids form words, and which id ends a line."""

    in_word: NDArray[np.bool_]  # (V,) is a letter, a digit, an underscore, or a byte above 127
    newline: int  # id of the newline; MISSING if there is none

    @classmethod
    def of(cls, names: Sequence[str]) -> "Characters":
        """Return the table of a vocabulary with these `Vocabulary.names`."""
        in_word = [len(name) > 1 or name.isalnum() or name == "_" for name in names]
        return cls(np.array(in_word), names.index("\n") if "\n" in names else MISSING)

    def keys(self, ids: NDArray[np.int64]) -> Keys64:
        """Return the keys (2, W) of both contexts, the word first, after each of `ids` (W,)."""
        places, P = np.arange(len(ids)), np.uint64(MULTIPLIER)
        # 1. the current word: sum of (id + 1) * MULTIPLIER**place, with places from its start
        in_word = self.in_word[ids]  # an id that is not part of a word counts as a word of one id
        begins = ~(in_word & np.concatenate([[False], in_word[:-1]]))
        starts = np.maximum.accumulate(np.where(begins, places, 0))
        powers = np.cumprod(np.full(len(ids), P)) * np.uint64(INVERSE)
        back = np.cumprod(np.full(len(ids), np.uint64(INVERSE))) * P
        sums = np.cumsum((ids + 1).astype(np.uint64) * powers)
        words = (sums - np.concatenate([[np.uint64(0)], sums])[starts]) * back[starts]
        # 2. the character above the next one, whose line begins at `lines`; and the last two ids
        lines = np.maximum.accumulate(np.where(ids == self.newline, places + 1, 0))
        above_lines = np.where(lines > 1, lines[np.maximum(lines - 2, 0)], lines - 1)  # or MISSING
        above = above_lines + places + 1 - lines
        exists = (above_lines != MISSING) & (above < lines)
        above_ids = np.where(exists, ids[np.where(exists, above, 0)], MISSING)
        before = np.concatenate([[MISSING], ids[:-1]])
        base = len(self.in_word) + 1
        lines_above = ((above_ids + 1) * base + before + 1) * base + ids + 1
        return np.stack([words, lines_above.astype(np.uint64)])
