"""How many device events are launched and have not begun: the queue's depth over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.primitives.intervals import EMPTY, Int64, IntervalSet


@dataclass(frozen=True)
class Queue:
    """A step function: from `instants[i]` to the next the depth is `depth[i]`; before the first it is 0.

    Attributes:
        instants: when it changes, ns, ascending, distinct.
        depth: events launched and not begun from then on; negative only where clocks are wrong.
    """

    instants: Int64
    depth: Int64

    @classmethod
    def of(cls, launch: Int64, start: Int64) -> Queue:
        """The queue of launched events: +1 when each is launched, −1 when it begins.

        Kernels of a graph count each, all from the graph's launch: once a call, the depth would go below zero.

        Args:
            launch: when each event's launch starts, ns.
            start: when it begins on the device, ns.
        """
        launched, begun = np.sort(launch), np.sort(start)
        instants = np.sort(np.concatenate([launched, begun]), kind="stable")
        instants = instants[np.append(instants[1:] != instants[:-1], True)] if instants.size else instants
        depth = np.searchsorted(launched, instants, side="right") - np.searchsorted(begun, instants, side="right")
        return cls(instants, depth)

    @property
    def deepest(self) -> int:
        """The greatest depth."""
        return int(self.depth.max(initial=0))

    @property
    def mean(self) -> float | None:
        """The mean depth over time, from the first launch to the last beginning; None without such a time."""
        if self.instants.size < 2 or self.instants[-1] == self.instants[0]:
            return None
        lasted = np.diff(self.instants).astype(np.float64)
        return float((self.depth[:-1] * lasted).sum() / lasted.sum())

    def shallow(self, start: int, end: int, most: int = 1) -> IntervalSet:
        """When, within a window, at most so many were queued."""
        if end <= start:
            return EMPTY
        edges = np.concatenate([[np.iinfo(np.int64).min], self.instants])
        until = np.concatenate([self.instants, [np.iinfo(np.int64).max]])
        low = np.concatenate([[True], self.depth <= most])
        return IntervalSet.of(np.maximum(edges[low], start), np.minimum(until[low], end))
