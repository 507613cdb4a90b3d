"""The collectives that the job calls, read incrementally from the ring buffer of torch's Flight Recorder.

Torch writes the whole buffer (2,000 calls unless ``TORCH_FR_BUFFER_SIZE`` is set) as JSON while it holds the
interpreter lock: about 15 µs per call. So it is read when new calls have filled about half of it, at least every
`READ_AT_LEAST_S`, and never for more than `SHARE` of the time: a job with more calls than that allows has gaps, which
are counted. Of the text, only the new part is parsed.

With gloo, the time of a call is that at which this rank called the collective: its arrival. When the collective ended
is not recorded there.

In: torch's buffer. Out: the calls since the last reading, and how many were missed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rankscope.capture.collectives import FlightCall, flight_call, flight_recorder_dump

SHARE = 0.001
"""Of the time that reading may take."""
READ_AT_LEAST_S = 10.0
_FULL = 0.5
_SIZE = 2000
"""Of the buffer, until a reading shows that it is larger or smaller."""
_RECORD_ID = re.compile(rb'"record_id":(\d{1,18})\b')
_AFTER_ENTRIES = b'],"nccl_comm_state"'


@dataclass(frozen=True)
class RingRead:
    """What one reading gave."""

    calls: tuple[FlightCall, ...]
    missed: int
    """Calls that the buffer had dropped before they were read."""


class CollectiveRing:
    """Reads the buffer of this process.

    Args:
        dump: what gives the buffer as JSON; torch's by default.
        clock: seconds.
        cpu_clock: seconds of this thread.
    """

    def __init__(
        self,
        dump: Callable[[], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._dump, self._clock, self._cpu_clock = dump, clock, cpu_clock
        self._last_id = -1
        self._size = _SIZE
        self._due = clock()
        self._read_at = clock()
        self.available = True
        """Whether this torch has a flight recorder that can be read."""

    @property
    def due(self) -> bool:
        """Whether it is time to read."""
        return self.available and self._clock() >= self._due

    def skip(self) -> None:
        """Leave out what the buffer has already."""
        dump, began = self._dump or flight_recorder_dump(), self._cpu_clock()
        ids = _RECORD_ID.findall(dump()) if dump is not None else []
        self._last_id = max(map(int, ids), default=-1)
        self._due = self._clock() + (self._cpu_clock() - began) / SHARE

    def read(self) -> RingRead:
        """The new calls, in the order in which they were made."""
        dump = self._dump or flight_recorder_dump()
        if dump is None:
            # A process group, or an accelerator, may come later.
            self._due = self._clock() + READ_AT_LEAST_S
            return RingRead((), 0)
        began = self._cpu_clock()
        entries = self._new_entries(dump())
        calls = tuple(flight_call(int(each["time_created_ns"]), each) for each in entries)
        cost = self._cpu_clock() - began
        now = self._clock()
        elapsed, self._read_at = max(now - self._read_at, 1e-3), now
        missed = 0
        if entries:
            first, last = int(entries[0]["record_id"]), int(entries[-1]["record_id"])
            if self._last_id >= 0:
                missed = max(first - self._last_id - 1, 0)
            if missed:
                self._size = max(len(entries), 1)
            self._last_id = last
        full = _FULL * self._size * elapsed / max(len(entries) + missed, 1)
        self._due = now + max(min(full, READ_AT_LEAST_S), cost / SHARE)
        return RingRead(calls, missed)

    def _new_entries(self, text: bytes) -> list[dict[str, Any]]:
        # Entries are flat and in the order of their ids. To parse all of them would cost a third of the time again.
        known = text.rfind(b'"record_id":%d,' % self._last_id) if self._last_id >= 0 else -1
        begin, end = text.find(b"},{", known), text.rfind(_AFTER_ENTRIES)
        parsed: object = None
        if known >= 0 and end >= 0:
            if begin < 0 or begin > end:
                return []
            with suppress(ValueError):
                parsed = json.loads(b"[" + text[begin + 2 : end] + b"]")
        if parsed is None:
            parsed = json.loads(text).get("entries")
        entries = (
            [each for each in parsed if int(each["record_id"]) > self._last_id] if isinstance(parsed, list) else []
        )
        return sorted(entries, key=lambda each: int(each["record_id"]))
