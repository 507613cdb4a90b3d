"""Whose trace it is: how the files of a run fit together, by what each says of its rank (`describe`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath

from rankscope.ingest.discover import natural
from rankscope.ingest.windows import is_snapshot, one_process, same_time, start_of
from rankscope.results import Evidence, Finding
from rankscope.rundir.names import parse_trace_name
from rankscope.store.trace_info import TraceInfo


def assign_ranks(infos: Sequence[TraceInfo]) -> tuple[dict[int, list[TraceInfo]], list[Finding]]:
    """The files by rank, each rank's in the order of time; and what had to be guessed or left out.

    Several windows of one rank follow one another in time. Files of one rank that cover the same time contradict
    each other: the first by name is taken. A file that says no rank gets the next free one, all windows of one process
    the same. A process that serves the ranks and is none is left out.
    """
    findings: list[Finding] = []
    infos, beside = _without_servers(infos)
    findings += beside
    ranks: dict[int, list[TraceInfo]] = {}
    ordered = sorted(infos, key=lambda info: natural(info.path))
    for info in ordered:
        if info.rank is None:
            continue
        rival = next((other for other in ranks.get(info.rank, []) if same_time(info, other)), None)
        if rival is not None:
            findings.append(_conflict(info, rival))
        else:
            ranks.setdefault(info.rank, []).append(info)
    # The dimensions of a mesh that are said without a rank: the innermost is the tensor's.
    ordered.sort(key=lambda info: (info.mesh.get("pp", 0), info.mesh.get("dp", 0)) if info.rank is None else (0, 0))
    free = (rank for rank in range(len(infos) + max(ranks, default=-1) + 1) if rank not in ranks)
    guessed: list[tuple[TraceInfo, int]] = []
    lives: list[list[TraceInfo]] = []
    for info in ordered:
        if info.rank is None:
            own = next((life for life in lives if _goes_on(life, info)), None)
            if own is not None:
                own.append(info)
            else:
                lives.append([info])
    for life in lives:
        rank = next(free)
        guessed += [(info, rank) for info in life]
        ranks[rank] = [replace(info, rank=rank, rank_source="order") for info in life]
    if len(infos) > 1 and guessed:
        findings.append(_guess(guessed))
    for files in ranks.values():
        # A memory snapshot has no time: it stands behind the traces, whose numbers it does not change.
        files.sort(key=lambda info: (is_snapshot(info), start_of(info)))
    return dict(sorted(ranks.items())), findings


def _without_servers(infos: Sequence[TraceInfo]) -> tuple[Sequence[TraceInfo], list[Finding]]:
    """The files less those of processes that only hand work to the ranks, where there are others."""
    servers = [info for info in infos if info.rank is None and parse_trace_name(info.path).pattern == "frontend"]
    if not servers or len(servers) == len(infos):
        return infos, []
    finding = Finding(
        id="no-rank",
        severity="info",
        title=f"{len(servers)} traces are of a server beside the ranks, and left out",
        evidence=tuple(Evidence("file", info.path) for info in servers[:16]),
        advice="Open such a trace by itself to look at it.",
    )
    left = {info.path for info in servers}
    return [info for info in infos if info.path not in left], [finding]


def without_numbered_folders(infos: Sequence[TraceInfo]) -> tuple[list[TraceInfo], list[Finding]]:
    """The files, less the ranks that were read from folders that count something else: steps, epochs, attempts.

    A folder's bare number (``20/trace.json``) is taken for a rank. It is none if a process has windows, one after
    another, in folders of several numbers, or if several processes recorded into one such folder at the same time.
    """
    folders: dict[str, list[TraceInfo]] = {}
    processes: dict[tuple[int, str | None], list[TraceInfo]] = {}
    for info in infos:
        if info.rank_source == "folder" and PurePath(info.path.replace("\\", "/")).parent.name.isdigit():
            folders.setdefault(str(PurePath(info.path).parent), []).append(info)
            if info.pid is not None:
                processes.setdefault((info.pid, info.host), []).append(info)
    wandering = [own for own in processes.values() if len({info.rank for info in own}) > 1 and _in_turn(own)]
    shared = [own for own in folders.values() if any(a.pid != b.pid and same_time(a, b) for a, b in _pairs(own))]
    if not wandering and not shared:
        return list(infos), []
    counted = [info for own in folders.values() for info in own]
    paths = {info.path for info in counted}
    finding = Finding(
        id="folders-are-no-ranks",
        severity="warning",
        title="the numbers of folders are not taken for ranks: "
        + ("one process has windows in several" if wandering else "several processes recorded into one at once"),
        evidence=tuple(Evidence("file", info.path) for info in counted[:16]),
        advice="Put the rank into the file's name (rank3.json.gz), or record with rankscope.Profiler.",
    )
    return [replace(info, rank=None, rank_source="none") if info.path in paths else info for info in infos], [finding]


def _in_turn(infos: Sequence[TraceInfo]) -> bool:
    """Whether windows follow one another, as those of one process must."""
    return all(one_process(*pair) and not same_time(*pair) for pair in _pairs(infos))


def _pairs(infos: Sequence[TraceInfo]) -> Iterator[tuple[TraceInfo, TraceInfo]]:
    """Each window and the next one."""
    return pairwise(sorted(infos, key=start_of))


def _goes_on(life: Sequence[TraceInfo], info: TraceInfo) -> bool:
    """Whether a file is a further window of a process: by its id and host, at another time."""
    return (
        info.pid is not None
        and info.start_ns is not None
        and all(
            other.pid == info.pid
            and other.host == info.host
            and other.start_ns is not None
            and not same_time(info, other)
            for other in life
        )
    )


def _conflict(info: TraceInfo, rival: TraceInfo) -> Finding:
    return Finding(
        id="rank-conflict",
        severity="error",
        title=f"Two files claim rank {info.rank}: {rival.path} is read, {info.path} is left out",
        ranks=() if info.rank is None else (info.rank,),
        evidence=(
            Evidence("read", f"{rival.path} (rank from {rival.rank_source})"),
            Evidence("left out", f"{info.path} (rank from {info.rank_source})"),
        ),
        advice="If they are of different runs, open each run's files by themselves; if one is a copy, delete it.",
    )


def _guess(guessed: Sequence[tuple[TraceInfo, int]]) -> Finding:
    return Finding(
        id="rank-guessed",
        severity="warning",
        title="Some traces do not say which rank they are of: they are numbered in the order of their names",
        ranks=tuple(dict.fromkeys(rank for _, rank in guessed)),
        evidence=tuple(Evidence(f"rank {rank}", info.path) for info, rank in guessed[:16]),
        advice="Record with rankscope.Profiler, or put the rank into the file's name: rank3.json.gz.",
    )
