"""Two contexts of the next character that are no n-grams: the word, and the character above it.

The first context is the part of the current word that is already known; it helps in prose. The
second is the character at the same column of the previous line, and the last two characters; it
helps in tables and code. Both are contexts of the PAQ compressors (Mahoney 2005, "Adaptive weighing
of context models for lossless data compression").

A context is represented by a key of 64 bits. Different contexts can share a key, but hardly ever
do: with T = 16,384 the probability is below 1e-10 for a window.

B: texts, W: ids of a window, V: number of distinct ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import Floats
from gpt.counts.window import WindowCounts, terms_of

Keys64 = NDArray[np.uint64]
NAMES = ("the current word", "the character above and the last 2")
MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
INVERSE = pow(MULTIPLIER, -1, 2**64)
NO_KEY = 0  # in an array of keys: a place without a context
MISSING = -1  # instead of an id or a place that does not exist


@dataclass(frozen=True)
class Characters:
    """Table of the vocabulary: which ids form words, and which id ends a line.

    Attributes:
        in_word: (V,) whether the id is a letter, a digit, an underscore, or a byte above 127.
        newline: the id of the newline; `MISSING` if there is none.
    """

    in_word: NDArray[np.bool_]
    newline: int

    @classmethod
    def of(cls, names: Sequence[str]) -> "Characters":
        """Return which of V ids form words and lines, given the names from `Vocabulary.names`."""
        in_word = [len(name) > 1 or name.isalnum() or name == "_" for name in names]
        return cls(np.array(in_word), names.index("\n") if "\n" in names else MISSING)

    def keys(self, ids: NDArray[np.int64]) -> Keys64:
        """Return the keys (2, W) of the contexts in which the id after each of `ids` (W,) occurs.

        Row 0 has the keys of the current word, row 1 those of the character above the next one.
        """
        places, P = np.arange(len(ids)), np.uint64(MULTIPLIER)
        # 1. the current word: sum of (id + 1) * MULTIPLIER**place, with places from its start
        starts = self.word_starts(ids)
        powers = np.cumprod(np.full(len(ids), P)) * np.uint64(INVERSE)
        back = np.cumprod(np.full(len(ids), np.uint64(INVERSE))) * P
        sums = np.cumsum((ids + 1).astype(np.uint64) * powers)
        words = (sums - np.concatenate([[np.uint64(0)], sums])[starts]) * back[starts]
        # 2. the character above the next one, and the last two ids
        lines = self.line_starts(ids)
        above_lines = np.where(lines > 1, lines[np.maximum(lines - 2, 0)], lines - 1)  # or MISSING
        above = above_lines + places + 1 - lines
        exists = (above_lines != MISSING) & (above < lines)
        above_ids = np.where(exists, ids[np.where(exists, above, 0)], MISSING)
        before = np.concatenate([[MISSING], ids[:-1]])
        return np.stack([words, self.above_key(above_ids, before, ids)])

    def word_starts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, for each of W `ids`, the index at which its word begins, (W,).

        An id that is not part of a word counts as a word of one id.
        """
        in_word = self.in_word[ids]
        begins = ~(in_word & np.concatenate([[False], in_word[:-1]]))
        starts: NDArray[np.int64] = np.maximum.accumulate(np.where(begins, np.arange(len(ids)), 0))
        return starts

    def line_starts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, for each index t of the W `ids`, where the line that contains id t + 1 begins.

        The result (W,) has indices of `ids`; the last is W if the last id is a newline.
        """
        after = np.where(ids == self.newline, np.arange(1, len(ids) + 1), 0)
        starts: NDArray[np.int64] = np.maximum.accumulate(after)
        return starts

    def above_key(
        self, above: NDArray[np.int64], before: NDArray[np.int64], last: NDArray[np.int64]
    ) -> Keys64:
        """Return 64-bit keys of contexts of three ids, any of which may be MISSING.

        `above` is an id of the line above, in the column of the id to predict. `before` and `last`
        are the last two ids of the text.
        """
        base = len(self.in_word) + 1
        return (((above + 1) * base + before + 1) * base + last + 1).astype(np.uint64)


class WordAndLineCounts:
    """Counts of the ids that followed the current word, and the character above, in B texts.

    Ids can be appended to the texts, as in sampling. The module describes the two contexts.

    Args:
        window: the texts. Call its `append` and `select` before those of this object.
        characters: which ids form words and lines.
        contexts: `NAMES`, or an empty sequence to count nothing.
    """

    def __init__(
        self, window: WindowCounts, characters: Characters, contexts: Sequence[str]
    ) -> None:
        self.window, self.characters = window, characters
        B, places = window.ids.shape
        self.keys = np.full((len(contexts), B, places), NO_KEY, np.uint64)
        self._in_word = np.zeros(B, bool)  # whether the last id is part of a word
        self._power = np.full(B, MULTIPLIER, np.uint64)  # MULTIPLIER ** (ids of current word)
        self._line = np.zeros(B, np.int64)  # where the current line begins
        self._above_line = np.full(B, MISSING)  # where the line above begins
        for row in range(B):
            ids = window.text(row).astype(np.int64)
            if not (len(ids) and contexts):
                continue
            start = window.padding
            self.keys[:, row, start : start + len(ids)] = characters.keys(ids)
            lines = characters.line_starts(ids)
            line = lines[-1]
            self._in_word[row] = characters.in_word[ids[-1]]
            length = len(ids) - int(characters.word_starts(ids)[-1])
            self._power[row] = pow(MULTIPLIER, length, 2**64)
            self._line[row] = line
            self._above_line[row] = lines[line - 2] if line > 1 else line - 1

    def append(self) -> None:
        """Compute the keys of each text's word and character above, after an id was appended."""
        window, P = self.window, np.uint64(MULTIPLIER)
        if self.keys.shape[2] < window.ids.shape[1]:
            added = window.ids.shape[1] - self.keys.shape[2]
            self.keys = np.pad(self.keys, ((0, 0), (0, 0), (0, added)))
        if not len(self.keys):
            return
        before, last = window.last(2)[::-1]
        rows, ends, lengths = window.rows, window.ends, window.lengths
        values = (last + 1).astype(np.uint64)
        in_word = self.characters.in_word[last]
        continues = in_word & self._in_word
        words = np.where(continues, self.keys[0, rows, ends - 2] + values * self._power, values)
        self._power = np.where(continues, self._power * P, P)
        self._in_word = in_word
        is_newline = last == self.characters.newline
        self._above_line = np.where(is_newline, self._line, self._above_line)
        self._line = np.where(is_newline, lengths, self._line)
        above = self._above_line + lengths - self._line
        exists = (self._above_line != MISSING) & (above < self._line)
        above_ids = window.ids[rows, window.padding + np.where(exists, above, 0)].astype(np.int64)
        above_ids = np.where(exists, above_ids, MISSING)
        self.keys[0, rows, ends - 1] = words
        self.keys[1, rows, ends - 1] = self.characters.above_key(above_ids, before, last)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts with the indices `rows`, in this order."""
        self.keys = self.keys[:, rows]
        self._in_word, self._power = self._in_word[rows], self._power[rows]
        self._line, self._above_line = self._line[rows], self._above_line[rows]

    def predict(self) -> tuple[Floats, Floats, Floats]:
        """Return the terms of P = p + share * lower for the next id after each context and text.

        P is the distribution after the context, and `lower` that after a shorter one.

        Returns:
            p, shares and numbers of counted ids, with the shapes that `terms_of` returns.
        """
        return terms_of(self._counts())

    def _counts(self) -> Floats:
        """Return how often each id followed the current contexts (word, line above) of each text.

        The result has the shape (2, B, V), or (0, B, V) if these contexts are not counted.
        """
        window, end = self.window, self.window.end
        shape = (len(self.keys), len(window.rows), window.V)
        current = self.keys[:, window.rows, window.ends - 1][..., None]
        # the place before the last one is the last context that an id follows
        equal = (self.keys[:, :, : end - 1] == current) & (current != NO_KEY)
        found = np.flatnonzero(equal & (np.arange(end - 1) < window.ends[:, None] - 1))
        texts, places = found // (end - 1), found % (end - 1)
        ids = window.ids[texts % shape[1], places + 1].astype(np.int64)
        cells = texts * window.V + ids
        counts = np.bincount(cells, minlength=shape[0] * shape[1] * shape[2])
        return counts.reshape(shape).astype(np.float32)
