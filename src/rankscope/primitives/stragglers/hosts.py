"""Whether a rank whose device is idle longer has a slower host, or fell behind by chance.

In: a late rank, and the observations. Out: whether its host itself takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rankscope.primitives.stragglers.measures import HOST_PARTS
from rankscope.primitives.stragglers.observations import Observations
from rankscope.primitives.stragglers.peers import Bool, Float, excess_over_peers, mean_known, root_mean_square
from rankscope.primitives.stragglers.suspects import Late
from rankscope.primitives.stragglers.thresholds import Thresholds


def caused_by_host(late: Late, seen: Observations, out: Bool, limits: Thresholds) -> bool:
    """Whether the host is slower where its device was idle longer; true where that is not known.

    How far a host runs ahead of its device is a matter of chance. One that falls behind stays behind: its device waits
    for launches step after step, although the host is no slower than the others. So it is true if

    1. the device's idle time, but for data loading, is less than half of the excess, which then has another reason, or
    2. all ranks run one program, and this one starts each step even with its device, which was idle for far longer than
       any peer's ever was: then the others waited for it. In a pipeline both may wait for another stage, or
    3. in the mean of the late steps, the host itself takes longer, by a share of the idle time and by more than hosts
       differ by, or
    4. the rank is always late, and in the mean of all steps the pace of its host is far slower than hosts differ by. Of
       two ranks, nothing shows by how much hosts differ
    """
    idle = mean_known(excess_over_peers(_idle(seen, HOST_PARTS), seen.role, out)[late.row, late.steps])
    if not idle >= limits.left * mean_known(late.excess[late.steps]):
        return True
    total = _idle(seen, (*HOST_PARTS, "data_loading"))
    even = seen.host_waits[late.row] and np.ptp(seen.role) == 0
    if even and total[late.row, late.steps].min() > limits.beyond_idle * np.nan_to_num(total[~out]).max(initial=0):
        return True
    slower, chance = _compared_with_others(seen.host_steady, seen, out, late.row, late.steps)
    if not math.isfinite(slower) or slower > max(limits.of_idle * idle, limits.host_chance * chance):
        return True
    slower, chance = _compared_with_others(seen.host_pace, seen, out, late.row, np.isfinite(late.excess))
    return late.lasting and chance > 0 and slower > limits.slow_and_behind * chance


def _idle(seen: Observations, names: Sequence[str]) -> Float:
    """(ranks, steps) How long each rank's device had nothing to run while its host did this, ns; nan: not known."""
    waits = [seen.parts[part] for part in names if part in seen.parts]
    return np.where(seen.known, np.sum(waits, axis=0), np.nan) if waits else np.full(seen.known.shape, np.nan)


def _compared_with_others(value: Float, seen: Observations, out: Bool, row: int, steps: Bool) -> tuple[float, float]:
    """By how much a host takes longer than its peers in the mean of some steps, ns, and by how much the others vary."""
    excess: Float = excess_over_peers(value, seen.role, out)[:, steps]
    return mean_known(excess[row]), root_mean_square(np.array([mean_known(each) for each in excess[~out]]))
