"""The tables of an SQLite file that another profiler wrote, and the rows of them as Kineto's events.

Only ordinary tables are read: no view, trigger or join of the file is run.

In: a connection to the file. Out: rows, and events as JSON.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MAX_TABLES = 10_000
# Kernel symbols and strings: names are cut later, when they are read as events.
_MAX_NAME = 1 << 16

Row = Mapping[str, Any]
Translation = tuple[dict[str, Any], Iterable[str]]
"""The keys of the trace, and its events as JSON."""


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
