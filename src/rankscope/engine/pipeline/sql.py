"""SQL over a run: `run.sql("SELECT …")`.

Analyses are computed if the query names their tables, and the run's clock if it names an instant.

In: a run and a query. Out: a Polars frame, and how it was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl

from rankscope.analyses import RENAMED, all_analyses, current_name
from rankscope.engine.pipeline.clock import AnalyzedRun, RunClock, clock_of, in_run_time
from rankscope.engine.pipeline.methods import AnalysisMethods
from rankscope.engine.query.engine import Request, Shift, TraceFiles
from rankscope.engine.query.engine import run as run_request
from rankscope.engine.query.statement import QueryError, parse_statement
from rankscope.engine.query.tables import PREFIX, SqlTable, sql_tables, trace_tables, traces_of
from rankscope.errors import ConfigError, near_names
from rankscope.results import Analysis, Result
from rankscope.store.schema import SCHEMA_VERSION, Column


@dataclass(frozen=True)
class QueryOptions:
    """How a query is run.

    Attributes:
        limit_rows: rows that are returned at most; None for all.
        timeout_s: time after which the query is ended; None for no limit. It counts once the tables and results that
            the query names are there.

    Raises:
        ConfigError: one of them is not valid.
    """

    limit_rows: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.limit_rows is not None and self.limit_rows < 0:
            raise ConfigError("the limit of rows is negative", hint="0 or more")
        if self.timeout_s is not None and not 0 < self.timeout_s < float("inf"):
            raise ConfigError("the time limit is not a positive number of seconds", hint="for example 30")


DEFAULT_OPTIONS = QueryOptions()


@dataclass(frozen=True)
class QueryResult:
    """What a query returned.

    Attributes:
        truncated: whether there are more rows than `options.limit_rows`.
        seconds: how long the query took, once its tables were there.
    """

    sql: str
    options: QueryOptions
    frame: pl.DataFrame
    truncated: bool
    seconds: float

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns, with units where their names contain them."""
        return tuple(column_of(name, dtype) for name, dtype in self.frame.schema.items())

    def as_result(self, frame: pl.DataFrame | None = None) -> Result:
        """The rows as an analysis's result, to be shown and written like one.

        Args:
            frame: what is shown instead of the rows, with the same columns.
        """
        shown = self.frame if frame is None else frame
        columns = tuple(column_of(name, dtype) for name, dtype in shown.schema.items())
        return Result(Analysis("query", f"Result of a query.\n\n{self.sql}", columns), shown)


class SqlMethods(AnalysisMethods):
    """Adds SQL to a run."""

    def sql(self, query: str, *, limit_rows: int | None = None, timeout_s: float | None = None) -> pl.DataFrame:
        """The rows of an SQL query over the tables of all ranks and the results of analyses.

        `docs/tables.md` lists the tables and their columns; the result of an analysis is `result_NAME`, computed if
        the query names it.

        Args:
            query: one `SELECT`.
            limit_rows: the maximum number of rows; None for all.
            timeout_s: end the query after this time; None for no limit.

        Raises:
            QueryError: it is not one query that only reads, it is not valid, it took too long, or DuckDB is missing.
        """
        run: Any = self
        return run_query(run, query, QueryOptions(limit_rows, timeout_s)).frame


def tables_of(results: Collection[str] | None = None) -> dict[str, SqlTable]:
    """The tables that a query can name.

    Args:
        results: analyses whose results there are; None for all, as they are computed when they are named.
    """
    analyses = all_analyses()
    chosen = analyses if results is None else {name: analyses[name] for name in analyses if name in results}
    return sql_tables(chosen)


@dataclass(frozen=True)
class PreparedQuery:
    """A query whose tables and results are there: it needs the run no more."""

    options: QueryOptions
    request: Request

    def run(self, stopped: Callable[[], bool] = lambda: False) -> QueryResult:
        """Run it.

        Args:
            stopped: asked while the query runs; once it returns true, it is ended.

        Raises:
            QueryError: it is not valid, or it took too long.
        """
        began = time.monotonic()
        outcome = run_request(self.request, stopped)
        seconds = time.monotonic() - began
        return QueryResult(self.request.sql, self.options, outcome.frame, outcome.truncated, seconds)


def run_query(run: AnalyzedRun, sql: str, options: QueryOptions = DEFAULT_OPTIONS) -> QueryResult:
    """Run a query.

    Raises:
        QueryError: it is not one query that only reads, it is not valid, or it took too long.
        RankscopeError: the traces cannot be read, or an analysis cannot be computed.
    """
    return prepare_query(run, sql, options).run()


def prepare_query(
    run: AnalyzedRun,
    sql: str,
    options: QueryOptions = DEFAULT_OPTIONS,
    results: Mapping[str, Result] | None = None,
    clock: RunClock | None = None,
) -> PreparedQuery:
    """Check a query, and read and compute what it names.

    Args:
        results: the results that it may name; None to compute those that it names.
        clock: the run's clock; None to compute it if the query names an instant, and if results may be computed.

    Raises:
        QueryError: it is not one query that only reads.
        RankscopeError: the traces cannot be read, or an analysis cannot be computed.
    """
    statement = parse_statement(sql)
    known = tables_of(None if results is None else results.keys())
    # Under their old names, too, where a query has them.
    now = {name: current_name(name.removeprefix(PREFIX)) for name in statement.tables if name[len(PREFIX) :] in RENAMED}
    known |= {old: known[f"{PREFIX}{name}"] for old, name in now.items() if f"{PREFIX}{name}" in known}
    for name in statement.tables - known.keys():
        hint = near_names(name, known, "rankscope query --tables lists the tables")
        raise QueryError(f"there is no table {name!r}", hint=hint)
    named = statement.tables
    results_of = {
        name: now.get(name, name.removeprefix(PREFIX)) for name in sorted(named) if known[name].kind == "result"
    }
    wanted = list(dict.fromkeys(results_of.values()))
    found = run.analyze(*wanted) if results is None and wanted else (results or {})
    instants = {column.name for name in named for column in known[name].columns if column.instant}
    shifts = {}
    if instants & statement.columns or (instants and statement.every_column):
        if clock is None and results is not None:
            raise QueryError("the run's clock is not known yet", hint="wait until the run is analyzed")
        clock = clock or clock_of(run)
        shifts = _shifts(clock)
        found = {name: in_run_time(found[name], clock) for name in wanted}
    tables = {
        name: [
            TraceFiles(
                rank,
                file,
                tuple(trace.files(name)),
                shifts.get((rank, file)),
                trace.incomplete_steps if name == "annotations" else (),
            )
            for rank, file, trace in traces_of(run.loaded.ranks)
        ]
        for name in trace_tables()
        if name in named
    }
    request = Request(
        statement.sql,
        tables,
        {table: found[name].frame for table, name in results_of.items()},
        options.limit_rows,
        options.timeout_s,
        {name: tuple(column.name for column in table.columns) for name, table in known.items()},
    )
    return PreparedQuery(options, request)


def _shifts(clock: RunClock) -> dict[tuple[int, int], Shift]:
    """What makes the times of each file those of the run, by rank and file."""
    return {
        (rank, file): Shift(base, own.drift, own.at)
        for rank, own in clock.ranks.items()
        for file, base in enumerate(own.bases)
    }


def column_of(name: str, dtype: pl.DataType) -> Column:
    """A column of a result: a name that the tables have means the same in a result, and another may end in its unit."""
    known = _known_columns().get(name)
    if known is not None and dtype.is_numeric():
        return Column(name, dtype, known.unit, known.doc, known.instant)
    unit = "ns" if name.endswith("_ns") else "bytes" if name.endswith("_bytes") else ""
    return Column(name, dtype, unit if dtype.is_numeric() else "", "")


@cache
def _known_columns() -> dict[str, Column]:
    """Columns whose unit is the same in every table that has them; instants of events included."""
    found: dict[str, list[Column]] = {}
    for table in tables_of().values():
        for column in table.columns:
            found.setdefault(column.name, []).append(column)
    events = {column.name for table in trace_tables().values() for column in table.columns if column.instant}
    return {
        name: Column(
            name,
            columns[0].dtype,
            columns[0].unit,
            columns[0].doc if len({column.doc for column in columns}) == 1 else "",
            name in events or all(column.instant for column in columns),
        )
        for name, columns in found.items()
        if len({column.unit for column in columns}) == 1
    }


__all__ = [
    "SCHEMA_VERSION",
    "PreparedQuery",
    "QueryOptions",
    "QueryResult",
    "SqlMethods",
    "column_of",
    "prepare_query",
    "run_query",
    "tables_of",
]
