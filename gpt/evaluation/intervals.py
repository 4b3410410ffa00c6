"""Confidence intervals of a loss on a text, and of a difference of losses.

The losses of neighbouring characters are correlated, so the error of the mean loss is far larger
than if they were independent. A text is therefore divided into blocks, whose mean losses are almost
independent (Schmeiser 1982, "Batch size effects in the analysis of simulation output").
Student's t distribution gives the interval of a mean or of a difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev, variance

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95  # probability that an interval contains the true value


@dataclass(frozen=True)
class Interval:
    """Interval that contains the true value with the probability CONFIDENCE."""

    low: float
    high: float


@dataclass(frozen=True)
class SeedMean:
    """Mean over runs that differ only by seed, and its standard error (None for one run)."""

    mean: float
    standard_error: float | None


class BlockSums:
    """Sums of the losses of a text of `n` ids (or characters), in blocks of consecutive ids.

    A block has about 3 sqrt(n) ids. Blocks must be longer than the distance at which losses are
    correlated, but also short enough that the text has many blocks. Any two blocks differ by at
    most one id in length, so that the mean over blocks is nearly the mean over the text.
    """

    def __init__(self, n: int) -> None:
        count = max(1, n // round(3 * math.sqrt(n)))
        self.edges = np.arange(count + 1) * n // count
        self.sums = np.zeros(count)

    def add(self, positions: NDArray[np.int64], losses: NDArray[np.float32]) -> None:
        """Add the `losses` of the ids at `positions`, which are ascending indices in the text."""
        blocks = np.searchsorted(self.edges, positions, "right") - 1
        self.sums += np.bincount(blocks, losses, len(self.sums))

    def means(self) -> list[float]:
        """Return the mean loss of each block."""
        means: list[float] = (self.sums / np.diff(self.edges)).tolist()
        return means


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the interval of the mean of two or more `values`, such as the losses of blocks.

    The result equals that of scipy's `ttest_1samp`.
    """
    n = len(values)
    return _interval(fmean(values), stdev(values) / math.sqrt(n), n - 1)


def welch_interval(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Return the confidence interval of mean(b) - mean(a); `a` and `b` need at least two values.

    The result equals that of scipy's `ttest_ind(equal_var=False)`.
    """
    parts = [variance(values) / len(values) for values in (a, b)]  # squared standard errors
    scaled = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
    freedom = sum(parts) ** 2 / scaled if scaled else len(a) + len(b) - 2
    return _interval(fmean(b) - fmean(a), math.sqrt(sum(parts)), freedom)


def _interval(mean: float, standard_error: float, freedom: float) -> Interval:
    half = student_quantile(freedom) * standard_error
    return Interval(mean - half, mean + half)


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
    """Return the SeedMean of the `values` (one per run) that are not None; None if all are None."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    error = stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return SeedMean(fmean(known), error)
