"""The collectives that the job calls, read incrementally from the ring buffer of torch's Flight Recorder.

Torch writes the whole buffer (2,000 calls unless ``TORCH_FR_BUFFER_SIZE`` is set) while it holds the interpreter lock:
about 8 µs per call. So it is read when new calls have filled about half of it, at least every `READ_AT_LEAST_S`, and
never for more than `SHARE` of the time.

A job with more calls than that allows has gaps, which are counted. It is read at the beginning of certain steps: those
whose number is a multiple of a power of two, which depends on what a reading costs. So all ranks have the calls of the
same steps, also if one of them reads twice as rarely as the others, and each reading has whole steps.

With gloo, the time of a call is that at which this rank called the collective: its arrival. When the collective ended
is not recorded there.

In: torch's buffer, and the steps of the loop. Out: the calls since the last reading, and how many were missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankscope.capture.collectives import FlightCall, flight_call, flight_recorder

SHARE = 0.001
"""Of the time that reading may take."""
READ_AT_LEAST_S = 10.0
_FULL = 0.5
_LATE = 4
"""So many times the usual time until the next step to read at, the time decides after all."""
_SIZE = 2000
"""Of the buffer, until a reading shows that it is larger or smaller."""


@dataclass(frozen=True)
class RingRead:
    """What one reading gave."""

    calls: tuple[FlightCall, ...]
    missed: int
    """Calls that the buffer had dropped before they were read."""


class CollectiveRing:
    """Reads the buffer of this process.

    Args:
        entries: what gives the buffer's entries; torch's by default.
        clock: seconds.
        cpu_clock: seconds of this thread.
    """

    def __init__(
        self,
        entries: Callable[[], list[dict[str, Any]]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._entries, self._clock, self._cpu_clock = entries, clock, cpu_clock
        self._last_id = -1
        self._size = _SIZE
        self._due = clock()
        self._read_at = clock()
        self.next_step: int | None = None
        """The step at whose beginning to read, where the time does not decide."""
        self.available = True
        """Whether this torch has a flight recorder that can be read."""

    def due(self, step: int) -> bool:
        """Whether it is time to read, in this step."""
        if not self.available:
            return False
        return self._clock() >= self._due or (self.next_step is not None and step >= self.next_step)

    def skip(self) -> None:
        """Leave out what the buffer has already."""
        read, began = self._entries or flight_recorder(), self._cpu_clock()
        self._last_id = max((int(each["record_id"]) for each in read()), default=-1) if read is not None else -1
        self._due = self._clock() + (self._cpu_clock() - began) / SHARE

    def read(self, step: int = 0, usual_ns: int = 0) -> RingRead:
        """The new calls, in the order in which they were made.

        Args:
            step: the current step.
            usual_ns: how long a step takes; 0 if that is not known.
        """
        read = self._entries or flight_recorder()
        if read is None:
            # A process group, or an accelerator, may come later.
            self._due, self.next_step = self._clock() + READ_AT_LEAST_S, None
            return RingRead((), 0)
        began = self._cpu_clock()
        known = self._last_id
        entries = sorted((each for each in read() if each["record_id"] > known), key=lambda each: each["record_id"])
        calls = tuple(flight_call(int(each["time_created_ns"]), each) for each in entries)
        cost = self._cpu_clock() - began
        now = self._clock()
        elapsed, self._read_at = max(now - self._read_at, 1e-3), now
        missed = 0
        if entries:
            first, last = int(entries[0]["record_id"]), int(entries[-1]["record_id"])
            if self._last_id >= 0:
                missed = max(first - self._last_id - 1, 0)
            self._size = len(entries) if missed else max(self._size, len(entries))
            self._last_id = last
        self._plan_next(step, usual_ns, cost / SHARE, max(len(entries) + missed, 1) / elapsed)
        return RingRead(calls, missed)

    def _plan_next(self, step: int, usual_ns: int, least_s: float, calls_per_s: float) -> None:
        """When to read next.

        Args:
            step, usual_ns: as in `read`.
            least_s: the least time between two readings.
            calls_per_s: how many calls there are.
        """
        wait_s = max(min(_FULL * self._size / calls_per_s, READ_AT_LEAST_S), least_s)
        self.next_step = None
        if usual_ns and calls_per_s * least_s > self._size:
            every = 1
            while every * usual_ns < least_s * 1e9:
                every *= 2
            self.next_step = ((step + every // 2) // every + 1) * every
            wait_s = _LATE * every * usual_ns / 1e9  # the steps may have become longer
        self._due = self._clock() + wait_s
