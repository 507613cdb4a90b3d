"""When a series of steps changed: the one place that divides it best.

In: values by step. Out: the place, the medians before and after, and whether the difference is significant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.primitives.statistics import LEAST_SAMPLES, Significance, Verdict, rank_sum_score

Float = npt.NDArray[np.float64]
LEAST = 0.05
"""Of the usual value: a smaller change is not reported."""
SCORE = 5.0
"""Standard deviations that the ranks of the values have to differ by: the place is chosen so that they differ most."""
_TEST = "rank-sum test"


@dataclass(frozen=True)
class Change:
    """Where a series changed.

    Attributes:
        index: the first value after it.
        before: the median before; nan if there is none.
        after: the median after.
        verdict: whether the difference is significant.
    """

    index: int
    before: float
    after: float
    verdict: Verdict


def find_change(values: npt.ArrayLike, scale: float | None = None) -> Change | None:
    """The change that divides a series best; None if it has too few values for two sides.

    Outliers are clipped first: a single long step is no change.

    Args:
        values: in order.
        scale: what a change is compared with; by default the median of the values.
    """
    series: Float = np.asarray(values, dtype=np.float64)
    n = series.size
    if n < 2 * LEAST_SAMPLES:
        return None
    low, high = np.quantile(series, (0.05, 0.95))
    clipped = np.clip(series, low, high)
    sums = np.cumsum(clipped)
    left = np.arange(LEAST_SAMPLES, n - LEAST_SAMPLES + 1)
    before, after = sums[left - 1] / left, (sums[-1] - sums[left - 1]) / (n - left)
    between = left * (n - left) * (before - after) ** 2
    index = int(left[int(np.argmax(between))])
    sides = series[:index], series[index:]
    medians = float(np.median(sides[0])), float(np.median(sides[1]))
    usual = float(np.median(series)) if scale is None else scale
    large = abs(medians[1] - medians[0]) > LEAST * abs(usual)
    differs = large and abs(rank_sum_score(sides[1], sides[0])) > SCORE
    significance = Significance.SIGNIFICANT if differs else Significance.NOT_SIGNIFICANT
    return Change(index, *medians, Verdict(significance, _TEST, (index, n - index)))
