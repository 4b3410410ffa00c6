"""Count which ids followed a long context, such as part of a licence, in the train split.

A text has nearly as many n-grams of 16 or 32 ids as it has ids, so they are not counted in advance.
Instead, the places (indices) of the train split are sorted by the ids before them, from the newest
id to the oldest. Places that follow the same ids are therefore adjacent. This is a suffix array
(Manber and Myers 1993) of the reversed text. infini-gram (arXiv:2401.17377) also predicts by a
suffix array.

n: ids of the train split, L: ids of the longest context, M: number of contexts that are looked up,
K: number of context lengths, V: number of distinct ids.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import Floats
from gpt.counts.ngram_counts import longest_context
from gpt.counts.window import DISCOUNT
from gpt.text.vocabulary import Ids

INDEXED_IDS = 2**22  # largest number of places to sort: those at the end of the train split
NEAREST = 32  # places that are compared with each context


class LongContexts:
    """Index of the long contexts in the train split.

    Args:
        reversed_ids: (n,) the ids of the train split in reverse order.
        places: (n - 1,) indices i into `reversed_ids`, sorted by the contexts `reversed_ids[i:]`.
            The id after such a context is `reversed_ids[i - 1]`.
        orders: the K lengths of contexts, in ids, in ascending order.
        V: number of distinct ids.
    """

    def __init__(
        self, reversed_ids: Ids, places: NDArray[np.int32], orders: Sequence[int], V: int
    ) -> None:
        self.orders, self.V, self.L = orders, V, orders[-1]
        self.reversed_ids, self.places = reversed_ids, places
        # big-endian, so that bytes are in the order of the ids; V and V + 1 mark missing ids
        dtype = np.dtype("u1" if V + 1 < 256 else ">u2")
        self._ids = np.concatenate([reversed_ids, np.full(self.L, V)]).astype(dtype)
        self._contexts = np.lib.stride_tricks.sliding_window_view(self._ids, self.L)
        self._bytes, self._size = self._ids.tobytes(), dtype.itemsize

    def predict(
        self, ids: NDArray[np.int64], rows: slice, lower: Floats
    ) -> tuple[list[Floats], Floats]:
        """Return distributions (M, V) of the next id for each of K context lengths, and totals.

        The counts for each length are combined with the distribution for the previous length, as in
        `CountsSoFar.smooth`. The totals (M, 2 K) are, for each length, the number of ids and of
        distinct ids that followed the context.

        Args:
            ids: the ids of a window.
            rows: selects the M positions in `ids` whose next id is predicted.
            lower: (M, V) distributions to combine with the counts for the first length.
        """
        counts = self.counts_in(ids, rows)
        seen = np.minimum(counts, 1)
        totals = np.empty((len(counts), 2, len(lower)), np.float32)
        total = np.add.reduce(counts, -1, out=totals[:, 0])
        distinct = np.add.reduce(seen, -1, out=totals[:, 1])
        divisor = np.maximum(total, 1)
        discounted = (counts - np.float32(DISCOUNT) * seen) / divisor[..., None]
        shares = np.where(total > 0, np.float32(DISCOUNT) * distinct / divisor, 1)
        predictions = []
        for p, share in zip(discounted, shares.astype(np.float32), strict=True):
            lower = p + share[:, None] * lower
            predictions.append(lower)
        return predictions, totals.reshape(-1, len(lower)).T

    def counts_in(self, ids: NDArray[np.int64], rows: slice) -> Floats:
        """Count in the train split how often each id followed the contexts of a window.

        `rows` selects M positions of the window `ids`. A context of each length in `orders` ends at
        each position. Return counts (K, M, V). To save time, compare each context only with the
        `NEAREST` places around it in sorted order.
        """
        missing = np.full(self.L, self.V + 1)
        newest_first = np.concatenate([ids[::-1], missing]).astype(self._ids.dtype)
        contexts = np.lib.stride_tricks.sliding_window_view(newest_first, self.L)
        contexts = np.ascontiguousarray(contexts[: len(ids)][::-1][rows])  # (M, L)
        M = len(contexts)
        near = self._search(contexts)[:, None] + np.arange(-NEAREST // 2, NEAREST // 2)
        exists = (near >= 0) & (near < len(self.places))
        places = self.places[np.where(exists, near, 0)].astype(np.int64)
        counts = np.zeros((len(self.orders), M * self.V), np.float32)
        cells = np.arange(M)[:, None] * self.V + self._ids[places - 1]
        for i, n in enumerate(self.orders):
            exists &= (self._contexts[places, :n] == contexts[:, None, :n]).all(-1)
            counts[i] = np.bincount(cells[exists], minlength=M * self.V)
        return counts.reshape(len(self.orders), M, self.V)

    def _search(self, contexts: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
        """Return indices (M,) in `places` at which to insert `contexts` (M, L), newest id first."""
        n, dtype = len(self.places), f"S{self.L * self._size}"
        indexed = np.ndarray(len(self.reversed_ids), dtype, self._bytes, 0, (self._size,))
        keys, found = contexts.view(dtype)[:, 0], np.zeros(len(contexts), np.int64)
        for power in range(n.bit_length() - 1, -1, -1):
            further = found + 2**power
            is_less = indexed[self.places[np.minimum(further, n) - 1]] < keys
            found = np.where(is_less & (further <= n), further, found)
        return found


def index_contexts(ids: Ids, V: int, orders: Sequence[int]) -> LongContexts:
    """Index the long contexts in the last `INDEXED_IDS` of the train split's `ids`.

    `orders` are the lengths of the contexts in ids, and `V` is the number of distinct ids.
    """
    reversed_ids = ids[-INDEXED_IDS:][::-1].astype(np.min_scalar_type(V - 1))
    n, length = len(reversed_ids), longest_context(V + 1) + 1  # ids that fit into 63 bits
    # number the contexts by their first `length` ids; then double the length (Manber and Myers)
    padded = np.concatenate([reversed_ids, np.full(length, V)]).astype(np.int64)
    keys = np.zeros(n, np.int64)
    for i in range(length):
        keys = keys * (V + 1) + padded[i : n + i]
    while length < orders[-1]:
        numbers = np.unique(keys, return_inverse=True)[1]
        following = np.full(n, n)  # missing ids sort after all others
        following[: n - length] = numbers[length:]
        keys = numbers * (n + 1) + following
        length *= 2
    places = np.argsort(keys, kind="stable")
    return LongContexts(reversed_ids, places[places > 0].astype(np.int32), orders, V)
