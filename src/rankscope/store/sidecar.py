"""Cache arrays next to a trace's tables: one file in the trace's cache directory, memory-mapped for reading.

For results that take too long to compute each time. A file has a JSON header (with a key of its inputs), then the
arrays. It is put in place by one rename, and removed with the tables.

In: arrays and facts with a key. Out: the same, memory-mapped, or None.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.rundir.atomic import atomic_file

Array = npt.NDArray[Any]
_MAGIC = b"RSA1"
_ALIGN = 64
_MAX_HEADER = 256 << 20
_KINDS = "iufb"


@dataclass(frozen=True)
class Sidecar:
    """Arrays of a memory-mapped file, and its header.

    Attributes:
        key: identifies the inputs; `read_sidecar` compares it.
        facts: other JSON values.
        arrays: read-only views into the mapped file.
    """

    key: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, Array]


def write_sidecar(folder: Path, name: str, key: str, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> bool:
    """Write arrays next to the tables of a trace; returns whether that succeeded.

    Args:
        folder: the trace's folder in the cache.
        name: the file's name there.
        key: identifies the inputs.
        facts: JSON values.
        arrays: one-dimensional arrays of numbers.
    """
    layout: dict[str, tuple[str, int, int]] = {}
    offset = 0
    for array_name, array in arrays.items():
        layout[array_name] = (array.dtype.newbyteorder("<").str, offset, array.size)
        offset += -(-array.nbytes // _ALIGN) * _ALIGN
    head = json.dumps({"key": key, "facts": facts, "arrays": layout, "bytes": offset}).encode()
    head += b" " * (-(len(head) + 8) % _ALIGN)
    try:
        with atomic_file(folder / name) as file:
            file.write(_MAGIC + len(head).to_bytes(4, "little") + head)
            for array in arrays.values():
                data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
                data.tofile(file)
                file.write(b"\0" * (-data.nbytes % _ALIGN))
    except OSError:
        # A full disk or a read-only cache: the arrays are computed again next time.
        return False
    return True


def read_sidecar(folder: Path, name: str, key: str) -> Sidecar | None:
    """The arrays that were written with a key; None if there are none, the key differs, or the file is incomplete."""
    path = folder / name
    try:
        status = path.lstat()
        getuid = getattr(os, "getuid", None)
        # As with tables: in a shared cache another user could have written false ones.
        if path.is_symlink() or (getuid is not None and status.st_uid != getuid()):
            return None
        with path.open("rb") as file:
            start = file.read(8)
            size = int.from_bytes(start[4:], "little")
            if start[:4] != _MAGIC or size > _MAX_HEADER:
                return None
            head = json.loads(file.read(size))
        if head["key"] != key or status.st_size != 8 + size + head["bytes"]:
            return None
        # If the path is not text, memmap resolves each part of it.
        mapped = np.memmap(str(path), dtype=np.uint8, mode="r") if head["bytes"] else np.empty(0, dtype=np.uint8)
        arrays = {array: _view(mapped, 8 + size, *layout) for array, layout in head["arrays"].items()}
        return Sidecar(key, head["facts"], arrays)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _view(mapped: Array, base: int, kind: str, offset: int, length: int) -> Array:
    dtype = np.dtype(kind)
    if dtype.kind not in _KINDS or offset < 0 or length < 0:
        raise ValueError(f"not an array of numbers: {kind}")
    if not length:
        return np.empty(0, dtype=dtype)
    part = np.asarray(mapped)[base + offset : base + offset + length * dtype.itemsize]
    return part.view(dtype)
