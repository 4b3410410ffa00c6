"""Counts of the window so far: which ids followed the same context earlier in this window.

After a context, the distribution of the next id is P = p + share * lower (absolute discounting).
Here p is (count - DISCOUNT) / total for each id that followed the context earlier, share is the
probability removed by the discounts, and `lower` is the distribution after a shorter context.

W: number of ids in the window, M: number of positions, V: number of distinct ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import Floats

NAMES = ("the current word", "the character above and the last 2")  # see `Characters.keys`
MULTIPLIER = 0x9E3779B97F4A7C15  # hashes keys; odd, so invertible modulo 2**64
INVERSE = pow(MULTIPLIER, -1, 2**64)
MISSING = -1  # stands for an id or a position that does not exist
DISCOUNT = 0.6  # subtracted from each count; the freed probability goes to shorter contexts


def numbered_contexts(ids: NDArray[np.int64], orders: Sequence[int]) -> Iterator[NDArray[np.int64]]:
    """Yield, for each n in `orders`, the number (W,) of the context at each position of a window.

    The context at a position is the n ids that end there. Equal contexts have equal numbers.
    `orders` begins with 1; each further element is at most twice the previous one.
    """
    W = len(ids)
    contexts, length = np.unique(ids, return_inverse=True)[1], 1
    for n in orders:
        # Give each distinct context of n ids a number. A context is determined by the numbers of
        # its first and its last `length` ids, which together cover it.
        shift = n - length
        earlier = np.concatenate([np.zeros(min(shift, W), np.int64), contexts[: max(W - shift, 0)]])
        keys = earlier * W + contexts
        keys[: n - 1] = -1 - np.arange(min(n - 1, W))  # contexts shorter than n equal no other
        contexts, length = np.unique(keys, return_inverse=True)[1], n
        yield contexts


@dataclass(frozen=True)
class Characters:
    """Finds words and lines among ids, for two contexts that are not n-grams.

    The first context is the beginning of the current word; it helps in prose. The second helps in
    tables and code. It has three characters: the last two, and the one in the previous line above
    the character to predict. Both are from the PAQ compressors (Mahoney 2005, "Adaptive weighing of
    context models for lossless data compression").
    """

    in_word: NDArray[np.bool_]  # (V,) is a letter, a digit, an underscore, or a byte above 127
    newline: int  # id of the newline; MISSING if there is none

    @classmethod
    def of(cls, names: Sequence[str]) -> "Characters":
        """Classify the ids of a vocabulary by their names, from `Vocabulary.names`."""
        in_word = [len(name) > 1 or name.isalnum() or name == "_" for name in names]
        return cls(np.array(in_word), names.index("\n") if "\n" in names else MISSING)

    def keys(self, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return hashes (2, W) of both contexts at each of the W `ids` of a window.

        Two different contexts are unlikely to have the same hash of 64 bits: in a window of 16,384
        ids, the probability is below 1e-10.
        """
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


class CountsSoFar:
    """For each position of a window, counts of the ids that followed its context earlier.

    `ids` (W,) are the window. `contexts` (W,) has a number for the context that ends at each
    position; equal contexts have equal numbers. Only counts above 0 are stored.
    """

    def __init__(self, contexts: NDArray[np.integer], ids: NDArray[np.int64]) -> None:
        W = len(ids)
        order = np.argsort(contexts, kind="stable")  # places by context, then in order
        rank = np.empty(W, np.int64)
        rank[order] = np.arange(W)
        starts = np.flatnonzero(np.diff(contexts[order], prepend=-1))
        sizes = np.diff(starts, append=W)
        # 1. After each place but the last, an id follows a context once more. Sort these events by
        # context and id. A count is constant until the next event with this context and id.
        keys = contexts[:-1] * (ids.max() + 1) + ids[1:]
        places = np.argsort(keys, kind="stable")
        first = np.flatnonzero(np.diff(keys[places], prepend=-1))
        times = np.diff(first, append=W - 1)  # how often each id follows each context
        ranks = rank[places]
        stops = np.append(ranks[1:], 0) + 1
        last = first + times - 1
        stops[last] = np.repeat(starts + sizes, sizes)[ranks[last]]
        counts = np.arange(1, W) - np.repeat(first, times)
        # 2. Make an entry for each place between two events.
        spans = stops - ranks - 1
        events = np.repeat(np.arange(W - 1), spans)
        entries = np.arange(len(events)) + np.repeat(stops - np.cumsum(spans), spans)
        entry_places = order[entries]
        # 3. Sort the entries by place, which is fast for integers of 16 bits.
        events = events[np.argsort(entry_places.astype(np.min_scalar_type(W)), kind="stable")]
        self._ids, self._counts = ids[places + 1][events], counts.astype(np.float32)[events]
        distinct = np.bincount(entry_places, minlength=W)
        self._starts = np.append(0, np.cumsum(distinct))
        # how often the context of each place occurred before, and how many distinct ids followed
        self.totals = np.empty((W, 2), np.int64)
        self.totals[order, 0] = np.arange(W) - np.repeat(starts, sizes)
        self.totals[:, 1] = distinct

    def smooth(self, lower: Floats, start: int) -> Floats:
        """Return a distribution (M, V) of the next id for each of M positions from `start` on.

        `lower` (M, V) are the distributions after shorter contexts, to be combined with the counts.
        """
        M, V = lower.shape
        total, distinct = self.totals[start : start + M].T
        divisor = np.maximum(total, 1)
        p = lower * np.where(total, DISCOUNT * distinct / divisor, 1).astype(np.float32)[:, None]
        entries = slice(self._starts[start], self._starts[start + M])
        rows = np.repeat(np.arange(M), distinct)
        discounted = self._counts[entries] - np.float32(DISCOUNT)
        cells = rows * V + self._ids[entries]
        p.reshape(-1)[cells] += discounted / divisor.astype(np.float32)[rows]
        return p
