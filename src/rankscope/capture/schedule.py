"""Which steps are recorded: windows of a warm-up and a recording, as plain numbers of steps.

Numbers are those of the training, so that a resumed run's ``ProfilerStep#`` continue where it left off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from rankscope.rundir.config import CaptureConfig


@dataclass(frozen=True)
class Window:
    """One recording. All are step numbers."""

    warmup: int
    """The first step of the warm-up; equal to ``first`` where there is none."""
    first: int
    """The first recorded step."""
    last: int
    """The last recorded step, inclusive."""


def windows(config: CaptureConfig, start_step: int) -> Iterator[Window]:
    """The windows of a loop that begins at ``start_step``, in order; endless where ``repeat`` is 0.

    With ``wait``, the cycle is counted from ``start_step``. With ``period_steps``, periods lie at fixed step
    numbers, and a loop that begins inside a period, after its warm-up should have begun, leaves that period
    out: a recording without its warm-up would show the profiler's own start.
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
    # The first period whose warm-up begins at `earliest` or later.
    index = max(-(-(earliest - (period - lead)) // period), 0)
    for n in numbers:
        end = (index + n + 1) * period
        yield Window(end - lead, end - config.active, end - 1)
