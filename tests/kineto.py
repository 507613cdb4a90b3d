"""Tiny Kineto traces, built in code.

Times are microseconds, as Kineto writes them: ``ts`` and ``dur``, whole or with three decimals. Each function gives one
event as a dict; `trace` puts events and top-level keys together, `write` puts a trace on disk in any packing::

    events = [step(3, 0, 100), op("aten::mm", 10, 5, external=7), launch(12, 2, correlation=1, external=7),
              kernel("gemm", 20, 30, correlation=1, external=7)]
    write(tmp_path / "rank0.json.gz", trace(events, rank=0, world_size=2))

Keyword arguments that a function does not name become further arguments (``args``) of the event, with the names that
Kineto gives them: ``kernel("k", 0, 1, **{"blocks per SM": 0.5})``. `event` builds anything else.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

Event = dict[str, Any]
Trace = dict[str, Any]

HOST_PID = 100
MAIN_THREAD = 100
BACKWARD_THREAD = 101


def event(
    name: str | None,
    ts: float | str | None,
    dur: float | str | None = None,
    *,
    ph: str = "X",
    cat: str | None = None,
    pid: Any = HOST_PID,
    tid: Any = MAIN_THREAD,
    args: Any = None,
    **fields: Any,
) -> Event:
    """Any event; fields that are None are left out. ``fields`` are further top-level fields (``id``, ``bp``)."""
    made = {"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, **fields, "args": args}
    return {key: value for key, value in made.items() if value is not None}


def kernel(
    name: str,
    ts: float,
    dur: float,
    *,
    stream: int = 7,
    device: int = 0,
    correlation: int | None = None,
    external: int | None = None,
    cat: str = "kernel",
    **args: Any,
) -> Event:
    """A kernel on a device's stream."""
    return _device(name, ts, dur, cat, stream, device, correlation, external, args)


def memcpy(
    ts: float,
    dur: float,
    *,
    name: str = "Memcpy HtoD (Pinned -> Device)",
    stream: int = 7,
    device: int = 0,
    correlation: int | None = None,
    external: int | None = None,
    size: int | None = None,
    cat: str = "gpu_memcpy",
    **args: Any,
) -> Event:
    """A copy; `size` in bytes."""
    sized = args if size is None else {"bytes": size, **args}
    return _device(name, ts, dur, cat, stream, device, correlation, external, sized)


def memset(
    ts: float,
    dur: float,
    *,
    name: str = "Memset (Device)",
    stream: int = 7,
    device: int = 0,
    correlation: int | None = None,
    external: int | None = None,
    size: int | None = None,
    cat: str = "gpu_memset",
    **args: Any,
) -> Event:
    """A fill; `size` in bytes."""
    sized = args if size is None else {"bytes": size, **args}
    return _device(name, ts, dur, cat, stream, device, correlation, external, sized)


def collective(
    ts: float,
    dur: float,
    *,
    kind: str = "allreduce",
    name: str | None = None,
    elements: int = 1024,
    out_elements: int | None = None,
    dtype: str = "Float",
    group: str = "0",
    description: str = "default_pg",
    ranks: Sequence[int] = (0, 1),
    sequence: int | None = None,
    stream: int = 20,
    device: int = 0,
    correlation: int | None = None,
    external: int | None = None,
    **args: Any,
) -> Event:
    """A collective's kernel with its metadata, as NCCL kernels of torch 2.3 and newer carry it."""
    metadata = {
        "Collective name": kind,
        "In msg nelems": elements,
        "Out msg nelems": elements if out_elements is None else out_elements,
        "Group size": len(ranks),
        "dtype": dtype,
        "Process Group Name": group,
        "Process Group Description": description,
        "Process Group Ranks": str(list(ranks)),
        **({} if sequence is None else {"Seq": sequence}),
        **args,
    }
    shown = name or f"ncclDevKernel_{kind}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return _device(shown, ts, dur, "kernel", stream, device, correlation, external, metadata)


def launch(
    ts: float,
    dur: float,
    *,
    correlation: int | None = None,
    external: int | None = None,
    name: str = "cudaLaunchKernel",
    cat: str = "cuda_runtime",
    tid: Any = MAIN_THREAD,
    pid: Any = HOST_PID,
    **args: Any,
) -> Event:
    """A call of the host into the device's runtime."""
    metadata = _ids(correlation, external) | args
    return event(name, ts, dur, cat=cat, pid=pid, tid=tid, args=metadata)


def op(
    name: str,
    ts: float,
    dur: float,
    *,
    external: int | None = None,
    sequence: int | None = None,
    forward_thread: int | None = None,
    dims: Any = None,
    tid: Any = MAIN_THREAD,
    pid: Any = HOST_PID,
    cat: str = "cpu_op",
    **args: Any,
) -> Event:
    """A host operator; `dims` are the shapes of its inputs."""
    metadata = {
        "External id": external,
        "Sequence number": sequence,
        "Fwd thread id": forward_thread,
        "Input Dims": dims,
    }
    present = {key: value for key, value in metadata.items() if value is not None}
    return event(name, ts, dur, cat=cat, pid=pid, tid=tid, args=present | args)


def annotation(
    name: str,
    ts: float,
    dur: float,
    *,
    on_device: bool = False,
    tid: Any = MAIN_THREAD,
    pid: Any = HOST_PID,
    **args: Any,
) -> Event:
    """A named range of the host, or its echo on a device's track."""
    return event(
        name,
        ts,
        dur,
        cat="gpu_user_annotation" if on_device else "user_annotation",
        pid=pid,
        tid=tid,
        args=args or None,
    )


def step(number: int, ts: float, dur: float, *, tid: Any = MAIN_THREAD, on_device: bool = False) -> Event:
    """``ProfilerStep#N``."""
    return annotation(f"ProfilerStep#{number}", ts, dur, tid=tid, on_device=on_device)


def loading(ts: float, dur: float, *, tid: Any = MAIN_THREAD) -> Event:
    """The wait for the DataLoader's next batch."""
    return annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ts, dur, tid=tid)


def frame(
    name: str,
    ts: float,
    dur: float,
    *,
    python_id: int | None = None,
    parent: int | None = None,
    tid: Any = MAIN_THREAD,
    **args: Any,
) -> Event:
    """A Python frame: ``"train.py(12): forward"`` or ``"nn.Module: Linear_0"``."""
    metadata = {"Python id": python_id, "Python parent id": parent, "Python thread": 0}
    present = {key: value for key, value in metadata.items() if value is not None}
    return event(name, ts, dur, cat="python_function", tid=tid, args=present | args)


def memory(
    ts: float,
    size: int,
    *,
    allocated: int,
    reserved: int,
    address: int | None = 1 << 40,
    device: int = 0,
    device_type: int = 1,
) -> Event:
    """An allocation (`size` above 0) or a release (below)."""
    metadata = {
        "Addr": address,
        "Bytes": size,
        "Device Id": device,
        "Device Type": device_type,
        "Total Allocated": allocated,
        "Total Reserved": reserved,
    }
    present = {key: value for key, value in metadata.items() if value is not None}
    return event("[memory]", ts, ph="i", cat="cpu_instant_event", args=present, s="t")


def trace(
    events: Sequence[Event],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    backend: str = "nccl",
    base_time_ns: int | None = None,
    **metadata: Any,
) -> Trace:
    """Events with what stands beside them; with `rank` a ``distributedInfo``, as torch writes it."""
    made: Trace = {"schemaVersion": 1}
    if rank is not None:
        made["distributedInfo"] = {"backend": backend, "rank": rank, "world_size": world_size or rank + 1}
    if base_time_ns is not None:
        made["baseTimeNanoseconds"] = base_time_ns
    return {**made, **metadata, "traceEvents": list(events)}


def dumps(content: Mapping[str, Any] | Sequence[Any] | str | bytes, *, indent: int | None = None) -> bytes:
    """A trace as JSON text; text as it is. NaN and Infinity are written as Python writes them."""
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    return json.dumps(content, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")


def pack(data: bytes, compression: str | None, *, member: str = "trace.json") -> bytes:
    """Bytes packed: ``gz``, ``zst``, ``tar``, ``tar.gz``, ``tar.zst``, ``zip``; None leaves them.

    Args:
        member: the name inside an archive.
    """
    if compression in (None, "json"):
        return data
    if compression == "gz":
        return gzip.compress(data, 1)
    if compression == "zst":
        return zstandard.ZstdCompressor().compress(data)
    out = io.BytesIO()
    if compression == "zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, data)
        return out.getvalue()
    if compression not in ("tar", "tar.gz", "tar.zst"):
        raise ValueError(f"no such packing: {compression}")
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo(member)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return pack(out.getvalue(), compression[4:] or None)


def write(
    path: str | Path,
    content: Mapping[str, Any] | Sequence[Any] | str | bytes,
    compression: str | None = "auto",
    *,
    indent: int | None = None,
) -> Path:
    """Write a trace (or any text or bytes) to a file, and give its path; folders are made.

    Args:
        compression: as `pack` takes it; ``auto`` follows the file's name.
    """
    file = Path(path)
    if compression == "auto":
        endings = ("tar.gz", "tar.zst", "tar", "gz", "zst", "zip")
        compression = next((ending for ending in endings if file.name.endswith(f".{ending}")), None)
        compression = "tar.gz" if file.name.endswith(".tgz") else compression
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pack(dumps(content, indent=indent), compression))
    return file


def write_ranks(folder: Path, by_rank: Mapping[int, Sequence[Event]], **metadata: Any) -> Path:
    """One trace a rank, named and numbered, in a folder; gives the folder."""
    for rank, events in by_rank.items():
        write(folder / f"rank{rank}.json", trace(events, rank=rank, world_size=max(by_rank) + 1, **metadata))
    return folder


def small_step(ts: float = 0.0, number: int = 1, *, correlation: int = 1, waiting: float = 0.0) -> list[Event]:
    """One plausible step of 100 µs from `ts`: loading, an operator with a kernel, a copy, an all_reduce.

    Args:
        correlation: the first of three correlation and operator ids that it uses.
        waiting: by how much the all_reduce is longer, at its front.
    """
    one, two, three = correlation, correlation + 1, correlation + 2
    return [
        step(number, ts, 100),
        loading(ts + 2, 8),
        op("aten::mm", ts + 12, 20, external=one, dims=[[8, 8], [8, 8]]),
        launch(ts + 15, 5, correlation=one, external=one),
        kernel("ampere_sgemm_128x64", ts + 22, 30, correlation=one, external=one),
        op("aten::copy_", ts + 34, 6, external=two),
        launch(ts + 35, 4, correlation=two, external=two, name="cudaMemcpyAsync"),
        memcpy(ts + 52, 6, correlation=two, external=two, size=4096),
        op("c10d::allreduce_", ts + 42, 12, external=three),
        launch(ts + 45, 5, correlation=three, external=three),
        collective(ts + 60 - waiting, 25 + waiting, correlation=three, external=three, sequence=number),
    ]


def _ids(correlation: int | None, external: int | None) -> dict[str, Any]:
    metadata = {"External id": external, "correlation": correlation}
    return {key: value for key, value in metadata.items() if value is not None}


def _device(
    name: str,
    ts: float,
    dur: float,
    cat: str,
    stream: int,
    device: int,
    correlation: int | None,
    external: int | None,
    args: Mapping[str, Any],
) -> Event:
    metadata = _ids(correlation, external) | {"device": device, "stream": stream} | dict(args)
    return event(name, ts, dur, cat=cat, pid=device, tid=stream, args=metadata)
