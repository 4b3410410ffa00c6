"""Mix the network's predictions with those of n-gram counts, to sample texts.

Shapes: B texts, E experts (each predicts by n-gram counts of the train split), F features, V
vocabulary size. The longest counted context has N ids.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt.counts.experts import log_probabilities
from gpt.counts.kneser_ney import Floats
from gpt.counts.mixture import Mixture
from gpt.counts.ngram_tree import NONE


class CountedTexts:
    """Predictor that uses n-gram counts of the train split. Its B texts grow by one id at a time.

    Evaluation also uses counts of the window and of long contexts, and `model.windows.Switch`.
    Sampling does not: see `Mixture.for_sampling`.
    """

    def __init__(self, mixture: Mixture, prompts: Sequence[list[int]]) -> None:
        self.mixture = mixture.for_sampling()
        experts = self.mixture.experts
        self.tree, N = experts.tree, experts.counts.order
        # (E, N + 2) whether each expert uses contexts of 0 to N + 1 ids
        self.uses = np.arange(N + 2) <= np.array(experts.orders)[:, None]
        self.lengths = np.zeros(0, np.int64)
        self._set_nodes(np.zeros((0, N + 1), np.int64))
        self.add(prompts)

    def add(self, prompts: Sequence[list[int]]) -> None:
        """Add a text for each of `prompts`, which are lists of ids."""
        lengths, nodes, N = self.lengths, self._nodes, self.tree.N
        added = np.array([len(prompt) for prompt in prompts], np.int64)
        self._set_nodes(np.full((len(prompts), N + 1), NONE))
        # pad prompts of fewer than N ids, and discard the nodes of contexts with padding afterwards
        last = [([0] * N + prompt)[len(prompt) :] for prompt in prompts]
        for ids in zip(*last, strict=True):
            self.append(np.array(ids))
        found = np.where(np.arange(N + 1) < added[:, None], self._nodes, NONE)
        self.lengths = np.concatenate([lengths, added])
        self._set_nodes(np.concatenate([nodes, found]))

    def mix(self, network: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mix the log-probabilities `network` (B, V) with the predictions of n-gram counts."""
        mixed = self.mixture.mix(*self.predict(), network.astype(np.float32))
        return mixed.astype(np.float64)

    def predict(self) -> tuple[Floats, Floats]:
        """Return the experts' log-probabilities (B, E, V) of the next ids, and features (B, F).

        For n from 1 to N, feature n is log(1 + the number of ids counted after the last n ids). The
        last feature is log(1 + the length of the text, at most `mixture.T`). For texts that are not
        longer than `mixture.T`, the results equal the last rows of `Experts.of_window`.
        """
        # The formula in `KneserNey` is P_n = term_n + share_n * P_{n-1}, with term = (count - D) /
        # total and share = freed / total. If term_0 has the probabilities of single ids, P_n is the
        # sum of term_k * share_{k+1} * ... * share_n over k = 0 to n.
        shares = self.tree.shares.take(self._nodes)[:, None]  # (B, 1, N + 1); the last is 1
        factors = np.where(self.uses[:, 1:], shares, 1)[..., ::-1]
        factors = np.multiply.accumulate(factors, -1)[..., ::-1] * self.uses[:, :-1]
        totals = self.tree.totals.take(self._nodes)
        totals[:, -1] = np.minimum(self.lengths, self.mixture.T)
        return log_probabilities(factors @ self._terms), np.log1p(totals)

    def append(self, ids: NDArray[np.int64]) -> None:
        """Append one id to each text."""
        self.lengths = self.lengths + 1
        self._nodes[:, :-1] = self._children.take(self._cells[:, :-1] + ids[:, None])
        self._find_children()

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts with the indices `rows`, in this order."""
        self.lengths = self.lengths[rows]
        self._set_nodes(self._nodes[rows])

    def _set_nodes(self, nodes: NDArray[np.int64]) -> None:
        """Set the current nodes of all texts in the tree of n-gram counts.

        For n from 1 to N, column n - 1 of `nodes` (B, N + 1) has the nodes of the last n ids. The
        last column is `NONE`.
        """
        (B, columns), V = nodes.shape, self.tree.V
        self._nodes = nodes
        # the nodes of the last 0 to N ids with each id appended; `NONE` if they do not occur
        self._children = np.full((B, columns, V), NONE, np.int32)
        self._children[:, 0] = 1 + np.arange(V)
        # (count - D) / total of each of `_children`; after 0 ids, its whole probability
        self._terms = np.zeros((B, columns, V), np.float32)
        self._terms[:, 0] = self.tree.probabilities[1 : 1 + V]
        # indices in the flattened `_children`: of id 0 after the last 0 to N ids, and after `nodes`
        self._cells = np.arange(0, B * columns * V, V).reshape(B, columns)
        self._next_cells = self._cells.ravel() + V
        self._find_children()

    def _find_children(self) -> None:
        """Update `_children` and `_terms` for the current nodes of the texts."""
        first, sizes = self.tree.children.take(self._nodes.ravel(), 0).T
        found = (first + sizes - sizes.cumsum()).repeat(sizes)
        found += np.arange(len(found))  # the children of all nodes
        cells = self._next_cells.repeat(sizes)
        cells += self.tree.ids.take(found)  # their indices in the flattened arrays
        self._children[:, 1:] = NONE
        self._children.reshape(-1)[cells] = found
        self._terms[:, 1:] = 0
        self._terms.reshape(-1)[cells] = self.tree.probabilities.take(found)
