"""Confidence intervals of a difference, and the number of seeds that show it, by Student's t.

The results equal those of scipy's `ttest_rel` and `ttest_ind(equal_var=False)`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, stdev, variance

from gpt.evaluation.bootstrap import CONFIDENCE

POWER = 0.8  # probability to show a difference with the seeds that `seeds_needed` returns


@dataclass(frozen=True)
class SeedMean:
    """Mean over `n` runs that differ only by seed, and its standard error (None for one run)."""

    mean: float
    standard_error: float | None
    n: int


@dataclass(frozen=True)
class StudentInterval:
    """A confidence interval, by a t distribution with `freedom` degrees of freedom."""

    low: float
    high: float
    confidence: float
    freedom: float

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference of zero is outside of the interval."""
        return self.low > 0 or self.high < 0


def seed_mean(values: Sequence[float | None]) -> SeedMean | None:
    """Return the mean and standard error of the known `values`, one of each run, if any."""
    known = [value for value in values if value is not None]
    n = len(known)
    return SeedMean(fmean(known), stdev(known) / math.sqrt(n) if n > 1 else None, n) if n else None


def paired_interval(a: Sequence[float], b: Sequence[float]) -> StudentInterval:
    """Return a confidence interval of mean(b - a), for losses of the same blocks of a text."""
    differences = [y - x for x, y in zip(a, b, strict=True)]
    n = len(differences)
    return _interval(fmean(differences), stdev(differences) / math.sqrt(n), n - 1)


def welch_interval(a: Sequence[float], b: Sequence[float]) -> StudentInterval:
    """Return a confidence interval of mean(b) - mean(a), for two or more values of each."""
    parts = [variance(values) / len(values) for values in (a, b)]  # squared standard errors
    scaled = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
    freedom = sum(parts) ** 2 / scaled if scaled else len(a) + len(b) - 2
    return _interval(fmean(b) - fmean(a), math.sqrt(sum(parts)), freedom)


def seeds_needed(difference: float, variances: float) -> int:
    """Return how many runs of two configs each show, with probability POWER, that they differ.

    This is the normal approximation with Guenther's correction for a t test (1981, "Sample size
    formulas for normal theory t tests"). `variances` is the variance of the loss over seeds, summed
    over both configs.
    """
    normal = NormalDist()
    z, z_power = normal.inv_cdf((1 + CONFIDENCE) / 2), normal.inv_cdf(POWER)
    return max(2, math.ceil(variances * (z + z_power) ** 2 / difference**2 + z**2 / 4))


def _interval(difference: float, standard_error: float, freedom: float) -> StudentInterval:
    half = student_quantile((1 - CONFIDENCE) / 2, freedom) * standard_error
    return StudentInterval(difference - half, difference + half, CONFIDENCE, freedom)


@cache
def student_quantile(tail: float, freedom: float) -> float:
    """Return the value that a t distribution exceeds with probability `tail` < 1/2."""
    from mpmath import betainc, findroot  # only comparisons need it

    def excess(x: float) -> float:  # x = freedom / (freedom + t^2)
        return float(betainc(freedom / 2, 0.5, 0, x, regularized=True)) - 2 * tail

    x = float(findroot(excess, (0, 1), solver="ridder"))
    return math.sqrt(freedom * (1 / x - 1))
