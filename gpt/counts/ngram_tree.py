"""Counts of the train split as a tree, in which texts are followed id by id while they grow.

B: number of texts, N: number of ids in the longest context, V: number of distinct ids.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import NO_ID, Floats, KneserNey

NONE = 0  # the node of contexts that do not occur; it has no children


class NgramTree:
    """All n-grams of 1 to N + 1 ids. The children of a node continue its n-gram by one id.

    Nodes are numbered by the length of the n-gram, then in ascending order. The children of a node
    are therefore adjacent, and follow the children of the node before it.

    Attributes:
        roots: (V + 1,) the node of each id alone; `NONE` for ids that do not occur.
        first_children: first child of each node that has up to N ids, and the end of the last.
        totals: sum of the counts of each node's children.
        shares: share of the probability after each node that goes to the context of one id less.
        ids: the last id of each node.
        probabilities: probability of each node's last id after the ids before it; other ids share
            what is left.
    """

    def __init__(self, model: KneserNey) -> None:
        V, keys, discounted = model.V, model.keys[-1], model.discounted[-1]
        sums = np.stack([model.totals[-1], model.freed[-1]])  # cumulative, from 0
        ids, probabilities, children, totals, shares = [], [], [], [], []
        for n in range(model.order - 1, -1, -1):
            contexts = keys // V
            starts = np.flatnonzero(np.diff(contexts, prepend=-1))
            sizes = np.diff(starts, append=len(keys))
            total, freed = np.diff(sums[:, np.append(starts, len(keys))])
            ids.append(keys - contexts * V)
            probabilities.append(discounted / np.maximum(total, 1).repeat(sizes))

            # the first ids of a text are no end of a longer n-gram, so their node can be missing
            contexts = contexts[starts]
            nodes = model.keys[n].searchsorted(contexts)
            missing = model.keys[n].take(nodes, mode="clip") != contexts
            new = nodes[missing]
            keys = np.insert(model.keys[n], new, contexts[missing])
            discounted = np.insert(model.discounted[n], new, 0)
            sums = np.stack([model.totals[n], model.freed[n]])
            sums = np.insert(sums, new, sums[:, new], 1)
            nodes += missing.cumsum() - missing

            children.append(_spread(sizes, nodes, len(keys), 0))
            totals.append(_spread(total, nodes, len(keys), 0))
            share = np.where(total > 0, freed / np.maximum(total, 1), 1)
            shares.append(_spread(share, nodes, len(keys), 1))
        self.V, self.N = V, model.order
        self.roots = np.zeros(V + 1, np.int64)
        self.roots[keys] = 1 + np.arange(len(keys))
        sizes = np.concatenate([[0, 0], *children[::-1]])  # before `NONE`, and of `NONE`
        self.first_children = 1 + len(keys) + sizes.astype(np.int64).cumsum()
        self.totals = np.concatenate([[0], *totals[::-1]]).astype(np.float32)
        self.shares = np.concatenate([[1], *shares[::-1]]).astype(np.float32)
        unused = np.zeros(1 + len(keys))  # `NONE` and the roots
        self.ids = np.concatenate([unused, *ids[::-1]]).astype(np.int32)
        self.probabilities = np.concatenate([unused, *probabilities[::-1]]).astype(np.float32)


def _spread(
    values: NDArray[np.generic], places: NDArray[np.int64], size: int, default: float
) -> NDArray[np.generic]:
    """Return an array of `size` with the `values` at their `places`, and `default` elsewhere."""
    spread = np.full(size, default, values.dtype)
    spread[places] = values
    return spread


class TrainCounts:
    """Counts of the train split after the last 1 to N ids of B texts, to which ids are appended.

    Args:
        tree: the counts of the train split.
        ids: (N, B) the last ids of each text, the newest first. `NO_ID` marks places before it.
    """

    def __init__(self, tree: NgramTree, ids: NDArray[np.int64]) -> None:
        self.tree = tree
        self._nodes = np.full(ids.shape, NONE)  # of the last 1 to N ids of each text
        self._find()
        for each in ids[::-1]:
            self.append(np.maximum(each, 0))
        self._nodes[ids == NO_ID] = NONE
        self._find()

    def append(self, ids: NDArray[np.int64]) -> None:
        """Append one id to each text."""
        self._nodes[1:] = self._next_nodes.take(self._cells[:-1] + ids)
        self._nodes[:1] = self.tree.roots.take(ids)
        self._find()

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts in `rows`."""
        self._nodes = self._nodes[:, rows]
        self._find()

    def predict(self) -> tuple[Floats, Floats, Floats]:
        """Return what `KneserNey` knows of the next id after the last 1 to N ids of each text.

        Returns:
            (N, B, V) probabilities; (N, B) the share that is left for the context of one id less;
            and (N, B) the total counts.
        """
        p = np.zeros((*self._nodes.shape, self.tree.V), np.float32)
        p.reshape(-1)[self._found_cells] = self.tree.probabilities.take(self._found)
        return p, self.tree.shares.take(self._nodes), self.tree.totals.take(self._nodes)

    def _find(self) -> None:
        """Find the next nodes: all children of the nodes."""
        first = self.tree.first_children.take(self._nodes)
        sizes = (self.tree.first_children.take(self._nodes + 1) - first).ravel()
        cells = np.arange(0, sizes.size * self.tree.V, self.tree.V)
        self._cells = cells.reshape(first.shape)
        end = sizes.cumsum()
        self._found = (first.ravel() + sizes - end).repeat(sizes)
        self._found += np.arange(len(self._found))
        self._found_cells = cells.repeat(sizes)
        self._found_cells += self.tree.ids.take(self._found)
        self._next_nodes = np.zeros(sizes.size * self.tree.V, np.int32)
        self._next_nodes[self._found_cells] = self._found
