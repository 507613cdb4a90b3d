"""Read traces that other profilers keep in SQLite, as the events that Kineto would have written.

The database is opened read-only and immutable, and only ordinary tables are read: no view, trigger or join of the file
is run. Each row becomes one event of a Kineto trace, so that all tables and analyses follow from it. A database may
hold several processes. Those with kernels are ranks: each is read by itself, under a path of its own (`rundir.names`).

In: the path of an SQLite file. Out: how many ranks it holds, and the events of each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Protocol
from urllib.parse import quote

from rankscope.errors import NotATraceError, OtherTraceError, RankscopeError, TraceError
from rankscope.ingest.imported import Imported, Timed
from rankscope.ingest.salvage import Losses
from rankscope.ingest.sqlite_tables import Database, Process, Translation
from rankscope.rundir.names import parse_trace_name, split_process

# Of one file: a node has no more processes with kernels, and each is a task that reads the file.
_MAX_RANKS = 1_024


class Importer(Protocol):
    """What reads the databases of one profiler."""

    def reads(self, database: Database) -> bool:
        """Whether it wrote a database."""

    def processes(self, database: Database) -> Sequence[Process]:
        """The processes with device events."""

    def translate(self, database: Database, process: Process | None) -> Translation:
        """The trace of a process; of all events if the database names none."""


def rank_count(path: str) -> int:
    """How many ranks a file holds: above 1 only for a database with several processes that ran kernels."""
    try:
        status = Path(path).stat()
    except OSError:
        return 1
    return _rank_count(path, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=1 << 12)
def _rank_count(path: str, *_identity: int) -> int:
    """Cached, as the page looks for files again and again."""
    try:
        with ExitStack() as stack:
            database, importer = _open(path, stack)
            found = _ranks(importer.processes(database))
    except (sqlite3.Error, OSError, RankscopeError):
        return 1  # reading it reports the error
    # A file that is named after a rank holds that rank; another process in it is a helper.
    named = parse_trace_name(PurePath(path).name).rank is not None
    if named and len({each.rank for each in found if each.rank is not None}) < 2:
        return 1
    return max(len(found), 1)


def _ranks(processes: Sequence[Process]) -> list[Process]:
    """The processes that are ranks, in order: those with kernels."""
    return sorted((each for each in processes if each.kernels), key=lambda each: each.order)[:_MAX_RANKS]


def open_sqlite(path: str, stack: ExitStack) -> Imported:
    """The events of a database: of the process that the path names, else of the busiest.

    Raises:
        TraceError: it cannot be read.
        NotATraceError: it is not one that a known profiler writes.
    """
    file, place = split_process(path)
    if "://" in file and not file.lower().startswith("file://"):
        raise TraceError("an SQLite database cannot be read from a URL", path=path, hint="copy it to a disk first")
    try:
        file = file.removeprefix("file://")
        database, importer = _open(file, stack)
        found = importer.processes(database)
        chosen, others = max(found, key=lambda each: each.kernels, default=None), max(len(found) - 1, 0)
        if place is not None:
            ranks = _ranks(found)
            if place >= len(ranks):
                raise TraceError(f"it has {len(ranks)} processes with kernels", path=path, hint="open the file again")
            # Processes that are not read are reported once.
            chosen, others = ranks[place], 0 if place else len(found) - len(ranks)
        head, events = importer.translate(database, chosen)
    except sqlite3.Error as error:
        raise TraceError(f"the database cannot be read: {error}", path=path, hint="export or copy it again") from error
    if chosen is not None and chosen.rank is not None:
        head["distributedInfo"] = {"rank": chosen.rank, "world_size": chosen.world_size}
    losses = Losses()
    return Imported(_read(events, losses), head, losses, bytes_read=Path(file).stat().st_size, others=others)


def _open(path: str, stack: ExitStack) -> tuple[Database, Importer]:
    """A database and what reads it.

    Raises:
        sqlite3.Error: it cannot be read.
        NotATraceError: it is not one that a known profiler writes.
        OtherTraceError: it is, but has no events that are read.
    """
    from rankscope.ingest import nsight, rocpd  # few workers need them

    connection = stack.enter_context(closing(sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)))
    connection.text_factory = _decoded
    connection.execute("PRAGMA trusted_schema = OFF")
    database = Database(connection, path)
    importers: tuple[Importer, ...] = (nsight, rocpd)
    for importer in importers:
        if importer.reads(database):
            return database, importer
    if nsight.is_report(database):
        raise OtherTraceError(
            "a Nsight Systems report without CUDA events",
            path=path,
            hint="record with `nsys profile --trace=cuda,nvtx …`, and export that report",
        )
    names = ", ".join(repr(name[:40]) for name in sorted(database.tables)[:3]) or "no table"
    raise NotATraceError(
        f"an SQLite database, but not one of Nsight Systems or rocprofv3: it has {names}",
        path=path,
        hint="rankscope reads what `nsys export --type sqlite` and `rocprofv3 --output-format rocpd` write",
    )


def _decoded(text: bytes) -> str:
    """A text of the file: one that is not UTF-8 must not end the reading."""
    return text.decode("utf-8", "replace")


def _read(events: Iterable[Timed], losses: Losses) -> Iterator[Timed]:
    """The events up to the first damage."""
    try:
        yield from events
    except (sqlite3.Error, UnicodeDecodeError) as error:
        losses.cut(f"the database is damaged: {error}")
