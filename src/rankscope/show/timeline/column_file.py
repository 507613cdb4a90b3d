"""The column file of `show/web/PROTOCOL.md`: columns of numbers as bytes that a browser reads in place.

In: arrays and a header. Out: bytes; and the reverse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC = b"RSC1"
ALIGN = 8
_TYPES = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "f64": "<f8"}

TypedNumbers = tuple[str, npt.NDArray[Any]]


def column_file(columns: Mapping[str, TypedNumbers], meta: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of some columns.

    Args:
        columns: by name the type (`u8`, `u16`, `u32`, `i32`, `f64`) and the numbers.
        meta: further JSON values for the head.
    """
    places: dict[str, dict[str, Any]] = {}
    parts: list[bytes] = []
    at = 0
    for name, (kind, values) in columns.items():
        data = np.ascontiguousarray(values, dtype=_TYPES[kind])
        places[name] = {"type": kind, "offset": at, "length": int(data.size)}
        gap = -data.nbytes % ALIGN
        parts += [data.tobytes(), b"\0" * gap]
        at += data.nbytes + gap
    head = json.dumps({**(meta or {}), "columns": places}, separators=(",", ":")).encode()
    head += b" " * (-(len(head) + len(MAGIC) + 4) % ALIGN)
    return b"".join([MAGIC, len(head).to_bytes(4, "little"), head, *parts])


def read_column_file(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The header and the columns by name."""
    if data[:4] != MAGIC:
        raise ValueError("these bytes are not a column file")
    size = int.from_bytes(data[4:8], "little")
    head = json.loads(data[8 : 8 + size])
    base = 8 + size
    columns = {
        name: np.frombuffer(data, dtype=_TYPES[place["type"]], count=place["length"], offset=base + place["offset"])
        for name, place in head["columns"].items()
    }
    return head, columns
