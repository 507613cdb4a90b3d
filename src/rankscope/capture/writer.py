"""One thread that does what need not be done in the training loop, in order.

It starts when there is work and ends when there is none. At exit it is waited for, within a limit: Python itself would
wait without one, for a file system that never answers too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from rankscope.capture.exit_hooks import at_end
from rankscope.capture.notices import logger

_LAST_INSTRUCTIONS_S = 5.0
EXIT_LIMIT_S = 120.0
"""How long a process stays after its end for what is still being written."""
_exit_until: float | None = None


def exit_time_left() -> float:
    """Seconds that are left of ``EXIT_LIMIT_S``, which begins with the first call."""
    global _exit_until
    if _exit_until is None:
        _exit_until = time.monotonic() + EXIT_LIMIT_S
    return max(_exit_until - time.monotonic(), 0.0)


class Writer:
    """A queue of work and the thread that does it."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        # A signal handler may come while the thread that it interrupts holds it.
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._last: threading.Thread | None = None
        self._pid = os.getpid()
        self._awaited = False

    @property
    def busy(self) -> bool:
        """Whether something is being done or waits."""
        return self._thread is not None

    def submit(self, work: Callable[[], None]) -> None:
        """Do ``work`` in the writer's thread; here and now where the interpreter no longer starts threads."""
        if self._pid != os.getpid():
            self._begin()  # made before a fork, and used by the child alone
        with self._lock:
            self._waiting.append(work)
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="rankscope-writer", daemon=True)
            self._thread = self._last = thread
        at_end(self.drain_at_exit)
        try:
            thread.start()
        except RuntimeError:
            self._run()

    def drain(self, timeout_s: float | None) -> bool:
        """Wait until nothing is left to do; false if that took longer than ``timeout_s``."""
        if self._pid != os.getpid():
            return True  # a forked child has neither the thread nor, maybe, a lock that anyone would give back
        with self._idle:
            self._awaited = True
            self._be_quick()
            try:
                if not self._idle.wait_for(lambda: self._thread is None, timeout_s):
                    return False
            finally:
                self._awaited = False
        # Its last instructions, too: an interpreter that ends while a daemon thread is in them ends with an abort.
        last = self._last
        if last is not None and last is not threading.current_thread() and last.ident is not None:
            last.join(_LAST_INSTRUCTIONS_S)
        return True

    def yield_to_training(self) -> None:
        """In the writer's thread: let the training go before it, where the system can be told so, unless it waits for
        this very work. Whoever holds the interpreter must not yield: the training would wait for one that waits."""
        if sys.platform == "linux" and not self._awaited and threading.current_thread() is self._thread:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

    def _be_quick(self) -> None:
        """The thread no longer yields, where this user may undo that: on a busy machine it would hardly get on."""
        writing = self._thread.native_id if self._thread is not None else None
        if sys.platform == "linux" and writing is not None:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, writing, os.getpriority(os.PRIO_PROCESS, 0))

    def drain_at_exit(self) -> None:
        """Wait for what is still being written, within the limit of this process's end."""
        if not self.drain(exit_time_left()):
            logger.warning("a trace was still being written %.0f s after the end of the job; it is lost", EXIT_LIMIT_S)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    self._idle.notify_all()
                    return
                work = self._waiting.popleft()
            try:
                work()
            except Exception:
                logger.exception("writing a trace failed")
            # The work may hold much: free it here, not when the next work comes.
            del work
