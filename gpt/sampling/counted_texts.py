"""Mix the network's predictions with those of n-gram counts while texts are sampled."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt.counts.experts import ExpertState
from gpt.counts.mixture import Mixture


class CountedTexts:
    """N-gram counts of B texts, to each of which `append` adds one id at a time.

    If a text exceeds T ids, its counts start anew from its last T // 2 ids.
    """

    def __init__(self, mixture: Mixture, prompts: Sequence[list[int]]) -> None:
        self.mixture = mixture
        self.texts = [self._count(prompt[-mixture.T :]) for prompt in prompts]

    def mix(self, network: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log-probabilities `network` (B, V), mixed with those of each text's counts."""
        experts, features = zip(*(text.predict() for text in self.texts), strict=True)
        mixed = self.mixture.mix(np.stack(experts), np.stack(features), network.astype(np.float32))
        return mixed.astype(np.float64)

    def append(self, ids: Sequence[int]) -> None:
        """Append one id to each text."""
        for row, id_ in enumerate(ids):
            self.texts[row].append(id_)
            if len(self.texts[row].ids) > self.mixture.T:
                self.texts[row] = self._count(self.texts[row].ids[-max(self.mixture.T // 2, 1) :])

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts in `rows`."""
        self.texts = [self.texts[row] for row in rows]

    def _count(self, ids: Sequence[int]) -> ExpertState:
        """Return the n-gram counts of a text with these `ids`."""
        text = ExpertState(self.mixture.experts)
        for id_ in ids:
            text.append(id_)
        return text
