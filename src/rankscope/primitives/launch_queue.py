"""Launch queue depth over time: how many device events are launched and have not started.

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
    """The depth is +1 for each event when it is launched, −1 when it begins; events without a launch are left out.

    Kernels of a graph count each, all from the graph's launch: once a call, the depth would go below zero.

    Attributes:
        start: when each event begins, ns, ascending; with a launch or without.
        end: when it ends, ns.
        launched: whether it has a launch.
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
        own = launch if launched.all() else launch[launched]
        return cls(start, end, launched, np.sort(own, kind="stable"))

    @cached_property
    def begun(self) -> Int64:
        """When each event that has a launch begins, ns, ascending."""
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
        """The depth summed over time, ns: each event adds its latency."""
        return int((self.begun - self.launch).sum())

    @property
    def lasted(self) -> int:
        """From the first launch or beginning of a launched event to the last, ns."""
        if not self.launch.size:
            return 0
        begun = self.begun
        return int(max(begun[-1], self.launch[-1]) - min(begun[0], self.launch[0]))

    @cached_property
    def span(self) -> tuple[int, int] | None:
        """The first start and the last end of events that last any time; None without such an event."""
        some = self.end > self.start
        if not some.any():
            return None
        return int(self.start[some.argmax()]), int(self.end[some].max())

    def starved(self, most: int = 1) -> IntervalSet:
        """When, within the span, nothing runs and at most so many are queued."""
        span = self.span
        if span is None:
            return EMPTY
        reached = np.maximum.accumulate(self.end)[:-1]
        gap = np.flatnonzero(self.start[1:] > reached)
        # All before a gap have begun. In it the depth only grows: it ends the wait with the launch that makes it more.
        begun = gap + 1 if self.launch.size == self.start.size else np.cumsum(self.launched)[gap]
        more = np.minimum(begun + most, self.launch.size)
        begins = np.maximum(reached[gap], span[0])
        ends = np.minimum(np.minimum(self.start[gap + 1], np.append(self.launch, _NEVER)[more]), span[1])
        # An event that lasts no time cuts a gap in two, which touch.
        return IntervalSet.of(begins, ends)
