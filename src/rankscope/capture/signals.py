"""SIGTERM while a trace is in the making: what was recorded is written, and the process ends as it would have. Ctrl-C
waits until torch's profiler is in a state that it can be left in.

A handler of the job's own is left alone: whoever set one leaves the loop by it. Ours is set only from a warm-up until
the trace is written, because Python runs a handler between two of its own instructions: a process that hangs inside a
collective would not end by SIGTERM meanwhile.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

_save: Callable[[], None] | None = None
_pid = 0
_inside = 0
_due = False
_interrupted = False


def arm(save: Callable[[], None]) -> None:
    """From now on a SIGTERM calls ``save`` first, if the job has no handler of its own."""
    global _save, _pid
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        return
    _save, _pid = save, os.getpid()
    signal.signal(signal.SIGTERM, _on_term)


def disarm() -> None:
    """SIGTERM is as it was, unless the job has set a handler since."""
    global _save
    _save = None
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _on_term:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Uninterrupted:
    """Around work that must not be left in its middle: a SIGTERM and a Ctrl-C wait for its end, unless the job has a
    handler of its own for them."""

    def __enter__(self) -> None:
        global _inside
        # In this order: a Ctrl-C between any two instructions must leave the count right.
        if (
            not _inside
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            with suppress(ValueError):  # an interpreter within another sets no handlers
                signal.signal(signal.SIGINT, _on_interrupt)
        _inside += 1

    def __exit__(self, *_exception: object) -> None:
        global _inside, _interrupted
        _inside -= 1
        if _inside:
            return
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is _on_interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            interrupted, _interrupted = _interrupted, False
            if interrupted:
                raise KeyboardInterrupt
        if _due:
            _end()


def _on_interrupt(_number: int, _frame: FrameType | None) -> None:
    global _interrupted
    if _inside:
        _interrupted = True
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt


def _on_term(_number: int, _frame: FrameType | None) -> None:
    global _due
    # A handler that the job has set since may call the one it found, and means to go on.
    if signal.getsignal(signal.SIGTERM) is not _on_term:
        return
    _due = True
    if not _inside:
        _end()


def _end() -> None:
    global _save, _due
    # Saving is itself uninterrupted work: its end must not come here again.
    save, _save, _due = _save, None, False
    if save is not None and os.getpid() == _pid:
        with suppress(Exception):
            save()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=disarm)
