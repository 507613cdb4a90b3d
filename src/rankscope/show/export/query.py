"""Writes the rows of a query as JSON, CSV, Parquet or Arrow.

In: what a query returned. Out: bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rankscope.engine.pipeline.sql import QueryResult
from rankscope.engine.query.values import as_json_value, simple
from rankscope.show.export.formats import as_json, to_arrow, to_csv, to_parquet
from rankscope.store.schema import SCHEMA_VERSION

QUERY_SCHEMA_VERSION = 1


def query_json(result: QueryResult, run: Mapping[str, Any]) -> bytes:
    """One JSON object: schema versions, query, run, columns with types and units, rows as objects."""
    return as_json(
        {
            "schema_version": QUERY_SCHEMA_VERSION,
            "tables_version": SCHEMA_VERSION,
            "query": result.sql,
            "engine": "duckdb",
            "run": dict(run),
            "columns": {column.name: {"type": str(column.dtype), "unit": column.unit} for column in result.columns},
            "rows": [as_json_value(row) for row in result.frame.iter_rows(named=True)],
            "truncated": result.truncated,
        }
    )


def query_csv(result: QueryResult, run: Mapping[str, Any]) -> bytes:
    """The rows, with a header; lists and structures as JSON."""
    return to_csv(result.as_result(simple(result.frame)), run)


def query_parquet(result: QueryResult, run: Mapping[str, Any]) -> bytes:
    """The rows as Parquet."""
    return to_parquet(result.as_result(), run)


def query_arrow(result: QueryResult, run: Mapping[str, Any]) -> bytes:
    """The rows as an Arrow IPC file (Feather)."""
    return to_arrow(result.as_result(), run)


QUERY_FORMATS: dict[str, Callable[[QueryResult, Mapping[str, Any]], bytes]] = {
    "json": query_json,
    "csv": query_csv,
    "parquet": query_parquet,
    "arrow": query_arrow,
}
