"""The parts that ranks contribute to analyses, cached next to the tables that they were computed from.

An analysis's part of a rank depends on the rank's traces, the options and the code; if it requires results of other
analyses, on the traces of all ranks. A digest of these is stored with the part; a part with another digest is computed
again and replaced. So there is at most one part per rank and analysis on disk, and nothing to invalidate.

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
"""What a rank contributes to an analysis: a frame, or several by name."""

_PACKAGE = Path(__file__).parents[1]
_COMPUTING = ("analyses", "primitives", "results", "pipeline", "store", "rundir")
_ONE = ""
"""The name of the frame of a part that is a single frame."""


class _Stored(msgspec.Struct):
    """A part on disk: the digest of its inputs, and its frames as Arrow IPC streams."""

    digest: bytes
    frames: dict[str, bytes]
    single: bool


@cache
def code_version() -> bytes:
    """A digest of the modules that parts are computed by, and of the versions of Polars and NumPy."""
    digest = hashlib.blake2b(f"{pl.__version__} {np.__version__}".encode(), digest_size=16)
    for package in _COMPUTING:
        for file in sorted((_PACKAGE / package).rglob("*.py")):
            digest.update(file.relative_to(_PACKAGE).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.digest()


def inputs_digest(*inputs: object) -> bytes:
    """A digest of what a part depends on, and of the code: anything that ``repr`` identifies."""
    digest = hashlib.blake2b(code_version(), digest_size=16)
    digest.update(repr(inputs).encode("utf-8", "backslashreplace"))
    return digest.digest()


def find_part(traces: Sequence[CachedTrace], name: str, digest: bytes) -> Part | None:
    """The cached part of an analysis, if it was computed from inputs with this digest."""
    try:
        stored = msgspec.msgpack.decode(_file(traces, name).read_bytes(), type=_Stored)
        if stored.digest != digest:
            return None
        frames = {each: pl.read_ipc_stream(content) for each, content in stored.frames.items()}
    except (OSError, msgspec.MsgspecError, pl.exceptions.PolarsError):
        return None
    return frames[_ONE] if stored.single else frames


def keep_part(traces: Sequence[CachedTrace], name: str, digest: bytes, part: Part) -> None:
    """Cache a part; without effect if the directory cannot be written."""
    single = isinstance(part, pl.DataFrame)
    frames = {_ONE: part} if isinstance(part, pl.DataFrame) else part
    stored = _Stored(digest, {each: _to_bytes(frame) for each, frame in frames.items()}, single)
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
