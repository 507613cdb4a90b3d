"""Signals that end the process, and Ctrl-C while a trace is being made.

After a signal that would end the process (SIGTERM, and what schedulers send before it), what the rank was doing and
what was recorded is written, the manifest says what ended the job, and then the process ends as it would have. Ctrl-C
is delayed until torch's profiler is in a state in which it can be left.

A handler that the job has set is left alone, one in C as well: a job with a handler leaves its loop by it. Python runs
a handler between two of its own instructions, so a process that hangs inside a native call would no longer end by
SIGTERM: a thread notices the signal at once, and ends the process if the handler has not begun after `HANG_LIMIT_S`.

In: signals. Out: a saved trace, a dump of what the rank was doing, and the process's usual end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

ALWAYS = ("SIGTERM", "SIGHUP", "SIGXCPU")
"""Handled while the job is profiled: so that the manifest says what ended it."""
IN_WINDOWS = ("SIGALRM", "SIGUSR1", "SIGUSR2", "SIGVTALRM")
"""Handled only while a recording would be lost: jobs and libraries use these for themselves."""
HANG_LIMIT_S = 5.0
"""How long a main thread that hangs is waited for, and then the note of it."""

OnEnd = Callable[[str], None]
"""Called with the name of the signal."""

_observers: list[OnEnd] = []
_save: OnEnd | None = None
_note: OnEnd | None = None
_pid = 0
_armed: dict[int, int | None] = {}
"""The address of the handler that Python has set for each signal."""
_depth = 0
"""How many ``DeferredSignals`` blocks are entered."""
_pending = 0
"""A signal that ends the process after the current block."""
_interrupt_pending = False
_handling = threading.Event()
_pipe: tuple[int, int] | None = None


def arm(save: OnEnd, note: OnEnd, *, window: bool) -> None:
    """From now on a signal that would end the process calls ``save`` first; also repeatedly.

    Args:
        save: called in the main thread.
        note: called in another thread where the main thread hangs.
        window: whether a recording would be lost.
    """
    global _save, _note
    if threading.current_thread() is threading.main_thread():
        _handle(window=window)
        _save, _note = save, note


def observe(action: OnEnd) -> None:
    """Call ``action`` before a signal ends the process, until :func:`unobserve`: in the main thread, or in another one
    where that hangs."""
    if threading.current_thread() is threading.main_thread():
        _handle(window=False)
        _observers.append(action)


def unobserve(action: OnEnd) -> None:
    """Do not call it; harmless if it is not observed."""
    if action in _observers:
        _observers.remove(action)
        if not _observers and _save is None and not _handling.is_set():
            disarm()


def _handle(*, window: bool) -> None:
    global _pid
    for name in (*ALWAYS, *(IN_WINDOWS if window else ())):
        number = getattr(signal, name, None)
        # The job may have its own handler, unknown to Python, such as faulthandler's.
        if number is None or number in _armed or signal.getsignal(number) is not signal.SIG_DFL or _in_c(number):
            continue
        with suppress(ValueError, OSError):  # a subinterpreter cannot set handlers
            signal.signal(number, _on_end)
            _armed[number] = _in_c(number)
    _pid = os.getpid()
    if _armed:
        _watch()


def disarm(*, window: bool = False) -> None:
    """Restore the defaults, unless the job has set handlers since.

    Args:
        window: only for the signals that are handled in windows.
    """
    global _save
    if not window:
        _save = None
    if threading.current_thread() is not threading.main_thread():
        return
    kept = {getattr(signal, name, None) for name in ALWAYS} if window else set()
    for number in [number for number in _armed if number not in kept]:
        address = _armed.pop(number)
        if signal.getsignal(number) is _on_end and _in_c(number) == address:
            signal.signal(number, signal.SIG_DFL)


class DeferredSignals:
    """Delays the handled signals and Ctrl-C to the end of the block, unless the job has its own handlers for them.

    It has no effect in other threads than the main one, in which Python runs all handlers.
    """

    def __enter__(self) -> None:
        global _depth
        if threading.current_thread() is not threading.main_thread():
            return
        # In this order: a Ctrl-C between any two instructions must leave the count right.
        if not _depth and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with suppress(ValueError):  # a subinterpreter cannot set handlers
                signal.signal(signal.SIGINT, _on_interrupt)
        _depth += 1

    def __exit__(self, *_exception: object) -> None:
        global _depth, _interrupt_pending
        if threading.current_thread() is not threading.main_thread():
            return
        _depth -= 1
        if _depth:
            return
        if signal.getsignal(signal.SIGINT) is _on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupted, _interrupt_pending = _interrupt_pending, False
        if interrupted:
            raise KeyboardInterrupt
        if _pending:
            _save_and_end()


def _on_interrupt(_number: int, _frame: FrameType | None) -> None:
    global _interrupt_pending
    if _depth:
        _interrupt_pending = True
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt


def _on_end(number: int, _frame: FrameType | None) -> None:
    global _pending
    # A handler that the job has set since may call the one it replaced, and expects to continue.
    if signal.getsignal(number) is not _on_end:
        return
    _handling.set()
    _pending = _pending or number
    if not _depth:
        _save_and_end()


def _save_and_end() -> None:
    global _save, _pending
    # Saving runs in a DeferredSignals block itself: its end must not come here again.
    save, _save, number, _pending = _save, None, _pending, 0
    if os.getpid() == _pid:
        for action in (*_observers, *([save] if save is not None else [])):
            with suppress(Exception):
                action(signal.Signals(number).name)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _watch() -> None:
    """Have a thread notice signals, unless the job has that done by something else (asyncio)."""
    global _pipe
    if _pipe is not None or sys.platform == "win32":  # pipes that do not block, and schedulers' signals, are POSIX's
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    found = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if found != -1:
        signal.set_wakeup_fd(found)
        os.close(reading)
        os.close(writing)
        return
    _pipe = reading, writing
    threading.Thread(target=_notice, args=(reading,), name="rankscope-signals", daemon=True).start()


def _notice(reading: int) -> None:
    while number := os.read(reading, 1):
        if number[0] not in _armed or _handling.wait(HANG_LIMIT_S):
            continue
        if signal.getsignal(number[0]) is _on_end and os.getpid() == _pid:
            # In other threads: what writes it may hang too, as a file system does.
            with suppress(RuntimeError):  # no thread can be started any more
                name = signal.Signals(number[0]).name
                actions = (*_observers, *([_note] if _note is not None else []))
                noting = [threading.Thread(target=_call, args=(action, name), daemon=True) for action in actions]
                for thread in noting:
                    thread.start()
                until = time.monotonic() + HANG_LIMIT_S
                for thread in noting:
                    thread.join(max(until - time.monotonic(), 0))
            # Python itself sets handlers in the main thread only.
            ctypes.pythonapi.PyOS_setsig(number[0], None)
            os.kill(os.getpid(), number[0])


def _call(action: OnEnd, name: str) -> None:
    with suppress(Exception):
        action(name)


def _in_c(number: int) -> int | None:
    """The address of the handler; ``None`` for the default."""
    return _get_handler(number)  # type: ignore[no-any-return]  # of ctypes


_get_handler = ctypes.pythonapi.PyOS_getsig
_get_handler.restype = ctypes.c_void_p
_get_handler.argtypes = [ctypes.c_int]
ctypes.pythonapi.PyOS_setsig.argtypes = [ctypes.c_int, ctypes.c_void_p]


def _after_fork() -> None:
    global _pipe, _depth, _pending, _interrupt_pending
    _observers.clear()
    disarm()
    # The thread that forked is the child's main one; the parent's may have been in a block.
    _depth, _pending, _interrupt_pending = 0, 0, False
    if _pipe is not None:
        # The parent's thread reads from it.
        signal.set_wakeup_fd(-1)
        for end in _pipe:
            os.close(end)
        _pipe = None
    _handling.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
