"""Tree of the n-grams of the train split, for texts that grow by one id at a time (sampling).

N: number of ids in the longest context, V: number of distinct ids. As in `KneserNey`, D is the
discount of a count. After a context, total is the sum of the counts, and freed is the sum of the
discounts.
"""

from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import discounts_of, unigrams_of
from gpt.counts.ngram_counts import NgramCounts

Number = TypeVar("Number", bound=np.generic)

NONE = 0  # the node of contexts that do not occur; it has no children


class NgramTree:
    """Tree of n-grams.

    Each node is an n-gram. Its children are the n-grams that have one more id at the end. There is
    a node for each of the V ids, and for each n-gram of 2 to N + 1 ids that `levels_of` returns.

    Shorter n-grams have smaller node numbers, and n-grams of one length are in ascending order. The
    n-gram of a single id, k, is node 1 + k. Row i of `children` contains the number of the first
    child of node i, and the number of its children. Nodes of N + 1 ids have no children and no row.
    """

    def __init__(self, counts: NgramCounts) -> None:
        self.V, self.N = counts.V, counts.order
        levels = levels_of(counts)
        roots = levels[0]
        children = _spread(roots.children, roots.ids, self.V, 0)  # also of ids that do not occur
        levels[0] = NgramLevel(np.arange(self.V), roots.counts, children)
        probabilities, totals, shares = [], [], []
        for level, longer in pairwise(levels):
            parents = np.flatnonzero(level.children)
            sizes = level.children[parents]
            starts = sizes.cumsum() - sizes
            discounts = discounts_of(longer.counts).astype(np.float32)
            total = np.add.reduceat(longer.counts, starts, dtype=np.int32)
            divisor = np.maximum(total, 1).astype(np.float32)
            share = np.where(total > 0, np.add.reduceat(discounts, starts) / divisor, 1)
            probabilities.append((longer.counts - discounts) / divisor.repeat(sizes))
            totals.append(_spread(total, parents, len(level.ids), 0))
            shares.append(_spread(share, parents, len(level.ids), 1))
        sizes = np.concatenate([[0], *(level.children for level in levels[:-1])], dtype=np.int64)
        self.children = np.stack([1 + self.V + sizes.cumsum() - sizes, sizes], 1).astype(np.int32)
        # total, and freed / total, after each node's n-gram
        self.totals = np.concatenate([[0], *totals], dtype=np.float32)
        self.shares = np.concatenate([[1], *shares], dtype=np.float32)
        # the last id of each node's n-gram, and (count - D) / total, with the total of its context;
        # for an n-gram of one id, its whole probability
        ids = [level.ids for level in levels]
        self.ids = np.concatenate([[0], *ids], dtype=np.int32, casting="unsafe")
        probabilities = [unigrams_of(counts), *probabilities]
        self.probabilities = np.concatenate([[0], *probabilities], dtype=np.float32)


class NgramLevel(NamedTuple):
    """The n-grams of one length, in ascending order."""

    ids: NDArray[np.int64]  # the last id of each n-gram
    counts: NDArray[np.int32]  # how often it is counted
    children: NDArray[np.int64]  # how many n-grams of one more id begin with it


def levels_of(counts: NgramCounts) -> list[NgramLevel]:
    """Return the n-grams of each length, from one id to the longest n-grams of `counts`.

    `counts` contains a shorter n-gram only if a longer one ends with it. An n-gram at the beginning
    of the text can therefore be missing; it is inserted with a count of 0.
    """
    V, levels = counts.V, list[NgramLevel]()
    keys, times = counts.keys[-1], counts.counts[-1]
    children = np.zeros(len(keys), np.int64)
    for n in range(counts.order - 1, -1, -1):
        contexts = keys // V
        levels.append(NgramLevel(keys - contexts * V, times, children))
        starts = np.flatnonzero(contexts != np.concatenate([[-1], contexts[:-1]]))
        sizes = np.diff(starts, append=len(keys))
        keys, times, contexts = counts.keys[n], counts.counts[n], contexts[starts]
        nodes = keys.searchsorted(contexts)
        missing = keys.take(nodes, mode="clip") != contexts
        if missing.any():
            keys = np.insert(keys, nodes[missing], contexts[missing])
            times = np.insert(times, nodes[missing], 0)
            nodes += missing.cumsum() - missing
        children = _spread(sizes, nodes, len(keys), 0)
    return [NgramLevel(keys, times, children), *levels[::-1]]


def _spread(
    values: NDArray[Number], places: NDArray[np.int64], size: int, default: float
) -> NDArray[Number]:
    """Return an array of length `size`: `values` at the indices `places`, else `default`."""
    spread = np.full(size, default, values.dtype)
    spread[places] = values
    return spread
