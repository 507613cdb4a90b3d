"""Whether a change is more than the spread over steps and ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

FALSE_DISCOVERY = 0.01
"""Share of the changes called significant that may be chance."""


def chance(a: npt.ArrayLike, b: npt.ArrayLike) -> float | None:
    """How likely a difference of means at least as great as that between two samples is, were there none.

    Welch's t-test (B. L. Welch, Biometrika 34, 1947), two-sided: unequal variances, degrees of freedom after
    Satterthwaite. Two samples without any spread differ by chance with probability 1 if their means are equal, else 0.

    Args:
        a: values, shape ``(n,)``.
        b: values, shape ``(m,)``.

    Returns:
        The probability; None where a side has fewer than two values, for one value has no spread.
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
    # With many degrees of freedom all of it lies within some 1/√ν of the begin.
    end = min(math.pi / 2, begin + 40 / math.sqrt(freedom))
    angles = np.linspace(begin, end, 2001)
    values = np.cos(angles) ** (freedom - 1)
    if freedom < 1:  # unbounded at the far end
        values[-1] = values[-2]
    width = (end - begin) / 2000
    area = float((values[0] + values[-1] + 4 * values[1:-1:2].sum() + 2 * values[2:-1:2].sum()) * width / 3)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(max(2 * scale * area, 0.0), 1.0)


def significant(chances: Sequence[float | None], rate: float = FALSE_DISCOVERY) -> list[bool | None]:
    """Which of many changes are more than chance, when they are judged together.

    Benjamini and Hochberg (1995): among those that are called significant at most `rate` is chance. Of hundreds of
    kernels some always differ at 1 %; judged one by one they would be called changes.

    Returns:
        For each whether it is; None where its chance is None.
    """
    known = sorted((value, place) for place, value in enumerate(chances) if value is not None)
    found: list[bool | None] = [None if value is None else False for value in chances]
    last = max((n for n, (value, _) in enumerate(known, 1) if value <= rate * n / len(known)), default=0)
    for _, place in known[:last]:
        found[place] = True
    return found
