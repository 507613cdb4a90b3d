"""Cache the ranks' parts of analyses next to the tables that they were computed from.

A rank's part depends on the rank's traces, the options and the code, and on the traces of all ranks if the analysis
requires results of others. A digest of these is stored with the part; if it differs, the part is computed again and
replaced. So there is at most one part per rank and analysis on disk, and nothing to invalidate.

In: a rank's traces, the name of an analysis, and the digest. Out: the part, or None if it has to be computed.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from rankscope.rundir.atomic import atomic_file
from rankscope.store.cache import CachedTrace

Part = pl.DataFrame | Mapping[str, pl.DataFrame]
"""The result of `per_rank` for one rank: a frame, or several by name."""

_PACKAGE = Path(__file__).parents[1]
_CODE = ("analyses", "primitives", "results", "pipeline", "store", "rundir")
_SINGLE = ""
"""The frame's name in a part that is a single frame."""


class _Stored(msgspec.Struct):
    """A part on disk: the digest of its inputs, and its frames as Arrow IPC streams."""

    digest: bytes
    frames: dict[str, bytes]
    single: bool


@cache
def code_version() -> bytes:
    """A digest of the modules that compute parts, and of the versions of Polars and NumPy."""
    digest = hashlib.blake2b(f"{pl.__version__} {np.__version__}".encode(), digest_size=16)
    for package in _CODE:
        for file in sorted((_PACKAGE / package).rglob("*.py")):
            digest.update(file.relative_to(_PACKAGE).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.digest()


def inputs_digest(*inputs: object) -> bytes:
    """A digest of a part's inputs (their ``repr``) and of the code."""
    digest = hashlib.blake2b(code_version(), digest_size=16)
    digest.update(repr(inputs).encode("utf-8", "backslashreplace"))
    return digest.digest()


def find_part(traces: Sequence[CachedTrace], name: str, digest: bytes) -> Part | None:
    """The cached part of an analysis, if it was computed from inputs with this digest."""
    try:
        stored = msgspec.msgpack.decode(_file(traces, name).read_bytes(), type=_Stored)
        if stored.digest != digest:
            return None
        frames = {frame: pl.read_ipc_stream(content) for frame, content in stored.frames.items()}
    except (OSError, msgspec.MsgspecError, pl.exceptions.PolarsError):
        return None
    return frames[_SINGLE] if stored.single else frames


def keep_part(traces: Sequence[CachedTrace], name: str, digest: bytes, part: Part) -> None:
    """Cache a part; without effect if the directory cannot be written."""
    single = isinstance(part, pl.DataFrame)
    frames = {_SINGLE: part} if isinstance(part, pl.DataFrame) else part
    stored = _Stored(digest, {frame_name: _to_bytes(frame) for frame_name, frame in frames.items()}, single)
    # Not `write_atomic`, which would make the directory again if the cache was cleared meanwhile.
    with suppress(OSError), atomic_file(_file(traces, name)) as file:
        file.write(msgspec.msgpack.encode(stored))


def _file(traces: Sequence[CachedTrace], name: str) -> Path:
    """Next to the tables of the rank's first trace: removed together with them."""
    return traces[0].folder / f"{name}.part"


def _to_bytes(frame: pl.DataFrame) -> bytes:
    stream = io.BytesIO()
    frame.write_ipc_stream(stream)
    return stream.getvalue()
