"""Counts of the window so far: what followed the same context earlier in this window.

W: number of ids in the window, V: number of distinct ids.
"""

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import Floats

DISCOUNT = 0.6  # subtracted from each count; the freed probability goes to shorter contexts


def window_predictions(
    ids: NDArray[np.int64], lower: Floats, order: int
) -> tuple[list[Floats], Floats]:
    """Return distributions of the next id by the counts of the window so far.

    Args:
        ids: (W,) the window.
        lower: (W, V) for each prefix, the distribution that smooths the one after 1 id of context.
        order: the number of ids in the longest context.

    Returns:
        A list with distributions (W, V) after each prefix, for context lengths 1 to `order`; and
        an array (W, 2 order) with the total and the distinct number of next ids for each length.
    """
    W, V = lower.shape
    predictions, totals = [], np.zeros((W, 2 * order), np.float32)
    contexts, p = np.zeros(W, np.int64), lower
    for n in range(1, order + 1):
        # number the contexts of n ids: by that of n - 1 ids one place earlier, and the last id
        earlier = np.concatenate([[0], contexts[:-1]])
        keys = earlier * V + ids
        keys[: n - 1] = -1 - np.arange(min(n - 1, W))  # too short: unlike all others
        contexts = np.unique(keys, return_inverse=True)[1]
        counts = _counts_so_far(contexts, ids, V)
        total = counts.sum(1, keepdims=True)
        distinct = (counts > 0).sum(1, keepdims=True)
        share = np.where(total > 0, DISCOUNT * distinct / np.maximum(total, 1), 1)
        p = p * share.astype(np.float32)
        p += np.maximum(counts - np.float32(DISCOUNT), 0) / np.maximum(total, 1)
        predictions.append(p)
        totals[:, 2 * n - 2 : 2 * n] = np.concatenate([total, distinct], 1)
    return predictions, totals


def _counts_so_far(
    contexts: NDArray[np.int64], ids: NDArray[np.int64], V: int
) -> NDArray[np.float32]:
    """Return counts (W, V): in row i, how often each id follows `contexts[i]` in `ids[:i + 1]`.

    `contexts[j]` is a number for the context that ends at `ids[j]`; `ids[j + 1]` follows it.
    """
    W = len(ids)
    order = np.argsort(contexts, kind="stable")  # places by context, then in order
    followed = order + 1 < W  # nothing follows the last place
    next_ids = np.zeros((W, V), np.float32)
    next_ids[np.flatnonzero(followed), ids[order[followed] + 1]] = 1
    before = np.cumsum(next_ids, 0) - next_ids
    grouped = contexts[order]
    starts = np.flatnonzero(np.diff(grouped, prepend=-1))
    before -= np.repeat(before[starts], np.diff(starts, append=W), 0)
    counts = np.empty_like(before)
    counts[order] = before
    return counts


class WindowCounts:
    """Counts of the ids after each context in the window, updated one id at a time.

    Args:
        order: the number of ids in the longest context.
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self.ids: list[int] = []
        self._counts: list[dict[tuple[int, ...], dict[int, int]]] = [{} for _ in range(order)]

    def append(self, id_: int) -> None:
        """Add the next id of the window."""
        for n, table in enumerate(self._counts, 1):
            if n <= len(self.ids):
                counts = table.setdefault(tuple(self.ids[-n:]), {})
                counts[id_] = counts.get(id_, 0) + 1
        self.ids.append(id_)

    def predict(self, lower: Floats) -> tuple[list[Floats], list[float]]:
        """Return the last row of each result of `window_predictions`; `lower` is one row, (V,)."""
        predictions, totals, p = [], [0.0] * (2 * self.order), lower
        for n, table in enumerate(self._counts, 1):
            counts = table.get(tuple(self.ids[-n:])) if n <= len(self.ids) else None
            if not counts:  # nor did longer contexts occur
                break
            total = sum(counts.values())
            p = p * np.float32(DISCOUNT * len(counts) / total)
            p[[*counts]] += [(count - DISCOUNT) / total for count in counts.values()]
            totals[2 * n - 2 : 2 * n] = [total, len(counts)]
            predictions.append(p)
        return predictions + [p] * (self.order - len(predictions)), totals
