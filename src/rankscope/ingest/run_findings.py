"""Findings about the run and rank of traces: what was inferred, left out or contradicts itself.

In: the decisions of `runs` and `ranks`. Out: findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath

from rankscope.ingest.findings import short_names
from rankscope.results import Evidence, Finding
from rankscope.rundir.left_out import LeftOut
from rankscope.rundir.names import parse_trace_name, split_process
from rankscope.rundir.plurals import counted, plural
from rankscope.store.trace_info import TraceInfo

# Files that one finding lists.
_MAX_LISTED = 16
# Ranks that recorded further apart than this may be of two jobs.
_FAR_NS = 600 * 10**9
_OPEN_ONE_RUN = "If they are, open only the files of one run."


# -- runs ---------------------------------------------------------------------------------------------------------


def one_of_several_runs(infos: Sequence[TraceInfo], label: str, sizes: Mapping[str, int], why: str) -> Finding:
    """A run that was separated from others without the help of run ids.

    Args:
        infos: its traces.
        label: its name.
        sizes: how many traces each run has, by label.
        why: why they are several runs.
    """
    run_id = infos[0].run_id
    return Finding(
        id="several-runs",
        severity="info",
        title=f"There are {len(sizes)} runs {_with_id(run_id)} here, of which this is {label}: {why}",
        ranks=_ranks(infos),
        evidence=tuple(Evidence(name, size, "traces") for name, size in list(sizes.items())[:_MAX_LISTED]),
        advice="rankscope.Profiler writes a run id into each trace; else give each run its own directory."
        if run_id is None
        else "Let rankscope choose the run id, or give each start of the job its own id and directory.",
    )


def _with_id(run_id: str | None) -> str:
    return "without a run id" if run_id is None else f"with the run id {run_id}"


def adopted_traces(infos: Sequence[TraceInfo], name: str) -> Finding:
    """Traces without an id that were added to a run."""
    return Finding(
        id="run-adopted",
        severity="info",
        title=f"{counted(len(infos), 'trace')} without a run id {plural('is', len(infos), 'are')} read as part of "
        f"{name}: same directory, same time",
        ranks=_ranks(infos),
        evidence=_files(infos),
        advice="If they are not part of it, open only the files of one run.",
    )


def doubtful_run(processes: Sequence[Sequence[TraceInfo]]) -> list[Finding]:
    """Signs that traces without an id belong to more than one run, though none of them contradicts another.

    Args:
        processes: the traces of each process, in time order.
    """
    infos = [info for process in processes for info in process]
    known = [process for process in processes if process[0].rank is not None]
    doubts = [
        f"the steps of rank {process[0].rank} begin again, perhaps in another process with the same id"
        for process in known
        # Steps also restart at 0 if the script makes a new profiler for each epoch.
        if any(
            one.steps_begin_again(other) and not one.certainly_one_process(other) for one, other in pairwise(process)
        )
    ][:1]
    starts = [process[0].host_start_ns for process in known]
    ends = [max(info.host_end_ns for info in process) for process in known]
    gap = max(starts, default=0) - min(ends, default=0)
    if len(known) > 1 and gap > _FAR_NS and all(info.start_ns is not None for info in infos):
        doubts.append(f"one rank was recorded {gap // 10**9} s after another had ended")
    return [
        Finding(
            id="run-doubtful",
            severity="warning",
            title=f"These traces may be of more than one run: {doubt}",
            ranks=_ranks(infos),
            evidence=_files(infos[:4]),
            advice=_OPEN_ONE_RUN,
        )
        for doubt in doubts
    ]


def restarted_ranks(infos: Sequence[TraceInfo]) -> list[Finding]:
    """Ranks with traces of more than one process: the job was restarted, or started again."""
    by_rank: dict[int, dict[tuple[int, int | None], int]] = {}
    for info in infos:
        if info.rank is not None and not info.is_snapshot:
            ends = by_rank.setdefault(info.rank, {})
            key = info.restart_count, info.pid
            ends[key] = max(ends.get(key, 0), info.host_end_ns)
    several = {
        rank: sorted(ends, key=lambda key: ends[key])
        for rank, ends in by_rank.items()
        if len({restart for restart, _ in ends}) > 1 or len({pid for _, pid in ends if pid is not None}) > 1
    }
    if not several:
        return []
    rank, processes = next(iter(several.items()))
    return [
        Finding(
            id="several-lives",
            severity="info",
            title=f"{counted(len(several), 'rank')} {plural('has', len(several), 'have')} traces of more than one "
            "process: the job was restarted in between",
            ranks=tuple(sorted(several)),
            evidence=tuple(
                Evidence(f"rank {rank}", f"restart {restart}, process {'unknown' if pid is None else pid}")
                for restart, pid in processes[:_MAX_LISTED]
            ),
            advice="After a restart a rank may run on another host. --steps chooses what one process recorded.",
        )
    ]


# -- ranks --------------------------------------------------------------------------------------------------------


def server_traces(infos: Sequence[TraceInfo]) -> Finding:
    """Traces of processes that serve the ranks, and were left out."""
    return Finding(
        id="no-rank",
        severity="info",
        title=f"{counted(len(infos), 'trace')} of a server process {plural('was', len(infos), 'were')} left out: "
        "it is not a rank",
        evidence=_files(infos),
        advice="To look at such a trace, open only this file.",
    )


def rank_conflict(kept: TraceInfo, left_out: TraceInfo) -> Finding:
    """Two traces of one rank that overlap in time."""
    kept_name, left_out_name = short_names(kept.path, left_out.path)
    return Finding(
        id="rank-conflict",
        severity="error",
        title=f"Two traces of rank {kept.rank} overlap in time: {kept_name} is read, {left_out_name} is left out",
        ranks=_ranks([kept]),
        evidence=(
            Evidence("read", f"{kept.path} (rank from {kept.rank_source})"),
            Evidence("left out", f"{left_out.path} (rank from {left_out.rank_source})"),
        ),
        advice="If they are of different runs, open only the files of one run; if one is a copy, delete it.",
    )


def ranks_guessed(processes: Mapping[int, Sequence[TraceInfo]]) -> Finding:
    """Traces that do not contain their rank, by the rank that was assigned."""
    infos = [(rank, info) for rank, traces in processes.items() for info in traces]
    in_databases = any(split_process(info.path)[1] is not None for _, info in infos)
    return Finding(
        id="rank-guessed",
        severity="warning",
        title="Some traces do not contain their rank: they are numbered in the order of their names"
        + (", and processes in one file in the order of their devices" if in_databases else ""),
        ranks=tuple(processes),
        evidence=tuple(Evidence(f"rank {rank}", info.path) for rank, info in infos[:_MAX_LISTED]),
        advice="Record with rankscope.Profiler, or put the rank into the file's name: rank3.json.gz.",
    )


def folders_not_ranks(paths: Sequence[str], why: str) -> Finding:
    """Traces in directories whose number is not their rank."""
    return Finding(
        id="folders-are-no-ranks",
        severity="warning",
        title=f"The numbers of directories are not used as ranks: {why}",
        evidence=tuple(Evidence("file", path) for path in paths[:_MAX_LISTED]),
        advice="Put the rank into the file's name (rank3.json.gz), or record with rankscope.Profiler.",
    )


def contradicted_ranks(members: Mapping[int, Sequence[TraceInfo]]) -> list[Finding]:
    """File names with another rank than the metadata, different world sizes, and ranks beyond the world size.

    Args:
        members: the traces of each rank.
    """
    infos = [info for traces in members.values() for info in traces]
    sizes = Counter(info.world_size for info in infos if info.world_size)
    world_size = max(sizes, default=None)
    beyond = sorted(rank for rank in members if world_size is not None and rank >= world_size)
    misnamed = []
    for info in infos:
        name = parse_trace_name(info.path)
        if info.rank_source in ("metadata", "distributedInfo") and name.names_rank and name.rank != info.rank:
            misnamed.append((info, name.rank))
    findings = []
    if misnamed:
        findings.append(
            Finding(
                id="rank-contradicted",
                severity="warning",
                title=f"The names of {counted(len(misnamed), 'trace')} give another rank than the metadata inside: "
                "the metadata is used",
                ranks=_ranks(info for info, _ in misnamed),
                evidence=tuple(
                    Evidence(PurePath(info.path).name, f"rank {info.rank} by {info.rank_source}, {rank} by name")
                    for info, rank in misnamed[:_MAX_LISTED]
                ),
                advice="Were files renamed, or do the numbers in their names mean something else?",
            )
        )
    if len(sizes) > 1:
        findings.append(
            Finding(
                id="world-size-differs",
                severity="warning",
                title=f"Traces of this run give world sizes of {' and '.join(map(str, sorted(sizes)))} ranks: "
                "the largest is used",
                ranks=_ranks(info for info in infos if info.world_size not in (None, world_size)),
                evidence=tuple(
                    Evidence(f"{size} ranks", sizes[size], "traces") for size in sorted(sizes)[:_MAX_LISTED]
                ),
                advice="Did the job change its size, or are these two runs?",
            )
        )
    if beyond:
        findings.append(
            Finding(
                id="rank-beyond",
                severity="warning",
                title=f"{counted(len(beyond), 'rank')} {plural('is', len(beyond), 'are')} beyond the world size, "
                f"which is {world_size} by the traces",
                ranks=tuple(beyond),
                evidence=tuple(
                    Evidence(f"rank {rank} by {members[rank][0].rank_source}", members[rank][0].path)
                    for rank in beyond[:_MAX_LISTED]
                ),
                advice="Is this a file of another run, or does the number in its name mean something else?",
            )
        )
    return findings


def missing_ranks(infos: Sequence[TraceInfo], size: int, on_purpose: LeftOut | None) -> list[Finding]:
    """Ranks of the job without a trace: those that were not to have one, and those that should.

    Args:
        size: the number of ranks in the job; 0 if it is not known.
        on_purpose: the ranks that were not to be recorded.
    """
    present = {info.rank for info in infos}
    missing = {rank for rank in range(size) if rank not in present}
    facts = (Evidence("ranks in the job", size, "count"), Evidence("ranks read", size - len(missing), "count"))
    found = []
    if on_purpose is not None:
        many = len(on_purpose.ranks)
        title = f"{many} of {counted(size, 'rank')} {plural('was', many, 'were')} not recorded: {on_purpose.why}"
        found.append(
            Finding(
                "missing-ranks", "info", title, ranks=on_purpose.ranks, evidence=facts, advice=on_purpose.record_all
            )
        )
        missing -= set(on_purpose.ranks)
    if missing:
        title = f"{len(missing)} of {counted(size, 'rank')} {plural('has', len(missing), 'have')} no trace here"
        advice = "Gather the files of all ranks in one place; without them, waiting and transfer cannot be separated."
        found.append(
            Finding("missing-ranks", "warning", title, ranks=tuple(sorted(missing)), evidence=facts, advice=advice)
        )
    return found


def _files(infos: Sequence[TraceInfo]) -> tuple[Evidence, ...]:
    return tuple(Evidence("file", info.path) for info in infos[:_MAX_LISTED])


def _ranks(infos: Iterable[TraceInfo]) -> tuple[int, ...]:
    return tuple(sorted({info.rank for info in infos if info.rank is not None}))
