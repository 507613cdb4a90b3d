"""Run tasks in separate processes, one per core.

Workers start fresh (forkserver if available, else spawn): a plain fork would copy locks that another thread holds.
Python would make each fresh worker run the program's main module again, which breaks scripts without an
``if __name__ == "__main__"``. Tasks are functions of this package, so workers start without the main module.

Workers need not import what the fork server has imported. Polars and NumPy start threads on import, and forking a
process with threads may hang, so the server imports only modules that start none: some of the standard library and a
few packages that workers need.

Ctrl-C reaches every process of a terminal's job. Workers ignore it and the program ends them, so that there is one
message and not one per core. A worker also ends when its program has ended, for whatever reason. Ending a worker raises
an exception in its task, so that the task can remove unfinished files.

In: the number of workers. Out: an executor.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

# The imports of a worker except Polars, NumPy and this package, which needs them.
_PRELOADED = (
    *("argparse", "ast", "concurrent.futures", "contextlib", "csv", "dataclasses", "datetime", "decimal", "fractions"),
    *("functools", "gzip", "hashlib", "html", "importlib.metadata", "inspect", "json", "logging", "numbers", "pickle"),
    *("platform", "random", "shutil", "statistics", "tarfile", "tempfile", "textwrap", "typing", "urllib.parse"),
    *("zipfile", "zoneinfo", "isal.isal_zlib", "msgspec.json", "zstandard"),
)

# How long an ended task may clean up before its process is killed.
_GRACE_S = 10.0

_lock = threading.Lock()
_busy = False


class _Ended(BaseException):
    """Raised in the task of a worker that must end. Not an `Exception`, so that no task handles it as its own."""


class ProcessExecutor(ProcessPoolExecutor):
    """A process pool that can be stopped at once, and whose workers do not run the program's main module."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Submit the task; workers start with the first one."""
        with _no_main():
            return super().submit(_run_task, fn, *args, **kwargs)

    def stop(self) -> None:
        """End the workers during their tasks, which may clean up."""
        workers = list((self._processes or {}).values())
        # `shutdown(wait=False)` forgets this thread, so a second `shutdown()` would not wait for it.
        manager = getattr(self, "_executor_manager_thread", None)
        self.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        if manager is not None:
            manager.join(2 * _GRACE_S)


@contextmanager
def _no_main() -> Iterator[None]:
    main = sys.modules["__main__"]
    with _lock:
        names: tuple[str, ...] = ("__file__", "__spec__")
        kept = {name: main.__dict__.pop(name) for name in names if name in main.__dict__}
        main.__spec__ = None
        try:
            yield
        finally:
            main.__dict__.update(kept)


def _preload() -> None:
    """Make the fork server import what workers need when it starts, unless the program has set its own list.

    The program has only one server: its other children find some of the standard library already imported.
    """
    from multiprocessing import forkserver  # not on Windows

    server = getattr(forkserver, "_forkserver", None)
    # There is no public way to read the list: if it is not where CPython keeps it, nothing is preloaded.
    if getattr(server, "_preload_modules", None) == ["__main__"]:
        forkserver.set_forkserver_preload(["__main__", *_PRELOADED])


def _start_worker() -> None:
    # With one worker per core, more threads would only compete. Polars reads this when it is first imported, which in a
    # fresh worker is when the first task arrives.
    os.environ["POLARS_MAX_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_program, daemon=True).start()


def _run_task(fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Run a task in a worker that may be ended at any time."""
    global _busy
    _busy = True
    try:
        return fn(*args, **kwargs)
    except _Ended:
        # The pool would treat it as an error of the task, and give this worker the next one.
        os._exit(1)
    finally:
        _busy = False


def _end(number: int, frame: FrameType | None) -> None:
    if not _busy:
        os._exit(1)
    # When the first worker has ended, the pool signals all others again, which must not interrupt their cleanup.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Native code runs until it returns to Python, so there is a time limit.
    timer = threading.Timer(_GRACE_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
    raise _Ended


def _end_with_program() -> None:
    program = multiprocessing.parent_process()
    if program is not None:
        wait([program.sentinel])
        # Signal the process, as the main thread may be waiting. On Windows this ends it at once.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_S)
        os._exit(1)


def make(workers: int | None) -> Executor:
    """An executor with this many workers, else one per usable core."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    if method == "forkserver":
        _preload()
    return ProcessExecutor(
        workers or usable or 1, mp_context=multiprocessing.get_context(method), initializer=_start_worker
    )
