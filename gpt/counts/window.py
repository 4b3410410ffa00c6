"""Counts of the window so far: which ids followed the same context earlier in this window.

After a context, the distribution of the next id is P = p + share * lower (absolute discounting).
Here p is (count - DISCOUNT) / total for each id that followed the context before, share is the
probability removed by the discounts, and `lower` is the distribution after a shorter context.

W: number of ids in the window, M: number of places, V: number of distinct ids.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import NO_ID, Floats

ROOM = 256  # places to append ids to, before the arrays of the texts must grow
DISCOUNT = 0.6  # subtracted from each count; the freed probability goes to shorter contexts


def numbered_contexts(ids: NDArray[np.int64], orders: Sequence[int]) -> Iterator[NDArray[np.int64]]:
    """Yield, for each order n, a number for each of the W places of a window.

    Two places get the same number if their contexts (the last n ids) are equal.

    Args:
        ids: (W,) the ids of the window.
        orders: the numbers of ids in the contexts, from 1. Each is at most twice the one before.
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


class CountsSoFar:
    """Counts of the ids that followed the context of each place earlier in the same window.

    For each place, only ids with a count above 0 are stored: these are few of the V ids.

    Args:
        contexts: (W,) a number for the context that ends at each place; equal contexts have equal
            numbers.
        ids: (W,) the ids of the window.

    Attributes:
        totals: (W, 2) for each place, how often its context occurred before, and how many
            different ids followed.
    """

    def __init__(self, contexts: NDArray[np.integer], ids: NDArray[np.int64]) -> None:
        W = len(ids)
        order = np.argsort(contexts, kind="stable")  # places by context, then in order
        rank = np.empty(W, np.int64)
        rank[order] = np.arange(W)
        starts = np.flatnonzero(np.diff(contexts[order], prepend=-1))
        sizes = np.diff(starts, append=W)
        # 1. After each place but the last, an id has followed a context once more. Sort these
        # events by context and id. The count stays the same until the next event of both.
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
        self.totals = np.empty((W, 2), np.int64)
        self.totals[order, 0] = np.arange(W) - np.repeat(starts, sizes)
        self.totals[:, 1] = distinct

    def smooth(self, lower: Floats, start: int) -> Floats:
        """Return the distributions (M, V) of the next id at M places, from place `start` on.

        Counts are reduced by DISCOUNT. The probability that this frees is given to the `lower`
        distributions (M, V), which are those after shorter contexts.
        """
        M, V = lower.shape
        total, distinct = self.totals[start : start + M].T
        divisor = np.maximum(total, 1)
        p = lower * np.where(total, DISCOUNT * distinct / divisor, 1).astype(np.float32)[:, None]
        entries = slice(self._starts[start], self._starts[start + M])
        rows = np.repeat(np.arange(M), distinct)
        discounted = self._counts[entries] - np.float32(DISCOUNT)
        p.reshape(-1)[rows * V + self._ids[entries]] += (
            discounted / divisor.astype(np.float32)[rows]
        )
        return p


class WindowCounts:
    """Counts of which ids followed earlier occurrences of the last ids of B growing texts.

    `_matches` has a number for each index of a text: how many ids before the index equal the last
    ids of the text. In `abcab`, the number is 2 at `c`, because `ab` stands before `c` and at the
    end. If the number is n or more, the id at the index followed the last n ids. Appending an id
    takes one pass over `_matches`.

    Args:
        texts: the ids of each text.
        V: number of distinct ids.
        orders: the lengths of the contexts in ids, ascending.
        padding: the number of `NO_ID`s to store before each text; at least 2, and at least the
            largest of `orders`.
    """

    def __init__(
        self, texts: Sequence[NDArray[np.integer]], V: int, orders: Sequence[int], padding: int
    ) -> None:
        self.V, self.padding, self._longest = V, padding, max(orders, default=0)
        # the number of orders up to each length
        self._levels = np.searchsorted(orders, np.arange(self._longest + 1), "right")
        self.rows = np.arange(len(texts))
        self.ends = padding + np.array([len(text) for text in texts])
        self.ids = np.full((len(texts), max(self.ends) + ROOM), NO_ID, np.min_scalar_type(-V))
        for row, text in enumerate(texts):
            self.ids[row, padding : self.ends[row]] = text
        self._matches = np.zeros(self.ids.shape, np.int16)
        self._at_least = np.tri(len(orders), dtype=np.float32).T
        self.end = int(self.ends.max())  # end of the longest text
        self._match()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of ids in each text, (B,)."""
        return self.ends - self.padding

    def text(self, row: int) -> NDArray[np.integer]:
        """Return the ids of the text in `row`."""
        return self.ids[row, self.padding : self.ends[row]]

    def last(self, count: int) -> NDArray[np.int64]:
        """Return the last `count` ids of each text, the newest first, (count, B)."""
        places = self.ends - np.arange(1, count + 1)[:, None]
        return self.ids[self.rows, places].astype(np.int64)

    def append(self, ids: NDArray[np.int64]) -> None:
        """Append one id to each text."""
        end = self.end
        if end == self.ids.shape[1]:
            self.ids = np.pad(self.ids, ((0, 0), (0, end)), constant_values=NO_ID)
            self._matches = np.pad(self._matches, ((0, 0), (0, end)))
        matches = np.minimum(self._matches[:, :end] + 1, self._longest)
        matches *= self.ids[:, :end] == ids[:, None]
        self._matches[:, 1 : end + 1] = matches
        self.ids[self.rows, self.ends] = ids
        self.ends += 1
        self.end += 1

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts with the indices `rows`, in this order."""
        self.ids, self._matches, self.ends = self.ids[rows], self._matches[rows], self.ends[rows]
        self.rows, self.end = np.arange(len(rows)), int(self.ends.max())

    def predict(self) -> tuple[Floats, Floats, Floats]:
        """Return p and share of the predictions P = p + share * lower, as `terms_of` does.

        Each text is predicted by the counts after its last n ids, for each n in `orders`. `lower`
        is the prediction after a shorter context.
        """
        return terms_of(self._counts())

    def _counts(self) -> Floats:
        """Return how often each id followed the last n ids of each text, for each order n.

        The result has the shape (len(orders), B, V).
        """
        B, end, orders = len(self.rows), self.end, len(self._at_least)
        matches, ids = self._matches[:, :end].ravel(), self.ids[:, :end].ravel()
        places = np.flatnonzero(matches)
        longest = self._levels.take(matches.take(places)) - 1
        cells = (longest * B + places // end) * self.V + ids.take(places)
        by_longest = np.bincount(cells, minlength=orders * B * self.V).astype(np.float32)
        # a context of n ids was found where n or more ids match
        counts: Floats = self._at_least @ by_longest.reshape(orders, B * self.V)
        return counts.reshape(orders, B, self.V)

    def _match(self) -> None:
        """Count for each place how many ids before it equal the last ids of its text.

        Store these numbers, at most `_longest` each, in `_matches`.
        """
        matched = np.arange(self.ids.shape[1]) < self.ends[:, None]
        for n, last in enumerate(self.last(self._longest), 1):
            equal = (self.ids == last[:, None]) & (last != NO_ID)[:, None]
            matched[:, n:] &= equal[:, :-n]
            matched[:, :n] = False
            self._matches += matched


def terms_of(counts: Floats) -> tuple[Floats, Floats, Floats]:
    """Smooth counts after K contexts: return p and share of P = p + share * lower.

    P is the distribution of the next id after a context, and `lower` the distribution after a
    shorter context. For a count of 0, p is 0.

    Args:
        counts: (K, B, V) how often each of V ids followed each of K contexts in each of B texts.

    Returns:
        p (K, B, V); shares (K, B); and an array (2 K, B) that has, for each context, the number of
        ids that followed the context, and the number of distinct ones among these ids.
    """
    K, B, _ = counts.shape
    seen = np.minimum(counts, 1)
    totals = np.empty((K, 2, B), np.float32)
    total = np.add.reduce(counts, -1, out=totals[:, 0])
    distinct = np.add.reduce(seen, -1, out=totals[:, 1])
    divisor = np.maximum(total, 1)
    p = ((counts - np.float32(DISCOUNT) * seen) / divisor[..., None]).astype(np.float32)
    shares = np.where(total > 0, np.float32(DISCOUNT) * distinct / divisor, 1)
    return p, shares.astype(np.float32), totals.reshape(-1, B)
