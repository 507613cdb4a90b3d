"""Reads reports back: the reverse of `rankscope.show.report.html_report` and `rankscope.show.report.embed.encoding`."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from typing import Any

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.show.report.html_report import BLOCK
from rankscope.show.timeline.column_file import read_column_file

_DATA = re.compile(r'id="rankscope-data">(.*?)</script', re.DOTALL)
_BLOCKS = re.compile(BLOCK.format(r"([\w-]+)") + r"([^<]*)")


def read_report(page: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The contents of a report: the payload with its tables, and the blocks of the timeline."""
    text = page.decode("utf-8", "replace")
    data = _DATA.search(text)
    assert data is not None, "this is not a rankscope report"
    blocks = {name: b64decode(body) for name, body in _BLOCKS.findall(text)}
    value = json.loads(data.group(1))
    for name, columns in json.loads(inflated(blocks.pop("tables"))).items() if "tables" in blocks else ():
        value["analyses"][name]["data"] = columns
    return value, blocks


def read_block(data: bytes) -> tuple[dict[str, Any], dict[str, Int64]]:
    """The reverse of `block`."""
    meta, columns = read_column_file(inflated(data))
    return meta, {name: unplanes(values, meta["lengths"][name]) for name, values in columns.items()}


def unplanes(data: np.ndarray[Any, np.dtype[np.uint8]], length: int) -> Int64:
    """The reverse of `planes`."""
    values = np.zeros(length, dtype=np.int64)
    for place, plane in enumerate(data.reshape(-1, length) if length else ()):
        values |= plane.astype(np.int64) << (8 * place)
    return values


def unfold(values: Int64) -> Int64:
    """The reverse of `fold`."""
    return np.where(values & 1, -(values + 1) // 2, values // 2)


def inflated(data: bytes) -> bytes:
    """The reverse of `deflated`."""
    return zlib.decompress(data, -zlib.MAX_WBITS)
