"""Copies of a run's files behind a URL (``s3://…``, or another that fsspec knows), each sent when it is complete.

A thread does it, so that a slow store delays neither the training nor the writing of traces. The local files stay. A
store that fails is tried again for `RETRY_S`, and with the next file; after the end of the loop for `LAST_RETRY_S`, so
that it does not hold up the end of the job.

In: complete files of the run directory. Out: the same files below the URL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from rankscope.capture.writer import Writer
from rankscope.rundir.names import TEMPORARY_PREFIX, TEMPORARY_SUFFIX, unique_name

RETRY_S, LAST_RETRY_S = 60.0, 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 16.0
_EXIT_LIMIT_S = 5.0
_HOPELESS = (ImportError, ValueError, FileNotFoundError, PermissionError)
"""Trying again does not help: a package or a bucket is missing, or the access to it."""
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl"}
"""An object appears there when it is complete, and renaming would copy it."""

OnDone = Callable[[Exception | None], object]
"""Called in the upload's thread, with the error if the file was not uploaded."""


class Uploads:
    """Uploads files of one run directory.

    Args:
        url: where to.
        run_dir: the run directory; files have the same path below the URL, or the next free name where another run's
            file has it.
    """

    def __init__(self, url: str, run_dir: str) -> None:
        self.url, self._run_dir = url, Path(run_dir)
        self._thread = Writer("rankscope-uploads", exit_limit_s=_EXIT_LIMIT_S)
        self._names: dict[Path, str] = {}
        self._failed: dict[Path, OnDone] = {}
        self._ending = threading.Event()
        self._ends_at = float("inf")
        self._given_up: Exception | None = None

    def put(self, path: Path, on_done: OnDone = lambda _error: None) -> None:
        """Upload a file after those that wait already; returns at once."""
        self._thread.submit(lambda: self._upload(path, on_done))

    def finish(self, timeout_s: float | None) -> bool:
        """The job ends: wait until all is uploaded or has failed; false if that took longer than ``timeout_s``."""
        self._ends_at = time.monotonic() + LAST_RETRY_S
        self._ending.set()
        return self._thread.drain(timeout_s)

    def _upload(self, path: Path, on_done: OnDone) -> None:
        error = self._sent_with_retries(path)
        if error is not None:
            self._failed[path] = on_done
        else:
            self._failed.pop(path, None)
            # The store answers: what has failed before is worth another try.
            for earlier, on_earlier in self._failed.items():
                self.put(earlier, on_earlier)
            self._failed = {}
        on_done(error)

    def _sent_with_retries(self, path: Path) -> Exception | None:
        if self._given_up is not None:
            return self._given_up
        began, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                self._send(path)
                return None
            except _HOPELESS as error:
                return error
            except Exception as error:
                left = min(began + RETRY_S, self._ends_at) - time.monotonic()
                if left <= 0:
                    # One attempt can take long: after the end of the job, not once more for each file.
                    self._given_up = error if time.monotonic() >= self._ends_at else None
                    return error
            # The end of the job cuts the pause short.
            wait = time.sleep if self._ending.is_set() else self._ending.wait
            wait(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _send(self, path: Path) -> None:
        # The job needs torch alone; whoever uploads has fsspec, and the package for this kind of URL.
        system, root = import_module("fsspec.core").url_to_fs(self.url)
        if type(system) is import_module("fsspec.implementations.memory").MemoryFileSystem:
            raise ValueError("it is in the memory of this process, and ends with it: name a store, or a directory")
        target = f"{root.rstrip('/')}/{self._name(path, system, root)}"
        if self.url.partition("://")[0].lower() in _OBJECT_STORES:
            system.put_file(str(path), target)
            return
        folder, _slash, name = target.rpartition("/")
        temporary = f"{folder}/{TEMPORARY_PREFIX}{name}{TEMPORARY_SUFFIX}"
        system.makedirs(folder, exist_ok=True)
        system.put_file(str(path), temporary)
        system.mv(temporary, target)

    def _name(self, path: Path, system: Any, root: str) -> str:
        """The file's path below the URL, chosen once: a manifest replaces its own earlier state, and no other file."""
        if path not in self._names:
            wanted, attempt = path.relative_to(self._run_dir).as_posix(), 0
            while system.exists(f"{root.rstrip('/')}/{unique_name(wanted, attempt)}"):
                attempt += 1
            self._names[path] = unique_name(wanted, attempt)
        return self._names[path]
