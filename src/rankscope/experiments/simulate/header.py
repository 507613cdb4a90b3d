"""The parts of a file around its events: metadata, process groups, and the names of processes and threads.

In: a rank's identity. Out: the text before and after its events.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rankscope.experiments.simulate.identity import AUTOGRAD, MAIN, RankIdentity, run_id
from rankscope.experiments.simulate.job import Job
from rankscope.experiments.simulate.kineto import Naming
from rankscope.experiments.simulate.mesh import WORLD
from rankscope.rundir.metadata import METADATA_KEY, ClockAnchor, Device, Mesh, ProcessGroup, TraceMetadata

DEVICE_NAME, DEVICE_BYTES = "NVIDIA H100 80GB HBM3", 85_028_372_480


def device_properties(job: Job) -> list[dict[str, object]]:
    """Kineto's description of the host's devices."""
    return [
        {
            "id": i,
            "name": DEVICE_NAME,
            "totalGlobalMem": DEVICE_BYTES,
            "computeMajor": 9,
            "computeMinor": 0,
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerMultiprocessor": 2048,
            "regsPerBlock": 65536,
            "warpSize": 32,
            "sharedMemPerBlock": 49152,
            "numSms": 132,
            "regsPerMultiprocessor": 65536,
            "sharedMemPerBlockOptin": 232448,
            "sharedMemPerMultiprocessor": 233472,
        }
        for i in range(job.gpus_per_host)
    ]


def metadata(job: Job, identity: RankIdentity, embedded: TraceMetadata) -> dict[str, object]:
    """The entries next to the events; ``embedded`` is the metadata that `rankscope.Profiler` adds."""
    recording = job.recording
    entries: dict[str, object] = {
        "cupti_version": 24,
        "cuda_runtime_version": 12060,
        "cuda_driver_version": 12080,
        "record_shapes": 1,
        "trace_id": run_id(job),
    }
    if recording.stacks:
        entries["with_stack"] = 1
    if recording.distributed_info:
        groups = [
            {
                "pg_name": group.name,
                "pg_desc": group.description,
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": group.ranks,
            }
            for group in identity.groups.values()
        ]
        entries["distributedInfo"] = {
            "backend": "nccl",
            "rank": identity.rank,
            "world_size": job.ranks,
            "pg_count": len(groups),
            "pg_config": groups,
            "nccl_version": "2.28.9",
        }
    if recording.rankscope_metadata:
        entries[METADATA_KEY] = msgspec.Raw(embedded.to_json())
    if recording.layout == "torch-2.13":
        entries["host_name"] = identity.host
    return entries


def rankscope_metadata(
    job: Job, identity: RankIdentity, begin_ns: int, steps: tuple[int | None, int | None, int | None]
) -> TraceMetadata:
    """The metadata that `rankscope.Profiler` adds.

    Args:
        job: the job.
        identity: the rank.
        begin_ns: when the recording began, by the rank's clock.
        steps: the first and the last recorded step, and the one that the recording ended in.
    """
    layout = job.layout()
    first, last, partial = steps
    groups = [g for g in identity.groups.values() if g.dim == WORLD or len(g.ranks) > 1]
    return TraceMetadata(
        run_id=run_id(job),
        rank=identity.rank,
        world_size=job.ranks,
        local_rank=identity.device,
        host=identity.host,
        launcher="simulate",
        mesh=Mesh(layout.dims, layout.shape, layout.coordinate(identity.rank)),
        process_groups=tuple(ProcessGroup(g.name, g.description, g.ranks) for g in groups),
        schedule={"wait": 0, "warmup": job.warmup_steps, "active": job.steps, "repeat": 1},
        first_step=first,
        last_step=last,
        partial_step=partial,
        clock_anchors=(ClockAnchor(begin_ns, begin_ns % 10**15),),
        device=Device("cuda", DEVICE_NAME, identity.device, DEVICE_BYTES),
        versions={"torch": "2.13.0"},
    )


def names(job: Job, identity: RankIdentity, streams: Iterable[int], ts: str) -> list[Naming]:
    """The metadata events that name processes, threads and streams."""
    events = []

    def name(what: str, pid: int, tid: int, key: str, value: str | int) -> None:
        events.append(Naming(what, pid, tid, ts, {key: value}))

    processes = [(identity.pid, "CPU", identity.pid)] + [
        (i, f"GPU {i}", 5_000_000 + i) for i in range(job.gpus_per_host)
    ]
    for pid, label, position in processes:
        name("process_name", pid, 0, "name", "python")
        name("process_labels", pid, 0, "labels", label)
        name("process_sort_index", pid, 0, "sort_index", position)
    main, autograd = identity.thread(MAIN), identity.thread(AUTOGRAD)
    threads = [
        (identity.pid, main, f"thread {main} (python)"),
        (identity.pid, autograd, f"thread {autograd} (pt_autograd_0)"),
    ]
    threads += [(identity.device, stream, f"stream {stream} ") for stream in sorted(streams)]
    for pid, tid, label in threads:
        name("thread_name", pid, tid, "name", label)
        name("thread_sort_index", pid, tid, "sort_index", tid)
    return events
