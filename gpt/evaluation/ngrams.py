"""N-gram models of a text: what a model with only n - 1 ids of context can predict.

An n-gram is held as one number, its ids as digits in base V, the last id the lowest digit. So any V
will do, and counting is sorting.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation.spread import spread_slices
from gpt.text.vocabulary import Ids

Ngrams = NDArray[np.unsignedinteger]
Numbers = NDArray[np.float64]
COUNTED_IDS = 2**25  # of a split, at most
USUAL_DISCOUNT = 0.5  # where too few n-grams occur once or twice to estimate it


@dataclass(frozen=True)
class NgramCounts:
    """The distinct n-grams of a text over V ids, ascending, and how often each occurs."""

    n: int
    V: int
    ngrams: Ngrams
    counts: NDArray[np.int64]


def count_ngrams(parts: Iterable[Ids], n: int, V: int) -> NgramCounts:
    """Count the n-grams in each part of a text; none is counted across two parts.

    Sorts a part at a time, so it takes the memory of a part and of the distinct n-grams.
    """
    dtype = np.min_scalar_type(V**n - 1)
    ngrams, counts = np.zeros(0, dtype), np.zeros(0, np.int64)
    for part in parts:
        numbers = np.zeros(max(len(part) - n + 1, 0), dtype)
        for i in range(n):
            numbers *= dtype.type(V)
            numbers += part[i : len(numbers) + i]
        ngrams, counts = _merged(ngrams, counts, *np.unique(numbers, return_counts=True))
    return NgramCounts(n, V, ngrams, counts)


def sampled_ngrams(ids: Ids, n: int, V: int) -> NgramCounts:
    """Count the n-grams that begin in at most COUNTED_IDS of these ids, evenly spread."""
    parts = spread_slices(len(ids), COUNTED_IDS)
    return count_ngrams((ids[part.start : part.stop + n - 1] for part in parts), n, V)


class KneserNey:
    """Interpolated Kneser-Ney smoothing: P(id | the n - 1 ids before it).

    Chen and Goodman 1998, "An empirical study of smoothing techniques for language modeling"
    (TR-10-98), sections 2.6 and 2.7: an absolute discount D = n1 / (n1 + 2 n2) for each order, n1
    and n2 being how many n-grams occur once and twice; what it frees goes to the next lower order,
    whose counts are of the distinct ids before each of its n-grams. Below the unigrams every id has
    the probability 1 / V, so none is impossible.
    """

    def __init__(self, counts: NgramCounts) -> None:
        self.V, self._orders = counts.V, [_Order(counts)]
        for n in range(counts.n - 1, 0, -1):
            shorter = self._orders[0].ngrams % counts.ngrams.dtype.type(self.V**n)
            distinct = NgramCounts(n, self.V, *np.unique(shorter, return_counts=True))
            self._orders.insert(0, _Order(distinct))

    def probabilities(self, ngrams: Ngrams) -> Numbers:
        """P(last id | the others) of each n-gram."""
        *lower, highest = self._orders
        p = np.full(len(ngrams), 1 / self.V)
        for order in lower:
            p = order.interpolated(ngrams % ngrams.dtype.type(self.V**order.n), p)
        return highest.interpolated(ngrams, p)


class _Order:
    """The discounted counts of one order, and of each context what remains for the next lower."""

    def __init__(self, counted: NgramCounts) -> None:
        self.n, self.V, self.ngrams = counted.n, counted.V, counted.ngrams
        once, twice = (np.count_nonzero(counted.counts == times) for times in (1, 2))
        discount = once / (once + 2 * twice) if once and twice else USUAL_DISCOUNT
        self.discounted = counted.counts - discount
        self.contexts, starts = np.unique(self._context(self.ngrams), return_index=True)
        self.totals = np.add.reduceat(counted.counts, starts) if len(starts) else counted.counts
        self.freed = discount * np.diff(starts, append=len(self.ngrams))

    def interpolated(self, ngrams: Ngrams, lower: Numbers) -> Numbers:
        """P of these n-grams, given P of what is left without their first id."""
        contexts = self._context(ngrams)
        total = _looked_up(contexts, self.contexts, self.totals)
        count = _looked_up(ngrams, self.ngrams, self.discounted)
        freed = _looked_up(contexts, self.contexts, self.freed)
        return np.where(total > 0, (count + freed * lower) / np.maximum(total, 1), lower)

    def _context(self, ngrams: Ngrams) -> Ngrams:
        return ngrams // ngrams.dtype.type(self.V)


def ngram_loss(model: KneserNey, counted: NgramCounts, unknown: int = 0) -> float:
    """Mean nats per id of a text, each predicted from the n - 1 before it; NaN for no n-gram.

    unknown: how many characters share the last id, if they do; each is as likely as the others.
    """
    nats = -np.log(model.probabilities(counted.ngrams))
    if unknown:
        last = counted.ngrams % counted.ngrams.dtype.type(counted.V)
        nats[last == counted.V - 1] += math.log(unknown)
    total = counted.counts.sum()
    return float(nats @ counted.counts / total) if total else math.nan


def _merged(
    ngrams: Ngrams, counts: NDArray[np.int64], more: Ngrams, their_counts: NDArray[np.int64]
) -> tuple[Ngrams, NDArray[np.int64]]:
    """Two ascending lists of n-grams as one, the counts of those in both added."""
    if not len(ngrams):
        return more, their_counts
    found = np.searchsorted(ngrams, more)
    known = ngrams[np.minimum(found, len(ngrams) - 1)] == more
    counts[found[known]] += their_counts[known]
    new = ~known
    return (
        np.insert(ngrams, found[new], more[new]),
        np.insert(counts, found[new], their_counts[new]),
    )


def _looked_up(numbers: Ngrams, keys: Ngrams, values: NDArray[np.generic]) -> Numbers:
    """The value of each number, by ascending keys; 0 for a number that is none."""
    if not len(keys):
        return np.zeros(len(numbers))
    index = np.minimum(np.searchsorted(keys, numbers), len(keys) - 1)
    return np.where(keys[index] == numbers, values[index], 0.0)
