"""Confidence intervals of a loss on a text, and of a difference of losses.

The losses of neighbouring characters are correlated. The error of their mean is therefore far
larger than if they were independent. A text is divided into blocks. A bootstrap that draws blocks
with replacement gives the interval of a loss (Künsch 1989, "The jackknife and the bootstrap for
general stationary observations"). Student's t distribution gives the interval of a difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, stdev, variance

import numpy as np
from numpy.typing import NDArray

from gpt.seeds import uniforms

CONFIDENCE = 0.95  # probability that an interval contains the true value
RESAMPLES = 2000  # number of bootstrap samples
MAX_BLOCKS = 4096  # largest number of blocks, which limits the memory of the draws


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    confidence: float = CONFIDENCE


@dataclass(frozen=True)
class SeedMean:
    """Mean over runs that differ only by seed, and its standard error (None for one run)."""

    mean: float
    standard_error: float | None


class BlockSums:
    """Sums of the losses of a text of `n` ids (or characters), in blocks of consecutive ids.

    A block has about 3 sqrt(n) ids. Blocks must be longer than the distance at which losses are
    correlated, but also short enough that the text has many blocks. Their lengths differ by at most
    one id, so that the mean over blocks is nearly the mean over the text.
    """

    def __init__(self, n: int) -> None:
        wanted = max(1, round(3 * math.sqrt(n)), -(-n // MAX_BLOCKS))
        count = max(1, n // wanted)
        self.edges = np.arange(count + 1) * n // count
        self.sizes = np.diff(self.edges)
        self.sums = np.zeros(count)

    def add(self, positions: NDArray[np.int64], losses: NDArray[np.float32]) -> None:
        """Add the `losses` of the ids at `positions`, which are ascending indices in the text."""
        blocks = np.searchsorted(self.edges, positions, "right") - 1
        first = blocks[0]
        sums = np.bincount(blocks - first, losses)
        self.sums[first : first + len(sums)] += sums

    def means(self) -> list[float]:
        """Return the mean loss of each block."""
        means: list[float] = (self.sums / self.sizes).tolist()
        return means

    def interval(self, factor: float = 1.0) -> Interval | None:
        """Return the interval of `factor` times the mean loss; None for fewer than two blocks.

        The ends are the quantiles p and 1 - p of the bootstrap means. Let n be the number of
        blocks, t = student_quantile(n - 1), and Phi the normal distribution function. Then p is
        Phi(-t sqrt(n / (n - 1))) (arXiv:1411.5279, section 4.3); with 2.5 %, the interval would be
        too narrow.
        """
        n = len(self.sums)
        if n < 2:
            return None
        draws = uniforms(0, "bootstrap", 0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
        means = (draws @ self.sums) / (draws @ self.sizes)
        tail = NormalDist().cdf(-student_quantile(n - 1) * math.sqrt(n / (n - 1)))
        low, high = (factor * np.quantile(means, [tail, 1 - tail])).tolist()
        return Interval(low, high)


def paired_interval(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Return the interval of mean(b - a), for losses of the same blocks of a text.

    The result equals that of scipy's `ttest_rel`.
    """
    differences = [y - x for x, y in zip(a, b, strict=True)]
    n = len(differences)
    return _interval(fmean(differences), stdev(differences) / math.sqrt(n), n - 1)


def welch_interval(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Return the interval of mean(b) - mean(a), for two or more values of each.

    The result equals that of scipy's `ttest_ind(equal_var=False)`.
    """
    parts = [variance(values) / len(values) for values in (a, b)]  # squared standard errors
    scaled = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
    freedom = sum(parts) ** 2 / scaled if scaled else len(a) + len(b) - 2
    return _interval(fmean(b) - fmean(a), math.sqrt(sum(parts)), freedom)


def _interval(difference: float, standard_error: float, freedom: float) -> Interval:
    half = student_quantile(freedom) * standard_error
    return Interval(difference - half, difference + half)


@cache
def student_quantile(freedom: float) -> float:
    """Return t such that P(-t <= X <= t) = CONFIDENCE, where X has Student's t distribution.

    `freedom` is the number of degrees of freedom of the distribution.
    """
    from mpmath import betainc, findroot  # the import is slow

    def excess(x: float) -> float:  # x = freedom / (freedom + t^2)
        return float(betainc(freedom / 2, 0.5, 0, x, regularized=True)) - (1 - CONFIDENCE)

    x = float(findroot(excess, (0, 1), solver="ridder"))
    return math.sqrt(freedom * (1 / x - 1))


def seed_mean(values: Sequence[float | None]) -> SeedMean | None:
    """Return the SeedMean of the runs' `values` that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    error = stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return SeedMean(fmean(known), error)
