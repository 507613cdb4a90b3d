"""Which run each trace is of: by the run id it carries, by its process where an id was used twice, else by its place.

Ids can lie in both ways. ``torchrun --rdzv-id=100`` or ``RANKSCOPE_RUN_ID=test`` give every start of a job the same
one: where a rank's windows are of two processes and the steps begin again (or both record at once), these are two runs,
unless the traces say that the job was restarted in between. And a file may have lost its id with its metadata, or never
have had one, as a memory snapshot: it goes to the run with whose files it lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from rankscope.ingest.run_grouping import Separated, how_apart, separate_runs, told_apart
from rankscope.ingest.runs import NAMELESS
from rankscope.ingest.windows import end_of, is_snapshot, same_time, start_of, stem
from rankscope.results import Evidence, Finding
from rankscope.rundir.plurals import counted, plural
from rankscope.store.trace_info import TraceInfo

Name = str | None
"""What a run is called: its id, and what tells it apart from others with that id; a label; None for the only one that
has no id."""


@dataclass
class Membership:
    """The runs that some traces are of.

    Attributes:
        runs: their traces by name.
        apart: how runs that no id tells apart were told apart, to end a message with.
    """

    runs: dict[Name, list[TraceInfo]] = field(default_factory=dict)
    apart: str = ""
    _separated: dict[Name, tuple[Sequence[Separated], Name]] = field(default_factory=dict)
    _adopted: dict[Name, list[TraceInfo]] = field(default_factory=dict)

    def findings(self, name: Name) -> list[Finding]:
        """What is to be known of how the traces of a run were found."""
        found: list[Finding] = []
        if name in self._separated:
            found += told_apart(*self._separated[name])
        if name in self._adopted:
            found.append(_adoption(name, self._adopted[name]))
        return found


def membership(infos: Sequence[TraceInfo]) -> Membership:
    """Sort traces into runs."""
    made = Membership()
    by_id: dict[str, list[TraceInfo]] = {}
    for info in infos:
        if info.run_id is not None:
            by_id.setdefault(info.run_id, []).append(info)
    reasons = []
    for run_id, own in by_id.items():
        executions = separate_runs(own)
        reasons.append(how_apart(executions))
        for each in executions:
            name: Name = run_id if each.label is None else f"{run_id}:{each.label}"
            made.runs[name] = each.infos
            if each.label is not None:
                made._separated[name] = executions, each.label
    strays = [info for info in infos if info.run_id is None]
    if by_id:
        strays = _adopt(strays, made)
    # A memory snapshot is no run of its own where there are runs.
    snapshots = [info for info in strays if by_id and is_snapshot(info)]
    nameless = separate_runs([info for info in strays if info not in snapshots]) if len(snapshots) < len(strays) else []
    reasons.append(how_apart(nameless))
    for each in nameless:
        name = each.label if each.label not in made.runs else f"{each.label} {NAMELESS}"
        made.runs[name] = each.infos
        made._separated[name] = nameless, each.label
    for info in snapshots:
        made.runs[_nearest(info, made.runs)].append(info)
    made.apart = "".join(reasons)
    return made


def _adopt(strays: Iterable[TraceInfo], made: Membership) -> list[TraceInfo]:
    """Give files without an id to the run with whose files they lie, by name and time; those that are nobody's."""
    beside: dict[tuple[PurePath, str], set[Name]] = {}
    for name, infos in made.runs.items():
        for info in infos:
            beside.setdefault((PurePath(info.path).parent, stem(info.path)), set()).add(name)
    left = []
    for info in strays:
        homes = [
            name
            for name in beside.get((PurePath(info.path).parent, stem(info.path)), ())
            if not is_snapshot(info) and _may_be_of(info, made.runs[name])
        ]
        if len(homes) == 1:
            made.runs[homes[0]].append(info)
            made._adopted.setdefault(homes[0], []).append(info)
        else:
            left.append(info)
    return left


def _may_be_of(info: TraceInfo, run: Sequence[TraceInfo]) -> bool:
    """Whether a file fills a gap in a run: of a rank that recorded nothing at its time, when others did."""
    sizes = {other.world_size for other in run if other.world_size}
    if info.rank is None or (info.world_size and sizes and info.world_size not in sizes):
        return False
    if any(other.rank == info.rank and (info.start_ns is None or same_time(info, other)) for other in run):
        return False
    timed = [other for other in run if other.start_ns is not None]
    return info.start_ns is None or any(same_time(info, other) for other in timed)


def _nearest(info: TraceInfo, runs: Mapping[Name, Sequence[TraceInfo]]) -> Name:
    """The run with whose traces a file lies; of several the one that has its rank, its steps, else the last."""

    def nearness(name: Name) -> tuple[int, bool, bool, int]:
        folder = PurePath(info.path).parent
        shared = max(_shared(folder, PurePath(other.path).parent) for other in runs[name])
        ranks = any(other.rank == info.rank for other in runs[name])
        steps = any(stem(other.path) == stem(info.path) for other in runs[name])
        return shared, ranks, steps, min(map(start_of, runs[name]))

    return max(runs, key=nearness)


def _shared(one: PurePath, other: PurePath) -> int:
    shared = 0
    for a, b in zip(one.parts, other.parts, strict=False):
        if a != b:
            break
        shared += 1
    return shared


def _adoption(name: Name, adopted: Sequence[TraceInfo]) -> Finding:
    return Finding(
        id="run-adopted",
        severity="info",
        title=f"{len(adopted)} traces without a run id are taken for ones of {name}: "
        "they lie with its files, and were recorded at the same time",
        ranks=tuple(sorted({info.rank for info in adopted if info.rank is not None})),
        evidence=tuple(Evidence("file", info.path) for info in adopted[:16]),
        advice="If they are of something else, open each run's files by themselves.",
    )


def lives(infos: Sequence[TraceInfo]) -> list[Finding]:
    """Windows of one rank that were recorded by more than one process of a run: it was restarted, or started again."""
    by_rank: dict[int, dict[tuple[int, int | None], int]] = {}
    for info in infos:
        if info.rank is not None and not is_snapshot(info):
            processes = by_rank.setdefault(info.rank, {})
            key = info.restart_count, info.pid
            processes[key] = max(processes.get(key, 0), end_of(info))
    again = {rank: processes for rank, processes in by_rank.items() if _several(processes)}
    if not again:
        return []
    rank, processes = next(iter(again.items()))
    return [
        Finding(
            id="several-lives",
            severity="info",
            title=f"{counted(len(again), 'rank')} {plural('has', len(again), 'have')} windows of more than one "
            "process: the job was started again in between",
            ranks=tuple(sorted(again)),
            evidence=tuple(
                Evidence(f"rank {rank}", f"restart {restart}, process {'unknown' if pid is None else pid}")
                for restart, pid in sorted(processes, key=lambda each: processes[each])[:16]
            ),
            advice="A rank may have been another host's before. --steps chooses what was recorded in one life.",
        )
    ]


def _several(processes: Iterable[tuple[int, int | None]]) -> bool:
    known = list(processes)
    return len({restart for restart, _ in known}) > 1 or len({pid for _, pid in known if pid is not None}) > 1
