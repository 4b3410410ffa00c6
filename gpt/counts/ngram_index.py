"""Look up contexts of all lengths at once, for texts to which ids are appended.

M: number of contexts, N: number of ids in the longest context, V: number of distinct ids.
"""

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import NO_ID, Floats, KneserNey


class NgramIndex:
    """The counts of `KneserNey` in one ascending array, n-grams with short contexts first."""

    def __init__(self, model: KneserNey) -> None:
        V, N = model.V, model.order
        lengths = range(1, N + 1)
        # each length has its own range of keys: the longest from 0, the shorter ones below
        offsets = [-sum(V ** (k + 1) for k in range(n, N)) for n in lengths]
        keys = [model.keys[n] + offset for n, offset in zip(lengths, offsets, strict=True)]
        self._V, self._next = V, np.array([0, V])
        self._keys = np.concatenate([np.zeros(0, np.int64), *keys])
        self._discounted = np.concatenate([np.zeros(0, np.float32), *model.discounted[1:]])
        sums = [np.stack([model.totals[n], model.freed[n]], 1) for n in lengths]
        self._sums = np.concatenate([np.zeros((0, 2)), *sums]).astype(np.float64)
        self._offsets = np.array(offsets, np.int64)[:, None]
        self._powers = np.array([V**n for n in lengths], np.int64)[:, None]
        self._lengths = np.arange(N)[:, None]

    def find(self, contexts: NDArray[np.int64], discounted: Floats) -> NDArray[np.float64]:
        """Find what follows the last 1 to N ids of each context.

        Args:
            contexts: (N, M) ids, the newest first. `NO_ID` marks places before the window's start.
            discounted: (N, M, V) zeros; the discounted counts of V next ids are written to it.

        Returns:
            (2, N, M) the total and the freed counts of the next ids.
        """
        first = (contexts * self._powers).cumsum(0) + self._offsets
        start, end = np.moveaxis(self._keys.searchsorted(first[..., None] + self._next), -1, 0)
        sizes = (end - start) * (contexts != NO_ID)
        start_sum = start + self._lengths
        sums = self._sums.take(start_sum + sizes, 0) - self._sums.take(start_sum, 0)

        sizes = sizes.ravel()
        found = np.arange(len(sizes)).repeat(sizes)  # the context and length of each n-gram found
        entries = (start.ravel() + sizes - sizes.cumsum()).take(found) + np.arange(len(found))
        # an n-gram's key, minus that of its context, is the id
        cells = self._keys.take(entries) + (self._V * np.arange(len(sizes)) - first.ravel()).take(
            found
        )
        discounted.reshape(-1)[cells] = self._discounted.take(entries)
        return np.moveaxis(sums, -1, 0)
