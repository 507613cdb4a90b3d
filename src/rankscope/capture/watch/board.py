"""Where the ranks agree on the windows that are recorded on request: a numbered list, to which each can add.

An entry is made once: if several ranks make the same one, the first wins, and the others get its text. The list is in
the job's store; without a store, in files of the run directory, which the ranks then have to share. A job of one
process keeps it in memory.

In: texts. Out: the texts of all ranks, in one order.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from rankscope.rundir.atomic import write_new
from rankscope.rundir.watch_files import requests_folder


class Board(Protocol):
    """A numbered list that all ranks share."""

    def post(self, number: int, text: str) -> str:
        """Make entry ``number``; returns its text, which is another rank's if that was faster."""

    def read(self, number: int) -> str | None:
        """The text of an entry; ``None`` if there is none yet. Does not wait for one."""


class StoreBoard:
    """A list in the job's store.

    Args:
        store: a connection to it.
        scope: begins the keys; the same on all ranks of an attempt of a job, and for no other.
    """

    def __init__(self, store: Any, scope: str) -> None:
        self._store, self._scope = store, scope

    def post(self, number: int, text: str) -> str:
        """Make an entry; the first wins."""
        return bytes(self._store.compare_set(f"{self._scope}/{number}", "", text)).decode()

    def read(self, number: int) -> str | None:
        """The text of an entry."""
        key = f"{self._scope}/{number}"
        return bytes(self._store.get(key)).decode() if self._store.check([key]) else None


class FileBoard:
    """A list in files of the run directory.

    Args:
        run_dir: the same directory for all ranks.
        scope: begins their names.
    """

    def __init__(self, run_dir: str, scope: str) -> None:
        self._folder, self._scope = requests_folder(run_dir), scope

    def post(self, number: int, text: str) -> str:
        """Make an entry; the first wins."""
        wanted = self._path(number)
        if not wanted.exists():
            written = write_new(wanted, text.encode())
            if written == wanted:
                return text
            with suppress(OSError):
                written.unlink()
        return wanted.read_text()

    def read(self, number: int) -> str | None:
        """The text of an entry."""
        try:
            return self._path(number).read_text()
        except FileNotFoundError:
            return None

    def _path(self, number: int) -> Path:
        return self._folder / f"{re.sub('[^A-Za-z0-9._-]', '-', self._scope)}-{number}.window"


class LocalBoard:
    """A list of one process."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def post(self, number: int, text: str) -> str:
        """Make an entry."""
        return self._texts.setdefault(number, text)

    def read(self, number: int) -> str | None:
        """The text of an entry."""
        return self._texts.get(number)
