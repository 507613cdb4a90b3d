"""What happens to a saved trace off the training loop: verify, compress, sync, give it its name.

The work is done by one thread, which starts when there is work and ends when there is none. It is no daemon,
so that Python itself waits for it at exit, and it yields to the training where the system can be told so.
"""

from __future__ import annotations

import gzip
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankscope.capture.notices import logger
from rankscope.capture.recorder import PARTIAL_STEP_NAME, STEP_NAME
from rankscope.rundir.manifest import claim
from rankscope.rundir.names import TEMPORARY_PREFIX, TEMPORARY_SUFFIX

_CHUNK = 1 << 20
_GZIP_LEVEL = 1
"""On traces level 1 is ten times as fast as level 9 and its file 1.6 times as large."""


@dataclass(frozen=True)
class Finished:
    """A trace that lies under its final name."""

    path: Path
    bytes: int
    json_bytes: int


def temporary_beside(target: Path, what: str = "") -> Path:
    """Where a file lies until it is complete: hidden, in the same directory, its own for each process and
    time."""
    unique = f"{os.getpid()}-{time.monotonic_ns()}"
    return target.with_name(f"{TEMPORARY_PREFIX}{target.name}{what}.{unique}{TEMPORARY_SUFFIX}")


def verify_json(path: Path) -> int:
    """The size of a complete JSON object in a file.

    Raises:
        OSError: it is missing, empty or cut. Torch returns normally from a save onto a full disk.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise OSError("torch saved no file (is the disk full?)") from None
    if size == 0:
        raise OSError("torch saved an empty file (is the disk full?)")
    with path.open("rb") as file:
        file.seek(max(size - 64, 0))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(f"the saved trace ends in the middle after {size} bytes (is the disk full?)")
    return size


def finish_trace(saved: Path, target: Path, *, partial_step: int | None = None) -> Finished:
    """Turn a saved trace into a complete file: at ``target``, or at the next free name beside it.

    Args:
        saved: plain JSON as torch wrote it; removed in the end, whatever happens.
        target: the wanted name; compressed if it ends in ``.gz``.
        partial_step: a step whose range must not count as one.

    Raises:
        OSError: the trace is not complete, or the directory cannot be written. Nothing is left behind then.
    """
    temporary = saved
    try:
        json_bytes = verify_json(saved)
        compressed = target.name.endswith(".gz")
        if compressed or partial_step is not None:
            temporary = temporary_beside(target)
            with saved.open("rb") as source, temporary.open("wb") as sink:
                if compressed:
                    # No time and no name in the header: the name there would be the temporary one.
                    with gzip.GzipFile("", "wb", _GZIP_LEVEL, sink, mtime=0) as packed:
                        _copy(source, packed, partial_step)
                else:
                    _copy(source, sink, partial_step)
                sink.flush()
                os.fsync(sink.fileno())
        else:
            with saved.open("rb+") as file:
                os.fsync(file.fileno())
        size = temporary.stat().st_size
        return Finished(claim(temporary, target), size, json_bytes)
    finally:
        for leftover in {saved, temporary}:
            with suppress(OSError):
                leftover.unlink(missing_ok=True)


def _copy(source: IO[bytes], sink: IO[bytes] | gzip.GzipFile, partial_step: int | None) -> None:
    for chunk in _chunks(source):
        if partial_step is not None:
            chunk = chunk.replace(  # noqa: PLW2901
                f'"{STEP_NAME}{partial_step}"'.encode(), f'"{PARTIAL_STEP_NAME}{partial_step}"'.encode()
            )
        sink.write(chunk)


def _chunks(source: IO[bytes]) -> Iterator[bytes]:
    """Whole lines, so that no name is cut in two."""
    while chunk := source.read(_CHUNK):
        yield chunk + source.readline()


class Writer:
    """A queue of work and the thread that does it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Do ``work`` in the writer's thread; here and now where the interpreter no longer starts threads."""
        with self._lock:
            self._waiting.append(work)
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="rankscope-writer", daemon=False)
            self._thread = thread
        try:
            thread.start()
        except RuntimeError:
            self._run()

    def drain(self, timeout_s: float | None) -> bool:
        """Wait until nothing is left to do; false if that took longer than ``timeout_s``."""
        with self._idle:
            return self._idle.wait_for(lambda: self._thread is None, timeout_s)

    def _run(self) -> None:
        _yield_to_training()
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    self._idle.notify_all()
                    return
                work = self._waiting.popleft()
            try:
                work()
            except Exception:
                logger.exception("writing a trace failed")
            # The work holds the recorded events: free them here, not when the next work comes.
            del work


def _yield_to_training() -> None:
    if sys.platform == "linux" and threading.current_thread() is not threading.main_thread():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
