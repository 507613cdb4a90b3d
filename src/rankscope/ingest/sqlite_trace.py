"""Read traces that other profilers keep in SQLite, as the events that Kineto would have written.

The database is opened read-only and immutable, and only ordinary tables are read, row by row: no view, trigger or join
of the file is run. Each row becomes one event of a Kineto trace, so that all tables and analyses follow from it.

In: the path of an SQLite file. Out: a reader of JSON text.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import quote

from rankscope.errors import NotATraceError, TraceError
from rankscope.ingest.decompress import Prefixed, Reader

_ROWS = 2_000
_MAX_TABLES = 10_000
# Kernel symbols and strings: names are cut later, when they are read as events.
_MAX_NAME = 1 << 16

Row = Mapping[str, Any]
Translation = tuple[dict[str, Any], Iterable[str]]
"""The keys of the trace, and its events as JSON. The key `others` is the number of processes that are left out."""


class Database:
    """The ordinary tables of an SQLite file."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self.path = path
        self._connection = connection
        found = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' LIMIT ?", (_MAX_TABLES,)
        ).fetchall()
        # A virtual table runs a module's code.
        self.tables = {
            name for name, sql in found if isinstance(name, str) and not str(sql).upper().startswith("CREATE VIRTUAL")
        }

    def columns(self, table: str) -> list[str]:
        """A table's columns; none without such a table."""
        if table not in self.tables:
            return []
        return [str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({_quoted(table)})")]

    def rows(self, table: str, *names: str) -> Iterator[Row]:
        """A table's rows with some of its columns; a column that it lacks is null, a table that is missing is empty."""
        have = {name.lower(): name for name in self.columns(table)}
        chosen = [name for name in names if name.lower() in have]
        if not chosen:
            return
        missing = dict.fromkeys(name for name in names if name not in chosen)
        listed = ", ".join(_quoted(have[name.lower()]) for name in chosen)
        for row in self._connection.execute(f"SELECT {listed} FROM {_quoted(table)}"):
            yield dict(zip(chosen, row, strict=True)) | missing

    def texts(self, table: str, key: str, value: str) -> dict[Any, str]:
        """Two columns of a table as a mapping."""
        return {row[key]: row[value][:_MAX_NAME] for row in self.rows(table, key, value) if isinstance(row[value], str)}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def open_sqlite(path: str, stack: ExitStack) -> Reader:
    """The events of a database as the JSON of a trace.

    Raises:
        TraceError: it cannot be read.
        NotATraceError: it is not one that a known profiler writes.
    """
    from rankscope.ingest import nsight, rocpd  # few workers need them

    if "://" in path and not path.lower().startswith("file://"):
        raise TraceError("an SQLite database cannot be read from a URL", path=path, hint="copy it to a disk first")
    try:
        where = f"file:{quote(path.removeprefix('file://'))}?mode=ro&immutable=1"
        connection = stack.enter_context(closing(sqlite3.connect(where, uri=True)))
        connection.text_factory = _decoded
        connection.execute("PRAGMA trusted_schema = OFF")
        database = Database(connection, path)
        for reads, translate in ((nsight.reads, nsight.translate), (rocpd.reads, rocpd.translate)):
            if reads(database):
                return Translated(database, translate)
    except sqlite3.Error as error:
        raise TraceError(f"the database cannot be read: {error}", path=path, hint="export or copy it again") from error
    names = ", ".join(repr(name[:40]) for name in sorted(database.tables)[:3]) or "no table"
    raise NotATraceError(
        f"an SQLite database, but not one of Nsight Systems or rocprofv3: it has {names}",
        path=path,
        hint="rankscope reads what `nsys export --type sqlite` and `rocprofv3 --output-format rocpd` write",
    )


def _decoded(text: bytes) -> str:
    """A text of the file: one that is not UTF-8 must not end the reading."""
    return text.decode("utf-8", "replace")


class Translated:
    """The JSON of a trace, made from a database while it is read.

    Attributes:
        others: further processes with device events in the file, which are not read.
    """

    def __init__(self, database: Database, translate: Callable[[Database], Translation]) -> None:
        self._path = database.path
        head, events = translate(database)
        self.others = int(head.pop("others", 0))
        self._pieces = self._encoded(head, events)
        self._left: Reader = Prefixed(b"", _Nothing())

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes."""
        while not (data := self._left.read(size)):
            try:
                piece = next(self._pieces, b"")
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise ValueError(f"the database is damaged: {error}") from error
            if not piece:
                return b""
            self._left = Prefixed(piece, _Nothing())
        return data

    def count_unread(self) -> int:
        """Further processes in the file."""
        return self.others

    def checksum_error(self) -> str | None:
        """None: the file has no checksum."""
        return None

    @staticmethod
    def _encoded(head: Mapping[str, Any], events: Iterable[str]) -> Iterator[bytes]:
        yield json.dumps(head).encode()[:-1] + b', "traceEvents": ['
        batch: list[str] = []
        first = True
        for each in events:
            batch.append(each)
            if len(batch) == _ROWS:
                yield (("" if first else ",\n") + ",\n".join(batch)).encode()
                batch, first = [], False
        yield (("" if first or not batch else ",\n") + ",\n".join(batch) + "]}").encode()


class _Nothing:
    def read(self, size: int, /) -> bytes:
        return b""


def event(category: str, name: object, start: object, end: object, **fields: Any) -> str:
    """A range as JSON, in Kineto's form.

    Args:
        start: ns. What is not a whole number becomes null: the reader counts events without a time.
        end: ns.
        fields: ``pid``, ``tid`` and ``args``; arguments that are None are left out.
    """
    since, until = (time if isinstance(time, int) and abs(time) < 1 << 62 else None for time in (start, end))
    duration = None if since is None or until is None else until - since
    args = {key: value for key, value in fields.pop("args", {}).items() if value is not None}
    text = json.dumps(
        {"ph": "X", "cat": category, "name": name if isinstance(name, str) else "", **fields, "args": args}
    )
    return f'{text[:-1]}, "ts": {_microseconds(since)}, "dur": {_microseconds(duration)}}}'


def _microseconds(nanoseconds: int | None) -> str:
    """Nanoseconds as JSON's microseconds, exactly, which a float is not."""
    if nanoseconds is None:
        return "null"
    return f"{'-' if nanoseconds < 0 else ''}{abs(nanoseconds) // 1000}.{abs(nanoseconds) % 1000:03}"


def whole(value: object) -> int | None:
    """A whole number of 64 bits; None for anything else, as a column of SQLite may hold values of any type."""
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None


def busiest(processes: Iterable[object]) -> tuple[object, int]:
    """The process of most events, and the number of the others."""
    counts = Counter(process for process in processes if process is not None)
    if not counts:
        return None, 0
    return counts.most_common(1)[0][0], len(counts) - 1
