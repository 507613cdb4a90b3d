"""`rankscope query`.

In: a run and an SQL query. Out: its rows as a table, CSV, JSON, Parquet or Arrow.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rankscope.cli.options import DEFAULTS, RunOptions, opened
from rankscope.cli.signature import with_options
from rankscope.cli.writing import Format, refuse_terminal, show, width_for, write
from rankscope.engine.pipeline.sql import SCHEMA_VERSION, QueryOptions, QueryResult, run_query, tables_of
from rankscope.engine.query.examples import EXAMPLES
from rankscope.engine.query.statement import parse_statement
from rankscope.engine.query.tables import SqlTable
from rankscope.engine.query.values import shortened, simple
from rankscope.errors import ConfigError, nearest
from rankscope.show.export.query import QUERY_FORMATS
from rankscope.show.report.terminal import findings_list, result_table

# Long texts, such as stacks, would fill the terminal.
_LONGEST = 2_000


@dataclass(frozen=True)
class RowOptions:
    """How a query is run, and how and where its rows are written."""

    limit_rows: Annotated[int, typer.Option("--limit-rows", min=0, help="Maximum number of rows; 0 for all.")] = 1000
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0, metavar="SECONDS", help="End the query after this time; 0 for no limit."),
    ] = 60
    form: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.table
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None


ROWS = RowOptions()


@with_options()
def query(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="DIR|TRACE… SQL", help="The run, then one SELECT; - reads it from standard input."),
    ] = None,
    example: Annotated[
        str | None, typer.Option("--example", metavar="NAME", help="Run an example instead of a query.")
    ] = None,
    examples: Annotated[bool, typer.Option("--examples", help="List queries to start from.")] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="List the tables, or the columns of those that are named.")
    ] = False,
    rows: RowOptions = ROWS,
    options: RunOptions = DEFAULTS,
) -> None:
    """Run SQL over the tables of all ranks and the results of analyses.

    `rankscope query DIR "SELECT name, count(*) AS calls FROM device_events GROUP BY name"`. Tables have the column
    `rank`; an analysis's result is `result_NAME`. A query only reads, and its rows and time are limited.
    """
    if examples:
        show(_examples(), rows.output)
        return
    if tables:
        show(_tables(words or []), rows.output)
        return
    source, sql = _split(words or [], example)
    refuse_terminal(rows.form.value, rows.output)
    chosen = QueryOptions(rows.limit_rows or None, rows.timeout or None)
    parse_statement(sql)  # what is not allowed is refused before anything is read
    with opened(source, options) as run:
        result = run_query(run, sql, chosen)
        about = run.about()
        serious = [finding for finding in run.loaded.findings if finding.severity != "info"]
    if rows.form is Format.table:
        show(_table(result, width_for(rows.output) or Console().width), rows.output)
    else:
        write(QUERY_FORMATS[rows.form.value](result, about), rows.output)
    console = Console(stderr=True, highlight=False)
    if result.truncated:
        console.print(Text(f"only the first {rows.limit_rows:,} rows; --limit-rows 0 returns all", style="yellow"))
    if serious:
        console.print(findings_list(serious, about["steps"]))


def _split(words: list[str], example: str | None) -> tuple[list[str], str]:
    """The run's paths, and the query.

    Raises:
        ConfigError: one of them is missing, or there is no such example.
    """
    if example is not None:
        if example not in EXAMPLES:
            hint = ", ".join(nearest(example, EXAMPLES)) or "rankscope query --examples lists them"
            raise ConfigError(f"there is no example {example!r}", hint=hint)
        words = [*words, EXAMPLES[example].sql]
    if len(words) < 2:
        raise ConfigError(
            "name a run and a query",
            hint='rankscope query DIR "SELECT …"; --examples and --tables show what can be asked',
        )
    *source, sql = words
    if sql == "-":
        sql = sys.stdin.read()
    elif Path(sql).suffix.lower() == ".sql" and Path(sql).is_file():
        sql = Path(sql).read_text(encoding="utf-8")
    return source, sql


def _table(result: QueryResult, width: int) -> RenderableType:
    if result.frame.is_empty():
        return Text("no rows", style="dim")
    return result_table(result.as_result(shortened(simple(result.frame), _LONGEST)), None, width)


def _examples() -> RenderableType:
    parts: list[RenderableType] = []
    for name, each in EXAMPLES.items():
        head = Text(name, style="bold")
        head.append(f"  {each.title}", style="not bold")
        parts += [head, Text(each.sql, style="dim"), Text()]
    return Group(*parts)


def _tables(words: list[str]) -> RenderableType:
    """The tables, or the columns of those that are named; runs have the same ones."""
    known = tables_of()
    names = [word for word in words if word in known or not Path(word).exists()]
    for name in names:
        if name not in known:
            near = nearest(name, known)
            raise ConfigError(f"there is no table {name!r}", hint=f"near names: {', '.join(near)}" if near else None)
    if not names:
        grid = Table.grid(padding=(0, 3))
        for each in known.values():
            grid.add_row(Text(each.name, style="bold"), Text(each.table.doc))
        return Group(Text(f"schema version {SCHEMA_VERSION}", style="dim"), grid)
    return Group(*(part for name in names for part in _columns(known[name])))


def _columns(table: SqlTable) -> list[RenderableType]:
    shown = Table("column", "type", "unit", "meaning", box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        shown.add_row(Text(column.name), Text(str(column.dtype)), Text(column.unit), Text(column.doc))
    return [Text(table.name, style="bold"), Text(table.table.doc), Text(), shown, Text()]
