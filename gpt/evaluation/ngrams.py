"""N-gram models with Kneser-Ney smoothing: the loss that n - 1 ids of context allow.

An n-gram is stored as one integer: its ids are the digits in base V, the last id the lowest digit.
Counting n-grams is therefore sorting integers, for a vocabulary of any size V.
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
MAX_COUNTED_IDS = 2**25  # ids of a split whose n-grams are counted
DEFAULT_DISCOUNT = 0.5  # used if no n-gram occurs once, or none twice


@dataclass(frozen=True)
class NgramCounts:
    """The distinct n-grams of a text over V ids in ascending order, and their counts."""

    n: int
    V: int
    ngrams: Ngrams
    counts: NDArray[np.int64]


def count_ngrams(parts: Iterable[Ids], n: int, V: int) -> NgramCounts:
    """Count the n-grams within each of the `parts` of a text over `V` ids.

    One part is sorted at a time. Memory is needed for a part and for the distinct n-grams.
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
    """Count the n-grams of `ids`, of which at most MAX_COUNTED_IDS, evenly spread, are used."""
    parts = spread_slices(len(ids), MAX_COUNTED_IDS)
    return count_ngrams((ids[part.start : part.stop + n - 1] for part in parts), n, V)


class KneserNey:
    """Interpolated Kneser-Ney smoothing: P(id | the n - 1 ids before it).

    Chen and Goodman 1998, "An empirical study of smoothing techniques for language modeling"
    (TR-10-98), sections 2.6 and 2.7. Each order subtracts the discount D = n1 / (n1 + 2 n2) from
    its counts, where n1 and n2 n-grams occur once and twice. The freed probability is given to the
    next lower order, which counts the distinct ids before each of its n-grams. Below the unigrams
    every id has the probability 1 / V, so none is impossible.
    """

    def __init__(self, counts: NgramCounts) -> None:
        self.V, self._orders = counts.V, [_Order(counts)]
        for n in range(counts.n - 1, 0, -1):
            shorter = self._orders[0].ngrams % counts.ngrams.dtype.type(self.V**n)
            distinct = NgramCounts(n, self.V, *np.unique(shorter, return_counts=True))
            self._orders.insert(0, _Order(distinct))

    def probabilities(self, ngrams: Ngrams) -> Numbers:
        """Return P(last id | the others) of each n-gram."""
        p = np.full(len(ngrams), 1 / self.V)
        for order in self._orders[:-1]:
            p = order.interpolate(ngrams % ngrams.dtype.type(self.V**order.n), p)
        return self._orders[-1].interpolate(ngrams, p)


class _Order:
    """The discounted counts of the n-grams of one order, and the freed counts of each context."""

    def __init__(self, counted: NgramCounts) -> None:
        self.n, self.V, self.ngrams = counted.n, counted.V, counted.ngrams
        once, twice = (np.count_nonzero(counted.counts == times) for times in (1, 2))
        discount = once / (once + 2 * twice) if once and twice else DEFAULT_DISCOUNT
        self.discounted = counted.counts - discount
        self.contexts, starts = np.unique(self._context(self.ngrams), return_index=True)
        self.totals = np.add.reduceat(counted.counts, starts) if len(starts) else counted.counts
        self.freed = discount * np.diff(starts, append=len(self.ngrams))

    def interpolate(self, ngrams: Ngrams, lower: Numbers) -> Numbers:
        """Return P of each n-gram, given `lower`: P of the n-gram without its first id."""
        contexts = self._context(ngrams)
        total = _look_up(contexts, self.contexts, self.totals)
        count = _look_up(ngrams, self.ngrams, self.discounted)
        freed = _look_up(contexts, self.contexts, self.freed)
        return np.where(total > 0, (count + freed * lower) / np.maximum(total, 1), lower)

    def _context(self, ngrams: Ngrams) -> Ngrams:
        return ngrams // ngrams.dtype.type(self.V)


def ngram_loss(model: KneserNey, counted: NgramCounts, unknown: int = 0) -> float:
    """Return the mean nats per id of a text, given its n-gram counts; NaN without n-grams.

    `unknown` is the number of characters that share the last id; all are equally likely.
    """
    nats = -np.log(model.probabilities(counted.ngrams))
    if unknown:
        last = counted.ngrams % counted.ngrams.dtype.type(counted.V)
        nats[last == counted.V - 1] += math.log(unknown)
    total = counted.counts.sum()
    return float(nats @ counted.counts / total) if total else math.nan


def _look_up(numbers: Ngrams, keys: Ngrams, values: NDArray[np.generic]) -> Numbers:
    """Return the value of each number, given ascending `keys`; 0 if it is not among them."""
    if not len(keys):
        return np.zeros(len(numbers))
    index = np.minimum(np.searchsorted(keys, numbers), len(keys) - 1)
    return np.where(keys[index] == numbers, values[index], 0.0)
