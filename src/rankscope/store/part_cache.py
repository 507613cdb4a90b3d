"""Cache the ranks' parts of analyses next to the tables that they were computed from.

A rank's part depends on the rank's traces, the options and the code, and on the traces of all ranks if the analysis
requires results of others. A digest of these is stored with the part; if it differs, the part is computed again and
replaced. So there is at most one part per rank and analysis on disk, and nothing to invalidate. All parts of a rank are
in one file: a file for each would cost more than what is in it.

In: a rank's traces, names of analyses, and digests. Out: the parts, without those that have to be computed.
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
from rankscope.store.shared_cache import PARTS, shared_cache

Part = pl.DataFrame | Mapping[str, pl.DataFrame]
"""The result of `per_rank` for one rank: a frame, or several by name."""

_PACKAGE = Path(__file__).parents[1]
_CODE = ("analyses", "whatif", "primitives", "results", "engine/pipeline", "store", "rundir")
_FILE = "analyses.parts"
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


def find_parts(traces: Sequence[CachedTrace], digests: Mapping[str, bytes]) -> dict[str, Part]:
    """The cached parts of a rank, by analysis: of those asked for, the ones computed from inputs with these digests."""
    parts = _decoded(_read(traces), digests) if digests else {}
    rest = {name: digest for name, digest in digests.items() if name not in parts}
    return parts | _decoded(_read_shared(traces), rest) if rest else parts


def _decoded(stored: Mapping[str, msgspec.Raw], digests: Mapping[str, bytes]) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name, digest in digests.items():
        try:
            kept = msgspec.msgpack.decode(stored[name], type=_Stored)
            if kept.digest != digest:
                continue
            frames = {frame: pl.read_ipc_stream(content) for frame, content in kept.frames.items()}
        except (KeyError, msgspec.MsgspecError, OSError, pl.exceptions.PolarsError):
            continue
        parts[name] = frames[_SINGLE] if kept.single else frames
    return parts


def keep_parts(traces: Sequence[CachedTrace], parts: Mapping[str, tuple[bytes, Part]]) -> None:
    """Cache parts of a rank by analysis, each with its digest; without effect if the directory cannot be written."""
    new = {name: msgspec.Raw(msgspec.msgpack.encode(_stored(*kept))) for name, kept in parts.items()}
    content = msgspec.msgpack.encode(_read_shared(traces) | _read(traces) | new)
    # Not `write_atomic`, which would make the directory again if the cache was cleared meanwhile.
    with suppress(OSError), atomic_file(_file(traces)) as file:
        file.write(content)
    if (shared := shared_cache()) is not None:
        shared.write(traces[0].key, PARTS, content)


def _stored(digest: bytes, part: Part) -> _Stored:
    single = isinstance(part, pl.DataFrame)
    frames = {_SINGLE: part} if isinstance(part, pl.DataFrame) else part
    return _Stored(digest, {name: _to_bytes(frame) for name, frame in frames.items()}, single)


def _read(traces: Sequence[CachedTrace]) -> dict[str, msgspec.Raw]:
    try:
        return _by_name(_file(traces).read_bytes())
    except OSError:
        return {}


def _read_shared(traces: Sequence[CachedTrace]) -> dict[str, msgspec.Raw]:
    shared = shared_cache()
    return {} if shared is None else _by_name(shared.read(traces[0].key, PARTS) or b"")


def _by_name(content: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.msgpack.decode(content, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return {}


def _file(traces: Sequence[CachedTrace]) -> Path:
    """Next to the tables of the rank's first trace: removed together with them."""
    return traces[0].folder / _FILE


def _to_bytes(frame: pl.DataFrame) -> bytes:
    stream = io.BytesIO()
    frame.write_ipc_stream(stream)
    return stream.getvalue()
