"""Experts: predictors of the next id by n-gram counts, each with one kind of context.

Each position of a window also has F features of the form log(1 + x). In the first N features, x is
the number of ids that were counted in the train split after a context of 1, 2, ... N ids. Each
other context has two features: one for the number of ids that were counted after it, and one for
the number of distinct ids. In the last feature, x is the number of ids in the window so far.

W: ids in a window, E: experts, V: distinct ids, N: ids in the longest n-gram context.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import NO_ID, Floats, KneserNey
from gpt.counts.long_contexts import LongContexts, index_contexts
from gpt.counts.ngram_counts import NgramCounts, count_ngrams
from gpt.counts.ngram_tree import NgramTree
from gpt.counts.window import NAMES, Characters, CountsSoFar, numbered_contexts
from gpt.text.vocabulary import Ids

MANY_IDS = 1000  # V from which fewer kinds of contexts are used: each takes O(V) time
BLOCK_NUMBERS = 2**20  # log-probabilities that are computed at once: 4 MB fit into a cache
MIN_PROBABILITY = 1e-9  # smallest prediction of an expert; avoids log(0)


class Experts:
    """Predictors of the next id by counts of the train split and of the window so far.

    Args:
        counts: n-gram counts of the train split.
        long_contexts: index of longer contexts in the train split; None to use no long contexts.
        window_order: contexts of 1 to `window_order` ids are counted in the window; 0 counts none.
            If it is above 0 and there are fewer than `MANY_IDS` distinct ids, four more are counted
            there: contexts of 2 and 4 times `window_order` ids, and the two of `Characters`.
        characters: which ids form words and lines.
    """

    def __init__(
        self,
        counts: NgramCounts,
        long_contexts: LongContexts | None,
        window_order: int,
        characters: Characters,
    ) -> None:
        self.counts, self.characters, self.long_contexts = counts, characters, long_contexts
        N, n = counts.order, window_order
        self.orders = sorted({n for n in (N, N - 3, N - 5) if n > 0} or {N})
        self.long_orders = long_contexts.orders if long_contexts is not None else ()
        has_more = n > 0 and counts.V < MANY_IDS
        self.window_orders = (*range(1, n + 1), *((2 * n, 4 * n) if has_more else ()))
        self.other_contexts = NAMES if has_more else ()

    @classmethod
    def of(
        cls, train: Ids, V: int, order: int, window_order: int, characters: Characters
    ) -> "Experts":
        """Count the n-grams of the train split, and return experts that use these counts.

        Args:
            train: the ids of the train split.
            V: number of distinct ids.
            order: number of ids in the longest context, reduced to `longest_context(V)` if larger.
            window_order: as for `Experts`.
            characters: which ids form words and lines.
        """
        counts = count_ngrams(train, V, order)
        orders = long_orders(counts.order, V)
        places = index_contexts(train, V, orders) if orders else None
        return cls(counts, places, window_order, characters)

    @cached_property
    def kneser_ney(self) -> KneserNey:
        """Smoothed counts of the train split, which predict all ids of a window at once."""
        return KneserNey(self.counts)

    @cached_property
    def tree(self) -> NgramTree:
        """Tree of the n-gram counts of the train split, for sampling one id at a time."""
        return NgramTree(self.counts)

    @cached_property
    def of_train(self) -> "Experts":
        """Experts for sampling: those that use n-gram counts of the train split."""
        return Experts(self.counts, None, 0, self.characters)

    @property
    def size(self) -> int:
        """Number of experts."""
        return len(self.names)

    @property
    def names(self) -> list[str]:
        """Names of the experts. An expert of order 5 uses contexts of up to 5 ids."""
        train = [f"order {n} of the train split" for n in (*self.orders, *self.long_orders)]
        window = [f"order {n} of the window" for n in self.window_orders]
        return [*train, *window, *self.other_contexts]

    @property
    def features(self) -> int:
        """Number of features F."""
        others = len(self.long_orders) + len(self.window_orders) + len(self.other_contexts)
        return self.counts.order + 2 * others + 1

    def of_window(self, ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return log-probabilities (W, E, V) of the id after each of W `ids`, and features (W, F).

        E experts predict which of V ids is next. The F features depend on how often the
        contexts were counted.
        """
        log_p, features = zip(*self.blocks(ids), strict=True)
        return np.concatenate(log_p), np.concatenate(features)

    @property
    def block_size(self) -> int:
        """Number of positions in each block that `blocks` yields."""
        return max(1, BLOCK_NUMBERS // (self.size * self.counts.V))

    def blocks(
        self, ids: NDArray[np.int64], start: int = 0, every: int = 1
    ) -> Iterator[tuple[Floats, Floats]]:
        """Yield the results of `of_window` in blocks of `block_size` positions.

        Args:
            ids: the ids of a window.
            start: index in `ids` of the first position to yield.
            every: yield the first of every `every` blocks, and skip the others.
        """
        N, W = self.counts.order, len(ids)
        padded = np.concatenate([np.full(N, NO_ID), ids])
        contexts = np.zeros((W, 0), np.int64)
        if N:
            contexts = np.lib.stride_tricks.sliding_window_view(padded, N)[1:]
        by_ids = [CountsSoFar(each, ids) for each in numbered_contexts(ids, self.window_orders)]
        keys = self.characters.keys(ids) if self.other_contexts else ()
        others = [CountsSoFar(np.unique(each, return_inverse=True)[1], ids) for each in keys]
        for first in range(start, W, every * self.block_size):
            rows = slice(first, min(first + self.block_size, W))
            by_order, totals = self.kneser_ney.predict(contexts[rows])
            chosen = [by_order[n] for n in self.orders]
            all_totals: list[NDArray[np.number]] = [totals]
            if self.long_contexts is not None:
                predictions, long_totals = self.long_contexts.predict(ids, rows, by_order[-1])
                chosen += predictions
                all_totals.append(long_totals)
            lower = by_order[-1]
            for each in by_ids:
                lower = each.smooth(lower, first)
                chosen.append(lower)
            chosen += [each.smooth(by_order[-1], first) for each in others]
            all_totals += [each.totals[rows] for each in (*by_ids, *others)]
            positions = np.arange(rows.start + 1, rows.stop + 1)[:, None]
            features = np.log1p(np.concatenate([*all_totals, positions], 1))
            yield log_probabilities(np.stack(chosen, 1)), features.astype(np.float32)


def long_orders(order: int, V: int) -> tuple[int, ...]:
    """Return the lengths of long contexts: 2 and 4 times `order`; none if `V` >= `MANY_IDS`."""
    return (2 * order, 4 * order) if order and V < MANY_IDS else ()


def log_probabilities(p: Floats) -> Floats:
    """Return the logarithm of `p`, or of `MIN_PROBABILITY` where `p` is smaller."""
    logs: Floats = np.maximum(p, np.float32(MIN_PROBABILITY))
    return np.log(logs, out=logs)
