"""Store the loss and the most likely ids at each id of a text, rounded to save memory.

n: number of ids, k: number of likely ids.
"""

import numpy as np

from gpt.evaluation.scores import Scores
from gpt.text.vocabulary import Ids, Vocabulary

ALTERNATIVES = 5  # number of likely ids that are kept at each id
MAX_SURPRISES = 2**20  # largest number of ids that are kept, the first ones of a text
MAX_MILLINATS = 2**16 - 1  # largest loss that is kept, in thousandths of a nat
SQUARE_ROOT_OF_1 = 255  # stored value of the probability 1


class Surprise:
    """Losses and most likely ids at the first ids of a text, at most MAX_SURPRISES.

    They are 0 for the first id, which is not predicted.
    """

    def __init__(self, ids: Ids, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.ids = vocabulary, ids[:MAX_SURPRISES]
        n, k = len(self.ids), min(ALTERNATIVES, len(vocabulary))
        self.millinats = np.zeros(n, np.uint16)  # loss of each id in thousandths of a nat
        self.likely = np.zeros((n, k), vocabulary.dtype)  # the most likely ids
        self.roots = np.zeros((n, k), np.uint8)  # square roots of their probabilities, times 255

    def add(self, scores: Scores) -> None:
        """Store the losses and likely ids of the consecutive ids in `scores`."""
        part = slice(scores.start, scores.start + len(scores.losses))
        n = len(self.ids[part])  # the text may be longer than what is kept
        self.millinats[part] = np.minimum(1000 * scores.losses[:n], MAX_MILLINATS).round()
        self.likely[part] = scores.likely[:n]
        self.roots[part] = (SQUARE_ROOT_OF_1 * np.sqrt(scores.probabilities[:n])).round()

    def curve(self, points: int) -> list[float]:
        """Return the mean losses, in nats per id, of about `points` equal parts of the text."""
        losses = self.millinats[1:]
        starts = np.unique(np.arange(points) * len(losses) // points)
        sums = np.add.reduceat(losses, starts, dtype=np.float64)
        means: list[float] = (sums / np.diff(starts, append=len(losses)) / 1000).tolist()
        return means
