"""The tables of an SQLite file that another profiler wrote, and rows of them as ranges.

Only ordinary tables are read: no view, trigger or join of the file is run.

In: a connection to the file. Out: rows, and events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Raw, Struct, json

from rankscope.ingest.event_types import StructEvent
from rankscope.ingest.imported import Timed
from rankscope.ingest.timestamps import MAX_NS

_MAX_TABLES = 10_000
# Kernel symbols and strings: names are cut later, when they are read as events.
_MAX_NAME = 1 << 16

Row = Mapping[str, Any]
Track = tuple["int | None", "int | None"]
Translation = tuple[dict[str, Any], Iterable[Timed]]
"""The keys of the trace, and its events."""


@dataclass(frozen=True)
class Process:
    """A process of which a database has device events.

    Attributes:
        id: what tells its rows from those of others.
        order: a sort key: the device that it used most, and its process id.
        kernels: how many it ran.
        rank: its rank, if the database has it; so also `world_size`.
    """

    id: int | str
    order: tuple[Any, ...]
    kernels: int
    rank: int | None = None
    world_size: int | None = None


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

    def rows(self, table: str, *names: str, where: str = "TRUE", values: Sequence[object] = ()) -> Iterator[Row]:
        """A table's rows with some of its columns; a column that it lacks is null, a table that is missing is empty.

        Args:
            where: a condition on columns that the table has.
            values: of the condition's parameters.
        """
        have = {name.lower(): name for name in self.columns(table)}
        chosen = [name for name in names if name.lower() in have]
        if not chosen:
            return
        missing = dict.fromkeys(name for name in names if name not in chosen)
        listed = ", ".join(_quoted(have[name.lower()]) for name in chosen)
        for row in self._connection.execute(f"SELECT {listed} FROM {_quoted(table)} WHERE {where}", values):
            yield dict(zip(chosen, row, strict=True)) | missing

    def counts(self, table: str, *names: str) -> Iterator[tuple[tuple[Any, ...], int]]:
        """How many rows of a table have each combination of values; none if it lacks one of the columns."""
        have = {name.lower() for name in self.columns(table)}
        if not {name.lower() for name in names} <= have:
            return
        listed = ", ".join(map(_quoted, names))
        for *values, count in self._connection.execute(
            f"SELECT {listed}, count(*) FROM {_quoted(table)} GROUP BY {listed}"
        ):
            yield tuple(values), count

    def texts(self, table: str, key: str, value: str) -> dict[Any, str]:
        """Two columns of a table as a mapping."""
        return {row[key]: row[value][:_MAX_NAME] for row in self.rows(table, key, value) if isinstance(row[value], str)}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def range_event(category: str, name: object, span: tuple[object, object], track: Track, args: Struct) -> Timed:
    """A range of a category.

    Args:
        span: its begin and end, ns. What is not a whole number is not known: events without a time are counted.
        track: process and thread.
        args: the arguments of the category.
    """
    since, until = (time if isinstance(time, int) and abs(time) < MAX_NS else None for time in span)
    duration = None if since is None or until is None else until - since
    found = StructEvent("X", category, name if isinstance(name, str) else "", pid=track[0], tid=track[1], args=args)
    return found, since, duration


def raw(value: object) -> Raw:
    """A value as an argument that is kept as JSON; None is none."""
    return Raw(b"" if value is None else json.encode(value))


def whole(value: object) -> int | None:
    """A whole number of 64 bits; None for anything else, as a column of SQLite may hold values of any type."""
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None
