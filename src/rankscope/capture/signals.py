"""SIGTERM and Ctrl-C while a trace is being made.

After SIGTERM, what was recorded is written and then the process ends as it would have. Ctrl-C is delayed until torch's
profiler is in a state in which it can be left.

A handler that the job has set is left alone: a job with a handler leaves its loop by it. Ours is set only from a
warm-up until the trace is written. Python runs a handler between two of its own instructions, so in that time a
process that hangs inside a collective does not end by SIGTERM.

In: SIGTERM and SIGINT. Out: a saved trace, and the process's usual end.
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
_depth = 0
"""How many ``DeferredSignals`` blocks are entered."""
_term_pending = False
_interrupt_pending = False


def arm(save: Callable[[], None]) -> None:
    """From now on a SIGTERM calls ``save`` first, unless the job has its own handler."""
    global _save, _pid
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        return
    _save, _pid = save, os.getpid()
    signal.signal(signal.SIGTERM, _on_term)


def disarm() -> None:
    """Restore SIGTERM's default, unless the job has set a handler since."""
    global _save
    _save = None
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _on_term:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class DeferredSignals:
    """Delays SIGTERM and Ctrl-C to the end of the block, unless the job has its own handlers for them."""

    def __enter__(self) -> None:
        global _depth
        # In this order: a Ctrl-C between any two instructions must leave the count right.
        if (
            not _depth
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            with suppress(ValueError):  # a subinterpreter cannot set handlers
                signal.signal(signal.SIGINT, _on_interrupt)
        _depth += 1

    def __exit__(self, *_exception: object) -> None:
        global _depth, _interrupt_pending
        _depth -= 1
        if _depth:
            return
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is _on_interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            interrupted, _interrupt_pending = _interrupt_pending, False
            if interrupted:
                raise KeyboardInterrupt
        if _term_pending:
            _save_and_terminate()


def _on_interrupt(_number: int, _frame: FrameType | None) -> None:
    global _interrupt_pending
    if _depth:
        _interrupt_pending = True
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt


def _on_term(_number: int, _frame: FrameType | None) -> None:
    global _term_pending
    # A handler that the job has set since may call the one it replaced, and expects to continue.
    if signal.getsignal(signal.SIGTERM) is not _on_term:
        return
    _term_pending = True
    if not _depth:
        _save_and_terminate()


def _save_and_terminate() -> None:
    global _save, _term_pending
    # Saving runs in a DeferredSignals block itself: its end must not come here again.
    save, _save, _term_pending = _save, None, False
    if save is not None and os.getpid() == _pid:
        with suppress(Exception):
            save()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=disarm)
