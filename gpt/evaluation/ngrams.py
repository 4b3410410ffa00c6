"""N-gram models with Kneser-Ney smoothing: they predict an id from the n - 1 ids before it.

An n-gram is stored as one integer in base V, the size of the vocabulary. Its ids are the digits,
and its last id is the lowest digit. N-grams are then counted by sorting integers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation.characters import spread_slices
from gpt.text.vocabulary import Ids

Ngrams = NDArray[np.unsignedinteger]
Numbers = NDArray[np.float64]
MAX_COUNTED_IDS = 2**25  # largest number of ids of a split whose n-grams are counted
DEFAULT_DISCOUNT = 0.5  # used if no n-gram occurs once, or none twice


@dataclass(frozen=True)
class NgramCounts:
    """Distinct n-grams of a text in ascending order, and their counts. V is the vocabulary size."""

    n: int
    V: int
    ngrams: Ngrams
    counts: NDArray[np.int64]


def count_ngrams(parts: Iterable[Ids], n: int, V: int) -> NgramCounts:
    """Count the n-grams within each of the `parts` of a text. `V` is the vocabulary size.

    Parts are sorted one at a time, so memory contains only one part and the distinct n-grams.
    """
    dtype = np.min_scalar_type(V**n - 1)
    ngrams, counts = np.zeros(0, dtype), np.zeros(0, np.int64)
    for part in parts:
        numbers = np.zeros(max(len(part) - n + 1, 0), dtype)
        for i in range(n):
            numbers *= dtype.type(V)
            numbers += part[i : len(numbers) + i]
        new, new_counts = np.unique(numbers, return_counts=True)
        ngrams, index = np.unique(np.concatenate([ngrams, new]), return_inverse=True)
        times = np.concatenate([counts, new_counts])
        counts = np.bincount(index, times, minlength=len(ngrams)).astype(np.int64)
    return NgramCounts(n, V, ngrams, counts)


def sampled_ngrams(ids: Ids, n: int, V: int) -> NgramCounts:
    """Count the n-grams of `ids`. If there are over MAX_COUNTED_IDS, use evenly spread parts."""
    parts = spread_slices(len(ids), MAX_COUNTED_IDS)
    return count_ngrams((ids[part.start : part.stop + n - 1] for part in parts), n, V)


class KneserNey:
    """Interpolated Kneser-Ney smoothing: P(id | the n - 1 ids before it).

    Chen and Goodman 1998, "An empirical study of smoothing techniques for language modeling"
    (TR-10-98), sections 2.6 and 2.7. In each order, D = n1 / (n1 + 2 n2) is subtracted from each
    count, where n1 n-grams occur once, and n2 occur twice. The freed probability goes to the next
    lower order, where the count of an n-gram is the number of distinct ids that occur before it.
    Below the unigrams, every id has the probability 1 / V, so that no id is impossible.
    """

    def __init__(self, counts: NgramCounts) -> None:
        self.V, self._orders = counts.V, [_Order(counts)]
        for n in range(counts.n - 1, 0, -1):
            shorter = self._orders[0].ngrams % counts.ngrams.dtype.type(self.V**n)
            distinct = NgramCounts(n, self.V, *np.unique(shorter, return_counts=True))
            self._orders.insert(0, _Order(distinct))

    def probabilities(self, ngrams: Ngrams) -> Numbers:
        """Return, for each n-gram, the probability of its last id given the ids before it."""
        p = np.full(len(ngrams), 1 / self.V)
        for order in self._orders[:-1]:
            p = order.interpolate(ngrams % ngrams.dtype.type(self.V**order.n), p)
        return self._orders[-1].interpolate(ngrams, p)


class _Order:
    """Discounted counts of n-grams of one length, and the sum of the discounts in each context.

    The context of an n-gram consists of all its ids but the last one.
    """

    def __init__(self, counted: NgramCounts) -> None:
        self.n, self.V, self.ngrams = counted.n, counted.V, counted.ngrams
        once, twice = (np.count_nonzero(counted.counts == times) for times in (1, 2))
        discount = once / (once + 2 * twice) if once and twice else DEFAULT_DISCOUNT
        self.discounted = counted.counts - discount
        self.contexts, starts = np.unique(self._context(self.ngrams), return_index=True)
        self.totals = np.add.reduceat(counted.counts, starts) if len(starts) else counted.counts
        self.freed = discount * np.diff(starts, append=len(self.ngrams))

    def interpolate(self, ngrams: Ngrams, lower: Numbers) -> Numbers:
        """Return the probability of each n-gram's last id given the ids before it.

        `lower` contains the same probabilities for the n-grams without their first id.
        """
        contexts = self._context(ngrams)
        total = _look_up(contexts, self.contexts, self.totals)
        count = _look_up(ngrams, self.ngrams, self.discounted)
        freed = _look_up(contexts, self.contexts, self.freed)
        return np.where(total > 0, (count + freed * lower) / np.maximum(total, 1), lower)

    def _context(self, ngrams: Ngrams) -> Ngrams:
        return ngrams // ngrams.dtype.type(self.V)


def ngram_loss(model: KneserNey, counted: NgramCounts, unknown: int = 0) -> float:
    """Return the mean loss of `model`, in nats per id, on a text with the n-grams `counted`.

    `unknown` is the number of characters that share the last id; they are assumed to be equally
    likely. If `counted` has no n-grams, return NaN.
    """
    nats = -np.log(model.probabilities(counted.ngrams))
    if unknown:
        last = counted.ngrams % counted.ngrams.dtype.type(counted.V)
        nats[last == counted.V - 1] += math.log(unknown)
    total = counted.counts.sum()
    return float(nats @ counted.counts / total) if total else math.nan


def _look_up(numbers: Ngrams, keys: Ngrams, values: NDArray[np.generic]) -> Numbers:
    """Return, for each of `numbers`, values[i] if it equals keys[i], or 0 if it is not a key."""
    if not len(keys):
        return np.zeros(len(numbers))
    index = np.minimum(np.searchsorted(keys, numbers), len(keys) - 1)
    return np.where(keys[index] == numbers, values[index], 0.0)
