"""Experts: predictors of the next id by n-gram counts, each with one kind of context.

Shapes use W ids of a window, E experts, V distinct ids and F features. A feature is log(1 + x),
where x is how many ids were counted after a context; the last one uses the length of the text. N is
the number of ids in the longest context of the n-gram table.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import NO_ID, Floats, KneserNey
from gpt.counts.long_contexts import LongContexts, index_contexts
from gpt.counts.ngram_counts import NgramCounts, count_ngrams
from gpt.counts.ngram_tree import NgramTree
from gpt.counts.window import NAMES, Characters, CountsSoFar, numbered_contexts, terms_of
from gpt.text.vocabulary import Ids

MANY_IDS = 1000  # V from which fewer contexts are counted in the window: each takes O(V) time
BLOCK_NUMBERS = 2**20  # log-probabilities that are computed at once: 4 MB fit into a cache
MIN_PROBABILITY = 1e-9  # smallest prediction of an expert; avoids log(0)


class Experts:
    """Predictors of the next id, by counts of the train split and of the window before that id.

    Args:
        counts: n-gram counts of the train split.
        long_contexts: finds where contexts two and four times as long as those of `counts` occur
            in the train split; None if `counts` has no contexts, or `MANY_IDS` ids or more.
        window_order: n. The contexts counted in the window are the last 1 to n, 2 n and 4 n ids,
            the current word, and the character above (`Characters.keys`). If the vocabulary has
            `MANY_IDS` ids or more, they are only the last 1 to n ids; if n is 0, there are none.
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
        """Count the n-grams of the train split; return the experts that predict by these counts.

        Args:
            train: the ids of the train split.
            V: number of distinct ids.
            order: number of ids in the longest context, reduced to `longest_context(V)` if larger.
            window_order: the argument of `Experts`, for counts of the text before an id.
            characters: which ids form words and lines.
        """
        counts = count_ngrams(train, V, order)
        orders = long_orders(counts.order, V)
        places = index_contexts(train, V, orders) if orders else None
        return cls(counts, places, window_order, characters)

    @cached_property
    def kneser_ney(self) -> KneserNey:
        """The counts of the train split, in the form that predicts all ids of a window at once."""
        return KneserNey(self.counts)

    @cached_property
    def tree(self) -> NgramTree:
        """The counts of the train split, in the form that predicts one id at a time (sampling)."""
        return NgramTree(self.counts)

    @cached_property
    def of_train(self) -> "Experts":
        """Predictors used in sampling: only n-grams of the train split, without long contexts."""
        return Experts(self.counts, None, 0, self.characters)

    @property
    def size(self) -> int:
        """Number of experts, which are predictors by n-gram counts."""
        return len(self.names)

    @property
    def names(self) -> list[str]:
        """Names of the experts. An expert of order 5 predicts from at most the last 5 ids."""
        train = [f"order {n} of the train split" for n in (*self.orders, *self.long_orders)]
        window = [f"order {n} of the window" for n in self.window_orders]
        return [*train, *window, *self.other_contexts]

    @property
    def features(self) -> int:
        """Number of features: how often each context was counted, and the length of the text."""
        others = len(self.long_orders) + len(self.window_orders) + len(self.other_contexts)
        return self.counts.order + 2 * others + 1

    def of_window(self, ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return log-probabilities (W, E, V) and features (W, F) after each of W `ids`.

        Each of E experts predicts the next of V ids. The F features are logarithms of how often the
        contexts were counted, and of the length of the text.
        """
        log_p, features = zip(*self.blocks(ids), strict=True)
        return np.concatenate(log_p), np.concatenate(features)

    @property
    def block_size(self) -> int:
        """Number of positions in each part that `blocks` yields."""
        return max(1, BLOCK_NUMBERS // (self.size * self.counts.V))

    def blocks(
        self, ids: NDArray[np.int64], start: int = 0, every: int = 1
    ) -> Iterator[tuple[Floats, Floats]]:
        """Yield the results of `of_window` in blocks of `block_size` positions.

        Args:
            ids: the ids of a window.
            start: the first position to predict after.
            every: yield one in `every` blocks, and skip the others.
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
            lower = by_order[-1]
            if self.long_contexts is not None:
                terms, shares, long_totals = terms_of(self.long_contexts.counts_in(ids, rows))
                for p, share in zip(terms, shares, strict=True):
                    lower = p + share[:, None] * lower
                    chosen.append(lower)
                all_totals.append(long_totals.T)
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
    """Return the lengths 2 `order` and 4 `order` of the long contexts; none for a large `V`."""
    return (2 * order, 4 * order) if order and V < MANY_IDS else ()


def log_probabilities(p: Floats) -> Floats:
    """Return log(p). Values of `p` below `MIN_PROBABILITY` are raised to it first."""
    logs: Floats = np.maximum(p, np.float32(MIN_PROBABILITY))
    return np.log(logs, out=logs)
