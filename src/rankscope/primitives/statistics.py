"""Tests of significance: Student's t, Welch's test, the rank-sum test, many tests at once; and their `Verdict`.

In: samples, or statistics of them. Out: probabilities, quantiles, standard scores and verdicts. scipy is not a
dependency.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

FALSE_DISCOVERY = 0.01
"""The largest expected share of false positives among the changes called significant."""
WELCH = "Welch's t-test"
LEAST_SAMPLES = 5
"""Samples per side below which a negative test is inconclusive. At 1 %, Welch's test finds a difference of three
standard deviations in 82 % of cases with five samples per side, in 58 % with four, in 21 % with three and in 3 % with
two (simulated, normal values)."""


class Significance(enum.Enum):
    """The three answers to "is it a difference?", in the words that every output uses."""

    SIGNIFICANT = "significant"
    NOT_SIGNIFICANT = "not significant"
    TOO_FEW = "too few steps to tell"


@dataclass(frozen=True)
class Verdict:
    """Whether a difference is significant, by which test, from how many samples.

    Attributes:
        significance: one of three.
        test: the test's name, as ``Welch's t-test``; empty if there was nothing to test.
        n: the number of samples of each side; a single number if there is one side.
        samples: what one sample is: ``step``, ``rank``, ``block``.
        p: the p-value, if the test has one.
    """

    significance: Significance
    test: str = ""
    n: tuple[int, ...] = ()
    samples: str = "step"
    p: float | None = None

    @property
    def significant(self) -> bool | None:
        """As a truth value: None for too few steps."""
        return None if self.significance is Significance.TOO_FEW else self.significance is Significance.SIGNIFICANT

    def __str__(self) -> str:
        """For people: ``not significant (Welch's t-test, 6 and 8 steps, p = 0.4)``."""
        count = " and ".join(f"{n:,}" for n in self.n) if any(self.n) else ""
        plural = "s" if sum(self.n) > 1 else ""
        p = "" if self.p is None else ("p < 0.0001" if self.p < 1e-4 else f"p = {self.p:.2g}")
        reasons = list(filter(None, (self.test, f"{count} {self.samples}{plural}" if count else "", p)))
        return self.significance.value + (f" ({', '.join(reasons)})" if reasons else "")


def verdict_of_interval(
    low: float | None, high: float | None, n: int, samples: str, *, test: str, null: float = 0.0
) -> Verdict:
    """The verdict that follows from the interval of a difference.

    Args:
        low, high: its ends; None if there were too few samples for one.
        n: the number of samples.
        samples: what one sample is: ``step``, ``block``.
        test: what the interval is, as ``99 % bootstrap interval``.
        null: the value that means no difference.
    """
    if low is None or high is None:
        return Verdict(Significance.TOO_FEW, "", (n,), samples)
    outside = low > null or high < null
    return Verdict(Significance.SIGNIFICANT if outside else Significance.NOT_SIGNIFICANT, test, (n,), samples)


def welch_test(a: npt.ArrayLike, b: npt.ArrayLike) -> float | None:
    """The p-value of the difference between the means of two samples.

    Welch's t-test (B. L. Welch, Biometrika 34, 1947), two-sided: unequal variances, degrees of freedom after
    Satterthwaite. For two samples without any spread it is 1 if their means are equal, else 0.

    Args:
        a: values, shape ``(n,)``.
        b: values, shape ``(m,)``.

    Returns:
        The p-value; None if a sample has fewer than two values, as one value has no spread.
    """
    one, two = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if one.size < 2 or two.size < 2:
        return None
    difference = float(two.mean() - one.mean())
    first, second = float(one.var(ddof=1)) / one.size, float(two.var(ddof=1)) / two.size
    if first + second == 0:
        return 1.0 if difference == 0 else 0.0
    freedom = (first + second) ** 2 / (first**2 / (one.size - 1) + second**2 / (two.size - 1))
    return student_tail(abs(difference) / math.sqrt(first + second), freedom)


def student_tail(t: float, freedom: float) -> float:
    """P(|T| ≥ t) of Student's t distribution.

    It is the regularized incomplete beta function I_x(ν/2, 1/2) at x = ν / (ν + t²) (Abramowitz and Stegun 26.7.1),
    here as the integral of the density over the angle θ = arctan(t/√ν), in which it is smooth: cos(θ)^(ν−1).
    """
    begin = math.atan2(t, math.sqrt(freedom))
    # With many degrees of freedom, the integrand vanishes beyond some 1/√ν from the start.
    end = min(math.pi / 2, begin + 40 / math.sqrt(freedom))
    angles = np.linspace(begin, end, 2001)
    values = np.cos(angles) ** (freedom - 1)
    if freedom < 1:  # unbounded at the far end
        values[-1] = values[-2]
    width = (end - begin) / 2000
    area = float((values[0] + values[-1] + 4 * values[1:-1:2].sum() + 2 * values[2:-1:2].sum()) * width / 3)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(max(2 * scale * area, 0.0), 1.0)


def student_quantile(freedom: float, confidence: float) -> float:
    """The t below which |T| of Student's t distribution is with a probability of `confidence`.

    By the expansion of Cornish and Fisher (M. Abramowitz and I. Stegun, Handbook of Mathematical Functions, 1964,
    26.7.5), which is accurate from about 4 degrees of freedom.
    """
    z = -NormalDist().inv_cdf((1 - confidence) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / float(freedom) ** k for k, term in enumerate(terms))


def rank_sum_score(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """How many standard deviations the values of `a` rank above those of `b`.

    The rank-sum test of Wilcoxon, Mann and Whitney in its normal approximation, with ties at their mean rank and the
    variance corrected for them (E. Lehmann, Nonparametrics, 1975, section 1.4).

    Args:
        a: values, shape ``(n,)``, at least one.
        b: values, shape ``(m,)``, at least one.
    """
    one, two = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    _, index, tied = np.unique(np.concatenate([one, two]), return_inverse=True, return_counts=True)
    ranks = np.cumsum(tied) - (tied - 1) / 2
    n, m = one.size, two.size
    above = float(ranks[index[:n]].sum()) - n * (n + 1) / 2
    ties = float((tied.astype(np.float64) ** 3 - tied).sum())
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    return (above - n * m / 2) / math.sqrt(variance) if variance > 0 else 0.0


def significant(chances: Sequence[float | None], rate: float = FALSE_DISCOVERY) -> list[bool | None]:
    """Which of many changes are significant, corrected for their number.

    By Benjamini and Hochberg (1995): the expected share of false positives is at most `rate`. Of hundreds of kernels
    some always differ at 1 %; tested separately, they would be called changes.

    Args:
        chances: the p-value of each change, from `welch_test`.

    Returns:
        For each whether it is significant; None if its p-value is None.
    """
    known = sorted((value, index) for index, value in enumerate(chances) if value is not None)
    results: list[bool | None] = [None if value is None else False for value in chances]
    last = max((n for n, (value, _) in enumerate(known, 1) if value <= rate * n / len(known)), default=0)
    for _, index in known[:last]:
        results[index] = True
    return results


def welch_verdicts(chances: Sequence[float | None], n: Sequence[tuple[int, int]], samples: str) -> list[Verdict]:
    """The verdicts on many changes, corrected for their number (`significant`).

    A negative test with fewer than `LEAST_SAMPLES` samples on a side is inconclusive, unless the two sides are equal
    without any spread.

    Args:
        chances: the p-value of each change, from `welch_test`.
        n: the numbers of samples of its two sides.
        samples: what one sample is: ``step`` or ``rank``.
    """
    verdicts = []
    for p, sizes, is_significant in zip(chances, n, significant(chances), strict=True):
        if p is None or (not is_significant and p < 1 and min(sizes) < LEAST_SAMPLES):
            verdicts.append(Verdict(Significance.TOO_FEW, "" if p is None else WELCH, sizes, samples, p))
        else:
            kind = Significance.SIGNIFICANT if is_significant else Significance.NOT_SIGNIFICANT
            verdicts.append(Verdict(kind, WELCH, sizes, samples, p))
    return verdicts
