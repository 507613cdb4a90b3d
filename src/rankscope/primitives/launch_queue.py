"""Launch queue depth over time: the number of device events that are launched but have not started.

Events sorted by start and launches sorted by time determine the depth: before the event that starts after ``i`` others,
at least ``d`` were queued exactly if launch ``i + d`` precedes its start. No search or merge is needed.

In: times of launches and starts in ns. Out: depths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rankscope.primitives.intervals import EMPTY, Int64, IntervalSet

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class LaunchQueue:
    """The launch queue: +1 for each event at its launch, −1 at its start; events without a launch are left out.

    Every kernel of a graph counts, from the graph's launch on: counted once per call, the depth would go below zero.

    Attributes:
        start: the starts of all events, ns, ascending.
        end: their ends, ns.
        launched: whether they have a launch.
        launch: the launches of those that have one, ns, ascending.
    """

    start: Int64
    end: Int64
    launched: npt.NDArray[np.bool_]
    launch: Int64

    @classmethod
    def of(cls, start: Int64, end: Int64, launch: Int64, launched: npt.NDArray[np.bool_]) -> LaunchQueue:
        """The queue of events in any order.

        Args:
            start: when each begins on the device, ns.
            end: when it ends, ns.
            launch: when its launch starts, ns; any number where it has none.
            launched: whether it has one.
        """
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end, launch, launched = start[order], end[order], launch[order], launched[order]
        launches = launch if launched.all() else launch[launched]
        return cls(start, end, launched, np.sort(launches, kind="stable"))

    @cached_property
    def begun(self) -> Int64:
        """The starts of events with a launch, ns, ascending."""
        return self.start if self.launch.size == self.start.size else self.start[self.launched]

    @property
    def deepest(self) -> int:
        """The largest depth."""
        begun = self.begun
        least, most = 0, begun.size
        while least < most:
            depth = (least + most + 1) // 2
            if (self.launch[depth - 1 :] < begun[: begun.size - depth + 1]).any():
                least = depth
            else:
                most = depth - 1
        return least

    @property
    def queued(self) -> int:
        """The depth summed over time, ns: the sum of launch latencies."""
        return int((self.begun - self.launch).sum())

    @property
    def lasted(self) -> int:
        """The time from the first launch or start of a launched event to the last, ns."""
        if not self.launch.size:
            return 0
        begun = self.begun
        return int(max(begun[-1], self.launch[-1]) - min(begun[0], self.launch[0]))

    @cached_property
    def span(self) -> tuple[int, int] | None:
        """The first start and the last end of events with a duration; None if there are none."""
        nonempty = self.end > self.start
        if not nonempty.any():
            return None
        return int(self.start[nonempty.argmax()]), int(self.end[nonempty].max())

    def starved(self) -> IntervalSet:
        """The time within the span in which nothing runs and at most one event is queued."""
        span = self.span
        if span is None:
            return EMPTY
        reached = np.maximum.accumulate(self.end)[:-1]
        gap = np.flatnonzero(self.start[1:] > reached)
        # All events before a gap have begun. In the gap the depth only grows, so starvation ends with the second
        # launch after the last event that has begun.
        begun = gap + 1 if self.launch.size == self.start.size else np.cumsum(self.launched)[gap]
        exceeding = np.minimum(begun + 1, self.launch.size)
        begins = np.maximum(reached[gap], span[0])
        ends = np.minimum(np.minimum(self.start[gap + 1], np.append(self.launch, _NEVER)[exceeding]), span[1])
        # An event without duration splits a gap into two that touch.
        return IntervalSet.of(begins, ends)
