"""How long a thread ran on a core, and how long it waited for one: what tells a slow function from a sleep, and both
from another program on the thread's core.

In: the calling thread. Out: its readings, ns.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import NamedTuple


class ThreadTimes(NamedTuple):
    """What a thread has done since it began, or in a stretch of time, ns; the rest of that time it slept or was
    blocked."""

    running: int
    """On a core."""
    ready: int
    """Waiting for a core."""


class ThreadClock:
    """Reads the times of the thread that made it, in 1.3 µs.

    The kernel's account of a thread (Linux, ``schedstat``) has for how long it was ready to run and no core took it.
    Where there is none, nothing is known: without it, a thread without a core looks asleep.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        if sys.platform == "linux":
            with suppress(OSError):
                self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> ThreadTimes | None:
        """The thread's times; None where they are not known."""
        if self._file is None or sys.platform == "win32":
            return None
        try:
            # The running time in this file is as old as the last tick of the scheduler.
            return ThreadTimes(time.thread_time_ns(), int(os.pread(self._file, 96, 0).split()[1]))
        except (OSError, ValueError, IndexError):
            self._file = None  # not ours to close any more: the job has closed it, and may have another one there
            return None

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)
