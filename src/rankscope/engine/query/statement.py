"""What a query names, as DuckDB parses it: one `SELECT` that only reads the run's tables.

In: SQL. Out: a `Statement`, or an error that says what is not allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rankscope.errors import ConfigError

MAX_CHARACTERS = 100_000
_HINT = "write one SELECT, or WITH … SELECT, over the run's tables: rankscope query --tables lists them"
_TABLE_FUNCTIONS = frozenset(("unnest", "range", "generate_series", "json_each", "json_tree"))
"""Functions that make rows of their arguments."""
_REFUSED = frozenset(
    ("current_setting", "getenv", "getvariable", "json_serialize_plan", "query", "query_table", "write_log")
)
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
        every_column: whether it may have all columns of a table (`*`, a row as one value, `NATURAL JOIN`).
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
    module = duckdb()
    with module.connect(":memory:") as connection:
        try:
            (text,) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
        except module.Error as error:
            raise QueryError(f"the query cannot be read: {str(error)[:200]}", hint=_HINT) from None
    names = _Names(_refused_functions())
    try:
        parsed = json.loads(text)
        if parsed["error"]:
            what = "only SELECT is allowed" if parsed["error_type"] == "not implemented" else parsed["error_message"]
            raise QueryError(what, hint=_HINT)
        if len(parsed["statements"]) != 1:
            raise QueryError("there is more than one statement" if parsed["statements"] else "it is empty", hint=_HINT)
        names.add(parsed["statements"], frozenset())
    except RecursionError:
        raise QueryError("the query is nested too deeply", hint="write shorter expressions") from None
    # A table or its alias in the place of a column is a whole row.
    every_column = names.every_column or not names.columns.isdisjoint(names.tables | names.aliases)
    return Statement(sql, frozenset(names.tables), frozenset(names.columns), every_column)


@cache
def _refused_functions() -> frozenset[str]:
    """Functions that a query may not call in the place of a value."""
    with duckdb().connect(":memory:") as connection:
        return _REFUSED | {name for (name,) in connection.execute(_NEVER_VALUES).fetchall()} - _TABLE_FUNCTIONS


_NEVER_VALUES = (
    "SELECT function_name FROM duckdb_functions() GROUP BY function_name "
    "HAVING bool_and(function_type IN ('table', 'table_macro', 'pragma'))"
)
"""Functions that only stand in the place of a table: some read files, others tell of DuckDB itself."""


@dataclass
class _Names:
    """What the objects of a parsed query name; all in lower case.

    Attributes:
        refused: functions that are not allowed.
        tables: without those that the query defines, each for its part of the query.
        aliases: of tables.
        columns: of tables.
        every_column: whether a part of the query has all columns of a table, under their names or others.
    """

    refused: frozenset[str]
    tables: set[str] = field(default_factory=set)
    aliases: set[str] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    every_column: bool = False

    def add(self, tree: Any, defined: frozenset[str]) -> None:
        """Add those of a tree.

        Args:
            defined: tables that the query defines around it.

        Raises:
            QueryError: something in it is not allowed.
        """
        if isinstance(tree, list):
            for each in tree:
                self.add(each, defined)
        elif isinstance(tree, dict):
            for each in tree.get("cte_map", {}).get("map", ()):
                self.add(each["value"], defined)
                defined |= {each["key"].lower()}
            if tree.get("type") == "RECURSIVE_CTE_NODE":
                defined |= {tree["cte_name"].lower()}
            self._add_one(tree, defined)
            for name, value in tree.items():
                if name != "cte_map":
                    self.add(value, defined)

    def _add_one(self, node: Mapping[str, Any], defined: frozenset[str]) -> None:
        kind, function = str(node.get("type")), str(node.get("function_name", "")).lower()
        if kind.endswith("_QUERY_NODE"):  # `WITH a AS (DELETE …)`
            raise QueryError("only SELECT is allowed", hint=_HINT)
        if kind == "TABLE_FUNCTION":
            function = str(node["function"]["function_name"]).lower()
            if function not in _TABLE_FUNCTIONS:
                raise QueryError(f"{function} is not allowed: a query reads the run's tables alone", hint=_HINT)
        elif function in self.refused:
            raise QueryError(f"{function} is not allowed: a query reads the run's tables alone", hint=_HINT)
        elif kind == "BASE_TABLE":
            if node["schema_name"] or node["catalog_name"]:
                raise QueryError(f"there is no schema {node['schema_name'] or node['catalog_name']!r}", hint=_HINT)
            if node["table_name"].lower() not in defined:
                self.tables.add(node["table_name"].lower())
            self.aliases.add(node["alias"].lower())
            self.every_column |= bool(node["column_name_alias"])
        elif kind == "COLUMN_REF":
            self.columns.update(name.lower() for name in node["column_names"])
        elif kind == "JOIN":
            self.columns.update(name.lower() for name in node["using_columns"])
            self.every_column |= node["ref_type"] == "NATURAL"
        self.every_column |= kind == "STAR"
