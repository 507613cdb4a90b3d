"""Whose trace it is: what one file says of its rank and run, and how the files of a run fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankscope.ingest.discover import natural
from rankscope.ingest.kineto import KinetoTrace
from rankscope.results import Evidence, Finding
from rankscope.rundir.fields import count, mapping, text
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata
from rankscope.rundir.names import parse_trace_name
from rankscope.store.info import TraceInfo

# Beyond these a number is no rank and no count of them, but damage: counting up to it would never end.
_MAX_RANKS = 1 << 20


def describe(trace: KinetoTrace) -> TraceInfo:
    """What a trace says about itself. The rank is from our own metadata, else `distributedInfo`, else the name."""
    said = trace.metadata
    own = TraceMetadata.from_json(said.get(METADATA_KEY))
    distributed = mapping(said.get("distributedInfo"))
    name = parse_trace_name(trace.path)
    rank, source = _of_ranks(own.rank), "metadata"
    if rank is None:
        rank, source = _of_ranks(count(distributed.get("rank"))), "distributedInfo"
    if rank is None:
        rank, source = _of_ranks(name.rank), "folder" if name.pattern == "folder" else "name"
    if rank is None:
        source = "none"
    mesh = own.mesh.by_name() if own.mesh is not None else dict(name.mesh or {})
    return TraceInfo(
        path=trace.path,
        rank=rank,
        rank_source=source,
        world_size=_of_ranks(own.world_size or count(distributed.get("world_size")) or name.world_size),
        local_rank=own.local_rank,
        restart_count=own.restart_count or name.restart or 0,
        run_id=own.run_id,
        host=own.host or text(said.get("host_name")) or name.host,
        launcher=own.launcher,
        backend=text(distributed.get("backend")),
        mesh=mesh,
        first_step=trace.extent.first_step,
        last_step=trace.extent.last_step,
        start_ns=trace.extent.start_ns,
        end_ns=trace.extent.end_ns,
        base_time_ns=count(said.get("baseTimeNanoseconds")) or 0,
        json_bytes=trace.json_bytes,
        counts={f"{phase} {category}": number for (phase, category), number in trace.counts.items()},
        lost_events=trace.losses.events,
        lost_bytes=trace.losses.lost_bytes,
        repaired=trace.losses.repaired,
        truncated=trace.losses.truncated,
        lost_metadata=trace.losses.metadata,
        reason=trace.losses.reason,
        odd=dict(trace.odd),
        groups=_groups(own, distributed),
        devices=_devices(said.get("deviceProperties")),
        pid=trace.extent.pid,
        threads=trace.extent.threads,
    )


def _of_ranks(number: int | None) -> int | None:
    return number if number is not None and number <= _MAX_RANKS else None


def _groups(own: TraceMetadata, distributed: Mapping[str, object]) -> tuple[Mapping[str, Any], ...]:
    if own.process_groups:
        return tuple(
            {"name": group.name, "description": group.description, "ranks": list(group.ranks)}
            for group in own.process_groups
        )
    listed = distributed.get("pg_config")
    groups = []
    for one in listed if isinstance(listed, list) else []:
        group = mapping(one)
        ranks = group.get("ranks")
        groups.append(
            {
                "name": str(group.get("pg_name", "")),
                "description": text(group.get("pg_desc")) or "",
                "ranks": [rank for rank in ranks if isinstance(rank, int)] if isinstance(ranks, list) else [],
            }
        )
    return tuple(groups)


def _devices(listed: object) -> tuple[Mapping[str, Any], ...]:
    devices = []
    for one in listed if isinstance(listed, list) else []:
        device = mapping(one)
        devices.append(
            {
                "id": count(device.get("id")),
                "name": text(device.get("name")) or "",
                "total_memory": count(device.get("totalGlobalMem")),
                # XPU counts what it calls compute units: vector engines.
                "multiprocessors": count(device.get("numSms", device.get("maxComputeUnits"))),
                "compute": [count(device.get("computeMajor")), count(device.get("computeMinor"))],
            }
        )
    return tuple(devices)


def assign_ranks(infos: Sequence[TraceInfo]) -> tuple[dict[int, list[TraceInfo]], list[Finding]]:
    """The files by rank, each rank's in the order of time; and what had to be guessed or left out.

    Several windows of one rank follow one another in time. Files of one rank that cover the same time contradict
    each other: the first by name is taken. A file that says no rank gets the next free one, all windows of one process
    the same.
    """
    findings: list[Finding] = []
    ranks: dict[int, list[TraceInfo]] = {}
    ordered = sorted(infos, key=lambda info: natural(info.path))
    for info in ordered:
        if info.rank is None:
            continue
        rival = next((other for other in ranks.get(info.rank, []) if _same_time(info, other)), None)
        if rival is not None:
            findings.append(_conflict(info, rival))
        else:
            ranks.setdefault(info.rank, []).append(info)
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
        files.sort(key=lambda info: (_is_snapshot(info), info.base_time_ns + (info.start_ns or 0)))
    return dict(sorted(ranks.items())), findings


def _is_snapshot(info: TraceInfo) -> bool:
    return any(kind.startswith("snapshot ") for kind in info.counts)


def _goes_on(life: Sequence[TraceInfo], info: TraceInfo) -> bool:
    """Whether a file is a further window of a process: by its id and host, at another time."""
    return (
        info.pid is not None
        and info.start_ns is not None
        and all(
            other.pid == info.pid
            and other.host == info.host
            and other.start_ns is not None
            and not _same_time(info, other)
            for other in life
        )
    )


def _same_time(one: TraceInfo, other: TraceInfo) -> bool:
    # A file without a range covers no time: it must not keep one that has some from being read.
    if one.start_ns is None or other.start_ns is None or one.end_ns is None or other.end_ns is None:
        return False
    return (
        one.base_time_ns + one.start_ns < other.base_time_ns + other.end_ns
        and other.base_time_ns + other.start_ns < one.base_time_ns + one.end_ns
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
