"""The traces in a run directory, and their run, rank, world size and host, read from the beginning of each file.

A trace of rankscope's begins with its own metadata (`rundir/metadata.py`), one of torch's with `distributedInfo`, if
the job had a process group. Formats are recognized by content, as when a trace is read; Zstandard needs a package, or
Python 3.14.

In: a directory, or a file. Out: paths, or a `TraceHead`.
"""

from __future__ import annotations

import gzip
import io
import os
import re
from collections.abc import Container
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rankscope.rundir.archives import GZIP, head_of, is_archive, members
from rankscope.rundir.fields import MAX_RANKS
from rankscope.rundir.hang_dump import HANG_FOLDER
from rankscope.rundir.names import ENDINGS, PERFETTO_ENDINGS, RANKS_FOLDER, parse_trace_name

SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.zstd", ".tar.gz", ".tgz", ".tar.zst", ".zip", *PERFETTO_ENDINGS)
"""How the names of files end that may be traces."""
_NO_TRACES = {RANKS_FOLDER, HANG_FOLDER, "measured"}
"""Folders in which files that are named after ranks are something else."""
_HEAD_BYTES = 1 << 20
_MAX_MEMBERS = 100
_FLAT = rb'S:S\{((?:S"\w{1,40}"S:S(?:"[^"\\]{0,4000}"|[^\s"{}\[\],]{1,40})S,?)*)'.replace(b"S", rb"\s{0,64}")
"""An object up to its first value that is itself an object or a list."""
_OURS, _TORCHS = (re.compile(rb'"%s"' % name + _FLAT) for name in (b"rankscope", b"distributedInfo"))
_NUMBER = {name: re.compile(rb'"%s"\s*:\s*([0-9]{1,8})\b' % name.encode()) for name in ("rank", "world_size")}
_TEXT = {name: re.compile(rb'"%s"\s*:\s*"([^"\\]{1,4000})"' % name.encode()) for name in ("run_id", "host")}


@dataclass(frozen=True)
class TraceHead:
    """The beginning of a file; None for what it does not contain."""

    is_trace: bool = False
    """Whether it begins as a trace of torch's profiler does."""
    run_id: str | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None


def find_traces(run: Path, listed: Container[str] = (), known: Container[Path] = ()) -> dict[str, Path]:
    """Files with the name of a trace that contains its rank, or with the beginning of a trace.

    Args:
        run: the directory.
        listed: traces that its manifests list, by their paths in it.
        known: files that are left out, and not looked at.
    """
    found = {}
    for folder, folders, files in os.walk(run):
        # A hidden one may be another gather's, and go meanwhile.
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in _NO_TRACES)
        for path in (Path(folder, each) for each in sorted(files) if each.endswith(SUFFIXES) and each[0] != "."):
            if path in known:
                continue
            file, name = path.relative_to(run).as_posix(), parse_trace_name(path.relative_to(run))
            ranked = name.rank is not None and name.pattern != "folder"
            named = file in listed or path.name.endswith((*ENDINGS.values(), *PERFETTO_ENDINGS)) or ranked
            if path.is_file() and (named or read_head(path).is_trace):
                found[file] = path
    return found


def read_head(path: Path) -> TraceHead:
    """Read the beginning of a file. Never raises: of a file that cannot be read, nothing is known."""
    try:
        head = _first_bytes(path) if path.is_file() else b""
    except Exception:  # whatever the decompressing package raises
        return TraceHead()
    before, events, _ = head.partition(b'"traceEvents"')
    ours, torchs = _OURS.search(before), _TORCHS.search(before)
    is_trace = ours is not None or (bool(events) and (torchs is not None or b'"schemaVersion"' in before))
    if not is_trace:
        return TraceHead()
    own = ours[1] if ours else b""
    rank, size = _numbers(own)
    if size is None:
        rank, size = _numbers(torchs[1] if torchs else b"")
    return TraceHead(True, _text("run_id", own), rank, size, _text("host", own))


def _numbers(block: bytes) -> tuple[int | None, int | None]:
    """Rank and world size; the rank alone where the size cannot be right, and no rank beyond the size."""
    rank, size = (int(found[1]) if (found := pattern.search(block)) else None for pattern in _NUMBER.values())
    if size is None or not 0 < size <= MAX_RANKS:
        return rank, None
    return (rank if rank is not None and rank < size else None), size


def _text(name: str, block: bytes) -> str | None:
    found = _TEXT[name].search(block)
    return found[1].decode("utf-8", "replace") if found else None


def _first_bytes(path: Path) -> bytes:
    """The first bytes of a trace, decompressed and out of its archive."""
    head = head_of(path, _HEAD_BYTES)
    if not is_archive(head):
        return head
    with closing(members(path)) as inside:
        first = next((member for member in islice(inside, _MAX_MEMBERS) if ".json" in member.path.name), None)
        return b"" if first is None else _decompressed(first.file.read(_HEAD_BYTES))


def _decompressed(head: bytes) -> bytes:
    """As much of a compressed member as its first bytes give."""
    if head[:2] != GZIP:
        return head
    with gzip.open(io.BytesIO(head)) as unpacked:
        return unpacked.read1(_HEAD_BYTES)
