"""What a query names, as DuckDB parses it: one `SELECT` that only reads the run's tables.

In: SQL. Out: a `Statement`, or an error that says what is not allowed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rankscope.errors import ConfigError

MAX_CHARACTERS = 100_000
_HINT = "write one SELECT, or WITH … SELECT, over the run's tables: rankscope query --tables lists them"
_TABLE_FUNCTIONS = frozenset(("unnest", "range", "generate_series", "json_each", "json_tree"))
"""Functions that make rows of their arguments."""
_REFUSED = frozenset(("current_setting", "getenv", "getvariable", "query", "query_table", "write_log"))
"""Other functions that tell of more than the run's tables."""


class QueryError(ConfigError):
    """A query that is not allowed, not valid, or too expensive."""


@dataclass(frozen=True)
class Statement:
    """One query.

    Attributes:
        sql: its text.
        tables: the names of tables in it, in lower case, without those that it defines.
        columns: the names of columns in it, in lower case.
        every_column: whether all columns of a table are among its rows (`*`).
    """

    sql: str
    tables: frozenset[str]
    columns: frozenset[str]
    every_column: bool


def duckdb() -> Any:
    """The module.

    Raises:
        QueryError: it is not installed.
    """
    try:
        import duckdb
        import pyarrow  # noqa: F401  # DuckDB returns frames through it
    except ImportError as error:
        raise QueryError("SQL needs DuckDB, which is not installed", hint="pip install 'rankscope[sql]'") from error
    return duckdb


def parse_statement(sql: str) -> Statement:
    """What a query names.

    Raises:
        QueryError: it is not one query that only reads tables, or DuckDB is not installed.
    """
    if len(sql) > MAX_CHARACTERS:
        raise QueryError(f"the query has more than {MAX_CHARACTERS:,} characters", hint="write a shorter one")
    with duckdb().connect(":memory:") as connection:
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
        made_tables = {name for (name,) in connection.execute(_MAKE_TABLES).fetchall()}
    parsed = json.loads(text)
    if parsed["error"]:
        what = "only SELECT is allowed" if parsed["error_type"] == "not implemented" else parsed["error_message"]
        raise QueryError(what, hint=_HINT)
    if len(parsed["statements"]) != 1:
        raise QueryError("there is more than one statement" if parsed["statements"] else "it is empty", hint=_HINT)
    tables: set[str] = set()
    defined: set[str] = set()
    columns: set[str] = set()
    every_column = False
    for node in _nodes(parsed["statements"]):
        kind, function = node.get("type"), str(node.get("function_name", "")).lower()
        if str(kind).endswith("_QUERY_NODE"):
            raise QueryError("only SELECT is allowed", hint=_HINT)
        if function in _REFUSED or function in made_tables - _TABLE_FUNCTIONS:
            raise QueryError(f"{function} is not allowed: a query reads the run's tables alone", hint=_HINT)
        if kind == "BASE_TABLE":
            if node["schema_name"] or node["catalog_name"]:
                raise QueryError(f"there is no schema {node['schema_name'] or node['catalog_name']!r}", hint=_HINT)
            tables.add(node["table_name"].lower())
        elif kind == "COLUMN_REF":
            columns.update(name.lower() for name in node["column_names"])
        every_column = every_column or kind == "STAR"
        defined.update(each["key"].lower() for each in node.get("cte_map", {}).get("map", ()))
        defined.update([node["cte_name"].lower()] if "cte_name" in node else [])
    return Statement(sql, frozenset(tables - defined), frozenset(columns), every_column)


_MAKE_TABLES = (
    "SELECT function_name FROM duckdb_functions() GROUP BY function_name "
    "HAVING bool_and(function_type IN ('table', 'table_macro', 'pragma'))"
)
"""Functions that stand in the place of a table: some read files, others tell of DuckDB itself."""


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in a tree."""
    left = [tree]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            yield each
            left += each.values()
        elif isinstance(each, list):
            left += each
