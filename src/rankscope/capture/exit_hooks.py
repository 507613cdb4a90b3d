"""Functions to call when this process ends, however it ends.

``atexit`` alone is not enough: a process that ``multiprocessing`` has forked leaves by ``os._exit`` and runs only what
is registered with ``multiprocessing`` itself. And a fork that ends as any program does runs what its parent has
registered, without its parent's threads.

A recording can be stopped only by the thread that began it: a loop in another thread than the main one ends with that
thread.

In: functions to call, signals, and the exception that ended the loop. Out: calls of these functions, once, at the
process's end; what the manifest says about the end (`EndOfRun`).
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rankscope.capture import signals

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


def unregister(action: Callable[[], None]) -> None:
    """Do not call it; harmless if it was not registered."""
    call = _atexit_calls.pop(action, None)
    if call is not None:
        atexit.unregister(call)
    finalizer = _finalizers.pop(action, None)
    if finalizer is not None:
        finalizer.cancel()


class EndOfRun:
    """How a profiled run ends: with its loop, by an exception or a signal, or with its process or thread.

    Args:
        stop: ends the capture; called once, whichever end comes first.
        note_loss: called with the signal, in another thread, where the main thread is inside a native call and cannot
            stop the recording.
    """

    def __init__(self, stop: Callable[[], None], note_loss: Callable[[str], None]) -> None:
        self.ended_by: str | None = None
        """The signal or exception; ``None`` if the loop came to its end."""
        self._stop, self._note_loss = stop, note_loss
        self._thread_end: _ThreadEnd | None = None

    def watch(self, *, threads_needed: bool) -> None:
        """Notice the end from now on. Without it, an exit or exception before a stop would crash inside torch.

        Args:
            threads_needed: whether the stop needs the thread pools of ``concurrent.futures``.
        """
        register(self._at_exit)
        if threads_needed:
            before_thread_pools_end(self._at_exit)
        self._thread_end = _ThreadEnd(self._at_exit)
        self.watch_signals(window=False)

    def watch_signals(self, *, window: bool) -> None:
        """Notice signals from now on.

        Args:
            window: also those that jobs use for themselves, because a recording would be lost.
        """
        signals.arm(self._on_signal, self._on_signal_in_a_hang, window=window)

    def cancel(self) -> None:
        """The loop has ended by itself."""
        unregister(self._at_exit)
        if self._thread_end is not None:
            self._thread_end.cancel()

    def interrupted_by(self, exception: type[BaseException] | None, exit_status: object = None) -> None:
        """An exception ends the loop, or ``None`` does not.

        Args:
            exception: its class.
            exit_status: of a ``SystemExit``, which is an end like any other if it is ``None`` or 0.
        """
        if exception is not None and (exit_status or not issubclass(exception, SystemExit)):
            self.ended_by = "SIGINT" if issubclass(exception, KeyboardInterrupt) else exception.__name__

    def manifest_fields(self, first_step: int, step: int) -> dict[str, object]:
        """What the rank's manifest says about an end in ``step`` of a loop that began with ``first_step``."""
        return {
            "state": "finished" if self.ended_by is None else "interrupted",
            "ended_by": self.ended_by,
            "steps": step - first_step,
            "last_step": step - 1 if step > first_step else None,
        }

    def _at_exit(self) -> None:
        if self.ended_by is None and not hasattr(sys, "ps1"):
            self.interrupted_by(getattr(sys, "last_type", None))
        self._stop()

    def _on_signal(self, name: str) -> None:
        self.ended_by = name
        self._at_exit()

    def _on_signal_in_a_hang(self, name: str) -> None:
        self.ended_by = name
        self._note_loss(name)


class _ThreadEnd:
    """Calls ``action`` in this thread when it ends, if it is not the main one."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._local = threading.local()
        if threading.current_thread() is not threading.main_thread():
            self._local.deleted_at_end = _CallWhenDeleted(action)

    def cancel(self) -> None:
        """Do not call it; harmless in another thread."""
        end = getattr(self._local, "deleted_at_end", None)
        if end is not None:
            end.action = None


class _CallWhenDeleted:
    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def __del__(self) -> None:
        if self.action is not None:
            self.action()
