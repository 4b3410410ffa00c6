"""Mix the network's predictions with those of n-gram counts while texts are sampled.

B: texts, E: experts (predictors by counts of the train split), F: features, V: distinct ids.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt.counts.experts import log_probabilities
from gpt.counts.kneser_ney import NO_ID, Floats
from gpt.counts.mixture import Mixture
from gpt.counts.ngram_tree import TrainCounts


class CountedTexts:
    """Predictions by n-gram counts of the train split for B texts that grow by one id at a time.

    Unlike an evaluation, sampling counts neither the texts nor long contexts
    (`Mixture.for_sampling`), and does not average the mixture with its parts (`Switch`).
    """

    def __init__(self, mixture: Mixture, prompts: Sequence[list[int]]) -> None:
        self.mixture = mixture.for_sampling()
        self.experts = self.mixture.experts
        self.lengths = np.zeros(0, np.int64)
        self.last = np.zeros((0, self.experts.counts.order), np.int64)  # ids, the newest first
        self.add(prompts)

    def add(self, prompts: Sequence[list[int]]) -> None:
        """Append `prompts` to the texts."""
        last = np.full((len(prompts), self.last.shape[1]), NO_ID)
        for row, prompt in zip(last, prompts, strict=True):
            newest = prompt[::-1][: len(row)]
            row[: len(newest)] = newest
        self.last = np.concatenate([self.last, last])
        self.lengths = np.append(self.lengths, [len(prompt) for prompt in prompts])
        self.train = TrainCounts(self.experts.tree, self.last, self.experts.orders)

    def mix(self, network: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mix predictions of the next ids of B texts with those of n-gram counts.

        `network` (B, V) has the network's log-probabilities. Return the mixed log-probabilities.
        """
        mixed = self.mixture.mix(*self.predict(), network.astype(np.float32))
        return mixed.astype(np.float64)

    def predict(self) -> tuple[Floats, Floats]:
        """Return log-probabilities (B, E, V) of the next ids by counts, and features (B, F).

        They equal the last rows of `Experts.of_window` for each text of at most T ids.
        """
        p, totals = self.train.predict()
        positions = np.minimum(self.lengths, self.mixture.T).astype(np.float32)
        features = np.log1p(np.concatenate([totals, positions[:, None]], 1))
        return log_probabilities(p), features

    def append(self, ids: NDArray[np.int64]) -> None:
        """Append one id to each text."""
        self.last = np.concatenate([ids[:, None], self.last], 1)[:, : self.last.shape[1]]
        self.lengths += 1
        self.train.append(ids)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the texts with the indices `rows`, in this order."""
        self.last, self.lengths = self.last[rows], self.lengths[rows]
        self.train.select(rows)
