"""Metadata of one trace: its rank and run, its process and devices, and what could not be read.

In: a trace's top-level keys, its name and its counts. Out: `TraceInfo`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rankscope.ingest.kineto import KinetoTrace
from rankscope.ingest.ranks import rank_of
from rankscope.primitives.incomplete_steps import FileWork, incomplete_steps
from rankscope.rundir import fields
from rankscope.rundir.fields import count, mapping, text, world_size
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata
from rankscope.rundir.names import parse_trace_name
from rankscope.store.trace_info import TraceInfo


def trace_info(trace: KinetoTrace) -> TraceInfo:
    """The metadata of a trace, from its keys, its path and its events."""
    metadata = trace.metadata
    embedded = TraceMetadata.from_json(metadata.get(METADATA_KEY))
    distributed = mapping(metadata.get("distributedInfo"))
    name = parse_trace_name(trace.path)
    rank, source = rank_of(embedded.rank, distributed, name)
    mesh = embedded.mesh.by_name() if embedded.mesh is not None else dict(name.mesh or {})
    return TraceInfo(
        path=trace.path,
        rank=rank,
        rank_source=source,
        world_size=embedded.world_size or world_size(distributed.get("world_size")) or world_size(name.world_size),
        local_rank=embedded.local_rank,
        restart_count=embedded.restart_count or name.restart or 0,
        run_id=embedded.run_id,
        host=embedded.host or text(metadata.get("host_name")) or name.host,
        boot_id=embedded.boot_id,
        launcher=embedded.launcher,
        backend=text(distributed.get("backend")),
        mesh=mesh,
        first_step=trace.extent.first_step,
        last_step=trace.extent.last_step,
        step_work=trace.extent.step_work.to_json(),
        start_ns=trace.extent.start_ns,
        end_ns=trace.extent.end_ns,
        base_time_ns=count(metadata.get("baseTimeNanoseconds")) or 0,
        json_bytes=trace.json_bytes,
        counts={f"{phase} {category}": number for (phase, category), number in trace.counts.items()},
        lost_events=trace.losses.events,
        lost_bytes=trace.losses.lost_bytes,
        repaired=trace.losses.repaired,
        truncated=trace.losses.truncated,
        lost_metadata=trace.losses.metadata,
        checksum=trace.losses.checksum,
        reason=trace.losses.reason,
        odd=dict(trace.odd),
        others=trace.others,
        groups=_groups(embedded, distributed),
        devices=_devices(metadata.get("deviceProperties")),
        recorded=trace.extent.recorded,
        account=trace.account,
        pid=trace.extent.pid,
        threads=trace.extent.threads,
    )


def without_incomplete_steps(infos: Sequence[TraceInfo]) -> list[TraceInfo]:
    """A rank's files, with the steps that hold no iteration named, and left out of `first_step` and `last_step`."""
    works = [FileWork.from_json(info.step_work) for info in infos]
    judged = []
    for info, work, incomplete in zip(infos, works, incomplete_steps(works), strict=True):
        left_out = {each.step for each in incomplete}
        numbers = [step.step for step in work.steps if step.step not in left_out]
        judged.append(
            replace(
                info,
                first_step=min(numbers, default=None),
                last_step=max(numbers, default=None),
                incomplete_steps=tuple(map(asdict, incomplete)),
                step_work={},
            )
        )
    return judged


def _groups(embedded: TraceMetadata, distributed: Mapping[str, object]) -> tuple[Mapping[str, Any], ...]:
    if embedded.process_groups:
        return tuple(
            {"name": group.name, "description": group.description, "ranks": list(group.ranks)}
            for group in embedded.process_groups
        )
    listed = distributed.get("pg_config")
    groups = []
    for entry in listed if isinstance(listed, list) else []:
        group = mapping(entry)
        groups.append(
            {
                "name": str(group.get("pg_name", "")),
                "description": text(group.get("pg_desc")) or "",
                "ranks": list(fields.items(group.get("ranks"), fields.rank)),
            }
        )
    return tuple(groups)


def _devices(listed: object) -> tuple[Mapping[str, Any], ...]:
    devices = []
    for entry in listed if isinstance(listed, list) else []:
        device = mapping(entry)
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
