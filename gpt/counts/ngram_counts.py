"""Count the n-grams of a text by sorting integers, in one pass.

N: number of ids in the longest context, V: number of distinct ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.text.vocabulary import Ids

Keys = NDArray[np.int64]
Counts = NDArray[np.int32]
MAX_KEY = 2**63 - 1
COUNTED_IDS = 2**25  # largest number of ids whose n-grams are counted; sorting takes 0.3 GB
SORTED_IDS = 2**24  # ids that are sorted at once


@dataclass(frozen=True)
class NgramCounts:
    """Counts of the n-grams in a text, for contexts of 0 to N ids.

    An n-gram is a context and the id after it. It is stored as a number in base V, whose digits are
    its ids. If the context has fewer than N ids, the count is the continuation count of Kneser-Ney
    smoothing: the number of distinct ids that precede the n-gram.
    """

    V: int
    keys: list[Keys]  # for each context length from 0 to N, the distinct n-grams in ascending order
    counts: list[Counts]  # for each context length, the count of each n-gram

    @property
    def order(self) -> int:
        """Number of ids in the longest context."""
        return len(self.keys) - 1


def longest_context(V: int) -> int:
    """Return the longest context, in ids, whose n-grams over `V` distinct ids fit into 63 bits.

    >>> longest_context(65), longest_context(7000)
    (9, 3)
    """
    n = 0
    while V ** (n + 2) <= MAX_KEY and V > 1:
        n += 1
    return n


def count_ngrams(ids: Ids, V: int, order: int) -> NgramCounts:
    """Count the n-grams of `ids` that have 0 to `order` ids of context.

    If there are more than `COUNTED_IDS` ids, only evenly spread parts are counted. N-grams with
    shorter contexts are derived from those with longer ones, so that the text is read only once.

    Args:
        ids: the text.
        V: number of distinct ids.
        order: number of ids in the longest context, reduced to `longest_context(V)` if larger.
    """
    order = min(order, longest_context(V))
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for part in _parts(len(ids), order):
        keys, counts = _merge(keys, counts, *_distinct(_ngrams(ids[part], V, order)))
    all_keys, all_counts = [keys], [counts]
    for n in range(order - 1, -1, -1):
        keys, counts = _distinct(all_keys[0] % V ** (n + 1))
        all_keys.insert(0, keys)
        all_counts.insert(0, counts)
    return NgramCounts(V, all_keys, [each.astype(np.int32) for each in all_counts])


def _parts(length: int, order: int) -> Iterator[slice]:
    """Yield slices of a text of `length` ids, to count n-grams of `order` + 1 ids.

    If the text has more than `COUNTED_IDS` ids, the slices are evenly spread parts of it, with
    about that many ids in total.
    """
    parts = -(-length // SORTED_IDS)
    for part in range(parts):
        start, end = part * length // parts, (part + 1) * length // parts
        yield slice(start, min(end, start + COUNTED_IDS // parts) + order)


def _ngrams(ids: Ids, V: int, order: int) -> Keys:
    """Return the keys of all n-grams of `ids` with `order` ids of context, in text order."""
    keys = np.zeros(max(len(ids) - order, 0), np.int64)
    for i in range(order + 1):
        keys *= V
        keys += ids[i : len(keys) + i]
    return keys


def _distinct(keys: Keys) -> tuple[Keys, NDArray[np.int64]]:
    """Sort `keys` in place; return the distinct ones in ascending order, and their counts."""
    keys.sort()
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.diff(starts, append=len(keys))


def _merge(
    keys: Keys, counts: NDArray[np.int64], new_keys: Keys, new_counts: NDArray[np.int64]
) -> tuple[Keys, NDArray[np.int64]]:
    """Merge two ascending lists of distinct n-grams, and add up their counts."""
    if not len(keys):
        return new_keys, new_counts
    merged = np.concatenate([keys, new_keys])
    order = np.argsort(merged, kind="stable")  # merges two sorted runs
    merged = merged[order]
    starts = np.flatnonzero(np.diff(merged, prepend=-1))
    return merged[starts], np.add.reduceat(np.concatenate([counts, new_counts])[order], starts)
