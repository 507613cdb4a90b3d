"""Nsight Systems: what ``nsys export --type sqlite`` writes, as events of a Kineto trace.

Kernels, copies and fills (`CUPTI_ACTIVITY_KIND_*`), CUDA graphs that were recorded as a whole, calls of the CUDA
runtime and driver, and NVTX ranges. Ranges that torch's `emit_nvtx` names after operators become operators. Where no
range is called ``ProfilerStep#N``, those that count steps (``step 7``, ``iteration_7``) are the steps.

In: the tables of such a file. Out: the keys and events of a trace.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from rankscope.ingest.event_types import PROFILER_STEP, AnnotationArgs, DeviceArgs, OperatorArgs, RuntimeArgs
from rankscope.ingest.imported import Timed
from rankscope.ingest.sqlite_tables import Database, Process, Translation, range_event, raw, whole

_KINDS = "CUPTI_ACTIVITY_KIND_"
_KERNEL, _GRAPH, _COPY, _FILL, _RUNTIME = (
    _KINDS + kind for kind in ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET", "RUNTIME")
)
_NVTX = "NVTX_EVENTS"
# `CUpti_ActivityMemcpyKind`.
_COPIES = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
_RANGE_TYPES = (59, 60)  # pushed and popped; started and ended
_VERSION = re.compile(r"_v\d+$")
_DRIVER = re.compile(r"cu[A-Z]")
_STEP = re.compile(
    r"(?P<word>(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?))[ _#:=-]*(?P<number>\d{1,18})", re.IGNORECASE
)
_OPERATOR = re.compile(r"(?P<name>\w+::\w+)(?:, seq = (?P<sequence>\d{1,18}))?(?:, (?:op_id|sizes|seq).*)?", re.DOTALL)
# A serialized id: 24 bits of the process above 24 of the thread.
_ID_BITS = 0xFFFFFF
_OF_PROCESS = f'"{{}}" >> 24 & {_ID_BITS} = ?'


def reads(database: Database) -> bool:
    """Whether it is Nsight Systems' and has events that are read."""
    tables = (_KERNEL, _GRAPH, _COPY, _FILL, _RUNTIME, _NVTX)
    return "StringIds" in database.tables and any(next(database.rows(each, "start"), None) for each in tables)


def is_report(database: Database) -> bool:
    """Whether Nsight Systems wrote it, whatever is in it."""
    products = (row["value"] for row in database.rows("META_DATA_EXPORT", "value"))
    targets = any(name.startswith("TARGET_INFO_") for name in database.tables)
    return any("Nsight Systems" in str(value) for value in products) or (targets and "StringIds" in database.tables)


def processes(database: Database) -> list[Process]:
    """The processes with device events; MPI's ranks are recorded, those of other launchers are not."""
    ranks = {_pid(row["globalTid"]): whole(row["rank"]) for row in database.rows("MPI_RANKS", "globalTid", "rank")}
    # A process numbers the GPUs that it sees.
    gpus = {
        (row["pid"], row["cudaId"]): row["gpuId"]
        for row in database.rows("TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
    }
    kernels: Counter[int] = Counter()
    devices: dict[int, Counter[Any]] = {}
    for table in (_KERNEL, _GRAPH, _COPY, _FILL):
        for (identifier, device), count in database.counts(table, "globalPid", "deviceId"):
            if (pid := _pid(identifier)) is not None:
                devices.setdefault(pid, Counter())[whole(gpus.get((pid, device), device)) or 0] += count
                kernels[pid] += count if table in (_KERNEL, _GRAPH) else 0
    return [
        Process(pid, (max(used, key=lambda device: used[device]), pid), kernels[pid], ranks.get(pid))
        for pid, used in devices.items()
    ]


def translate(database: Database, process: Process | None) -> Translation:
    """The keys of the trace and its events."""
    strings = database.texts("StringIds", "id", "value")
    started = next(iter(database.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), {})
    host = next(
        (row["value"] for row in database.rows("TARGET_INFO_SYSTEM_ENV", "name", "value") if row["name"] == "Hostname"),
        None,
    )
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": list(_devices(database))}
    if (epoch := whole(started.get("utcEpochNs"))) is not None:
        head["baseTimeNanoseconds"] = epoch
    if isinstance(host, str):
        head["host_name"] = host
    return head, _events(database, strings, None if process is None else process.id)


def _devices(database: Database) -> Iterator[dict[str, Any]]:
    for row in database.rows("TARGET_INFO_GPU", "id", "name", "totalMemory", "smCount", "computeMajor", "computeMinor"):
        yield {
            "id": whole(row["id"]),
            "name": row["name"] if isinstance(row["name"], str) else "",
            "totalGlobalMem": whole(row["totalMemory"]),
            "numSms": whole(row["smCount"]),
            "computeMajor": whole(row["computeMajor"]),
            "computeMinor": whole(row["computeMinor"]),
        }


def _pid(identifier: object) -> int | None:
    """The process of a serialized id."""
    return identifier >> 24 & _ID_BITS if isinstance(identifier, int) else None


def _events(database: Database, strings: dict[Any, str], process: object) -> Iterator[Timed]:
    for row in _of(database, process, _KERNEL, "globalPid", "demangledName", "shortName", *_LAUNCH):
        shared = [size for key in _SHARED if (size := whole(row[key])) is not None]
        name = strings.get(row["demangledName"]) or strings.get(row["shortName"])
        yield _on_device(
            "kernel",
            name,
            row,
            grid=raw(_triple(row, "grid")),
            block=raw(_triple(row, "block")),
            registers=whole(row["registersPerThread"]),
            shared_memory=sum(shared) if shared else None,
            graph_id=whole(row["graphId"]),
            graph_node_id=whole(row["graphNodeId"]),
        )
    for row in _of(database, process, _GRAPH, "globalPid", "graphId", *_ACTIVITY):
        graph = whole(row["graphId"])
        yield _on_device("kernel", f"CUDA graph {graph}", row, graph_id=graph)
    for row in _of(database, process, _COPY, "globalPid", "copyKind", "bytes", *_ACTIVITY):
        kind = _COPIES.get(row["copyKind"], "of an unknown kind")
        yield _on_device("gpu_memcpy", f"Memcpy {kind}", row, bytes=whole(row["bytes"]))
    for row in _of(database, process, _FILL, "globalPid", "bytes", *_ACTIVITY):
        yield _on_device("gpu_memset", "Memset", row, bytes=whole(row["bytes"]))
    for row in _of(database, process, _RUNTIME, "globalTid", "start", "end", "correlationId", "nameId"):
        name = _VERSION.sub("", strings.get(row["nameId"], ""))
        category = "cuda_driver" if _DRIVER.match(name) else "cuda_runtime"
        yield _on_host(category, name, row, RuntimeArgs(correlation=whole(row["correlationId"])))
    yield from _ranges(database, strings, process)


_SHARED = ("staticSharedMemory", "dynamicSharedMemory")
_ACTIVITY = ("start", "end", "deviceId", "contextId", "streamId", "correlationId")
_LAUNCH = (
    *_ACTIVITY, "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread", "graphId",
    "graphNodeId", *_SHARED,
)  # fmt: skip


def _of(database: Database, process: object, table: str, identifier: str, *columns: str) -> Iterator[dict[str, Any]]:
    """The rows of one process; all if the file names none."""
    if process is None:
        found = database.rows(table, identifier, *columns)
    elif identifier in database.columns(table):
        condition = _OF_PROCESS.format(identifier)
        found = database.rows(table, identifier, *columns, where=condition, values=(process,))
    else:
        return
    yield from map(dict, found)


def _triple(row: dict[str, Any], name: str) -> list[int] | None:
    values = [size for axis in "XYZ" if (size := whole(row[name + axis])) is not None]
    return values if len(values) == 3 else None


def _on_device(category: str, name: str | None, row: dict[str, Any], **arguments: Any) -> Timed:
    device, stream = whole(row["deviceId"]), whole(row["streamId"])
    context, correlation = raw(whole(row["contextId"])), whole(row["correlationId"])
    args = DeviceArgs(device=device, context=context, stream=stream, correlation=correlation, **arguments)
    return range_event(category, name, (row["start"], row["end"]), (device, stream), args)


def _on_host(category: str, name: str, row: dict[str, Any], args: Struct) -> Timed:
    thread = row["globalTid"]
    track = _pid(thread), thread & _ID_BITS if isinstance(thread, int) else None
    return range_event(category, name, (row["start"], row["end"]), track, args)


def _ranges(database: Database, strings: dict[Any, str], process: object) -> Iterator[Timed]:
    """NVTX ranges as operators, steps and annotations."""
    named = [
        (row, row["text"] if isinstance(row["text"], str) else strings.get(row["textId"], ""))
        for row in _of(database, process, _NVTX, "globalTid", "start", "end", "eventType", "text", "textId")
        if row["eventType"] in _RANGE_TYPES or row["eventType"] is None
    ]
    word = None
    if not any(PROFILER_STEP.match(name) for _, name in named):
        word = step_word([(row["start"], name) for row, name in named])
    for row, name in named:
        operator = _OPERATOR.fullmatch(name)
        if operator is not None:
            sequence = operator["sequence"]
            args = OperatorArgs(sequence=int(sequence) if sequence else None)
            yield _on_host("cpu_op", operator["name"], row, args)
        else:
            yield _on_host("user_annotation", counted_step(name, word), row, AnnotationArgs())


def step_word(ranges: Sequence[tuple[object, str]]) -> str | None:
    """The word by which ranges count the steps: of several the one that begins first, as it is around the others.

    Args:
        ranges: start and name of each.
    """
    found = [(start, match["word"].lower()) for start, name in ranges if (match := _STEP.fullmatch(name))]
    return min(((start, word) for start, word in found if isinstance(start, int)), default=(0, None))[1]


def counted_step(name: str, word: str | None) -> str:
    """The name of a range, as torch's profiler writes it if it counts steps by this word."""
    step = _STEP.fullmatch(name) if word is not None else None
    return name if step is None or step["word"].lower() != word else f"ProfilerStep#{int(step['number'])}"
