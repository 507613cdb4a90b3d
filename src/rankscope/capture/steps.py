"""How long each step took, cheaply: one reading of the clock a step, the first and the latest of them kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from statistics import median

from rankscope.capture.schedule import Window
from rankscope.rundir.manifest import StepSpan

KEPT_FIRST = 1000
"""The first steps are kept whatever comes: they hold what is compiled, allocated and cached."""
KEPT_LATEST = 2048
_KEPT_WINDOWS = 1000


class StepTimes:
    """Clock readings at the boundaries of steps, and in which state of the profiler each step ran.

    Args:
        start_step: the step that begins now.
    """

    def __init__(self, start_step: int) -> None:
        self._start = start_step
        self._readings: deque[int] = deque([time.perf_counter_ns()], maxlen=KEPT_LATEST + 1)
        self.mark: Callable[[int], None] = self._readings.append
        """Keep the reading of a step's end. It is the deque's own method: nothing is cheaper."""
        self._first: tuple[int, ...] = ()
        self._windows: deque[Window] = deque(maxlen=_KEPT_WINDOWS)
        self.fold_at = start_step + KEPT_FIRST
        """The step at which :meth:`fold` has to be called for the first steps not to be lost."""

    def fold(self) -> None:
        """Put the first steps aside."""
        if not self._first:
            self._first = tuple(self._readings)[: KEPT_FIRST + 1]
        self.fold_at = 1 << 62

    def recorded(self, window: Window) -> None:
        """A window has begun its warm-up."""
        self._windows.append(window)

    def spans(self, step: int) -> tuple[StepSpan, ...]:
        """Every step whose time is known, in runs of one state.

        Args:
            step: the step that runs now.
        """
        states: dict[int, str] = {}
        for window in self._windows:
            states |= dict.fromkeys(range(window.warmup, window.first), "warmup")
            states |= dict.fromkeys(range(window.first, window.last + 1), "active")
        return tuple(StepSpan(number, state, tuple(run)) for number, state, run in self._runs(step, states))

    def medians(self, step: int) -> dict[str, int]:
        """The median duration of a step by state, in nanoseconds."""
        by_state: dict[str, list[int]] = {}
        for span in self.spans(step):
            by_state.setdefault(span.state, []).extend(span.ns)
        return {state: int(median(durations)) for state, durations in by_state.items()}

    def _runs(self, step: int, states: dict[int, str]) -> Iterator[tuple[int, str, list[int]]]:
        latest = tuple(self._readings)
        first_latest = step - len(latest) + 1
        durations = dict(enumerate(_differences(latest), first_latest))
        durations |= dict(enumerate(_differences(self._first), self._start))
        numbered = sorted(durations.items())
        # A gap in the numbers begins a new run as well as a change of state does.
        keyed = [
            (number - index, states.get(number, "wait"), number, ns) for index, (number, ns) in enumerate(numbered)
        ]
        for (_, state), run in groupby(keyed, key=lambda item: item[:2]):
            steps = list(run)
            yield steps[0][2], state, [item[3] for item in steps]


def _differences(readings: tuple[int, ...]) -> Iterator[int]:
    return (after - before for before, after in pairwise(readings))
