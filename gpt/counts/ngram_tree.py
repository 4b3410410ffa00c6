"""Counts of the train split as a tree, which updates predictions quickly as ids are appended.

B: number of texts, N: number of ids in the longest context, V: number of distinct ids. The formula
in `KneserNey` defines count, D (the discount of a count), total (the sum of the counts after a
context) and freed (the sum of their discounts).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import NO_ID, Floats, discounts_of, unigrams_of
from gpt.counts.ngram_counts import NgramCounts

Number = TypeVar("Number", bound=np.generic)

NONE = 0  # the node of contexts that do not occur; it has no children


class NgramTree:
    """A node for each n-gram of 1 to N + 1 ids; its children are the n-grams with one id appended.

    Nodes are numbered from 1 by the length of their n-grams, then in ascending order. The children
    of node i are therefore the nodes from `first_children[i]` to `first_children[i + 1]` - 1. Nodes
    of N + 1 ids have no children.
    """

    def __init__(self, counts: NgramCounts) -> None:
        self.V, self.N = counts.V, counts.order
        levels = levels_of(counts)
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
        # the node of each id, an n-gram of one id; `NONE` if it does not occur
        roots = levels[0].ids
        self.roots = np.zeros(self.V + 1, np.int64)
        self.roots[roots] = 1 + np.arange(len(roots))
        children = [level.children for level in levels[:-1]]
        sizes = np.concatenate([[0, 0], *children])  # the second is that of `NONE`
        self.first_children = 1 + len(roots) + sizes.astype(np.int64).cumsum()
        # total, and freed / total, after each node's n-gram
        self.totals = np.concatenate([[0], *totals], dtype=np.float32)
        self.shares = np.concatenate([[1], *shares], dtype=np.float32)
        # the last id of each node's n-gram, and (count - D) / total, with the total of its context
        unused = np.zeros(1 + len(roots))  # `NONE` and the roots
        ids = [level.ids for level in levels[1:]]
        self.ids = np.concatenate([unused, *ids], dtype=np.int32, casting="unsafe")
        self.probabilities = np.concatenate([unused, *probabilities], dtype=np.float32)
        self.unigrams = unigrams_of(counts)


class NgramLevel(NamedTuple):
    """The n-grams of one length, in ascending order."""

    ids: NDArray[np.int64]  # the last id of each n-gram
    counts: NDArray[np.int32]  # how often it is counted
    children: NDArray[np.int64]  # how many n-grams of one more id begin with it


def levels_of(counts: NgramCounts) -> list[NgramLevel]:
    """Return the n-grams of 1 to N + 1 ids.

    Shorter n-grams were counted as the ends of longer ones. The first context of the text ends no
    longer n-gram. If it occurs nowhere else, it is inserted with a count of 0.
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
    """Return an array of `size` with the `values` at their `places`, and `default` elsewhere."""
    spread = np.full(size, default, values.dtype)
    spread[places] = values
    return spread


class TrainCounts:
    """Counts, in the train split, of the ids that follow the last 1 to N ids of B growing texts.

    Args:
        tree: the counts of the train split.
        ids: (B, N) the last ids of each text, the newest first. Texts of fewer than N ids are
            padded with `NO_ID`.
        orders: the lengths, in ascending order, of the contexts that `predict` uses.
    """

    def __init__(self, tree: NgramTree, ids: NDArray[np.int64], orders: Sequence[int]) -> None:
        self.tree = tree
        # whether the prediction by each of `orders` uses the contexts of 1 to N ids
        self._uses = np.arange(1, tree.N + 1) <= np.array(orders)[:, None]  # (E, N)
        self._nodes: NDArray[np.int64] = np.full(
            ids.shape, NONE
        )  # column n: the node of each text's last n + 1 ids
        self._find()
        for each in ids.T[::-1]:
            self.append(np.maximum(each, 0))
        self._nodes[ids == NO_ID] = NONE
        self._find()

    def append(self, ids: NDArray[np.int64]) -> None:
        """Append `ids[b]` to each text b."""
        self._nodes[:, 1:] = self._next_nodes.take(self._cells[:, :-1] + ids[:, None])
        self._nodes[:, :1] = self.tree.roots.take(ids)[:, None]  # no column if N is 0
        self._find()

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts with the indices `rows`, in this order."""
        self._nodes = self._nodes[rows]
        self._find()

    def predict(self) -> tuple[Floats, Floats]:
        """Return the probabilities (B, E, V) by E orders, and how often contexts occur, (B, N).

        Each order is smoothed by the next lower one: p_n = term_n + share_n * p_(n - 1), where
        term = (count - D) / total, share = freed / total, and term_0 is the probability of single
        ids. So p_n is the sum of term_k * share_(k + 1) * ... * share_n over k = 0 to n, and all
        orders are one matrix product.
        """
        B, N = self._nodes.shape
        terms = np.zeros((B, N + 1, self.tree.V), np.float32)
        terms[:, 0] = self.tree.unigrams
        terms.reshape(-1)[self._found_cells] = self.tree.probabilities.take(self._found)
        shares = self.tree.shares.take(self._nodes)[:, None]  # (B, 1, N)
        factors = np.zeros((B, len(self._uses), N + 1), np.float32)
        factors[..., -1] = 1
        products = np.where(self._uses, shares, np.float32(1))[..., ::-1]
        np.multiply.accumulate(products, -1, out=factors[..., -2::-1])
        factors[..., 1:] *= self._uses
        return factors @ terms, self.tree.totals.take(self._nodes)

    def _find(self) -> None:
        """Look up the children of `_nodes`: the ids that can follow."""
        (B, N), V = self._nodes.shape, self.tree.V
        first = self.tree.first_children.take(self._nodes)
        sizes = (self.tree.first_children.take(self._nodes + 1) - first).ravel()
        self._cells = (np.arange(B)[:, None] * (N + 1) + np.arange(1, N + 1)) * V
        self._found = (first.ravel() + sizes - sizes.cumsum()).repeat(sizes)
        self._found += np.arange(len(self._found))
        self._found_cells = self._cells.ravel().repeat(sizes)
        self._found_cells += self.tree.ids.take(self._found)
        self._next_nodes = np.zeros(B * (N + 1) * V, np.int32)
        self._next_nodes[self._found_cells] = self._found
