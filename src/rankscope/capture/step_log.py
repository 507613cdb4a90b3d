"""What is noted at each step while the job runs: step durations and clock readings, of bounded size.

In go readings of the clock at step boundaries; out come the step times and clock anchors of a trace and of the rank's
manifest. The cost is one clock reading per step. The first and the latest steps and those of recorded windows are kept
individually, the others in blocks.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, pairwise
from statistics import median

from rankscope.capture.environment import clock_anchor, memory
from rankscope.rundir.manifest import StepBlock
from rankscope.rundir.metadata import ClockAnchor, StepSpan
from rankscope.rundir.schedule import Window

KEPT_FIRST = 1000
"""The first steps are always kept: they show compilation, allocation and caching."""
KEPT_LATEST = 2048
KEPT_BLOCKS = 512
"""At most; at twice as many, pairs are merged."""
STEPS_IN_TRACE = 500
"""How many of the first and of the latest steps have their times in each trace; the manifest has all."""
KEPT_ANCHORS = 100
"""How many of the first and of the latest clock readings are kept."""
_BLOCK = 1000
_KEPT_WINDOWS = 1000
_KEPT_RECORDED = 4000


class StepTimes:
    """Clock readings at step boundaries, and the state of the profiler in each step.

    Args:
        start_step: the step that begins now, or began at ``began_ns``.
        began_ns: a reading of ``time.perf_counter_ns``.
    """

    def __init__(self, start_step: int, began_ns: int | None = None) -> None:
        began = time.perf_counter_ns() if began_ns is None else began_ns
        self._readings: deque[int] = deque([began], maxlen=KEPT_LATEST + 1)
        self.mark: Callable[[int], None] = self._readings.append
        """Note the end of a step. This is the deque's own method: nothing is cheaper."""
        self._first: dict[int, int] = {}
        self._recorded: deque[tuple[int, int, str]] = deque(maxlen=_KEPT_RECORDED)
        self._blocks: list[StepBlock] = []
        self._windows: deque[Window] = deque(maxlen=_KEPT_WINDOWS)
        self._folded = start_step
        self.fold_at = start_step + KEPT_FIRST
        """The step at which :meth:`fold` must be called so that no step is lost."""

    def fold(self, step: int) -> None:
        """Move the readings that would be dropped into blocks.

        Args:
            step: the current step.
        """
        new = [(number, ns) for number, ns in self._latest(step) if number >= self._folded]
        self._folded, self.fold_at = step, step + _BLOCK
        if not self._first:
            self._first = dict(new[:KEPT_FIRST])
            new = new[KEPT_FIRST:]
        if not new:
            return
        states = self._states(new[0][0])
        self._recorded.extend((number, ns, states[number]) for number, ns in new if number in states)
        durations = [ns for _, ns in new]
        self._blocks.append(StepBlock(new[0][0], len(new), min(durations), max(durations), sum(durations)))
        if len(self._blocks) >= 2 * KEPT_BLOCKS:
            self._blocks = [_merged(*self._blocks[i : i + 2]) for i in range(0, len(self._blocks), 2)]

    def add_window(self, window: Window) -> None:
        """Note that a window's warm-up has begun."""
        self._windows.append(window)

    def spans(self, step: int, limit: int | None = None) -> tuple[StepSpan, ...]:
        """Every step whose duration is known, grouped into runs of one state.

        Args:
            step: the current step.
            limit: keep only this many of the first and of the latest steps.
        """
        return tuple(StepSpan(first, state, tuple(run)) for first, state, run in self._runs(step, limit))

    def snapshot(self) -> StepTimes:
        """A copy for another thread to evaluate."""
        still = copy.copy(self)
        still._readings, still._recorded = self._readings.copy(), self._recorded.copy()
        still._windows, still._blocks = self._windows.copy(), list(self._blocks)
        return still

    def blocks(self) -> tuple[StepBlock, ...]:
        """The steps after the first, in blocks of a thousand or more; steps of windows are included."""
        return tuple(self._blocks)

    def medians(self, step: int, limit: int | None = None) -> dict[str, int]:
        """The median step duration by state, in nanoseconds."""
        by_state: dict[str, list[int]] = {}
        for span in self.spans(step, limit):
            by_state.setdefault(span.state, []).extend(span.ns)
        return {state: int(median(durations)) for state, durations in by_state.items()}

    def _latest(self, step: int) -> Iterator[tuple[int, int]]:
        readings = tuple(self._readings)
        return enumerate((after - before for before, after in pairwise(readings)), step - len(readings) + 1)

    def _states(self, since: int) -> dict[int, str]:
        states: dict[int, str] = {}
        for window in self._windows:
            if window.last >= since:
                states |= dict.fromkeys(range(window.warmup, window.first), "warmup")
                states |= dict.fromkeys(range(window.first, window.last + 1), "active")
        return states

    def _runs(self, step: int, limit: int | None) -> Iterator[tuple[int, str, list[int]]]:
        first, recorded, latest = list(self._first.items()), list(self._recorded), list(self._latest(step))
        if limit is not None:
            first, recorded, latest = (first or latest)[:limit], [], latest[-limit:]
        durations = {number: ns for number, ns, _ in recorded} | dict(first) | dict(latest)
        states = self._states(min(durations, default=0)) | {number: state for number, _, state in recorded}
        numbered = sorted(durations.items())
        # A gap in the numbers begins a new run, as a change of state does.
        keyed = [
            (number - index, states.get(number, "wait"), number, ns) for index, (number, ns) in enumerate(numbered)
        ]
        for (_, state), run in groupby(keyed, key=lambda item: item[:2]):
            steps = list(run)
            yield steps[0][2], state, [item[3] for item in steps]


def _merged(one: StepBlock, other: StepBlock) -> StepBlock:
    return StepBlock(
        one.first_step,
        one.steps + other.steps,
        min(one.min_ns, other.min_ns),
        max(one.max_ns, other.max_ns),
        one.total_ns + other.total_ns,
    )


class ClockAnchors:
    """Pairs of clock readings: the first and the latest of the run, and those of the current window.

    They tell a drift of the wall clock from a change of the work.
    """

    def __init__(self) -> None:
        self._first: list[ClockAnchor] = []
        self._latest: deque[ClockAnchor] = deque(maxlen=KEPT_ANCHORS)
        self._window: list[ClockAnchor] = []

    def add(self) -> None:
        """Read the clocks."""
        anchor = clock_anchor()
        self._window.append(anchor)
        if len(self._first) < KEPT_ANCHORS:
            self._first.append(anchor)
        else:
            self._latest.append(anchor)

    def begin_window(self) -> None:
        """Read the clocks at the beginning of a recording."""
        self._window.clear()
        self.add()

    def for_run(self) -> tuple[ClockAnchor, ...]:
        """The first and the latest, oldest first."""
        return (*self._first, *self._latest)

    def for_trace(self) -> tuple[ClockAnchor, ...]:
        """Those of the window, then the earlier ones."""
        return (*self._window, *(anchor for anchor in self.for_run() if anchor not in self._window))


class RunSnapshot:
    """The state of the run when a recording ends: copied in the loop, evaluated in the writer's thread.

    Args:
        step: the current step.
        times: the step times so far.
        anchors: the clock readings so far.
        cost: what the profiler has cost so far, in stalls and bytes, as in the trace.
    """

    def __init__(self, step: int, times: StepTimes | None, anchors: ClockAnchors, cost: Mapping[str, object]) -> None:
        self._step, self._cost = step, cost
        self._times = times.snapshot() if times is not None else None
        self.trace_anchors, self._run_anchors = anchors.for_trace(), anchors.for_run()
        self.memory = memory()

    def trace_spans(self) -> tuple[StepSpan, ...]:
        """The step times that a trace carries."""
        return self._times.spans(self._step, STEPS_IN_TRACE) if self._times is not None else ()

    def trace_cost(self) -> dict[str, object]:
        """The profiler's cost and the median step by state, which shows it."""
        medians = self._times.medians(self._step, STEPS_IN_TRACE) if self._times is not None else {}
        return {**self._cost, "step_median_ns": medians}

    def manifest_fields(self) -> dict[str, object]:
        """What the rank's manifest has of the run so far, by field."""
        if self._times is None:
            return {}
        return {
            "step_times": self._times.spans(self._step),
            "step_blocks": self._times.blocks(),
            "step_median_ns": self._times.medians(self._step),
            "clock_anchors": self._run_anchors,
        }
