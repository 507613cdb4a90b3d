"""What is still to be done when a process ends, however it ends.

``atexit`` alone is not enough: a process that ``multiprocessing`` has forked leaves by ``os._exit`` and runs nothing of
it, only what is registered with ``multiprocessing`` itself. And a fork that ends as any program does runs what its
parent has registered, without its parent's threads.
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
"""Before what others register there: what they take down may be what is still needed."""
_calls: dict[Callable[[], None], Callable[[], None]] = {}
_finalizers: dict[Callable[[], None], Any] = {}


def at_end(action: Callable[[], None]) -> None:
    """Have ``action`` called at the end of this process, before what was registered earlier; once, if given again."""
    forget(action)
    mine = os.getpid()

    def call() -> None:
        if os.getpid() == mine:
            action()

    if multiprocessing.parent_process() is not None:
        with suppress(Exception):  # it is not documented, and atexit is still there
            _finalizers[action] = multiprocessing.util.Finalize(None, action, exitpriority=_PRIORITY)
    _calls[action] = call
    atexit.register(call)


def forget(action: Callable[[], None]) -> None:
    """Do not call it; harmless where it was not registered."""
    call = _calls.pop(action, None)
    if call is not None:
        atexit.unregister(call)
    finalizer = _finalizers.pop(action, None)
    if finalizer is not None:
        finalizer.cancel()
