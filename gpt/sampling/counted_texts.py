"""Mix the network's predictions with counts while texts are sampled."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt.counts.experts import ExpertState
from gpt.counts.mixture import Mixture


class CountedTexts:
    """The counts of B texts that grow by one id at a time.

    A text that outgrows the window of T ids is counted anew from its last T // 2 ids on.
    """

    def __init__(self, mixture: Mixture, prompts: Sequence[list[int]]) -> None:
        self.mixture = mixture
        self.texts = [self._count(prompt[-mixture.T :]) for prompt in prompts]

    def mix(self, network: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mix log-probabilities of the network (B, V) with each text's counts."""
        experts, features = zip(*(text.predict() for text in self.texts), strict=True)
        mixed = self.mixture.mix(np.stack(experts), np.stack(features), network.astype(np.float32))
        return mixed.astype(np.float64)

    def append(self, ids: Sequence[int]) -> None:
        """Append one id to each text."""
        for row, id_ in enumerate(ids):
            self.texts[row].append(id_)
            if len(self.texts[row].ids) > self.mixture.T:
                self.texts[row] = self._count(self.texts[row].ids[-(self.mixture.T // 2) :])

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts in `rows`."""
        self.texts = [self.texts[row] for row in rows]

    def _count(self, ids: Sequence[int]) -> ExpertState:
        """Return the counts of a text."""
        text = ExpertState(self.mixture.experts)
        for id_ in ids:
            text.append(id_)
        return text
