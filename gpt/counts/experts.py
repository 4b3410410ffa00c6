"""The predictions that counts make after each prefix of a window.

Shapes use W ids of the window, E experts (predictors by counts), F features and V distinct ids.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import NO_ID, Floats, KneserNey
from gpt.counts.ngram_counts import NgramCounts
from gpt.counts.ngram_index import NgramIndex
from gpt.counts.window import DISCOUNT, WindowCounts, window_predictions

MIN_PROBABILITY = 1e-9  # of an expert; avoids log(0) by rounding


class Experts:
    """Distributions of the next id by counts of the train split and of the window so far.

    Args:
        counts: counts of the train split.
        window_order: the longest context, in ids, of the window's counts; 0 for no such counts.
    """

    def __init__(self, counts: NgramCounts, window_order: int) -> None:
        self.counts, self.window_order = counts, window_order
        self.kneser_ney = KneserNey(counts)
        N = counts.order
        self.orders = sorted({n for n in (N, N - 3, N - 5) if n > 0} or {N})

    @cached_property
    def index(self) -> NgramIndex:
        """The counts of the train split, for sampling."""
        return NgramIndex(self.kneser_ney)

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
        return self.kneser_ney.order + 2 * self.window_order + 1

    def of_window(self, ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the predictions of E experts after each prefix of a window of W `ids`.

        Returns:
            (W, E, V) log-probabilities of V ids; and (W, F) features, log(1 + count or position).
        """
        N = self.kneser_ney.order
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

        P_n = counts_n / total_n + share_n * P_{n-1}

    and are computed for all n at once: P_n = factor_n * sum of counts_k / (total_k * factor_k) over
    k up to n, where factor_n is the product of the first n shares.
    """

    def __init__(self, experts: Experts, texts: Sequence[NDArray[np.integer]]) -> None:
        self.experts = experts
        N, V = experts.kneser_ney.order, experts.counts.V
        self.window = WindowCounts(texts, V, experts.window_order, max(N, experts.window_order))
        chosen = [*experts.orders, *range(N + 1, N + 1 + experts.window_order)]
        self._chosen = np.array(chosen, np.intp)
        self._sums = np.tri(N + 1 + experts.window_order, dtype=np.float32)[chosen]

    def predict(self) -> tuple[Floats, Floats]:
        """Return the last rows, (B, E, V) and (B, F), of `Experts.of_window` for each text."""
        window, kneser_ney = self.window, self.experts.kneser_ney
        N, B, V = kneser_ney.order, len(window.rows), kneser_ney.V
        counts = np.zeros((len(self._sums[0]), B, V), np.float32)
        totals, freed = np.empty(counts.shape[:2]), np.empty(counts.shape[:2])
        counts[0], totals[0], freed[0] = kneser_ney.unigrams, 1, 1
        totals[1 : N + 1], freed[1 : N + 1] = self.experts.index.find(
            window.last(N), counts[1 : N + 1]
        )
        of_window = window.counts()
        seen = np.minimum(of_window, 1)
        pairs = np.stack([np.add.reduce(of_window, -1), np.add.reduce(seen, -1)], 1)  # (O, 2, B)
        seen *= np.float32(DISCOUNT)
        np.subtract(of_window, seen, out=counts[N + 1 :])
        totals[N + 1 :], freed[N + 1 :] = pairs[:, 0], DISCOUNT * pairs[:, 1]
        features = np.concatenate([totals[1 : N + 1], pairs.reshape(-1, B), window.lengths[None]])

        absent = totals == 0
        totals += absent
        freed += absent
        factors = (freed / totals).cumprod(0)
        totals *= factors
        counts *= (1 / totals).astype(np.float32)[..., None]
        p = (self._sums @ counts.reshape(len(counts), -1)).reshape(-1, B, V)
        p *= factors.take(self._chosen, 0).astype(np.float32)[..., None]
        return log_probabilities(p).swapaxes(0, 1), np.log1p(features.T.astype(np.float32))


def log_probabilities(p: Floats) -> Floats:
    """Return log(p). Values of `p` below `MIN_PROBABILITY` are raised to it first."""
    logs: Floats = np.log(np.maximum(p, np.float32(MIN_PROBABILITY)))
    return logs
