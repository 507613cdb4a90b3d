"""The exceptions of this process: the one that each thread is handling, and the one that ends it.

In: Python's state. Out: exceptions, their tracebacks, and their text.
"""

from __future__ import annotations

import multiprocessing
import sys
from types import TracebackType

MAX_TEXT = 500


def described(error: BaseException | None) -> str:
    """An exception as ``ValueError: what it says``; empty for none."""
    if error is None:
        return ""
    try:
        return f"{type(error).__name__}: {error}"[:MAX_TEXT]
    except Exception:  # its __str__ is the job's code
        return type(error).__name__


def uncaught() -> BaseException | None:
    """The exception that ended the main thread, which then waits for other threads or at exit; ``None`` if none did."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def ending() -> BaseException | None:
    """At this process's exit, the exception that ends it; ``None`` if none does.

    A process of ``multiprocessing`` runs what is registered for its exit while it is handling its exception.
    """
    return uncaught() if multiprocessing.parent_process() is None else _behind_exit(sys.exc_info()[1])


def end_by(error: BaseException | None) -> tuple[str, str]:
    """The exception and the signal that a loop was ended by, as text: of Ctrl-C a signal; both empty for none."""
    if isinstance(error, KeyboardInterrupt):
        return "", "SIGINT"
    return (described(error) if isinstance(error, Exception) else ""), ""


def handled_exceptions() -> dict[int, tuple[BaseException | None, TracebackType | None]]:
    """The exception that each thread is handling, and its traceback, by the thread's ident."""
    current = getattr(sys, "_current_exceptions", None)
    if current is None:
        return {}
    found: dict[int, tuple[BaseException | None, TracebackType | None]] = {}
    for ident, value in current().items():
        # A tuple before Python 3.12.
        error = _behind_exit(value[1] if isinstance(value, tuple) else value)
        if isinstance(error, BaseException):
            found[ident] = error, error.__traceback__
    return found


def _behind_exit(error: BaseException | None) -> BaseException | None:
    """The exception that a program left by ``sys.exit(1)`` for, as ``torch.multiprocessing`` does."""
    if isinstance(error, SystemExit) and error.code and error.__context__ is not None:
        return error.__context__
    return error
