"""One archive with every rank's trace and a manifest (version 1, Perfetto v58), so that Perfetto opens them together.

The manifest gives each rank a machine of its own, because process and thread numbers of different ranks may be the
same, and each file the offset of its clock from that of the file with the run's first event:

    time in the archive = time in the file + offset_ns

Perfetto drops events before zero, so that file is the reference. A manifest knows no drift: the offset is that of the
middle of each file. Perfetto reads neither zip64 nor names beyond ASCII, so members are called `rank3.json` and are
limited to 4 GiB. They are stored as plain JSON in the archive's own compression: an override for a compressed member
would be one for an archive. Traces of other formats are written as JSON from their tables.

In: a run. Out: a zip file.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankscope import __version__
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import RankClock, clock_of
from rankscope.errors import ConfigError, RankscopeError
from rankscope.ingest.decompress import Reader
from rankscope.ingest.imported import Imported
from rankscope.ingest.source import open_trace
from rankscope.rundir.atomic import atomic_file
from rankscope.show.export.perfetto.merged import write_trace
from rankscope.show.export.perfetto.ranks import first_instant, rank_name
from rankscope.store.cache import CachedTrace

MANIFEST = "perfetto_manifest.json"
_MAX_MEMBER_BYTES = (1 << 32) - (1 << 20)
_BLOCK_BYTES = 1 << 20
_HELD_BYTES = 8192
# At the top level of a trace; in an argument its quotes would be escaped.
_TRACE_NAME = re.compile(rb'"traceName"\s*:\s*"(?:[^"\\]|\\.){0,4096}"')


@dataclass(frozen=True)
class Archived:
    """What was written.

    Attributes:
        files: the traces in the archive.
        residual_ns: the residual of the alignment; None if the clocks are not aligned.
        drifts: ranks whose clock drifts, by ns over half of their longest file: the archive cannot correct for it.
        cut: ranks of which only the part before some damage is in the archive.
    """

    files: int
    residual_ns: int | None
    aligned: bool
    drifts: dict[int, int]
    cut: list[int]


def write_archive(run: Run, output: Path, *, keep_paths: bool = False) -> Archived:
    """Write the traces of a run with a manifest.

    Args:
        keep_paths: keep the path under which each trace was written (`traceName`).

    Raises:
        RankscopeError: the file cannot be written, or a trace cannot be read.
    """
    clock = clock_of(run)
    members: list[tuple[int, int, str, CachedTrace]] = []
    for rank, traces in run.loaded.ranks.items():
        of_rank = [(window, trace) for window, trace in enumerate(traces) if not trace.info.is_snapshot]
        for window, trace in of_rank:
            if trace.info.json_bytes > _MAX_MEMBER_BYTES:
                raise ConfigError(
                    f"the trace of rank {rank} has {trace.info.json_bytes:,} bytes: more than a member of the archive",
                    path=trace.info.path,
                    hint="write one trace with --merged",
                )
            members.append(
                (rank, window, f"rank{rank}.json" if len(of_rank) == 1 else f"rank{rank}.{window}.json", trace)
            )
    if not members:
        raise ConfigError("the run has no trace with events", hint="Perfetto does not read memory snapshots")
    offsets = {name: _offset(clock.ranks[rank], window, trace) for rank, window, name, trace in members}
    reference = min(members, key=lambda each: (first_instant(clock.ranks[each[0]], each[1], each[3]), each[2]))[2]
    files = [
        {"path": name, "machine": {"name": rank_name(rank, trace.info.mesh)}, **_sync(name, reference, offsets)}
        for rank, window, name, trace in members
    ]
    cut: list[int] = []
    try:
        with atomic_file(output) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_entry(MANIFEST), _manifest(files, run, clock.residual_ns if clock.aligned else None))
            for rank, _, name, trace in members:
                with open_trace(trace.info.path) as opened, archive.open(_entry(name), "w") as member:
                    if isinstance(opened.trace, Imported):
                        write_trace(trace, rank_name(rank, trace.info.mesh), member.write)
                        continue
                    for part in _content(opened.trace, b"" if keep_paths else name.encode(), rank, cut):
                        member.write(part)
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=output, hint="choose another -o") from error
    drifts = {
        rank: max(_drift(clock.ranks[rank], trace) for each, _, _, trace in members if each == rank)
        for rank in dict.fromkeys(each[0] for each in members)
        if clock.ranks[rank].drift
    }
    return Archived(len(members), clock.residual_ns, clock.aligned, drifts, cut)


def _offset(clock: RankClock, window: int, trace: CachedTrace) -> int:
    """What is added to a file's times to get the run's, in the middle of the file, ns."""
    middle = ((trace.info.start_ns or 0) + (trace.info.end_ns or 0)) // 2
    return int(clock.run_time(window, np.array([middle], dtype=np.int64))[0]) - middle


def _drift(clock: RankClock, trace: CachedTrace) -> int:
    return round(abs(clock.drift) * ((trace.info.end_ns or 0) - (trace.info.start_ns or 0)) / 2)


def _sync(name: str, reference: str, offsets: dict[str, int]) -> dict[str, Any]:
    if name == reference:
        return {}
    return {"clocks": {"sync_to": {"file": reference}, "offset_ns": offsets[name] - offsets[reference]}}


def _manifest(files: list[dict[str, Any]], run: Run, residual_ns: int | None) -> bytes:
    attributes: dict[str, str | int] = {"rankscope.version": __version__, "rankscope.ranks": len(run.ranks)}
    if residual_ns is not None:
        attributes["rankscope.clock_residual_ns"] = residual_ns
    content = {"perfetto_manifest": {"version": 1, "files": files, "attributes": attributes}}
    return json.dumps(content, indent=1).encode()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)  # without the time, so that the same run gives the same archive
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _content(reader: Reader, name: bytes, rank: int, cut: list[int]) -> Iterator[bytes]:
    """The JSON of a trace, with a name instead of the path that it was written to."""
    held = b""
    while True:
        try:
            block = reader.read(_BLOCK_BYTES)
        except (EOFError, OSError, ValueError, ArithmeticError):
            cut.append(rank)
            block = b""
        if not block:
            break
        held += block
        if name:
            held = _TRACE_NAME.sub(b'"traceName": "' + name + b'"', held)
        yield held[:-_HELD_BYTES]
        held = held[-_HELD_BYTES:]
    yield held
