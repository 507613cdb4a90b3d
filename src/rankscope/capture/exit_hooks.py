"""Functions to call when this process ends, however it ends.

``atexit`` alone is not enough: a process that ``multiprocessing`` has forked leaves by ``os._exit`` and runs only what
is registered with ``multiprocessing`` itself. And a fork that ends as any program does runs what its parent has
registered, without its parent's threads.

In: functions to call. Out: calls of them, once, at the process's end.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
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


def unregister(action: Callable[[], None]) -> None:
    """Do not call it; harmless if it was not registered."""
    call = _atexit_calls.pop(action, None)
    if call is not None:
        atexit.unregister(call)
    finalizer = _finalizers.pop(action, None)
    if finalizer is not None:
        finalizer.cancel()
