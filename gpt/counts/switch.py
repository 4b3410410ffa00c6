"""Average a mixture with its parts, by how well each of them predicted the window so far.

M: positions, K: predictors, V: number of distinct ids.
"""

import numpy as np
from numpy.typing import NDArray

from gpt.counts.kneser_ney import Floats

DECAY = 0.95  # factor on past losses for each further id; about the last 20 ids matter
ADVANTAGE = 4.0  # nats by which the first predictor is preferred to each other one


class Switch:
    """Weights of K predictors that depend on their losses on the last ids of a window.

    The weights of experts and network in a mixture are fitted on text like the train split. They
    can be far off on text of another kind, such as tables after prose or a new script. This average
    is then soon about as good as the best predictor. The weights are those of a Bayesian average in
    which older losses count less; compare Herbster and Warmuth 1998, "Tracking the best expert".
    """

    def __init__(self) -> None:
        self.losses: float | NDArray[np.float64] = 0.0  # (K,) decayed sums, in nats

    def average(self, log_p: Floats, following: NDArray[np.int64]) -> Floats:
        """Return the log of the average of K distributions at the next M positions, (M, V).

        `log_p` (M, K, V) has the preferred predictor first. `following` (M,) are the ids after each
        position; only averages at later positions use them.
        """
        M, K, _ = log_p.shape
        nats = -log_p[np.arange(M), :, following].astype(np.float64)  # (M, K)
        losses = np.empty((M, K))
        for i in range(M):
            losses[i] = self.losses
            self.losses = DECAY * self.losses + nats[i]
        losses[:, 0] -= ADVANTAGE
        weights = np.exp(losses.min(1, keepdims=True) - losses)
        weights /= weights.sum(1, keepdims=True)
        p = np.matmul(weights[:, None].astype(np.float32), np.exp(log_p))[:, 0]
        logs: Floats = np.log(np.maximum(p, np.finfo(np.float32).tiny))
        return logs
