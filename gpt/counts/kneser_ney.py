"""Interpolated Kneser-Ney smoothing: the distribution of the next id after up to N ids.

M: number of positions, N: number of ids in the longest context, V: number of distinct ids.
"""

import numpy as np
from numpy.typing import NDArray

from gpt.counts.ngram_counts import Keys, NgramCounts
from gpt.text.vocabulary import Ids

Floats = NDArray[np.float32]
NO_ID = -1  # in a context: before the start of the window


class KneserNey:
    """Modified Kneser-Ney smoothing of n-gram counts.

    Chen and Goodman 1998, "An empirical study of smoothing techniques for language modeling"
    (TR-10-98), section 3. Each count is reduced by a discount D, which depends on whether the
    n-gram was counted once, twice or more often. The discounts are given to the prediction
    after the context without its first id:

        P_n(id | context) = (count - D) / total + freed / total * P_{n-1}(id | context[1:])

    Here total is the sum of the counts of all ids after the context; freed is the sum of discounts.
    For n = 0, the context is empty, and P_{n-1} is 1 / V for each id. After a context that was not
    counted, P_n is P_{n-1}.
    """

    def __init__(self, counts: NgramCounts) -> None:
        self.V, self.order = counts.V, counts.order
        self.keys = counts.keys
        self.discounted: list[Floats] = []
        self._totals: list[NDArray[np.int64]] = []  # cumulative, from 0
        self._freed: list[NDArray[np.float64]] = []  # cumulative, from 0
        for order in counts.counts:
            discounts = discounts_of(order)
            self.discounted.append((order - discounts).astype(np.float32))
            self._totals.append(np.concatenate([[0], np.cumsum(order, dtype=np.int64)]))
            self._freed.append(np.concatenate([[0.0], np.cumsum(discounts)]))
        self.unigrams = unigrams_of(counts)

    def predict(self, contexts: NDArray[np.int64]) -> tuple[list[Floats], Floats]:
        """Predict the next id after the last 0 to N ids of each of M contexts.

        In `contexts` (M, N), the newest id is last, and `NO_ID` stands for ids before the start of
        the window. Return a distribution (M, V) for each context length from 0 to N, and totals
        (M, N): how many ids were counted after the contexts of 1 to N ids.
        """
        M = len(contexts)
        p = np.broadcast_to(self.unigrams, (M, self.V))
        predictions, totals = [p], np.zeros((M, self.order), np.float32)
        keys, known = np.zeros(M, np.int64), np.ones(M, bool)
        for n in range(1, self.order + 1):
            ids = contexts[:, -n]
            known &= ids != NO_ID
            keys += np.where(known, ids, 0) * self.V ** (n - 1)
            start, end = self._span(n, keys)
            end = np.where(known, end, start)
            total = (self._totals[n][end] - self._totals[n][start]).astype(np.float32)
            freed = (self._freed[n][end] - self._freed[n][start]).astype(np.float32)
            p = p * np.where(total > 0, freed / np.maximum(total, 1), 1).astype(np.float32)[:, None]
            sizes = end - start
            entries = np.arange(sizes.sum()) + np.repeat(start - np.cumsum(sizes) + sizes, sizes)
            # a key is V * context + id, and a cell of `p` is V * row + id
            cells = self.keys[n][entries] + np.repeat((np.arange(M) - keys) * self.V, sizes)
            p.reshape(-1)[cells] += self.discounted[n][entries] / np.repeat(total, sizes)
            predictions.append(p)
            totals[:, n - 1] = total
        return predictions, totals

    def probabilities(self, ids: Ids) -> NDArray[np.float64]:
        """Return the probability of each id after the N ids before it, faster than `predict`.

        The first N ids are skipped: the result is (len(ids) - N,).
        """
        M = max(len(ids) - self.order, 0)
        keys = ids[self.order :].astype(np.int64)
        p: NDArray[np.float64] = self.unigrams[keys].astype(np.float64)
        for n in range(1, self.order + 1):
            keys += ids[self.order - n :][:M].astype(np.int64) * self.V**n
            start, end = self._span(n, keys // self.V)
            total = self._totals[n][end] - self._totals[n][start]
            freed = self._freed[n][end] - self._freed[n][start]
            place = np.minimum(np.searchsorted(self.keys[n], keys), max(len(self.keys[n]) - 1, 0))
            occurs = total > 0
            counted = np.zeros(M)
            known = np.flatnonzero(occurs)
            known = known[self.keys[n][place[known]] == keys[known]]
            counted[known] = self.discounted[n][place[known]]
            p = np.where(occurs, (counted + freed * p) / np.maximum(total, 1), p)
        return p

    def _span(self, n: int, contexts: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the range of indices in `keys[n]` of the n-grams that begin with each context."""
        start, end = contexts * self.V, (contexts + 1) * self.V
        return self.keys[n].searchsorted(start), self.keys[n].searchsorted(end)


def unigrams_of(counts: NgramCounts) -> Floats:
    """Return the probabilities (V,) of the ids after the empty context."""
    order, V = counts.counts[0], counts.V
    total = order.sum(dtype=np.int64)
    if not total:
        return np.full(V, 1 / V, np.float32)
    discounts = discounts_of(order)
    p = np.full(V, discounts.cumsum()[-1] / total / V)
    p[counts.keys[0]] += (order - discounts).astype(np.float32) / total
    return p.astype(np.float32)


def discounts_of(counts: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the discount of each of `counts`, the counts of all n-grams of one length."""
    discounts = np.array([0.5, 1.0, 1.5])  # for counts of 1, 2, 3 or more, by default
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == times)) for times in (1, 2, 3, 4))
    if n1 and n2 and n3 and n4:
        y = n1 / (n1 + 2 * n2)
        estimates = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        discounts = np.clip(estimates, 0.1, [1.0, 1.9, 2.9])
    return np.array([0, *discounts]).take(counts, mode="clip")
