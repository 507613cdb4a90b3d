"""Compact encoding of integer columns for a report.

In: int64 columns. Out: deflated blocks. A column becomes byte planes: the lowest byte of every number, then the next
of every number, as many as the largest needs; similar bytes are then adjacent, which deflate compresses well. Columns
with negative numbers are folded first (0, −1, 1, −2 … become 0, 1, 2, 3 …). A block is a column file
(`show/web/PROTOCOL.md`) of such columns, its bytes deflated without a header, as `DecompressionStream("deflate-raw")`
reads them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.show.timeline.column_file import TypedNumbers, column_file

MAX_PLANES = 7
_LEVEL = 9


def planes(values: Int64) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The planes of numbers that are not below zero, one after the other.

    Raises:
        ValueError: a number is below zero, or needs more than 7 bytes.
    """
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if low < 0 or high >> (8 * MAX_PLANES):
        raise ValueError(f"numbers from {low} to {high} have no planes")
    count = -(-high.bit_length() // 8)
    words = np.ascontiguousarray(values, dtype="<u8")
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, 8).T[:count]).reshape(-1)


def fold(values: Int64) -> Int64:
    """Numbers of either sign as numbers that are not below zero."""
    return np.where(values < 0, -2 * values - 1, 2 * values)


def steps_of(values: Int64) -> Int64:
    """Each number less the one before, folded; the first less 0."""
    return fold(np.diff(values, prepend=0))


def block(columns: Mapping[str, Int64], meta: Mapping[str, Any] | None = None) -> bytes:
    """A block: columns of numbers that are not below zero, and JSON values."""
    coded: dict[str, TypedNumbers] = {name: ("u8", planes(values)) for name, values in columns.items()}
    lengths = {name: int(values.size) for name, values in columns.items()}
    return deflated(column_file(coded, {**(meta or {}), "lengths": lengths}))


def json_block(value: Any) -> bytes:
    """JSON as a block."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return deflated(text.encode("utf-8", "replace"))


def deflated(data: bytes) -> bytes:
    """Deflated, without a header."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()
