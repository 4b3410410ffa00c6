"""The predictions that counts make after each prefix of a window.

Shapes use W ids of the window, E experts (predictors by counts), F features and V distinct ids.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import NO_ID, Floats, KneserNey
from gpt.counts.ngram_counts import NgramCounts
from gpt.counts.ngram_tree import NgramTree, TrainCounts
from gpt.counts.window import WindowCounts, window_predictions

MIN_PROBABILITY = 1e-9  # of an expert; avoids log(0) by rounding


class Experts:
    """Distributions of the next id by counts of the train split and of the window so far.

    Args:
        counts: counts of the train split.
        window_order: the longest context, in ids, of the window's counts; 0 for no such counts.
    """

    def __init__(self, counts: NgramCounts, window_order: int) -> None:
        self.counts, self.window_order = counts, window_order
        N = counts.order
        self.orders = sorted({n for n in (N, N - 3, N - 5) if n > 0} or {N})

    @cached_property
    def kneser_ney(self) -> KneserNey:
        """The counts of the train split, for whole windows."""
        return KneserNey(self.counts)

    @cached_property
    def tree(self) -> NgramTree:
        """The counts of the train split, for sampling."""
        return NgramTree(self.counts)

    @property
    def size(self) -> int:
        """E, the number of experts."""
        return len(self.orders) + self.window_order

    @property
    def names(self) -> list[str]:
        """The experts' names, such as `order 5 of the train split` (contexts of up to 5 ids)."""
        train = [f"order {n} of the train split" for n in self.orders]
        return train + [f"order {n} of the window" for n in range(1, self.window_order + 1)]

    @property
    def features(self) -> int:
        """F, the number of features: the counts of each context, and the position."""
        return self.counts.order + 2 * self.window_order + 1

    def of_window(self, ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the predictions of E experts after each prefix of a window of W `ids`.

        Returns:
            (W, E, V) log-probabilities of V ids; and (W, F) features, log(1 + count or position).
        """
        N = self.counts.order
        padded = np.concatenate([np.full(N, NO_ID), ids])
        contexts = np.zeros((len(ids), 0), np.int64)
        if N:
            contexts = np.lib.stride_tricks.sliding_window_view(padded, N)[1:]
        by_order, totals = self.kneser_ney.predict(contexts)
        by_window, window_totals = window_predictions(ids, by_order[-1], self.window_order)
        chosen = [by_order[n] for n in self.orders] + by_window
        positions = np.arange(1, len(ids) + 1)[:, None]
        features = np.log1p(np.concatenate([totals, window_totals, positions], 1))
        return log_probabilities(np.stack(chosen, 1)), features.astype(np.float32)


class ExpertState:
    """The experts' predictions for B texts, to each of which ids are appended, as in sampling.

    The distributions of `KneserNey` and `window_predictions` have the form

        P_n = p_n + share_n * P_{n-1}

    Here they are computed for all n at once, as the sum over k up to n of p_k times the product of
    the shares after k.
    """

    def __init__(self, experts: Experts, texts: Sequence[NDArray[np.integer]]) -> None:
        N, window_order = experts.counts.order, experts.window_order
        self.window = WindowCounts(texts, experts.counts.V, window_order, max(N, window_order))
        self.train = TrainCounts(experts.tree, self.window.last(N))
        self._unigrams = experts.tree.unigrams[None, None]
        self._chosen = np.array([*experts.orders, *range(N + 1, N + 1 + window_order)])
        self._is_summed = np.tri(N + 1 + window_order, dtype=np.float32)[self._chosen]

    def append(self, ids: NDArray[np.int64]) -> None:
        """Append one id to each text."""
        self.window.append(ids)
        self.train.append(ids)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts in `rows`."""
        self.window.select(rows)
        self.train.select(rows)

    def predict(self) -> tuple[Floats, Floats]:
        """Return the last rows, (B, E, V) and (B, F), of `Experts.of_window` for each text."""
        lengths = self.window.lengths[None]
        by_train, train_shares, train_totals = self.train.predict()
        by_window, window_shares, window_totals = self.window.predict()
        unigrams = self._unigrams.repeat(lengths.size, 1)
        p = np.concatenate([unigrams, by_train, by_window]).swapaxes(0, 1)  # (B, orders, V)
        shares = np.concatenate([np.ones_like(lengths), train_shares, window_shares])
        sums = np.log(shares, dtype=np.float64).cumsum(0).T  # (B, orders)
        # in logarithms, because the product of many small shares is 0 in float32
        products = np.minimum(sums.take(self._chosen, 1)[..., None] - sums[:, None], 0)
        weights = np.exp(products, dtype=np.float32) * self._is_summed  # (B, E, orders)
        features = np.concatenate([train_totals, window_totals, lengths]).T
        return log_probabilities(weights @ p), np.log1p(features, dtype=np.float32)


def log_probabilities(p: Floats) -> Floats:
    """Return log(p). Values of `p` below `MIN_PROBABILITY` are raised to it first."""
    logs: Floats = np.log(np.maximum(p, np.float32(MIN_PROBABILITY)))
    return logs
