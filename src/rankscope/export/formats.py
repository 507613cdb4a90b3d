"""A result as JSON, CSV or Parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from rankscope.results import Result

# What a spreadsheet would take for a formula, were it to come first in a cell.
_FORMULA = r"^[=+\-@\t\r]"


def to_json(result: Result, run: Mapping[str, Any]) -> bytes:
    """One JSON object: schema version, analysis, run, columns with units, rows as objects, findings."""
    return (json.dumps(result.to_json(run), ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")


def to_csv(result: Result, run: Mapping[str, Any]) -> bytes:
    """The rows, with a header. A text that a spreadsheet would run as a formula gets a quote before it."""
    text = pl.col(pl.String)
    guarded = result.frame.with_columns(
        pl.when(text.str.contains(_FORMULA)).then(pl.concat_str(pl.lit("'"), text)).otherwise(text).name.keep()
    )
    return guarded.write_csv().encode()


def to_parquet(result: Result, run: Mapping[str, Any]) -> bytes:
    """The rows as Parquet."""
    buffer = io.BytesIO()
    result.frame.write_parquet(buffer)
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Result, Mapping[str, Any]], bytes]] = {
    "json": to_json,
    "csv": to_csv,
    "parquet": to_parquet,
}
