"""Run one query over tables on disk.

The rows of a rank are read when the query gets to them, and of its files only the columns that the query names. A
condition on `rank` leaves the files of other ranks alone. DuckDB can open nothing but these files.

In: a `Request`. Out: the rows, at most as many as asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from polars.io.plugins import register_io_source

from rankscope.query.statement import TABLE_FUNCTIONS, QueryError, parse_statement
from rankscope.query.tables import FILE, INSTANTS, RANK, ROW, trace_tables
from rankscope.store.cache import without_steps
from rankscope.store.schema import TABLES

ENGINES = ("polars", "duckdb")
_SCAN = re.compile(r"(?m)^\s*(?!PYTHON\b)\w+ SCAN \[")
"""A file in a plan of Polars; the run's tables are sources of their own."""


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
        known: the columns of every table that there is, for errors.
    """

    sql: str
    engine: str = "polars"
    tables: Mapping[str, Sequence[TraceFiles]] = field(default_factory=dict)
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    limit_rows: int | None = None
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """What a query returned.

    Attributes:
        truncated: whether there are more rows than asked for.
    """

    frame: pl.DataFrame
    truncated: bool = False


def run(request: Request) -> Rows:
    """Run a query in this process.

    Raises:
        QueryError: the engine is not installed.
        Exception: whatever the engine raises.
    """
    frame = _ENGINES[request.engine](request)
    if request.limit_rows is None or frame.height <= request.limit_rows:
        return Rows(frame)
    return Rows(frame.head(request.limit_rows), truncated=True)


# -- Polars -----------------------------------------------------------------------------------------------------------


def _run_polars(request: Request) -> pl.DataFrame:
    frames = {name: _source(name, files) for name, files in request.tables.items()}
    frames |= {name: frame.lazy() for name, frame in request.frames.items()}
    lazy = pl.SQLContext(frames).execute(request.sql, eager=False)
    # Polars has no setting that forbids files. The text was checked; the plan cannot be read in two ways.
    if _SCAN.search(lazy.explain(optimized=False)):
        raise QueryError("a query reads no files")
    if request.limit_rows is not None:
        lazy = lazy.head(request.limit_rows + 1)
    return lazy.collect(engine="streaming")


def _source(name: str, files: Sequence[TraceFiles]) -> pl.LazyFrame:
    """A table of all ranks: one file after the other, and of those only what the query can need."""
    schema = _schema(name, files)

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, batch: int | None
    ) -> Iterator[pl.DataFrame]:
        left = rows
        for each in _of_ranks(files, predicate):
            if left is not None and left <= 0:
                return
            lazy = _file(name, each)
            if predicate is not None:
                lazy = lazy.filter(predicate)
            # Without any column there would be no rows to count.
            lazy = lazy.select(list(schema) if columns is None else columns or [RANK.name])
            if left is not None:
                lazy = lazy.head(left)
            frame = lazy.collect()
            left = None if left is None else left - frame.height
            yield frame

    return register_io_source(read, schema=schema, is_pure=True)


def _schema(name: str, files: Sequence[TraceFiles]) -> dict[str, Any]:
    """The columns of a table of all ranks."""
    return dict(trace_tables()[name].table.schema)


def _file(name: str, each: TraceFiles) -> pl.LazyFrame:
    """A table of one trace file, with the columns that say where its rows are from."""
    if each.paths:
        lazy = pl.scan_parquet(list(each.paths), row_index_name=ROW.name, glob=False)
    else:
        lazy = TABLES[name].empty().lazy().with_row_index(ROW.name)
    lazy = without_steps(lazy, each.incomplete).with_columns(
        pl.lit(each.rank, pl.Int64).alias(RANK.name),
        pl.lit(each.file, pl.Int64).alias(FILE.name),
        pl.col(ROW.name).cast(pl.Int64),
    )
    if each.shift is None:
        return lazy
    return lazy.with_columns(_moved(instant, each.shift) for instant in INSTANTS if instant in TABLES[name].schema)


def _moved(instant: str, shift: Shift) -> pl.Expr:
    moved = pl.col(instant) + shift.base
    if shift.drift:
        moved = moved + (shift.drift * (moved - shift.at)).round(mode="half_to_even").cast(pl.Int64)
    return moved.alias(instant)


def _of_ranks(files: Sequence[TraceFiles], predicate: pl.Expr | None) -> list[TraceFiles]:
    """The files that can have rows for which a predicate holds, by its conditions on `rank` and `file` alone."""
    conditions = [
        each
        for each in ([] if predicate is None else _conjuncts(predicate))
        if set(each.meta.root_names()) <= {RANK.name, FILE.name} and each.meta.root_names()
    ]
    if not conditions or not files:
        return list(files)
    places = pl.DataFrame(
        {
            RANK.name: [each.rank for each in files],
            FILE.name: [each.file for each in files],
            "place": range(len(files)),
        },
        schema_overrides={RANK.name: pl.Int64, FILE.name: pl.Int64},
    )
    return [files[place] for place in places.filter(conditions)["place"].to_list()]


def _conjuncts(predicate: pl.Expr) -> list[pl.Expr]:
    """The conditions that must all hold: `a AND b AND c` in parts."""
    parts = predicate.meta.pop()
    if len(parts) == 2:
        for one, other in (parts, parts[::-1]):
            if (one & other).meta.eq(predicate):
                return [*_conjuncts(one), *_conjuncts(other)]
    return [predicate]


# -- DuckDB -----------------------------------------------------------------------------------------------------------


def _run_duckdb(request: Request) -> pl.DataFrame:
    try:
        import duckdb
    except ImportError as error:
        hint = "pip install 'rankscope[duckdb]', or use the default engine, polars"
        raise QueryError("DuckDB is not installed", hint=hint) from error
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    # DuckDB has tables of its own, which tell where files are. There are no views yet, as it would expand them.
    statement = parse_statement(request.sql)
    unknown = connection.get_table_names(request.sql) - {*request.tables, *request.frames}
    own = {name for row in connection.sql(_OWN_TABLES).fetchall() for name in row}
    unknown |= own & {name.lower() for name in statement.names}
    if unknown:
        raise QueryError(f"there is no table {min(unknown)!r}")
    # And functions that do, or that change its settings. Wherever they stand, they are called.
    refused = {name for (name,) in connection.sql(_OWN_FUNCTIONS).fetchall()} & statement.called
    if refused:
        raise QueryError(f"{min(refused)} is not allowed: a query reads the run's tables alone")
    paths = sorted({path for files in request.tables.values() for each in files for path in each.paths})
    connection.execute(f"SET allowed_paths = {_list(paths)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    for name, files in request.tables.items():
        connection.execute(f"CREATE VIEW {_identifier(name)} AS {_view(name, files)}")
    for name, frame in request.frames.items():
        connection.register(name, frame)
    relation = connection.sql(request.sql)
    if request.limit_rows is not None:
        relation = relation.limit(request.limit_rows + 1)
    try:
        frame = relation.pl()
    except pl.exceptions.PolarsError as error:
        raise QueryError(
            "a column of the result has a type that rows cannot have, such as INTERVAL", hint="CAST it AS VARCHAR"
        ) from error
    return _without_decimals(frame)


def _without_decimals(frame: pl.DataFrame) -> pl.DataFrame:
    """Sums of integers, which DuckDB returns as integers of 128 bits, as those of 64 bits where they fit."""
    whole = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Decimal) and dtype.scale == 0]
    return frame.with_columns(
        frame[name].cast(pl.Int64)
        for name in whole
        if abs(frame[name].min() or 0) < 2**63 > abs(frame[name].max() or 0)  # type: ignore[arg-type, operator]  # decimals
    )


_OWN_TABLES = (
    "SELECT view_name, 'pg_catalog' FROM duckdb_views() WHERE internal AND schema_name <> 'information_schema' "
    "UNION SELECT 'information_schema', schema_name FROM duckdb_views() WHERE internal AND schema_name <> 'main'"
)
_OWN_FUNCTIONS = (
    "SELECT function_name FROM duckdb_functions() GROUP BY function_name "
    "HAVING bool_and(function_type IN ('table', 'table_macro', 'pragma')) AND bool_or(function_type <> 'pragma') "
    f"AND function_name NOT IN ({', '.join(map(repr, sorted(TABLE_FUNCTIONS)))}) "
    "UNION VALUES ('current_setting'), ('write_log')"
)
_SETTINGS: dict[str, Any] = {
    # Else what does not fit into memory goes to the current directory, and stays there if the query is ended.
    "temp_directory": "",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}


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
    nulls = ", ".join(
        f"NULL::{_type_of(dtype)} AS {_identifier(column)}" for column, dtype in _schema(name, files).items()
    )
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


_ENGINES: dict[str, Callable[[Request], pl.DataFrame]] = {"polars": _run_polars, "duckdb": _run_duckdb}
