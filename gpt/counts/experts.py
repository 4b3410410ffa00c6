"""The predictions that counts make after each prefix of a window.

W: ids of the window, E: experts (distributions by counts), F: features, V: number of distinct ids.
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
        window_order: longest context in ids whose window counts are used; 0 for none.
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
        """The name of each expert in plain words; order n has contexts of up to n ids."""
        train = [f"order {n} of the train split" for n in self.orders]
        return train + [f"order {n} of the window" for n in range(1, self.window_order + 1)]

    @property
    def features(self) -> int:
        """F: the total of each context, the distinct ids of those of the window, the position."""
        return self.kneser_ney.order + 2 * self.window_order + 1

    def of_window(self, ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the predictions after each prefix of a window of W `ids`.

        Returns:
            Log-probabilities (W, E, V); and features (W, F), which say how much the counts know.
        """
        N = self.kneser_ney.order
        padded = np.concatenate([np.full(N, NO_ID), ids])
        contexts = np.lib.stride_tricks.sliding_window_view(padded, N)[1:] if N else ids[:, :0]
        by_order, totals = self.kneser_ney.predict(contexts)
        by_window, window_totals = window_predictions(ids, by_order[-1], self.window_order)
        chosen = [by_order[n] for n in self.orders] + by_window
        positions = np.arange(1, len(ids) + 1)[:, None]
        features = np.log1p(np.concatenate([totals, window_totals, positions], 1))
        return log_probabilities(np.stack(chosen, 1)), features.astype(np.float32)


class ExpertState:
    """The experts of one text that grows by one id after another, as in sampling."""

    def __init__(self, experts: Experts) -> None:
        self.experts, self.window = experts, WindowCounts(experts.window_order)

    @property
    def ids(self) -> list[int]:
        """The ids so far."""
        return self.window.ids

    def append(self, id_: int) -> None:
        """Add the next id."""
        self.window.append(id_)

    def predict(self) -> tuple[Floats, Floats]:
        """Return log-probabilities (E, V) and features (F,), as `Experts.of_window` does."""
        kneser_ney, ids = self.experts.kneser_ney, self.window.ids
        by_order, totals = kneser_ney.predict_one(ids[-kneser_ney.order :])
        by_window, window_totals = self.window.predict(by_order[-1])
        chosen = [by_order[n] for n in self.experts.orders] + by_window
        features = np.log1p(np.array([*totals, *window_totals, len(ids)], np.float32))
        return log_probabilities(np.stack(chosen)), features


def log_probabilities(p: Floats) -> Floats:
    """Return log(p), of at least `MIN_PROBABILITY`."""
    logs: Floats = np.log(np.maximum(p, np.float32(MIN_PROBABILITY)))
    return logs
