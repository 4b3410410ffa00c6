"""Mix the network's predictions with those of n-gram counts while texts are sampled."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt.counts.experts import ExpertState
from gpt.counts.mixture import Mixture


class CountedTexts:
    """N-gram counts of B texts, to each of which `append` adds one id at a time.

    If a text exceeds T ids, its counts start anew from its last T // 2 ids. Counts of the text so
    far have smaller weights than in evaluations, because otherwise samples end in loops. Nor is the
    mixture averaged with its parts, as evaluations do (`Switch`).
    """

    def __init__(self, mixture: Mixture, prompts: Sequence[list[int]]) -> None:
        self.mixture = mixture.for_sampling()
        texts = [np.array(prompt[-mixture.T :], np.int64) for prompt in prompts]
        self.state = ExpertState(mixture.experts, texts)

    def mix(self, network: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mix predictions of the next ids of B texts with those of n-gram counts.

        `network` (B, V) has the network's log-probabilities. Return the mixed log-probabilities.
        """
        mixed = self.mixture.mix(*self.state.predict(), network.astype(np.float32))
        return mixed.astype(np.float64)

    def append(self, ids: NDArray[np.int64]) -> None:
        """Append one id to each text."""
        self.state.append(ids)
        window = self.state.window
        if window.lengths.max() > self.mixture.T:
            texts = [window.text(row) for row in range(len(window.rows))]
            kept = max(self.mixture.T // 2, 1)
            texts = [text[-kept:] if len(text) > self.mixture.T else text for text in texts]
            self.state = ExpertState(self.mixture.experts, texts)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts with the indices `rows`, in this order."""
        self.state.select(rows)
