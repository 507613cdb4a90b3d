"""The tables that a query can name, and a run's rows of them.

Every table of a trace (`store.schema`) is there once, with the rows of all ranks: the columns `rank`, `file` and
`row_index` say where a row is from. The result of an analysis is the table `result_NAME`.

In: the cached tables of each rank, and results. Out: tables with their columns, and their rows, lazily.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from rankscope.results import Analysis
from rankscope.store.cache import CachedTrace
from rankscope.store.schema import I64, TABLES, Column, Table

PREFIX = "result_"
"""The table of an analysis's result has its name after this."""

RANK = Column("rank", I64, "", "the rank")
FILE = Column("file", I64, "", "index of the trace file among the rank's files: 0, unless it recorded several windows")
ROW = Column(
    "row_index", I64, "", "the row's number in its file's table: `*_row` columns refer to it, within one rank and file"
)
ADDED = (RANK, FILE, ROW)
INSTANTS = ("start_ns", "end_ns", "time_ns", "launch_ns")
"""Columns of events that are points in time: in queries on the run's clock, since its first event, so that those of
different ranks can be compared."""

Kind = Literal["trace", "result"]


@dataclass(frozen=True)
class SqlTable:
    """A table that queries can name.

    Attributes:
        kind: `trace` for events of all ranks, `result` for what an analysis computes from them.
    """

    table: Table
    kind: Kind

    @property
    def name(self) -> str:
        """Its name in SQL."""
        return self.table.name

    @property
    def columns(self) -> tuple[Column, ...]:
        """Its columns, in order."""
        return self.table.columns


@cache
def trace_tables() -> dict[str, SqlTable]:
    """The tables of events, by name."""
    return {
        name: SqlTable(Table(name, table.doc, (*ADDED, *map(_on_run_clock, table.columns))), "trace")
        for name, table in TABLES.items()
    }


def _on_run_clock(column: Column) -> Column:
    if column.name not in INSTANTS:
        return column
    return replace(column, doc=column.doc.replace("the trace's clock", "the run's clock"), instant=True)


def result_table_of(analysis: Analysis) -> SqlTable:
    """The table of an analysis's result."""
    return SqlTable(Table(f"{PREFIX}{analysis.name}", f"{analysis.title}.", analysis.columns), "result")


def sql_tables(analyses: Mapping[str, Analysis]) -> dict[str, SqlTable]:
    """All tables that queries can name.

    Args:
        analyses: those whose results there are, by name.
    """
    results = map(result_table_of, analyses.values())
    return trace_tables() | {table.name: table for table in results}


Files = Mapping[int, Sequence[CachedTrace]]
"""The trace files of each rank."""


def traces_of(ranks: Files) -> Iterator[tuple[int, int, CachedTrace]]:
    """Rank, number of the file, and the file's tables."""
    for rank, traces in ranks.items():
        for file, trace in enumerate(traces):
            yield rank, file, trace
