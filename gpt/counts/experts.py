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
from gpt.counts.window import WindowCounts, smoothed_predictions, window_predictions
from gpt.counts.word_and_line import NAMES, Characters, WordAndLineCounts

MANY_IDS = 1000  # V from which fewer contexts are counted in the window: each takes O(V) time
MIN_PROBABILITY = 1e-9  # of an expert; avoids log(0) by rounding


class Experts:
    """Distributions of the next id by counts of the train split and of the window so far.

    Args:
        counts: counts of the train split.
        window_order: n, for counting the window with contexts of the last 1 to n, 2 n and 4 n ids,
            and those of `WordAndLineCounts`. If V is `MANY_IDS` or more, only contexts of 1 to n
            ids are used. If n is 0, the window is not counted.
        characters: which ids form words and lines.
    """

    def __init__(self, counts: NgramCounts, window_order: int, characters: Characters) -> None:
        self.counts, self.characters = counts, characters
        N, n = counts.order, window_order
        self.orders = sorted({n for n in (N, N - 3, N - 5) if n > 0} or {N})
        has_more = n > 0 and counts.V < MANY_IDS
        self.window_orders = (*range(1, n + 1), *((2 * n, 4 * n) if has_more else ()))
        self.other_contexts = NAMES if has_more else ()

    @cached_property
    def kneser_ney(self) -> KneserNey:
        """The counts of the train split in the form that predicts a whole window at once."""
        return KneserNey(self.counts)

    @cached_property
    def tree(self) -> NgramTree:
        """The counts of the train split in the form that predicts one id at a time."""
        return NgramTree(self.counts)

    @property
    def size(self) -> int:
        """E, the number of experts."""
        return len(self.orders) + len(self.window_orders) + len(self.other_contexts)

    @property
    def names(self) -> list[str]:
        """The experts' names, such as `order 5 of the train split` (contexts of up to 5 ids)."""
        train = [f"order {n} of the train split" for n in self.orders]
        window = [f"order {n} of the window" for n in self.window_orders]
        return [*train, *window, *self.other_contexts]

    @property
    def features(self) -> int:
        """F, the number of features of each prefix; see `of_window`."""
        of_window = len(self.window_orders) + len(self.other_contexts)
        return self.counts.order + 2 * of_window + 1

    def of_window(self, ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the predictions of E experts after each prefix of a window of W `ids`.

        Returns:
            (W, E, V) log-probabilities of V ids; and (W, F) features: log(1 + x), where x is the
            number of ids counted after a context or, in the last feature, the prefix's length.
        """
        N = self.counts.order
        padded = np.concatenate([np.full(N, NO_ID), ids])
        contexts = np.zeros((len(ids), 0), np.int64)
        if N:
            contexts = np.lib.stride_tricks.sliding_window_view(padded, N)[1:]
        by_order, totals = self.kneser_ney.predict(contexts)
        by_window, window_totals = window_predictions(ids, by_order[-1], self.window_orders)
        chosen = [by_order[n] for n in self.orders] + by_window
        all_totals = [totals, window_totals]
        for keys in self.characters.keys(ids) if self.other_contexts else ():
            contexts = np.unique(keys, return_inverse=True)[1]
            p, counted = smoothed_predictions(contexts, ids, by_order[-1])
            chosen.append(p)
            all_totals.append(counted)
        positions = np.arange(1, len(ids) + 1)[:, None]
        features = np.log1p(np.concatenate([*all_totals, positions], 1))
        return log_probabilities(np.stack(chosen, 1)), features.astype(np.float32)


class ExpertState:
    """The experts' predictions for B texts, to each of which ids are appended, as in sampling.

    The distributions of `KneserNey` and `window_predictions` have the form

        P_n = p_n + share_n * P_{n-1}

    P_0 is the distribution without context. The next P_n are for the train split's contexts, from
    short to long, then for the window's. All are computed at once: P_n is the sum of
    p_k * share_{k+1} * ... * share_n over k from 0 to n. For the contexts of `WordAndLineCounts`,
    P_{n-1} is the distribution after the longest context in the train split.
    """

    def __init__(self, experts: Experts, texts: Sequence[NDArray[np.integer]]) -> None:
        N, V, orders = experts.counts.order, experts.counts.V, experts.window_orders
        self.window = WindowCounts(texts, V, orders, max(N, *orders, 2))
        self.train = TrainCounts(experts.tree, self.window.last(N))
        self.others = WordAndLineCounts(self.window, experts.characters, experts.other_contexts)
        self._unigrams = experts.tree.unigrams[None, None]
        chain = N + 1 + len(orders)  # distributions each of which smooths the next
        size = chain + len(experts.other_contexts)
        self._chosen = np.array([*experts.orders, *range(N + 1, size)])
        is_summed = np.tri(size, dtype=np.float32)
        is_summed[chain:, N + 1 :] = np.eye(size, dtype=np.float32)[chain:, N + 1 :]
        self._is_summed, self._N = is_summed[self._chosen], N

    def append(self, ids: NDArray[np.int64]) -> None:
        """Append one id to each text."""
        self.window.append(ids)
        self.train.append(ids)
        self.others.append()

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts in `rows`."""
        self.window.select(rows)
        self.train.select(rows)
        self.others.select(rows)

    def predict(self) -> tuple[Floats, Floats]:
        """Return the last rows, (B, E, V) and (B, F), of `Experts.of_window` for each text."""
        lengths = self.window.lengths[None]
        by_train, train_shares, train_totals = self.train.predict()
        by_window, window_shares, window_totals = self.window.predict()
        by_others, other_shares, other_totals = self.others.predict()
        unigrams = self._unigrams.repeat(lengths.size, 1)
        terms = np.concatenate([unigrams, by_train, by_window, by_others])
        p = terms.swapaxes(0, 1)  # (B, distributions, V)
        shares = np.concatenate([np.ones_like(lengths), train_shares, window_shares])
        sums = np.log(shares, dtype=np.float64).cumsum(0)  # (distributions, B)
        other_sums = sums[self._N] + np.log(other_shares, dtype=np.float64)
        sums = np.concatenate([sums, other_sums]).T
        # in logarithms, because the product of many small shares is 0 in float32
        products = np.minimum(sums.take(self._chosen, 1)[..., None] - sums[:, None], 0)
        weights = np.exp(products, dtype=np.float32) * self._is_summed  # (B, E, distributions)
        features = np.concatenate([train_totals, window_totals, other_totals, lengths]).T
        return log_probabilities(weights @ p), np.log1p(features, dtype=np.float32)


def log_probabilities(p: Floats) -> Floats:
    """Return log(p). Values of `p` below `MIN_PROBABILITY` are raised to it first."""
    logs: Floats = np.log(np.maximum(p, np.float32(MIN_PROBABILITY)))
    return logs
