"""Counts of the window so far: what followed the same context earlier in this window.

W: number of ids in the window, V: number of distinct ids.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import NO_ID, Floats

ROOM = 256  # places to append ids to, before the arrays of the texts must grow
DISCOUNT = 0.6  # subtracted from each count; the freed probability goes to shorter contexts


def window_predictions(
    ids: NDArray[np.int64], lower: Floats, orders: Sequence[int]
) -> tuple[list[Floats], Floats]:
    """Return distributions of the next id by the counts of the window so far.

    Args:
        ids: (W,) the window.
        lower: (W, V) for each prefix, the distribution that smooths the first of `orders`. Each
            other order is smoothed by the one before.
        orders: the numbers of ids in the contexts, from 1. Each is at most twice the one before.

    Returns:
        A list with distributions (W, V) after each prefix, for each of the `orders`; and an array
        (W, 2 len(orders)) with the total and the distinct number of next ids for each.
    """
    W = len(ids)
    predictions, totals = [], [np.zeros((W, 0), np.float32)]
    contexts, length, p = np.unique(ids, return_inverse=True)[1], 1, lower
    for n in orders:
        # number the contexts of n ids: by their first and their last `length` ids
        shift = n - length
        earlier = np.concatenate([np.zeros(min(shift, W), np.int64), contexts[: max(W - shift, 0)]])
        keys = earlier * W + contexts
        keys[: n - 1] = -1 - np.arange(min(n - 1, W))  # too short: unlike all others
        contexts, length = np.unique(keys, return_inverse=True)[1], n
        p, counted = smoothed_predictions(contexts, ids, p)
        predictions.append(p)
        totals.append(counted)
    return predictions, np.concatenate(totals, 1)


def smoothed_predictions(
    contexts: NDArray[np.integer], ids: NDArray[np.int64], lower: Floats
) -> tuple[Floats, Floats]:
    """Return distributions (W, V) of the next id, by what followed equal contexts before.

    Args:
        contexts: (W,) a number for the context that ends at each place.
        ids: (W,) the window.
        lower: (W, V) distributions that get the probability freed by `DISCOUNT`.

    Returns:
        The distributions, and an array (W, 2): the total and the distinct number of next ids.
    """
    counts = _counts_so_far(contexts, ids, lower.shape[1])
    total = counts.sum(1, keepdims=True)
    distinct = (counts > 0).sum(1, keepdims=True)
    share = np.where(total > 0, DISCOUNT * distinct / np.maximum(total, 1), 1)
    p = lower * share.astype(np.float32)
    p += np.maximum(counts - np.float32(DISCOUNT), 0) / np.maximum(total, 1)
    return p, np.concatenate([total, distinct], 1).astype(np.float32)


def _counts_so_far(
    contexts: NDArray[np.integer], ids: NDArray[np.int64], V: int
) -> NDArray[np.float32]:
    """Return counts (W, V): in row i, how often each id follows `contexts[i]` in `ids[:i + 1]`.

    `contexts[j]` is a number for the context that ends at `ids[j]`; `ids[j + 1]` follows it.
    """
    W = len(ids)
    order = np.argsort(contexts, kind="stable")  # places by context, then in order
    followed = order + 1 < W  # nothing follows the last place
    next_ids = np.zeros((W, V), np.float32)
    next_ids[np.flatnonzero(followed), ids[order[followed] + 1]] = 1
    before = np.cumsum(next_ids, 0) - next_ids
    grouped = contexts[order]
    starts = np.flatnonzero(np.diff(grouped, prepend=-1))
    before -= np.repeat(before[starts], np.diff(starts, append=W), 0)
    counts = np.empty_like(before)
    counts[order] = before
    return counts


class WindowCounts:
    """Counts of the ids after each context in B texts, to each of which ids are appended.

    An id was counted after the last n ids of its text if the n ids before it equal them. So it is
    enough to know, for each place of each text, how many ids before it equal the last ids.

    Args:
        texts: the ids of each text.
        V: number of distinct ids.
        orders: the ascending numbers of ids in the contexts.
        padding: places before each text that contain `NO_ID`; at least 2, and the last order.
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
        # how many ids before each place equal the last ids of the text, at most `_longest`
        self._matches = np.zeros(self.ids.shape, np.int16)
        self._at_least = np.tri(len(orders), dtype=np.float32).T
        self.end = int(self.ends.max())  # end of the longest text
        self._match()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of ids in each text, (B,)."""
        return self.ends - self.padding

    def text(self, row: int) -> NDArray[np.integer]:
        """Return the ids of a text."""
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
        """Keep only the texts in `rows`."""
        self.ids, self._matches, self.ends = self.ids[rows], self._matches[rows], self.ends[rows]
        self.rows, self.end = np.arange(len(rows)), int(self.ends.max())

    def predict(self) -> tuple[Floats, Floats, Floats]:
        """Return `terms_of` the counts after the last ids of each text, by order."""
        return terms_of(self._counts())

    def _counts(self) -> Floats:
        """Return how often each id followed the last ids of each text, (len(orders), B, V)."""
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
        """Count at each place how many ids before it equal the last ids of the text."""
        matched = np.arange(self.ids.shape[1]) < self.ends[:, None]
        for n, last in enumerate(self.last(self._longest), 1):
            equal = (self.ids == last[:, None]) & (last != NO_ID)[:, None]
            matched[:, n:] &= equal[:, :-n]
            matched[:, :n] = False
            self._matches += matched


def terms_of(counts: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the terms of the distributions by `counts` (K, B, V) of ids after K contexts.

    Returns:
        (K, B, V) the discounted counts divided by their total; (K, B) the weights of the
        distributions that smooth them; and (2 K, B) the total and the distinct number of next ids.
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
