"""A thread that runs, in order, the work that need not be done in the training loop.

It starts when there is work and ends when there is none. At exit the process waits for it, within a limit: Python
itself would wait without one, even for a file system that never answers.

In: functions to call. Out: their effects, in order, on another thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from rankscope.capture.exit_hooks import register
from rankscope.capture.notices import logger

_JOIN_LIMIT_S = 5.0
EXIT_LIMIT_S = 120.0
"""How long a process stays after its end for what is still being written."""
_exit_until: float | None = None


def exit_time_left() -> float:
    """Seconds left of ``EXIT_LIMIT_S``, which begins with the first call; all of it in a thread that ends, after which
    the process goes on."""
    global _exit_until
    if threading.current_thread() is not threading.main_thread():
        return EXIT_LIMIT_S
    if _exit_until is None:
        _exit_until = time.monotonic() + EXIT_LIMIT_S
    return max(_exit_until - time.monotonic(), 0.0)


class Writer:
    """A queue of work and the thread that runs it.

    Args:
        name: the thread's.
        exit_limit_s: how long the process stays after its end for work that may be lost; by default as long as for a
            trace.
    """

    def __init__(self, name: str = "rankscope-writer", exit_limit_s: float | None = None) -> None:
        self._name, self._exit_limit_s = name, exit_limit_s
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        # Reentrant: a signal handler may run while the interrupted thread holds it.
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._last: threading.Thread | None = None
        self._pid = os.getpid()
        self._awaited = False

    @property
    def busy(self) -> bool:
        """Whether work is running or waiting."""
        return self._thread is not None

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the writer's thread, or here if the interpreter no longer starts threads."""
        if self._pid != os.getpid():
            self._reset()  # created before a fork, and used only by the child
        with self._lock:
            self._waiting.append(work)
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread = self._last = thread
        register(self.drain_at_exit)
        try:
            thread.start()
        except RuntimeError:
            self._run()

    def drain(self, timeout_s: float | None) -> bool:
        """Wait until no work is left; false if that took longer than ``timeout_s``."""
        if self._pid != os.getpid():
            return True  # a forked child does not have the thread, and the lock may never be released there
        with self._idle:
            self._awaited = True
            self._restore_priority()
            try:
                if not self._idle.wait_for(lambda: self._thread is None, timeout_s):
                    return False
            finally:
                self._awaited = False
        # Wait for its last instructions too: an interpreter that ends while a daemon thread runs them aborts.
        last = self._last
        if last is not None and last is not threading.current_thread() and last.ident is not None:
            last.join(_JOIN_LIMIT_S)
        return True

    def lower_priority(self) -> None:
        """In the writer's thread: let the training run first, where the system supports it, unless it waits for this
        work. Not while the thread needs the interpreter: the training would wait for a thread that waits for a core."""
        if sys.platform == "linux" and not self._awaited and threading.current_thread() is self._thread:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

    def _restore_priority(self) -> None:
        """Undo ``lower_priority``, if this user may: on a busy machine the thread would make hardly any progress."""
        writing = self._thread.native_id if self._thread is not None else None
        if sys.platform == "linux" and writing is not None:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, writing, os.getpriority(os.PRIO_PROCESS, 0))

    def drain_at_exit(self) -> None:
        """Wait for what is still being written, within the limit of this process's exit."""
        if self._exit_limit_s is not None:
            self.drain(self._exit_limit_s)
        elif not self.drain(exit_time_left()):
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
            # The work may hold much memory: free it now, not when the next work arrives.
            del work
