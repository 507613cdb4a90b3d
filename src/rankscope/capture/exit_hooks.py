"""Functions to call when this process ends, however it ends.

``atexit`` alone is not enough: a process that ``multiprocessing`` has forked leaves by ``os._exit`` and runs only what
is registered with ``multiprocessing`` itself. And a fork that ends as any program does runs what its parent has
registered, without its parent's threads.

A recording can be stopped only by the thread that began it: a loop in another thread than the main one ends with that
thread.

In: functions to call. Out: calls of them, once, at the process's end.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_PRIORITY = 100
"""Before other finalizers of ``multiprocessing``: what they shut down may still be needed."""
_atexit_calls: dict[Callable[[], None], Callable[[], None]] = {}
_finalizers: dict[Callable[[], None], Any] = {}


def register(action: Callable[[], None]) -> None:
    """Call ``action`` once at the end of this process, before what was registered earlier."""
    unregister(action)
    own_pid = os.getpid()

    def call() -> None:
        if os.getpid() == own_pid:
            action()

    if multiprocessing.parent_process() is not None:
        with suppress(Exception):  # it is not documented, and atexit still works
            _finalizers[action] = multiprocessing.util.Finalize(None, action, exitpriority=_PRIORITY)
    _atexit_calls[action] = call
    atexit.register(call)


def before_thread_pools_end(action: Callable[[], None]) -> None:
    """Call ``action`` when the main thread has ended and the pools of ``concurrent.futures`` have not: they have when
    ``atexit`` calls, and asyncio opens no connection without one. It may be called in a forked child too.

    Only for an action of the main thread: it runs before Python waits for the others.
    """
    import concurrent.futures.thread  # noqa: F401  # ours has to be registered after its own

    at_exit = getattr(threading, "_register_atexit", None)  # it is not documented; without it `register` alone works
    if at_exit is not None and threading.current_thread() is threading.main_thread():
        with suppress(RuntimeError):  # the main thread has ended already
            at_exit(action)


class AtThreadEnd:
    """Calls ``action`` in this thread when it ends, if it is not the main one."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._local = threading.local()
        if threading.current_thread() is not threading.main_thread():
            self._local.end = _End(action)

    def cancel(self) -> None:
        """Do not call it; harmless in another thread."""
        end = getattr(self._local, "end", None)
        if end is not None:
            end.action = None


class _End:
    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def __del__(self) -> None:
        if self.action is not None:
            self.action()


def unregister(action: Callable[[], None]) -> None:
    """Do not call it; harmless if it was not registered."""
    call = _atexit_calls.pop(action, None)
    if call is not None:
        atexit.unregister(call)
    finalizer = _finalizers.pop(action, None)
    if finalizer is not None:
        finalizer.cancel()
