"""The collectives that the job calls, read incrementally from the ring buffers of torch's Flight Recorder.

Torch writes a whole buffer (2,000 calls unless ``TORCH_FR_BUFFER_SIZE`` is set) while it holds the interpreter lock:
about 8 µs per call. So it is read when new calls have filled about half of it, at least every `READ_AT_LEAST_S`, and
never for more than `SHARE` of the time.

A job with more calls than that allows has gaps, which are counted. It is read at the beginning of certain steps: those
whose number is a multiple of a power of two, which depends on what a reading costs. So all ranks have the calls of the
same steps, also if one of them reads twice as rarely as the others, and each reading has whole steps.

The time of a call is that at which this rank called the collective: with gloo, its arrival. When the collective ended
is not recorded there. NCCL adds how long the kernel ran on the device if ``TORCH_NCCL_ENABLE_TIMING`` is set: calls are
read after that is known.

In: torch's buffers, and the steps of the loop. Out: the calls since the last reading, and how many were missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rankscope.capture.flight_recorder import Entries, FlightCall, flight_call, flight_recorders

SHARE = 0.001
"""Of the time that reading may take."""
READ_AT_LEAST_S = 10.0
HOLD_S = 60.0
"""So long a call is held back until its duration is known."""
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


def _duration(entry: Mapping[str, Any]) -> object:
    return entry.get("duration_ms")


def _hold_back(new: Mapping[str, list[dict[str, Any]]], timed: set[str], since_ns: float) -> None:
    """Leave for the next reading what is not complete, and all calls after it: they are written in order.

    Torch sets the duration of a call when it retires it, and some kinds of calls it never retires.

    Args:
        new: by recorder, its new entries, which are shortened.
        timed: recorders that have durations.
        since_ns: earlier ones are not held back.
    """
    first: int | None = None
    for name, entries in new.items():
        if name in timed:
            retired = max((at for at, each in enumerate(entries) if each.get("retired")), default=-1)
            held = [each["time_created_ns"] for each in entries[retired + 1 :] if each["time_created_ns"] >= since_ns]
            first = min([*held, *([] if first is None else [first])], default=None)
    if first is not None:
        for entries in new.values():
            while entries and entries[-1]["time_created_ns"] >= first:
                entries.pop()


class CollectiveRing:
    """Reads the buffers of this process.

    Args:
        recorders: what gives the entries of each buffer, by a name of it; torch's by default.
        clock: seconds.
        cpu_clock: seconds of this thread.
        wall_clock: ns since 1970, as in the entries.
    """

    def __init__(
        self,
        recorders: Callable[[], Mapping[str, Entries]] = flight_recorders,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._wall_clock = wall_clock
        self._recorders, self._clock, self._cpu_clock = recorders, clock, cpu_clock
        self._last_ids: dict[str, int] = {}
        self._timed: set[str] = set()
        self._size = _SIZE
        self._due = clock()
        self._read_at = clock()
        self.next_step: int | None = None
        """The step at whose beginning to read, where the time does not decide."""

    def due(self, step: int) -> bool:
        """Whether it is time to read, in this step."""
        return self._clock() >= self._due or (self.next_step is not None and step >= self.next_step)

    def skip(self) -> None:
        """Leave out what the buffers have already."""
        began = self._cpu_clock()
        for name, read in self._recorders().items():
            self._last_ids[name] = max((int(each["record_id"]) for each in read()), default=-1)
        self._due = self._clock() + (self._cpu_clock() - began) / SHARE

    def read(self, step: int = 0, usual_ns: int = 0, *, last: bool = False) -> RingRead:
        """The new calls, in the order in which they were made.

        Args:
            step: the current step.
            usual_ns: how long a step takes; 0 if that is not known.
            last: whether there will be no further reading.
        """
        # If this fails, or there is no recorder: a process group may come later.
        self._due, self.next_step = self._clock() + READ_AT_LEAST_S, None
        recorders = self._recorders()
        if not recorders:
            return RingRead((), 0)
        began = self._cpu_clock()
        new = {name: self._new_entries(name, read) for name, read in recorders.items()}
        self._timed |= {name for name, entries in new.items() if any(map(_duration, entries))}
        if not last:
            _hold_back(new, self._timed, self._wall_clock() - HOLD_S * 1e9)
        missed = sum(self._note_read(name, entries) for name, entries in new.items())
        entries = [each for of_recorder in new.values() for each in of_recorder]
        calls = sorted((flight_call(each["time_created_ns"], each) for each in entries), key=lambda call: call.at_ns)
        cost = self._cpu_clock() - began
        now = self._clock()
        elapsed, self._read_at = max(now - self._read_at, 1e-3), now
        self._plan_next(step, usual_ns, cost / SHARE, max(len(calls) + missed, 1) / elapsed)
        return RingRead(tuple(calls), missed)

    def _new_entries(self, name: str, read: Entries) -> list[dict[str, Any]]:
        """The entries of a buffer that were not read yet, in the order of the calls."""
        known = self._last_ids.get(name, -1)
        new = [each for each in read() if each["record_id"] > known and isinstance(each.get("time_created_ns"), int)]
        return sorted(new, key=lambda each: each["record_id"])

    def _note_read(self, name: str, new: list[dict[str, Any]]) -> int:
        """These entries are read; returns how many before them are lost."""
        if not new:
            return 0
        known = self._last_ids.get(name, -1)
        missed = max(int(new[0]["record_id"]) - known - 1, 0) if known >= 0 else 0
        self._size = len(new) if missed else max(self._size, len(new))
        self._last_ids[name] = int(new[-1]["record_id"])
        return missed

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
