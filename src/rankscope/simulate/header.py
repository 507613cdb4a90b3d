"""What a file says of itself: metadata, process groups, and the names of its processes and threads."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from rankscope.rundir.metadata import METADATA_KEY, ClockAnchor, Device, Mesh, ProcessGroup, TraceMetadata
from rankscope.simulate.cells import COMPUTE_STREAM, rank_text
from rankscope.simulate.job import Job, as_dict
from rankscope.simulate.layout import device_properties
from rankscope.simulate.mesh import WORLD, MeshLayout

if TYPE_CHECKING:
    from rankscope.simulate.trace import RankTrace

TRUNCATED_RANKS = 30
"""torch cuts the list of a group's ranks on its events after so many."""


def run_id(job: Job) -> str:
    """The id that all files of a run share: the same for the same job."""
    text = json.dumps(as_dict(job), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest().upper()


def host_of(job: Job, rank: int) -> str:
    """The host that a rank runs on."""
    return f"node{rank // job.gpus_per_host:04d}"


def process_of(job: Job, rank: int) -> int:
    """A rank's process id."""
    return 2_000 + 97 * (rank % job.gpus_per_host) + 7 * (rank // job.gpus_per_host) % 1_000


def rank_texts(job: Job, layout: MeshLayout, rank: int) -> dict[str, str]:
    """What stands for each mark that is the same throughout a rank's file."""
    pid = process_of(job, rank)
    found = {
        "pid": str(pid),
        "main": str(pid),
        "autograd": str(pid + 80),
        "device": str(rank % job.gpus_per_host),
    }
    groups = layout.groups_of(rank, shared_names=job.recording.group_names == "shared")
    for dim, group in groups.items():
        ranks = ", ".join(map(str, group.ranks[:TRUNCATED_RANKS]))
        found[f"name:{dim}"] = group.name
        found[f"description:{dim}"] = group.description
        found[f"ranks:{dim}"] = f"[{ranks}{', ...' if len(group.ranks) > TRUNCATED_RANKS else ''}]"
        found[f"size:{dim}"] = str(len(group.ranks))
        found[f"start:{dim}"] = str(group.ranks[0])
        found[f"stride:{dim}"] = str(group.ranks[1] - group.ranks[0] if len(group.ranks) > 1 else 1)
        found[f"group_rank:{dim}"] = str(group.ranks.index(rank))
    pipeline = groups["pp"].ranks if "pp" in groups else (rank,)
    place = pipeline.index(rank)
    found["next"], found["next_in_group"] = str(pipeline[(place + 1) % len(pipeline)]), str((place + 1) % len(pipeline))
    found["previous"], found["previous_in_group"] = str(pipeline[place - 1]), str((place - 1) % len(pipeline))
    return {rank_text(name): value for name, value in found.items()}


def header(trace: RankTrace) -> str:
    """Everything before the events."""
    job, recording = trace.job, trace.recording
    metadata: dict[str, str] = {
        "cupti_version": "24",
        "cuda_runtime_version": "12060",
        "cuda_driver_version": "12080",
        "record_shapes": "1",
        "trace_id": json.dumps(run_id(job)),
    }
    if recording.stacks:
        metadata["with_stack"] = "1"
    groups = trace.engine.layout.groups_of(trace.rank, shared_names=recording.group_names == "shared")
    if recording.distributed_info:
        config = [
            {
                "pg_name": group.name,
                "pg_desc": group.description,
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in groups.values()
        ]
        info = {
            "backend": "nccl",
            "rank": trace.rank,
            "world_size": job.ranks,
            "pg_count": len(config),
            "pg_config": config,
            "nccl_version": "2.28.9",
        }
        metadata["distributedInfo"] = json.dumps(info)
    if recording.rankscope_metadata:
        metadata[METADATA_KEY] = _own(trace).to_json()
    if trace.text.layout.lines:
        metadata["host_name"] = json.dumps(host_of(job, trace.rank))
    return trace.text.layout.header(device_properties(job.gpus_per_host), metadata, trace.clock.base_ns)


def _own(trace: RankTrace) -> TraceMetadata:
    job, layout = trace.job, trace.engine.layout
    groups = layout.groups_of(trace.rank, shared_names=job.recording.group_names == "shared")
    wall = trace.clock.recorded(trace.window.begin)
    first, last, partial = trace.steps_inside()
    own = [g for g in groups.values() if g.dim == WORLD or len(g.ranks) > 1]
    return TraceMetadata(
        run_id=run_id(job),
        rank=trace.rank,
        world_size=job.ranks,
        local_rank=trace.rank % job.gpus_per_host,
        host=host_of(job, trace.rank),
        launcher="simulate",
        mesh=Mesh(layout.dims, layout.shape, layout.coordinate(trace.rank)),
        process_groups=tuple(ProcessGroup(g.name, g.description, g.ranks) for g in own),
        schedule={"wait": 0, "warmup": job.warmup_steps, "active": job.steps, "repeat": 1},
        first_step=first,
        last_step=last,
        partial_step=partial,
        clock_anchors=(ClockAnchor(wall, wall % 10**15),),
        device=Device("cuda", "NVIDIA H100 80GB HBM3", trace.rank % job.gpus_per_host, 85_028_372_480),
        versions={"torch": "2.13.0"},
    )


def names(trace: RankTrace, ts: str) -> str:
    """The metadata events that name processes, threads and streams."""
    layout, pid, device = trace.text.layout, trace.replace["\x02pid\x02"], trace.replace["\x02device\x02"]
    found = []
    processes = [(pid, "CPU", int(pid))]
    processes += [(str(i), f"GPU {i}", 5_000_000 + i) for i in range(trace.job.gpus_per_host)]
    for number, label, sort in processes:
        found.append(layout.naming("process_name", number, "0", ts, "name", "python"))
        found.append(layout.naming("process_labels", number, "0", ts, "labels", label))
        found.append(layout.naming("process_sort_index", number, "0", ts, "sort_index", sort))
    main, autograd = trace.replace["\x02main\x02"], trace.replace["\x02autograd\x02"]
    threads = [(pid, main, f"thread {main} (python)"), (pid, autograd, f"thread {autograd} (pt_autograd_0)")]
    streams = {COMPUTE_STREAM, *(c.message.stream for c in trace.text.program.communications)}
    threads += [(device, str(stream), f"stream {stream} ") for stream in sorted(streams)]
    for process, thread, name in threads:
        found.append(layout.naming("thread_name", process, thread, ts, "name", name))
        found.append(layout.naming("thread_sort_index", process, thread, ts, "sort_index", int(thread)))
    return "".join(found)
