"""Is a run directory complete? Compares the traces that its ranks' manifests list with the files in it.

In: a run directory. Out: what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.errors import ConfigError
from rankscope.jobs.gather.endings import wrong_ends
from rankscope.jobs.gather.merge import rank_manifests
from rankscope.jobs.gather.traces import TraceHead, find_traces, read_head
from rankscope.rundir.archives import describe_file
from rankscope.rundir.coverage import Gap, Span, gaps, kept_trace
from rankscope.rundir.fields import MAX_RANKS
from rankscope.rundir.left_out import left_out
from rankscope.rundir.manifest import RankManifest, RunManifest, attempts, read_run_manifest
from rankscope.rundir.names import parse_trace_name
from rankscope.rundir.plurals import counted, plural, printable
from rankscope.rundir.ranges import runs_of
from rankscope.rundir.ranks import RankChoice, parse_ranks


@dataclass(frozen=True)
class Completeness:
    """What is in a run directory, and what should be."""

    runs: tuple[str, ...]
    """The ids of the runs whose manifests or traces are here; one, as it should be."""
    world_size: int | None
    expected: tuple[int, ...] | None
    """The ranks that were profiled; None if their number is not known."""
    present: tuple[int, ...]
    """The ranks of which there is a manifest or a trace."""
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
    kept: tuple[tuple[int, str], ...] = ()
    """Rank and path, on its host, of traces that the run directory could not take and that are not here."""
    gaps: tuple[Gap, ...] = ()
    """Steps that only some of the ranks recorded whose capture has ended."""
    by_ranks: bool = False
    """Whether the world size is only known from the ranks of the traces: one more than the highest."""
    unranked: int = 0
    """Traces of unknown ranks, where nothing says how many ranks there are."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that were profiled and are not here."""
        return tuple(sorted(set(self.expected or ()) - set(self.present)))

    @property
    def whole(self) -> bool:
        """Whether nothing is known to be missing, and it is known how much there should be."""
        lacking = self.missing or self.absent_traces or self.broken or self.kept
        return not lacking and bool(self.expected) and len(self.runs) <= 1

    def report(self) -> list[str]:
        """A summary, then one line for each problem."""
        lines = []
        many = len(self.present)
        of = f" of {len(self.expected)}" if self.expected is not None else ""
        hosts = f" on {counted(len(self.hosts), 'host')}" if self.hosts else ""
        ranks = plural("rank", many if self.expected is None else len(self.expected))
        run = f"run {printable(self.runs[0])}: " if len(self.runs) == 1 else ""
        who = f"{many}{of} {ranks}{hosts}, " if many or not self.unranked else ""
        lines.append(f"{run}{who}{counted(self.traces, 'trace')}, {self.bytes / 1e6:.1f} MB")
        if len(self.runs) > 1:
            lines.append(f"{len(self.runs)} runs in one directory: {', '.join(map(printable, self.runs))}")
        if self.by_ranks:
            lines.append("no manifest and no trace has the number of ranks: the ranks up to the highest are expected")
        elif self.expected is None:
            unknown = "the number of ranks is not known, as no manifest and no trace has it"
            lines.append(f"{unknown}: give rankscope gather --world-size")
        if self.unranked:
            what = f"{counted(self.unranked, 'trace')} {plural('does', self.unranked, 'do')} not contain"
            whose = plural("its rank", self.unranked, "their ranks")
            lines.append(f"{what} {whose}: put the rank into the name of each file (rank3.json.gz)")
        if self.missing:
            lines.append(f"missing: {ranges(self.missing)}: gather from the hosts they ran on")
        for rank, file in self.absent_traces[:10]:
            lines.append(f"missing or incomplete: {printable(file)} of rank {rank}")
        if len(self.absent_traces) > 10:
            lines.append(f"and {len(self.absent_traces) - 10} more")
        lines += [f"incomplete: {printable(file)}: {wrong}" for file, wrong in self.broken[:10]]
        if len(self.broken) > 10:
            lines.append(f"and {len(self.broken) - 10} more that are incomplete")
        folders: dict[str, list[int]] = {}
        for rank, path in self.kept:
            folders.setdefault(str(Path(path).parent), []).append(rank)
        for folder, kept in list(folders.items())[:10]:
            where = f"{ranges(tuple(sorted(set(kept))))} kept {counted(len(kept), 'trace')} in {printable(folder)}"
            lines.append(
                f"{where}, as the run directory could not take {plural('it', len(kept), 'them')}: gather from there"
            )
        lines += self.uneven()
        if self.running:
            lines.append(f"capture has not ended on {ranges(self.running)}: the job is still running, or was killed")
        by_cause: dict[str, list[int]] = {}
        for rank, how in self.interrupted:
            by_cause.setdefault(printable(how), []).append(rank)
        lines += [f"{ranges(tuple(ranks))} interrupted: {how}" for how, ranks in list(by_cause.items())[:10]]
        if len(by_cause) > 10:
            lines.append(f"and {counted(len(by_cause) - 10, 'other interruption')}")
        return lines

    def uneven(self) -> list[str]:
        """A line for each group of ranks that lacks steps which others recorded."""
        steps: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
        for gap in self.gaps:
            shown = f"{gap.first}" if gap.first == gap.last else f"{gap.first}-{gap.last}"
            steps.setdefault((gap.lacking, gap.recorded), []).append(shown)
        return [
            f"no trace on {ranges(lacking)} of steps {', '.join(own[:8])}{' …' * (len(own) > 8)}, "
            f"which {ranges(recorded)} recorded"
            for (lacking, recorded), own in list(steps.items())[:10]
        ]


def completeness(run: Path, world_size: int | None = None, recorded: str | None = None) -> Completeness:
    """Look at a run directory.

    Args:
        run: the directory.
        world_size: how many ranks there are, where no manifest says.
        recorded: which ranks were to be recorded, as `parse_ranks` reads it; as the manifests say by default.

    Raises:
        ConfigError: it is not a directory, no job has that many ranks, or the expression is not valid.
    """
    chosen = parse_ranks(recorded) if recorded is not None else None
    if world_size is not None and not 1 <= world_size <= MAX_RANKS:
        raise ConfigError(f"--world-size {world_size} is not a number of ranks", hint=f"give 1 to {MAX_RANKS}")
    if run.is_file():
        what, hint = describe_file(run)
        raise ConfigError(what, path=run, hint=hint)
    if not run.is_dir():
        raise ConfigError("is not a run directory", path=run, hint="name the directory that traces were written to")
    manifests = rank_manifests(run)
    about = [m for path in sorted(run.glob("run*.json")) if (m := read_run_manifest(path)) is not None]
    expected_bytes = {trace.file: trace.bytes for m in manifests for trace in m.written}
    files = find_traces(run, listed=expected_bytes)
    # What a manifest lists is as it says, if it has the length that it says, which is free to check.
    unknown = {path: file for file, path in files.items() if expected_bytes.get(file) is None}
    heads = {file: read_head(path) for path, file in unknown.items()}
    if len(files) == len(heads) == 1 and not manifests and not about and world_size in (None, 1):
        ((file, head),) = heads.items()
        # As in a summary: alone and without `distributedInfo`, it is of a job of one process.
        if head.is_trace and head.world_size is None and not parse_trace_name(file).rank:
            heads = {file: replace(head, rank=0, world_size=1)}
    ranks: list[RankManifest | TraceHead] = [*manifests, *heads.values()]
    facts: list[RunManifest | RankManifest | TraceHead] = [*about, *ranks]
    sizes = [each.world_size for each in facts if each.world_size]
    world_size = world_size or (max(sizes) if sizes else None)
    rank_of = {file: head.rank for file, head in heads.items() if head.rank is not None}
    by_name = {rank for file in files if (rank := rank_of.get(file, parse_trace_name(file).rank)) is not None}
    present = {m.rank for m in manifests if m.rank is not None} | by_name
    unranked = sum(rank_of.get(file, parse_trace_name(file).rank) is None for file in files) if not sizes else 0
    # As in a summary. A manifest that does not say how many ranks there are, does say that there are others.
    by_ranks = world_size is None and not manifests and not about and not unranked and bool(present)
    by_ranks = by_ranks and max(present) < MAX_RANKS
    if by_ranks:
        world_size = max(present) + 1
    absent = tuple(
        (m.rank or 0, trace.file) for m in manifests for trace in m.written if not _there(run, trace.file, trace.bytes)
    )
    names = {Path(file).name for file in files}
    kept = ((m.rank or 0, path) for m in manifests for lost in m.failed if (path := kept_trace(lost.reason)))
    ended = attempts(manifests)
    running = tuple(sorted({m.rank or 0 for _, its in ended for m in its if m.state == "running"}))
    on_purpose = left_out(world_size or 0, by_name, about[0] if about else None, manifests)
    unjudged = {*running, *(rank for rank, _ in absent), *(on_purpose.ranks if on_purpose is not None else ())}
    return Completeness(
        runs=tuple(sorted({each.run_id for each in facts if each.run_id})),
        world_size=world_size,
        expected=_expected(world_size, about, manifests, present, chosen),
        present=tuple(sorted(present)),
        traces=len(files),
        bytes=sum(path.stat().st_size for path in files.values()),
        hosts=tuple(sorted({each.host for each in ranks if each.host})),
        absent_traces=absent,
        broken=tuple(sorted((unknown[path], wrong) for path, wrong in wrong_ends(unknown).items())),
        running=running,
        interrupted=tuple(
            sorted(
                (m.rank or 0, f"{m.interruption} ({attempt})" if attempt else m.interruption)
                for attempt, its in ended
                for m in its
                if m.interruption
            )
        ),
        kept=tuple(each for each in kept if Path(each[1]).name not in names),
        gaps=tuple(gaps(_spans(manifests, files, rank_of, unjudged))),
        by_ranks=by_ranks,
        unranked=unranked,
    )


def _spans(
    manifests: Sequence[RankManifest], files: Iterable[str], rank_of: Mapping[str, int], left_out: Container[int]
) -> dict[int, list[Span]]:
    """The steps of each rank's traces, as its manifest has them, else their names; without ranks of which a trace says
    neither."""
    found: dict[int, list[Span]] = {m.rank or 0: [] for m in manifests}
    written = {trace.file: (m.rank or 0, trace.first_step, trace.last_step) for m in manifests for trace in m.written}
    unknown: set[int] = set()
    for file in files:
        name = parse_trace_name(file)
        rank, first, last = written.get(file, (rank_of.get(file, name.rank), name.first, name.last))
        if rank is not None and first is not None and last is not None:
            found.setdefault(rank, []).append((first, last))
        elif rank is not None:
            unknown.add(rank)
    return {rank: spans for rank, spans in found.items() if rank not in left_out and rank not in unknown}


def _there(run: Path, file: str, size: int | None) -> bool:
    path = run / file
    # The run directory itself may be named with "..": only the manifest's part of the path may not.
    if ".." in Path(file).parts or not _normal(path).is_relative_to(_normal(run)):
        return False
    return path.is_file() and (size is None or path.stat().st_size == size)


def _normal(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100  # Path.absolute() leaves ".." in


def _expected(
    world_size: int | None,
    about: list[RunManifest],
    manifests: list[RankManifest],
    present: Collection[int],
    chosen: RankChoice | None,
) -> tuple[int, ...] | None:
    """The ranks that were chosen to be profiled."""
    if world_size is None:
        return None
    if chosen is not None and not chosen.first_of_node:
        return tuple(rank for rank in range(world_size) if chosen.selects(rank))
    expression = next((m.ranks for m in about if m.ranks), "all")
    try:
        choice = chosen or parse_ranks(expression)
    except ConfigError:
        choice = parse_ranks("all")
    local = {m.rank: m.local_rank for m in manifests}
    selected = tuple(rank for rank in range(world_size) if choice.selects(rank, local.get(rank)))
    # "node" chooses by the local rank, which only the rank itself knows: those with a manifest, at least.
    known = {m.rank for m in manifests if m.rank is not None} | (set(present) if choice.first_of_node else set())
    return tuple(sorted({*selected, *known}))


def ranges(ranks: tuple[int, ...]) -> str:
    """Ranks as people write them: ``ranks 0, 2-5``."""
    parts = runs_of(ranks)
    shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts[:20])
    return f"{plural('rank', len(ranks))} {shown}" + (" …" if len(parts) > 20 else "")
