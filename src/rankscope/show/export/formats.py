"""Writes a result as JSON, CSV, Parquet or Arrow.

In: a result. Out: bytes.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from rankscope.results import Result

# A cell that begins like this is a formula to a spreadsheet.
_FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"
# Characters that control a terminal or are invisible in an editor; JSON can escape them.
_INVISIBLE = re.compile(
    "[\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)


def to_json(result: Result, run: Mapping[str, Any]) -> bytes:
    """One JSON object: schema version, analysis, run, columns with units, rows as objects, findings."""
    return as_json(result.to_json(run))


def as_json(value: Mapping[str, Any]) -> bytes:
    """JSON with control characters and invisible ones escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return (_INVISIBLE.sub(_escape, text) + "\n").encode("utf-8", "replace")


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"


def to_csv(result: Result, run: Mapping[str, Any]) -> bytes:
    """The rows, with a header. Text that a spreadsheet would run as a formula gets a leading quote."""
    frame = result.finite()
    texts = [name for name, dtype in frame.schema.items() if dtype in (pl.String, pl.Categorical)]
    return frame.with_columns(_guarded(name) for name in texts).write_csv().encode()


def _guarded(name: str) -> pl.Expr:
    text = pl.col(name).cast(pl.String)
    return pl.when(text.str.contains(_FORMULA)).then(pl.concat_str(pl.lit("'"), text)).otherwise(text).alias(name)


def to_parquet(result: Result, run: Mapping[str, Any]) -> bytes:
    """The rows as Parquet."""
    buffer = io.BytesIO()
    result.finite().write_parquet(buffer)
    return buffer.getvalue()


def to_arrow(result: Result, run: Mapping[str, Any]) -> bytes:
    """The rows as an Arrow IPC file (Feather), with types that older readers know."""
    buffer = io.BytesIO()
    result.finite().write_ipc(buffer, compat_level=pl.CompatLevel.oldest())
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Result, Mapping[str, Any]], bytes]] = {
    "json": to_json,
    "csv": to_csv,
    "parquet": to_parquet,
    "arrow": to_arrow,
}
