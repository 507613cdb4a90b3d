"""Project the speed-up of larger sizes from a scaling law fitted to the measured ones: not a measurement.

In: the measured sizes. Out: larger sizes, with intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rankscope.experiments.measure.formulas import STRONG, fit_scalability_law, speed_up
from rankscope.experiments.measure.results import Projected, Projection, Size
from rankscope.experiments.measure.statistics import Float, Series, affine, ratio_of, widening

_DOUBLINGS = 3
"""The largest projected size, in doublings of the largest measured one."""
_DRAWN = 300
_FORMULA = "S(n) = n / (1 + sigma (n - 1) + kappa n (n - 1))"
_ASSUMPTIONS = (
    "contention and coherence stay the same as at the measured sizes",
    "further ranks are like the measured ones: the same devices, the same network between any two of them",
    "sizes within one host give no information on the network between hosts",
    "intervals cover the noise of the measurement, not the error of the law",
)


def project(
    sizes: Sequence[Size], t1: float, drawn1: Float, times: Mapping[str, tuple[Series, Float]], mode: str
) -> Projection | None:
    """Fit the law to the measured sizes above 1, and evaluate it up to eight times the largest.

    Args:
        sizes: the sizes of the study; oversubscribed ones are left out.
        t1, drawn1: the step of the base and its replicates.
        times: series and replicates by name of the size.
        mode: ``strong`` or ``weak``.
    """
    used = [size for size in sizes if size.name in times and size.ranks > 1 and not size.oversubscribed]
    if not used or t1 <= 0:
        return None
    if min(len(drawn1), *(len(times[size.name][1]) for size in used)) == 0:
        return None  # too few blocks for an interval
    ranks = [size.ranks for size in used]
    speeds = [float(speed_up(t1, times[s.name][0].median(), s.ranks, mode)) for s in used]
    if max(speeds) <= 1:
        return None  # it does not scale at all: nothing to project
    law = fit_scalability_law(ranks, speeds)
    count = min(_DRAWN, len(drawn1), *(len(times[size.name][1]) for size in used))
    laws = [
        fit_scalability_law(ranks, [float(speed_up(drawn1[i], times[s.name][1][i], s.ranks, mode)) for s in used])
        for i in range(count)
    ]
    widened = max(widening(times[size.name][0]) for size in used)
    points = []
    for n in sorted({*ranks, *(max(ranks) * 2**k for k in range(1, _DOUBLINGS + 1))}):
        value, drawn = law.speed_up(n), np.asarray([drawn_law.speed_up(n) for drawn_law in laws])
        step = t1 / value if mode == STRONG else n * t1 / value
        projected = ratio_of(value, drawn, widened)
        points.append(Projected(n, projected, affine(projected, 1 / n, 0), round(step)))
    one_size = len(set(ranks)) == 1
    note = "of the global batch's work" if mode == STRONG else "of the work, which grows with the ranks"
    return Projection(
        model="amdahl" if one_size else "usl",
        formula=_FORMULA + (", kappa = 0: one size above 1 cannot determine both" if one_size else ""),
        contention=law.contention,
        coherence=law.coherence,
        fitted_ranks=sorted(set(ranks)),
        assumptions=[*_ASSUMPTIONS, f"n is the number of ranks, S the speed-up {note}"],
        points=points,
    )
