"""Steps without an iteration: those that the recording's start or end left empty, or nearly so.

`torch.profiler` opens the range of the next step in every `prof.step()`. If the loop then ends, the last range holds
only what comes after the loop; if `prof.step()` comes first in the loop, the first range holds only what comes before
it. Averages over steps must leave them out. A step is judged by what it did, never by how long it took:

1. Its work is its top-level operators (by start) and device events (by launch), without those inside data loading: the
   loader is asked once more after its last batch.
2. Only the first and the last step of a file may be incomplete; when one is, so may be its neighbour, and so on.
3. A step is incomplete if it has less than a quarter of the work of the other steps (median), and less than half of the
   names that more than half of them have. With only one other step: if it has none, and the other has some.
4. None is left out where most steps are empty, or where a step between those that remain is as empty: then the loop has
   such steps, or the trace does not record what steps do.

Source of the shares: in 45 recordings of A100, H100, V100, MI300X and CPUs complete steps have at least 0.94 of the
work and 0.93 of the names; what a loop leaves at its end has at most 0.2 and 0.27 (left in the middle of a step).
The two conditions hold different steps back: a last step of fewer micro-batches has all names, and one that runs other
kernels (a decode step after prefill) has as many.

In: the steps of a rank, its operators, device events and ranges. Out: the steps that are incomplete.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.activity import data_loading_time
from rankscope.primitives.intervals import Int64
from rankscope.primitives.steps import host_steps, owning_steps

WORK_SHARE = 0.25
"""Of the median work of the other steps, in events: an incomplete step has less."""
NAMES_SHARE = 0.5
"""Of the names that the other steps have in common: an incomplete step has less."""


@dataclass(frozen=True)
class IncompleteStep:
    """A step that holds no iteration.

    Attributes:
        step: N of `ProfilerStep#N`.
        events: its operators and device events, outside data loading.
        usual_events: the median of the other steps.
        duration_ns: length of its range on the host.
    """

    step: int
    events: int
    usual_events: int
    duration_ns: int


class StepContents:
    """What the steps of a file did, collected from its tables part by part.

    Args:
        annotations: start_ns, end_ns, name, on_device, step.
    """

    def __init__(self, annotations: pl.DataFrame) -> None:
        self._steps = host_steps(annotations)
        self._start, self._end = self._steps["start_ns"].to_numpy(), self._steps["end_ns"].to_numpy()
        self._loading = data_loading_time(annotations)
        self._events: list[Counter[str | None]] = [Counter() for _ in range(self._steps.height)]

    def add(self, instants: Int64, names: pl.Series) -> None:
        """Count events.

        Args:
            instants: starts of operators or launches of device events, ns.
            names: their names.
        """
        if self._steps.height < 2 or not instants.size:
            return
        owner = owning_steps(self._start, self._end, instants, np.ones(instants.size, dtype=np.bool_))
        owner[self._loading.before(instants + 1) > self._loading.before(instants)] = -1
        found = pl.DataFrame([pl.Series("owner", owner), names.alias("name")]).filter(pl.col("owner") >= 0)
        for step, name, number in found.group_by("owner", "name").len().iter_rows():
            self._events[step][name] += number

    def incomplete(self) -> list[IncompleteStep]:
        """The steps that hold no iteration, in their order."""
        left = list(range(self._steps.height))
        found: list[IncompleteStep] = []
        while len(left) > 1:
            for edge in (left[-1], left[0]):
                others = [step for step in left if step != edge]
                if self._is_incomplete(edge, others):
                    found.append(self._described(edge, others))
                    left = others
                    break
            else:
                break
        if len(left) > 1 and any(self._is_incomplete(step, [each for each in left if each != step]) for step in left):
            return []
        return sorted(found, key=lambda each: each.step)

    def _is_incomplete(self, step: int, others: list[int]) -> bool:
        events, usual = self._events[step].total(), self._usual(others)
        shared = Counter(name for other in others for name in self._events[other])
        common = {name for name, number in shared.items() if 2 * number > len(others)}
        if not common:
            return False
        if len(others) == 1:
            return not events
        names = len(common & self._events[step].keys())
        return events < WORK_SHARE * usual and names < NAMES_SHARE * len(common)

    def _usual(self, others: list[int]) -> float:
        return float(np.median([self._events[other].total() for other in others]))

    def _described(self, step: int, others: list[int]) -> IncompleteStep:
        return IncompleteStep(
            int(self._steps["step"][step]),
            self._events[step].total(),
            round(self._usual(others)),
            int(self._end[step] - self._start[step]),
        )
