"""Runs tasks in separate processes, one per core.

In: the number of workers. Out: an executor.

Workers start fresh (forkserver where there is one, else spawn): a bare fork would copy locks that another thread
holds. Python would have each fresh worker run the program's main module again, which breaks scripts without an
``if __name__ == "__main__"``; our tasks live in this package, so workers start without it.

What the fork server has imported, no worker has to import. Polars and NumPy start threads when they are imported, and a
fork of a process with threads may hang, so the server imports only modules that start none: the standard library's and
a few packages that workers need.

Ctrl-C reaches every process of a terminal's job. Workers ignore it and the program ends them, so that there is one
message and not one per core. A worker whose program has ended, for whatever reason, ends as well. A worker that is
ended raises an exception in its task, so that the task removes what it has begun to write.
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

# Of a worker's imports, these: the rest is Polars, NumPy and this package, which needs them.
_PRELOADED = (
    *("argparse", "ast", "concurrent.futures", "contextlib", "csv", "dataclasses", "datetime", "decimal", "fractions"),
    *("functools", "gzip", "hashlib", "html", "importlib.metadata", "inspect", "json", "logging", "numbers", "pickle"),
    *("platform", "random", "shutil", "statistics", "tarfile", "tempfile", "textwrap", "typing", "urllib.parse"),
    *("zipfile", "zoneinfo", "isal.isal_zlib", "msgspec.json", "zstandard"),
)

# A task that does not come to an end by itself in so many seconds is cut off.
_GRACE_S = 10.0

_lock = threading.Lock()
_busy = False


class _Ended(BaseException):
    """Takes a worker out of its task; no error, so that no task takes it for one of its own."""


class ProcessExecutor(ProcessPoolExecutor):
    """A process pool whose workers do not run the program's main module, and that can be stopped at once."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Hand the task to a worker; workers start at the first one."""
        with _no_main():
            return super().submit(_run_task, fn, *args, **kwargs)

    def stop(self) -> None:
        """End the workers, in the middle of their tasks, which tidy up behind them."""
        workers = list((self._processes or {}).values())
        # After a shutdown that does not wait, a second one that does has nothing to wait for.
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
    """Have a fork server that is yet to start import what workers need, unless the program has a list of its own.

    The server is one for the whole program: its other children merely find some of the standard library there.
    """
    from multiprocessing import forkserver  # not on Windows

    server = getattr(forkserver, "_forkserver", None)
    # There is no public function for this: without such a list, nothing is preloaded.
    if getattr(server, "_preload_modules", None) == ["__main__"]:
        forkserver.set_forkserver_preload(["__main__", *_PRELOADED])


def _start_worker() -> None:
    # One worker a core: a pool of threads in each would only make them wait for one another. Polars reads this when
    # it is first imported, which in a fresh worker is when the first task arrives.
    os.environ["POLARS_MAX_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_program, daemon=True).start()


def _run_task(fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Run a task in a worker, which can be ended from outside."""
    global _busy
    _busy = True
    try:
        return fn(*args, **kwargs)
    except _Ended:
        # The pool would take it for the task's own failure, and give this worker the next one.
        os._exit(1)
    finally:
        _busy = False


def _end(number: int, frame: FrameType | None) -> None:
    if not _busy:
        os._exit(1)
    # Once is enough: the pool repeats it to all others when the first has ended, which must not interrupt their
    # cleanup.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Native code continues until it returns to Python.
    cut_off = threading.Timer(_GRACE_S, os._exit, (1,))
    cut_off.daemon = True
    cut_off.start()
    raise _Ended


def _end_with_program() -> None:
    program = multiprocessing.parent_process()
    if program is not None:
        wait([program.sentinel])
        # To the process and not to this thread: the main one may be waiting. Where it cannot be caught, it is the end.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_S)
        os._exit(1)


def make(workers: int | None) -> Executor:
    """The requested number of workers, else one per usable core."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    if method == "forkserver":
        _preload()
    return ProcessExecutor(
        workers or usable or 1, mp_context=multiprocessing.get_context(method), initializer=_start_worker
    )
