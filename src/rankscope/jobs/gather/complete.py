"""Is a run directory complete? Compares the traces that its ranks' manifests list with the files in it.

In: a run directory. Out: what is missing.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from rankscope.errors import ConfigError
from rankscope.jobs.gather.endings import wrong_ends
from rankscope.jobs.gather.merge import rank_manifests
from rankscope.rundir.fields import MAX_RANKS
from rankscope.rundir.manifest import RankManifest, RunManifest, attempts, read_run_manifest
from rankscope.rundir.names import ENDINGS, RANKS_FOLDER, parse_trace_name
from rankscope.rundir.plurals import counted, plural
from rankscope.rundir.ranges import runs_of
from rankscope.rundir.ranks import MAX_RANK, parse_ranks

_OTHERS = (".json", ".json.gz", ".json.zst", ".tar.gz")
"""How traces of other tools end, such as torchtitan's ``rank0_trace.json``."""
_NO_TRACES = {RANKS_FOLDER, "measured"}
"""Folders in which files that are named after ranks are something else."""
_HEAD = 1 << 20
"""Bytes of a trace, decompressed, in which torch's `distributedInfo` is looked for: it comes before the events."""
_DISTRIBUTED = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*')
_NUMBER = {name: re.compile(rb'"%s"\s*:\s*([0-9]{1,8})\b' % name.encode()) for name in ("rank", "world_size")}


@dataclass(frozen=True)
class Completeness:
    """What is in a run directory, and what should be."""

    runs: tuple[str, ...]
    """The ids of the runs whose manifests are here; one, as it should be."""
    world_size: int | None
    expected: tuple[int, ...] | None
    """The ranks that were profiled; None if their number is not known."""
    present: tuple[int, ...]
    """The ranks of which there is a manifest or, in a run without manifests, a trace."""
    traces: int
    bytes: int
    """Of the traces on disk."""
    hosts: tuple[str, ...]
    absent_traces: tuple[tuple[int, str], ...]
    """Rank and file of traces that were written and are missing or incomplete here."""
    broken: tuple[tuple[str, str], ...]
    """Traces that no manifest lists and that do not end correctly, with what is wrong."""
    running: tuple[int, ...]
    """Ranks whose capture had not ended when they last wrote their manifest."""
    interrupted: tuple[tuple[int, str], ...] = ()
    """Ranks that a signal or an exception ended, with what is known of it."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that were profiled and are not here."""
        return tuple(sorted(set(self.expected or ()) - set(self.present)))

    @property
    def whole(self) -> bool:
        """Whether nothing is known to be missing, and it is known how much there should be."""
        lacking = self.missing or self.absent_traces or self.broken
        return not lacking and bool(self.expected) and len(self.runs) <= 1

    def report(self) -> list[str]:
        """A summary, then one line for each problem."""
        lines = []
        many = len(self.present)
        of = f" of {len(self.expected)}" if self.expected is not None else ""
        hosts = f" on {counted(len(self.hosts), 'host')}" if self.hosts else ""
        ranks = plural("rank", many if self.expected is None else len(self.expected))
        run = f"run {_printable(self.runs[0])}: " if len(self.runs) == 1 else ""
        lines.append(f"{run}{many}{of} {ranks}{hosts}, {counted(self.traces, 'trace')}, {self.bytes / 1e6:.1f} MB")
        if len(self.runs) > 1:
            lines.append(f"{len(self.runs)} runs in one directory: {', '.join(map(_printable, self.runs))}")
        if self.expected is None:
            lines.append("the number of ranks is not known, as no manifest has it: give rankscope gather --world-size")
        if self.missing:
            lines.append(f"missing: {ranges(self.missing)}: gather from the hosts they ran on")
        for rank, file in self.absent_traces[:10]:
            lines.append(f"missing or incomplete: {_printable(file)} of rank {rank}")
        if len(self.absent_traces) > 10:
            lines.append(f"and {len(self.absent_traces) - 10} more")
        lines += [f"incomplete: {_printable(file)}: {wrong}" for file, wrong in self.broken[:10]]
        if len(self.broken) > 10:
            lines.append(f"and {len(self.broken) - 10} more that are incomplete")
        if self.running:
            lines.append(f"capture has not ended on {ranges(self.running)}: the job is still running, or was killed")
        by_cause: dict[str, list[int]] = {}
        for rank, how in self.interrupted:
            by_cause.setdefault(_printable(how), []).append(rank)
        lines += [f"{ranges(tuple(ranks))} interrupted: {how}" for how, ranks in list(by_cause.items())[:10]]
        if len(by_cause) > 10:
            lines.append(f"and {counted(len(by_cause) - 10, 'other interruption')}")
        return lines


def completeness(run: Path, world_size: int | None = None) -> Completeness:
    """Look at a run directory.

    Args:
        run: the directory.
        world_size: how many ranks there are, where no manifest says.

    Raises:
        ConfigError: it is no directory, or there cannot be so many ranks.
    """
    if world_size is not None and not 1 <= world_size <= MAX_RANKS:
        raise ConfigError(f"--world-size {world_size} is not a number of ranks", hint=f"give 1 to {MAX_RANKS}")
    if not run.is_dir():
        raise ConfigError("is not a run directory", path=run, hint="name the directory that traces were written to")
    manifests = rank_manifests(run)
    about = [m for path in sorted(run.glob("run*.json")) if (m := read_run_manifest(path)) is not None]
    files = {path.relative_to(run).as_posix(): path for path in _traces(run)}
    # Plain traces of torch's profiler have no manifest: their own metadata is used.
    heads = {} if manifests or about else {file: _distributed(path) for file, path in files.items()}
    if len(heads) == 1 and world_size in (None, 1):
        ((file, (_, size)),) = heads.items()
        # As in a summary: alone and without `distributedInfo`, it is of a job of one process.
        if size is None and not parse_trace_name(file).rank and _of_torch(_head(files[file])):
            heads = {file: (0, 1)}
    by_manifest = (*(m.world_size for m in about), *(m.world_size for m in manifests))
    sizes = [size for size in (*by_manifest, *(size for _, size in heads.values())) if size]
    world_size = world_size or (max(sizes) if sizes else None)
    expected_bytes = {trace.file: trace.bytes for m in manifests for trace in m.written}
    # A known length is compared instead, which is free.
    unknown = {path: file for file, path in files.items() if expected_bytes.get(file) is None}
    rank_of = {file: rank for file, (rank, _) in heads.items() if rank is not None}
    by_name = {rank for file in files if (rank := rank_of.get(file, parse_trace_name(file).rank)) is not None}
    present = {m.rank for m in manifests if m.rank is not None} | by_name
    ended = attempts(manifests)
    return Completeness(
        runs=tuple(sorted({*(m.run_id for m in about if m.run_id), *(m.run_id for m in manifests if m.run_id)})),
        world_size=world_size,
        expected=_expected(world_size, about, manifests),
        present=tuple(sorted(present)),
        traces=len(files),
        bytes=sum(path.stat().st_size for path in files.values()),
        hosts=tuple(sorted({m.host for m in manifests if m.host})),
        absent_traces=tuple(
            (m.rank or 0, trace.file)
            for m in manifests
            for trace in m.written
            if not _there(run, trace.file, trace.bytes)
        ),
        broken=tuple(sorted((unknown[path], wrong) for path, wrong in wrong_ends(unknown).items())),
        running=tuple(sorted({m.rank or 0 for _, its in ended for m in its if m.state == "running"})),
        interrupted=tuple(
            sorted(
                (m.rank or 0, f"{m.interruption} ({attempt})" if attempt else m.interruption)
                for attempt, its in ended
                for m in its
                if m.interruption
            )
        ),
    )


def _traces(run: Path) -> list[Path]:
    """Files that are named like traces, or that torch's profiler has written."""
    found = []
    for path in run.rglob("*"):
        within = path.relative_to(run)
        if _NO_TRACES & {*within.parts[:-1]} or any(part.startswith(".") for part in within.parts):
            continue
        if not path.name.endswith(tuple(ENDINGS.values())):
            name = parse_trace_name(within)
            ranked = path.name.endswith(_OTHERS) and name.rank is not None and name.pattern != "folder"
            if not ranked and not _of_torch(_head(path)):
                continue
        if path.is_file():
            found.append(path)
    return sorted(found)


def _of_torch(head: bytes) -> bool:
    """Whether this is how a trace of torch's profiler begins."""
    return b'"traceEvents"' in head and (b'"schemaVersion"' in head or _DISTRIBUTED.search(head) is not None)


def _head(path: Path) -> bytes:
    """The first bytes of a JSON trace, decompressed; nothing where it cannot be read."""
    try:
        if not path.is_file():
            return b""
        if path.name.endswith(".json.gz"):
            with gzip.open(path) as unpacked:
                return unpacked.read(_HEAD)
        if path.name.endswith(".json"):
            with path.open("rb") as file:
                return file.read(_HEAD)
    except (OSError, EOFError, zlib.error):
        pass
    return b""


def _distributed(path: Path) -> tuple[int | None, int | None]:
    """Rank and world size as torch wrote them at the head of a trace; None where it did not."""
    head = _head(path)
    block = _DISTRIBUTED.search(head)
    found = {name: pattern.search(block[0]) if block else None for name, pattern in _NUMBER.items()}
    rank, size = (int(match[1]) if match else None for match in found.values())
    if size is None or not 0 < size <= MAX_RANK:
        return rank, None
    return (rank if rank is not None and rank < size else None), size


def _there(run: Path, file: str, size: int | None) -> bool:
    path = run / file
    # The run directory itself may be named with "..": only the manifest's part of the path may not.
    if ".." in Path(file).parts or not _normal(path).is_relative_to(_normal(run)):
        return False
    return path.is_file() and (size is None or path.stat().st_size == size)


def _normal(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100  # Path.absolute() leaves ".." in


def _expected(
    world_size: int | None, about: list[RunManifest], manifests: list[RankManifest]
) -> tuple[int, ...] | None:
    """The ranks that were chosen to be profiled."""
    if world_size is None:
        return None
    expression = next((m.ranks for m in about if m.ranks), "all")
    try:
        choice = parse_ranks(expression)
    except ConfigError:
        choice = parse_ranks("all")
    local = {m.rank: m.local_rank for m in manifests}
    chosen = tuple(rank for rank in range(world_size) if choice.selects(rank, local.get(rank)))
    # "node" chooses by the local rank, which only the rank itself knows: those with a manifest, at least.
    known = {m.rank for m in manifests if m.rank is not None}
    return tuple(sorted({*chosen, *known}))


def ranges(ranks: tuple[int, ...]) -> str:
    """Ranks as people write them: ``ranks 0, 2-5``."""
    parts = runs_of(ranks)
    shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts[:20])
    return f"{plural('rank', len(ranks))} {shown}" + (" …" if len(parts) > 20 else "")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
