"""Calibration: how often the most likely character is right, compared with its probability."""

from dataclasses import dataclass

import numpy as np

from gpt.evaluation.scores import Scores

BINS = 10  # number of ranges of probability of equal width


@dataclass(frozen=True)
class CalibrationBin:
    """Predictions whose most likely character has a probability from `low` to `high`."""

    low: float
    high: float
    ids: int
    probability: float  # mean probability of the most likely character
    accuracy: float  # fraction of ids at which it is right


class Calibration:
    """Reliability diagram and expected calibration error (arXiv:1706.04599) of predictions."""

    def __init__(self) -> None:
        self._sums = np.zeros((BINS, 3))  # ids, probability, hits

    def add(self, scores: Scores) -> None:
        """Add the predictions in `scores` to the statistics."""
        p = scores.probabilities[:, 0]
        bins = np.minimum((p * BINS).astype(np.int64), BINS - 1)
        columns = np.stack([np.ones(len(p)), p, scores.hits])
        self._sums += np.stack([np.bincount(bins, column, BINS) for column in columns], 1)

    @property
    def bins(self) -> list[CalibrationBin]:
        """The ranges of probability that contain a prediction, in ascending order."""
        return [
            CalibrationBin(i / BINS, (i + 1) / BINS, int(ids), p / ids, hits / ids)
            for i, (ids, p, hits) in enumerate(self._sums.tolist())
            if ids
        ]

    @property
    def error(self) -> float:
        """Expected calibration error: |probability - accuracy|, averaged over the ids' bins."""
        ids, p, hits = self._sums.T
        return float(np.abs(p - hits).sum() / ids.sum())
