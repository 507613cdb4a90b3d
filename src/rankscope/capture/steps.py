"""How long each step took, cheaply: one reading of the clock a step. The first and the latest steps and those of
windows are kept each, the others in blocks, so that the year-long job's are of bounded size too."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from statistics import median

from rankscope.capture.schedule import Window
from rankscope.rundir.manifest import StepBlock
from rankscope.rundir.metadata import StepSpan

KEPT_FIRST = 1000
"""The first steps are kept whatever comes: they hold what is compiled, allocated and cached."""
KEPT_LATEST = 2048
KEPT_BLOCKS = 512
"""At most; twice as many are joined in pairs."""
_BLOCK = 1000
_KEPT_WINDOWS = 1000
_KEPT_RECORDED = 4000


class StepTimes:
    """Clock readings at the boundaries of steps, and in which state of the profiler each step ran.

    Args:
        start_step: the step that begins now, or began at ``began_ns``.
        began_ns: a reading of ``time.perf_counter_ns``.
    """

    def __init__(self, start_step: int, began_ns: int | None = None) -> None:
        self._start = start_step
        began = time.perf_counter_ns() if began_ns is None else began_ns
        self._readings: deque[int] = deque([began], maxlen=KEPT_LATEST + 1)
        self.mark: Callable[[int], None] = self._readings.append
        """Keep the reading of a step's end. It is the deque's own method: nothing is cheaper."""
        self._first: dict[int, int] = {}
        self._recorded: deque[tuple[int, int, str]] = deque(maxlen=_KEPT_RECORDED)
        self._blocks: list[StepBlock] = []
        self._windows: deque[Window] = deque(maxlen=_KEPT_WINDOWS)
        self._folded = start_step
        self.fold_at = start_step + KEPT_FIRST
        """The step at which :meth:`fold` has to be called for no step to be lost."""

    def fold(self, step: int) -> None:
        """Put aside what would be forgotten.

        Args:
            step: the step that runs now.
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
            self._blocks = [_joined(*self._blocks[i : i + 2]) for i in range(0, len(self._blocks), 2)]

    def recorded(self, window: Window) -> None:
        """A window has begun its warm-up."""
        self._windows.append(window)

    def spans(self, step: int, most: int | None = None) -> tuple[StepSpan, ...]:
        """Every step whose own time is known, in runs of one state.

        Args:
            step: the step that runs now.
            most: only so many of the first and of the latest steps.
        """
        return tuple(StepSpan(first, state, tuple(run)) for first, state, run in self._runs(step, most))

    def snapshot(self) -> StepTimes:
        """As it is now, for another thread to make the most of."""
        still = copy.copy(self)
        still._readings, still._recorded = self._readings.copy(), self._recorded.copy()
        still._windows, still._blocks = self._windows.copy(), list(self._blocks)
        return still

    def blocks(self) -> tuple[StepBlock, ...]:
        """The steps that came after the first, by the thousand or more; those of windows among them."""
        return tuple(self._blocks)

    def medians(self, step: int, most: int | None = None) -> dict[str, int]:
        """The median duration of a step by state, in nanoseconds."""
        by_state: dict[str, list[int]] = {}
        for span in self.spans(step, most):
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

    def _runs(self, step: int, most: int | None) -> Iterator[tuple[int, str, list[int]]]:
        first, recorded, latest = list(self._first.items()), list(self._recorded), list(self._latest(step))
        if most is not None:
            first, recorded, latest = (first or latest)[:most], [], latest[-most:]
        durations = {number: ns for number, ns, _ in recorded} | dict(first) | dict(latest)
        states = self._states(min(durations, default=0)) | {number: state for number, _, state in recorded}
        numbered = sorted(durations.items())
        # A gap in the numbers begins a new run as well as a change of state does.
        keyed = [
            (number - index, states.get(number, "wait"), number, ns) for index, (number, ns) in enumerate(numbered)
        ]
        for (_, state), run in groupby(keyed, key=lambda item: item[:2]):
            steps = list(run)
            yield steps[0][2], state, [item[3] for item in steps]


def _joined(one: StepBlock, other: StepBlock) -> StepBlock:
    return StepBlock(
        one.first_step,
        one.steps + other.steps,
        min(one.min_ns, other.min_ns),
        max(one.max_ns, other.max_ns),
        one.total_ns + other.total_ns,
    )
