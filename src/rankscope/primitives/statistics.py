"""Tests of significance: Student's t, Welch's test, the rank-sum test, and many tests at once.

In: samples, or statistics of them. Out: probabilities, quantiles and standard scores. scipy is not a dependency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

FALSE_DISCOVERY = 0.01
"""Share of the changes called significant that may be due to chance."""


def welch_test(a: npt.ArrayLike, b: npt.ArrayLike) -> float | None:
    """The probability of a difference of means at least as large as that of two samples, if there were none.

    Welch's t-test (B. L. Welch, Biometrika 34, 1947), two-sided: unequal variances, degrees of freedom after
    Satterthwaite. Two samples without any spread differ by chance with probability 1 if their means are equal, else 0.

    Args:
        a: values, shape ``(n,)``.
        b: values, shape ``(m,)``.

    Returns:
        The probability; None if a sample has fewer than two values: one value has no spread.
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

    It is the regularised incomplete beta function I_x(ν/2, 1/2) at x = ν / (ν + t²) (Abramowitz and Stegun 26.7.1),
    here as the integral of the density over the angle θ = arctan(t/√ν), in which it is smooth: cos(θ)^(ν−1).
    """
    begin = math.atan2(t, math.sqrt(freedom))
    # With many degrees of freedom all of it is within some 1/√ν of the begin.
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
    """The t that |T| of Student's t distribution stays below with a probability of `confidence`.

    By the expansion of Cornish and Fisher (M. Abramowitz and I. Stegun, Handbook of Mathematical Functions, 1964,
    26.7.5), which is good from some 4 degrees of freedom on.
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
    """By how many standard deviations the values of `a` rank above those of `b`.

    The rank-sum test of Wilcoxon, Mann and Whitney, in its normal approximation: ties at their mean rank, the variance
    corrected for them (E. Lehmann, Nonparametrics, 1975, section 1.4).

    Args:
        a: values, shape ``(n,)``, at least one.
        b: values, shape ``(m,)``, at least one.
    """
    one, two = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    _, place, tied = np.unique(np.concatenate([one, two]), return_inverse=True, return_counts=True)
    ranks = np.cumsum(tied) - (tied - 1) / 2
    n, m = one.size, two.size
    above = float(ranks[place[:n]].sum()) - n * (n + 1) / 2
    ties = float((tied.astype(np.float64) ** 3 - tied).sum())
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    return (above - n * m / 2) / math.sqrt(variance) if variance > 0 else 0.0


def significant(chances: Sequence[float | None], rate: float = FALSE_DISCOVERY) -> list[bool | None]:
    """Which of many changes are significant, judged together.

    Benjamini and Hochberg (1995): of those that are called significant, at most the share `rate` is due to chance. Of
    hundreds of kernels some always differ at 1 %; judged separately, they would be called changes.

    Args:
        chances: the probability of each change by chance, as `welch_test` gives it.

    Returns:
        For each whether it is significant; None if its probability is None.
    """
    known = sorted((value, place) for place, value in enumerate(chances) if value is not None)
    found: list[bool | None] = [None if value is None else False for value in chances]
    last = max((n for n, (value, _) in enumerate(known, 1) if value <= rate * n / len(known)), default=0)
    for _, place in known[:last]:
        found[place] = True
    return found
