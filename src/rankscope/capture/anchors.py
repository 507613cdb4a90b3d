"""Pairs of clock readings over the run, from which a drift of the wall clock can be told from the work."""

from __future__ import annotations

from collections import deque

from rankscope.capture.process import clock_anchor
from rankscope.rundir.metadata import ClockAnchor

KEPT_FIRST = 100
KEPT_LATEST = 100


class Anchors:
    """The first and the latest readings of a run, and those of the window that is recorded."""

    def __init__(self) -> None:
        self._first: list[ClockAnchor] = []
        self._latest: deque[ClockAnchor] = deque(maxlen=KEPT_LATEST)
        self._window: list[ClockAnchor] = []

    def add(self) -> None:
        """Read the clocks."""
        anchor = clock_anchor()
        self._window.append(anchor)
        if len(self._first) < KEPT_FIRST:
            self._first.append(anchor)
        else:
            self._latest.append(anchor)

    def begin_window(self) -> None:
        """Read the clocks at the beginning of a recording."""
        self._window.clear()
        self.add()

    def kept(self) -> tuple[ClockAnchor, ...]:
        """The first and the latest, the oldest first."""
        return (*self._first, *self._latest)

    def for_trace(self) -> tuple[ClockAnchor, ...]:
        """Those of the window, then those before it."""
        return (*self._window, *(anchor for anchor in self.kept() if anchor not in self._window))
