"""Tools for SQL over a run: the tables and their columns, and a query.

In: runs and SQL. Out: answers, as `rankscope query` gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rankscope.engine.pipeline.sql import SCHEMA_VERSION, PreparedQuery, QueryOptions, prepare_query, tables_of
from rankscope.engine.query.examples import EXAMPLES
from rankscope.engine.query.values import as_json_value
from rankscope.errors import ConfigError, nearest
from rankscope.show.agents.answers import Answer, Rows
from rankscope.show.agents.arguments import Argument
from rankscope.show.agents.runs import AgentRuns
from rankscope.show.agents.tool import LIMIT, OFFSET, RUN, Rest, Tool, column, part_of

TIMEOUT_S = 30.0
MAX_OFFSET = 10_000
_LINKED = 1_000
"""Characters of a query that the link repeats."""


def _list_tables(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    known = tables_of()
    source = (f"docs/tables.md and docs/queries.md, schema version {SCHEMA_VERSION}",)
    if given["table"] is not None:
        table = known.get(given["table"])
        if table is None:
            raise ConfigError(
                f"there is no table {given['table']!r}", hint=f"near names: {', '.join(nearest(given['table'], known))}"
            )
        rows = [[each.name, str(each.dtype), each.unit, each.doc] for each in table.columns]
        head = (
            column("column", "", "for SQL"), column("type", "", "of its values"), column("unit", "", "of its values"),
            column("meaning", "", "null is unknown, 0 is a recorded zero"),
        )  # fmt: skip
        return Answer({"table": table.name, "doc": table.table.doc}, part_of(rows, head, given), source)
    tables = [[each.name, each.kind, each.table.doc] for each in known.values()]
    about = (
        column("table", "", "for SQL"), column("kind", "", "trace: events of all ranks; result: of an analysis"),
        column("doc", "", "what a row is"),
    )  # fmt: skip
    examples = [{"title": each.title, "sql": each.sql} for each in EXAMPLES.values()][:4]
    notes = ["Call again with table=NAME for its columns. More examples: rankscope query --examples."]
    return Answer({"examples": examples}, part_of(tables, about, given), source, notes=notes)


def _query(runs: AgentRuns, given: Mapping[str, Any]) -> Rest:
    opened = runs.get(given["run"])
    options = QueryOptions(limit_rows=given["offset"] + given["limit"], timeout_s=TIMEOUT_S)
    query = prepare_query(opened.run, given["sql"], options)
    run = {"key": opened.keyed.key, "name": opened.run.name}
    page = opened.page("query", {"sql": given["sql"]} if len(given["sql"]) <= _LINKED else {})
    return Rest(lambda: _rows(query, given["offset"], run, page))


def _rows(query: PreparedQuery, offset: int, run: Mapping[str, Any], page: Mapping[str, Any]) -> Answer:
    result = query.run()
    rows = [[as_json_value(each) for each in row] for row in result.frame.slice(offset).iter_rows()]
    columns = [column(each.name, each.unit, each.doc) for each in result.columns]
    data = {"run": run, "seconds": round(result.seconds, 3)}
    sources = (f"tables of docs/tables.md, schema version {SCHEMA_VERSION}", "command: rankscope query")
    notes = ["Instants are on the run's clock, since its first event: those of different ranks can be compared."]
    part = Rows(columns, rows, None, offset, result.truncated)
    return Answer(data, part, sources, page, notes=notes)


LIST_TABLES = Tool(
    "list_tables",
    "List the tables for query, with examples; with table: its columns with types, units and meaning.",
    (Argument("table", "text", "One table."), OFFSET, replace(LIMIT, default=200)),
    _list_tables,
    opens_runs=False,
)
QUERY = Tool(
    "query",
    "Run SQL over a run: one SELECT over the tables of all ranks (column rank) and results of analyses (result_NAME). "
    f"Read-only; a query may take {TIMEOUT_S:.0f} seconds. Prefer analyze, whose definitions are checked.",
    (
        RUN,
        Argument("sql", "text", "One SELECT; list_tables has the tables.", required=True),
        replace(OFFSET, high=MAX_OFFSET),
        LIMIT,
    ),
    _query,
)
