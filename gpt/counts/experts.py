"""The predictions that counts make after each prefix of a window.

Shapes use W ids of the window, E experts (predictors by counts), F features and V distinct ids.
"""

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import NO_ID, Floats, KneserNey
from gpt.counts.ngram_counts import NgramCounts
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
        self.kneser_ney = KneserNey(counts)
        N = counts.order
        self.orders = sorted({n for n in (N, N - 3, N - 5) if n > 0} or {N})

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
    """The experts' predictions for a text to which ids are appended one by one, as in sampling."""

    def __init__(self, experts: Experts) -> None:
        self.experts, self.window = experts, WindowCounts(experts.window_order)

    @property
    def ids(self) -> list[int]:
        """The ids of the text so far."""
        return self.window.ids

    def append(self, id_: int) -> None:
        """Append the next id of the text."""
        self.window.append(id_)

    def predict(self) -> tuple[Floats, Floats]:
        """Return the last rows, (E, V) and (F,), of what `Experts.of_window` returns for `ids`."""
        kneser_ney, ids = self.experts.kneser_ney, self.window.ids
        by_order, totals = kneser_ney.predict_one(ids[-kneser_ney.order :])
        by_window, window_totals = self.window.predict(by_order[-1])
        chosen = [by_order[n] for n in self.experts.orders] + by_window
        features = np.log1p(np.array([*totals, *window_totals, len(ids)], np.float32))
        return log_probabilities(np.stack(chosen)), features


def log_probabilities(p: Floats) -> Floats:
    """Return log(p). Values of `p` below `MIN_PROBABILITY` are raised to it first."""
    logs: Floats = np.log(np.maximum(p, np.float32(MIN_PROBABILITY)))
    return logs
