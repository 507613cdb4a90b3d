"""Which steps are recorded: from the options to windows of a warm-up and a recording, as plain step numbers.

Step numbers are those of the training, so that the ``ProfilerStep#`` of a resumed run continue where it left off.

In: the options, and the first step. Out: windows, one after another.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from rankscope.rundir.config import CaptureConfig

AUTO_START_STEP = 1
"""The first step of a script without a ``Profiler``: its step 0 is over when its optimizer has made it."""


@dataclass(frozen=True)
class Window:
    """One recording, in step numbers."""

    warmup: int
    """The first step of the warm-up; equal to ``first`` if there is none."""
    first: int
    """The first recorded step."""
    last: int
    """The last recorded step, inclusive."""
    requested: bool = False
    """Whether the watch asked for it; else it is one of the schedule."""


def windows(config: CaptureConfig, start_step: int) -> Iterator[Window]:
    """The windows of a loop that begins at ``start_step``, in order; endless if ``repeat`` is 0.

    With ``wait``, cycles are counted from ``start_step``. With ``period_steps``, periods begin at fixed step numbers.
    If the loop begins after a period's warm-up should have begun, the rest of that period is recorded after at least
    one step of warm-up, unless there is none: a recording without it would show the profiler's own start.
    """
    numbers = range(config.repeat) if config.repeat else count()
    earliest = start_step + config.skip_first
    if config.period_steps is None:
        cycle = config.wait + config.warmup + config.active
        for n in numbers:
            warmup = earliest + n * cycle + config.wait
            yield Window(warmup, warmup + config.warmup, warmup + config.warmup + config.active - 1)
        return
    period = config.period_steps
    lead = config.warmup + config.active
    # The first period of which a step can be recorded after one of warm-up.
    shortest = min(config.warmup, 1)
    index = (earliest + shortest) // period
    for n in numbers:
        end = (index + n + 1) * period
        warmup = max(end - lead, earliest)
        yield Window(warmup, max(end - config.active, warmup + shortest), end - 1)


class WindowPlan(Iterator[Window]):
    """Windows in the order of their steps: those of the schedule, and others that are added meanwhile.

    Args:
        scheduled: in order.
    """

    def __init__(self, scheduled: Iterator[Window]) -> None:
        self._scheduled = scheduled
        self.next_scheduled = next(scheduled, None)
        """The next window of the schedule."""
        self._added: list[Window] = []

    def add(self, window: Window) -> None:
        """Add a window that overlaps with no other."""
        insort(self._added, window, key=lambda each: each.first)

    def drop_schedule(self) -> None:
        """Keep only the windows that were added."""
        self._scheduled, self.next_scheduled = iter(()), None

    def __next__(self) -> Window:
        scheduled = self.next_scheduled
        if self._added and (scheduled is None or self._added[0].first < scheduled.first):
            return self._added.pop(0)
        if scheduled is None:
            raise StopIteration
        self.next_scheduled = next(self._scheduled, None)
        return scheduled
