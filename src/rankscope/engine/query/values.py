"""The values of a query's result as text and as JSON: a query can return any type that its engine has.

In: a frame. Out: a frame of numbers, booleans and texts; or values for JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import polars as pl

LARGEST_EXACT = 1 << 53
"""Larger integers are not exact where numbers are doubles, as in a browser."""


def simple(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with lists, structures, dates, bytes and the like as text, and decimals as floats."""
    changed = [
        pl.Series(name, [None if value is None else as_text(value) for value in frame[name].to_list()], dtype=pl.String)
        for name, dtype in frame.schema.items()
        if not dtype.is_numeric() and dtype not in (pl.String, pl.Boolean, pl.Null)
    ]
    changed += [frame[name].cast(pl.Float64) for name, dtype in frame.schema.items() if dtype.is_decimal()]
    return frame.with_columns(changed) if changed else frame


def as_text(value: object) -> str:
    """A value as text: lists and structures as JSON."""
    shown = as_json_value(value)
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


def as_json_value(value: object) -> Any:
    """A value for JSON: NaN and infinity are null, bytes hexadecimal, dates in ISO 8601."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): as_json_value(each) for key, each in value.items()}
    if isinstance(value, pl.Series | list | tuple | set):
        return [as_json_value(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if callable(isoformat) else str(value)


def shortened(frame: pl.DataFrame, longest: int) -> pl.DataFrame:
    """The frame with texts cut to a length, and an ellipsis where one was."""
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    return frame.with_columns(
        pl.when(pl.col(name).str.len_chars() > longest)
        .then(pl.concat_str(pl.col(name).str.slice(0, longest - 1), pl.lit("…")))
        .otherwise(pl.col(name))
        .alias(name)
        for name in texts
    )
