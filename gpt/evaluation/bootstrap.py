"""Confidence interval of a mean loss, by a block bootstrap.

The losses of neighbouring characters are correlated, so deviation / sqrt(n) is far too narrow. The
text is divided into blocks, and blocks are drawn with replacement (Künsch 1989, "The jackknife and
the bootstrap for general stationary observations").
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from gpt.seeds import uniforms

CONFIDENCE = 0.95  # probability that an interval contains the loss on all text of this kind
RESAMPLES = 2000  # number of texts that are drawn from the blocks
MAX_BLOCKS = 4096  # largest number of blocks, which limits the memory of the draws


@dataclass(frozen=True)
class Interval:
    """A confidence interval, and the length of the blocks that it was computed from."""

    low: float
    high: float
    confidence: float
    block: int  # ids of a block

    def scaled(self, factor: float) -> "Interval":
        """Return the interval of a loss in other units: `low` and `high` times `factor`."""
        return replace(self, low=self.low * factor, high=self.high * factor)


def block_length(n: int) -> int:
    """Return the length of a bootstrap block in ids, for a text of `n` ids: 3 sqrt(n).

    Blocks must be longer than the distance at which losses are correlated, but also short enough
    that the text has many blocks.
    """
    return max(1, round(3 * math.sqrt(n)), -(-n // MAX_BLOCKS))


class BlockSums:
    """Sum of the losses in each block of consecutive ids (or characters); `n` is their number."""

    def __init__(self, n: int) -> None:
        self.length = block_length(n)
        self.sizes = np.full(-(-n // self.length), self.length)
        self.sizes[-1] -= len(self.sizes) * self.length - n
        self.sums = np.zeros(len(self.sizes))

    def add(self, positions: NDArray[np.int64], losses: NDArray[np.float32]) -> None:
        """Add the losses of ids at ascending `positions`, their indices in the text."""
        blocks = positions // self.length
        first = blocks[0]
        sums = np.bincount(blocks - first, losses)
        self.sums[first : first + len(sums)] += sums

    def whole_means(self) -> list[float]:
        """Return the mean loss of each block, except a shorter one at the end."""
        means: list[float] = (self.sums[self.sizes == self.length] / self.length).tolist()
        return means

    def interval(self) -> Interval | None:
        """Return the interval of the mean loss; None for fewer than two blocks."""
        n = len(self.sums)
        if n < 2:
            return None
        draws = uniforms(0, "bootstrap", 0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
        means = (draws @ self.sums) / (draws @ self.sizes)
        tail = expanded_tail((1 - CONFIDENCE) / 2, n)
        low, high = np.quantile(means, [tail, 1 - tail]).tolist()
        return Interval(low, high, CONFIDENCE, self.length)


def expanded_tail(tail: float, n: int) -> float:
    """Return a smaller tail probability, which widens a bootstrap interval of `n` blocks.

    If `n` is small, the interval between the quantiles at `tail` and 1 - `tail` is too narrow.
    Hesterberg (arXiv:1411.5279, section 4.3) replaces `tail` by Phi(t * sqrt(n / (n - 1))). Phi is
    the standard normal distribution function, and t is the quantile at `tail` of Student's t
    distribution with n - 1 degrees of freedom.
    """
    normal, freedom = NormalDist(), n - 1
    z = normal.inv_cdf(tail)
    # quantile of Student's t distribution, by the expansion of Cornish and Fisher
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return normal.cdf(t * math.sqrt(n / freedom))
