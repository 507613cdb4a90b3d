"""Run one query over tables on disk.

The rows of a rank are read when the query gets to them, and of its files only the columns that the query names. A
condition on `rank` leaves the files of other ranks alone. DuckDB can open nothing but these files, and is interrupted
when its time is over or nobody waits any more.

In: a `Request`. Out: the rows, at most as many as asked for, or an error that names near tables and columns.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from rankscope.engine.query.statement import QueryError, duckdb
from rankscope.engine.query.tables import INSTANTS, trace_tables
from rankscope.errors import near_names
from rankscope.store.schema import TABLES

_POLL_S = 0.05
_LONGEST = 600
_SETTINGS: dict[str, Any] = {
    # Else what does not fit into memory goes to the current directory.
    "temp_directory": "",
    "memory_limit": "50%",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}


@dataclass(frozen=True)
class Shift:
    """What makes the times of a file those of the run: `moved + drift · (moved − at)`, with `moved = time + base`."""

    base: int
    drift: float
    at: int


@dataclass(frozen=True)
class TraceFiles:
    """One table of one trace file: its Parquet files, in the order of its rows; none if it has no rows.

    Attributes:
        shift: for its instants; None if the query names none.
        incomplete: of the ranges, the numbers of steps that are incomplete.
    """

    rank: int
    file: int
    paths: tuple[str, ...]
    shift: Shift | None = None
    incomplete: tuple[int, ...] = ()


@dataclass(frozen=True)
class Request:
    """A query with all that it needs.

    Attributes:
        tables: the tables of events that it may name, of every rank.
        frames: further tables by name: results.
        limit_rows: how many rows are returned at most; None for all.
        timeout_s: how long it may take; None for no limit.
        known: the columns of every table that there is, for errors.
    """

    sql: str
    tables: Mapping[str, Sequence[TraceFiles]] = field(default_factory=dict)
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    limit_rows: int | None = None
    timeout_s: float | None = None
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """What a query returned.

    Attributes:
        truncated: whether there are more rows than asked for.
    """

    frame: pl.DataFrame
    truncated: bool = False


def run(request: Request, stopped: Callable[[], bool] = lambda: False) -> Rows:
    """Run a query.

    Args:
        stopped: asked again and again while it runs; once it returns true, the query is ended.

    Raises:
        QueryError: it failed, took too long, or was ended.
    """
    module = duckdb()
    with module.connect(":memory:", config=_SETTINGS) as connection:
        paths = sorted({path for files in request.tables.values() for each in files for path in each.paths})
        connection.execute(f"SET allowed_paths = {_list(paths)}")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        with _Watch(connection, request.timeout_s, stopped) as watch:
            try:
                for name, files in request.tables.items():
                    connection.execute(f"CREATE VIEW {_identifier(name)} AS {_view(name, files)}")
                for name, frame in request.frames.items():
                    connection.register(name, frame)
                relation = connection.sql(request.sql)
                if request.limit_rows is not None:
                    relation = relation.limit(request.limit_rows + 1)
                frame = _without_decimals(relation.pl())
                frame.select(pl.selectors.temporal()).rows()  # infinity, or a year that Python does not have
                if watch.ended is not None:
                    raise watch.ended
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
                what = "a column of the result has a type or value that rows cannot have, such as INTERVAL or infinity"
                raise QueryError(what, hint="CAST it AS VARCHAR") from error
            except module.Error as error:
                if watch.ended is not None:
                    raise watch.ended from None
                raise _explained(str(error), request) from None
    if request.limit_rows is None or frame.height <= request.limit_rows:
        return Rows(frame)
    return Rows(frame.head(request.limit_rows), truncated=True)


class _Watch:
    """Interrupts a query when its time is over, or nobody waits for it any more.

    Attributes:
        ended: why the query was ended; None if it was not.
    """

    def __init__(self, connection: Any, timeout_s: float | None, stopped: Callable[[], bool]) -> None:
        self.ended: QueryError | None = None
        self._connection, self._timeout_s, self._stopped = connection, timeout_s, stopped
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rankscope-query", daemon=True)

    def __enter__(self) -> _Watch:
        if self._stopped():
            raise QueryError("the query was ended")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        until = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        while True:
            if self._stopped():
                self.ended = QueryError("the query was ended")
            elif until is not None and time.monotonic() > until:
                self.ended = QueryError(
                    f"the query took longer than {self._timeout_s:g} s and was ended",
                    hint="ask for fewer ranks or rows, or allow more time (--timeout on the command line)",
                )
            if self.ended is not None:
                self._connection.interrupt()  # again and again: between two of its stages none is running
            if self._over.wait(_POLL_S):
                return


_NAMED = re.compile(r'(?:column|with name) "?([^"\s]+)"?')


def _explained(message: str, request: Request) -> QueryError:
    """DuckDB's error without the query that follows it, and what was probably meant."""
    first = re.split(r"\n\s*\n|Candidate (?:bindings|functions)|Did you mean|LINE \d+:", message.strip())[0]
    what = re.sub(r"\s+", " ", first)[:_LONGEST].rstrip(" .!")
    named = {table: request.known[table] for table in (*request.tables, *request.frames) if table in request.known}
    name = _NAMED.search(what)
    only = f" {next(iter(named))}" if len(named) == 1 else ""
    hint = f"rankscope query --tables{only} lists the columns"
    columns = {each for of_table in named.values() for each in of_table}
    return QueryError(what, hint=near_names(name[1].split(".")[-1], columns, hint) if name else hint)


def _without_decimals(frame: pl.DataFrame) -> pl.DataFrame:
    """Sums of integers, which DuckDB returns as integers of 128 bits, as those of 64 bits where they fit."""
    whole = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Decimal) and dtype.scale == 0]
    return frame.with_columns(
        frame[name].cast(pl.Int64)
        for name in whole
        if abs(frame[name].min() or 0) < 2**63 > abs(frame[name].max() or 0)  # type: ignore[arg-type, operator]  # decimals
    )


def _view(name: str, files: Sequence[TraceFiles]) -> str:
    """A table of all ranks as a query for DuckDB, which leaves out the parts that a condition on `rank` excludes."""
    parts = []
    for each in files:
        if each.paths:
            columns = ", ".join(_column(column, each) for column in TABLES[name].schema)
            row = f"file_row_number{_offsets(each.paths)}"
            parts.append(
                f"SELECT {each.rank}::BIGINT AS rank, {each.file}::BIGINT AS file, ({row})::BIGINT AS row_index,"
                f" {columns}"
                f" FROM read_parquet({_list(each.paths)}, file_row_number = true, filename = true)"
            )
    if parts:
        return " UNION ALL ".join(parts)
    schema = trace_tables()[name].table.schema
    nulls = ", ".join(f"NULL::{_type_of(dtype)} AS {_identifier(column)}" for column, dtype in schema.items())
    return f"SELECT {nulls} WHERE false"


def _column(name: str, file: TraceFiles) -> str:
    """A column of a file, as `without_steps` gives it; instants on the run's clock."""
    incomplete, shift = file.incomplete, file.shift
    if name in INSTANTS and shift is not None:
        moved = f"({_identifier(name)} + {shift.base})"
        drift = f" + round_even({shift.drift!r}::DOUBLE * ({moved} - {shift.at}), 0)::BIGINT" if shift.drift else ""
        return f"({moved}{drift})::BIGINT AS {_identifier(name)}"
    kind = {"step": "NOT IN", "incomplete_step": "IN"}.get(name) if incomplete else None
    if kind is None:
        return _identifier(name)
    return f"CASE WHEN step {kind} ({', '.join(map(str, incomplete))}) THEN step END AS {name}"


def _offsets(paths: Sequence[str]) -> str:
    """What is added to the number of a row in its Parquet file: how many rows the files before it have."""
    if len(paths) < 2:
        return ""
    counts = [pl.scan_parquet(path, glob=False).select(pl.len()).collect().item() for path in paths]
    offsets = [str(sum(counts[:place])) for place in range(len(paths))]
    return f" + list_extract([{', '.join(offsets)}], list_position({_list(paths)}, filename))"


def _type_of(dtype: pl.DataType | type[pl.DataType]) -> str:
    types: dict[Any, str] = {
        pl.Int64: "BIGINT", pl.Int32: "INTEGER", pl.Int16: "SMALLINT", pl.Float32: "FLOAT", pl.String: "VARCHAR",
        pl.Boolean: "BOOLEAN",
    }  # fmt: skip
    return types[dtype]


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _list(texts: Sequence[str]) -> str:
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"
