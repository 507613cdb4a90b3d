"""A rank in one measure (`Suspect`), which detectors judge, and a rank that stands out (`Late`), which they find.

In: the excesses of all ranks in a measure. Out: the random variation, from the other ranks or, if they are too few,
from the rank itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rankscope.primitives.statistics import student_quantile
from rankscope.primitives.stragglers.measures import Measure
from rankscope.primitives.stragglers.peers import Bool, Float, below_widest_gap, root_mean_square
from rankscope.primitives.stragglers.thresholds import Thresholds

ALWAYS = "always_late"
"""The detector of ranks that are late in every step."""
# Steps. With fewer, the random variation of two ranks is unknown (one step of a clean rank differed by 18.6 %,
# measured); with a few more ranks, only an excess far beyond any hiccup counts.
TOO_FEW = 4
FEW = 8  # values of other ranks; with fewer, random variation is unknown; 4 and 16: no difference for faults from 5 %


@dataclass(frozen=True)
class Late:
    """A rank that stands out.

    Attributes:
        row: its row.
        measure: the one in which it stands out most.
        steps: (steps,) in which it stands out.
        kind: the name of the detector that found it.
        excess: (steps,) its local time less its peers' median, ns; nan where not compared.
        score: its excess, divided by the least that stands out.
        lost_ns: loss per step, if the hiccups of its peers hide it in the local time.
    """

    row: int
    measure: str
    steps: Bool
    kind: str
    excess: Float
    score: float
    lost_ns: float = 0.0

    @property
    def lasting(self) -> bool:
        """Whether it is late in every step."""
        return self.kind == ALWAYS

    @property
    def taken(self) -> float:
        """The sum of its local time's excess in its late steps, ns."""
        return float(np.nansum(np.where(self.steps, self.excess, 0.0)))

    @property
    def hidden(self) -> bool:
        """Whether hiccups of its peers hide a part of its loss in the local time."""
        return self.lost_ns * int(self.steps.sum()) > self.taken

    @property
    def weight(self) -> float:
        """What it loses in its late steps, ns."""
        return max(self.taken, self.lost_ns * int(self.steps.sum()))


@dataclass(frozen=True)
class Suspect:
    """One rank in one measure.

    Attributes:
        measure: which.
        excess: (steps,) of the measure, ns; nan where not compared.
        others: (ranks, steps) the excess of the other ranks.
        own: (steps,) excess of the local time, ns; nan where not compared.
        whole: (steps,) which were recorded from their beginning.
        step_ns: how long a step takes.
        on_host: whether the job computes on the CPU.
    """

    measure: Measure
    excess: Float
    others: Float
    own: Float
    whole: Bool
    step_ns: float
    on_host: bool

    @property
    def few(self) -> bool:
        """Whether there are too few values of other ranks to estimate the random variation from."""
        return bool(np.isfinite(self.others).sum() < (FEW if self.judged.sum() > 1 else FEW // 2))

    @property
    def of_two(self) -> bool:
        """Whether it is one of two ranks: then nothing shows by how much hosts differ."""
        return bool(self.others.shape[0] < 2)

    @property
    def too_few(self) -> bool:
        """Whether its excess cannot be distinguished from a host's random variation."""
        return self.of_two and not self.measure.quiet and bool(np.isfinite(self.excess).sum() < TOO_FEW)

    @property
    def judged(self) -> Bool:
        """(steps,) Which steps decide whether it is always late."""
        seen: Bool = np.isfinite(self.excess)
        if self.measure.of_host:
            return seen
        return seen & self.whole if (seen & self.whole).any() else seen

    def error(self, values: Float) -> tuple[float, int]:
        """The standard error of the mean of some excesses, ns, and its degrees of freedom, where others are few.

        A rank's values are also part of the median that its peers are compared with, so the others' count half.
        """
        rest = self.others[np.isfinite(self.others)]
        freedom = values.size - 1 + rest.size // 2
        squares = float(((values - values.mean()) ** 2).sum()) + float((rest**2).sum()) / 2
        return max(math.sqrt(squares / max(freedom, 1) / values.size), 1.0), freedom

    def floor_few(self, limits: Thresholds) -> float:
        """The least random variation that is assumed, of a step, where it cannot be estimated."""
        return limits.floor_few_hosts if self.on_host else limits.floor_few

    @property
    def pool(self) -> Float:
        """The values from which the random variation between a rank and its peers is estimated, ns."""
        pool: Float = self.others[np.isfinite(self.others)]
        if self.few:
            # From how the rank itself varies from step to step; where hosts have no part, between its usual steps.
            values = self.excess[self.judged]
            if self.measure.quiet:
                values = below_widest_gap(self.excess[np.isfinite(self.excess)])
            pool = np.concatenate([pool, values - np.median(values)])
        return pool

    def chance(self, limits: Thresholds) -> float:
        """The random variation between a rank and its peers, ns."""
        floor = limits.floor_device if self.measure.quiet else limits.floor_host
        if self.few:
            floor = max(floor, self.floor_few(limits))
        pool = self.pool
        spread = root_mean_square(pool)
        if self.few and self.measure.quiet:
            # Of two or three usual steps the spread is hardly known.
            spread *= max(student_quantile(pool.size - 1, 1 - 2 * limits.by_chance) / limits.chance, 1)
        return max(spread, floor * self.step_ns)
