"""Torch's flight recorder: ring buffers of the latest collectives, which torch keeps whether a profiler runs or not.

A buffer has 2,000 calls unless ``TORCH_FR_BUFFER_SIZE`` is set; reading 2,000 takes about 25 ms, most of it with the
interpreter's lock. Gloo's calls are in one from torch 2.8 on. NCCL has one of its own, which is read for the log of a
watched job alone: in traces its kernels carry the same. With XPU none is read: xccl's entries, in gloo's buffer, hold
events of the device.

In: torch's buffers. Out: calls.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from rankscope.capture.environment import device_in_use
from rankscope.capture.graph_capture import queries_beside_capture

_NAMES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""C++ names of types that are not Python's names in lower case."""
_PLAIN = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
    "_all_gather_base": "_allgather_base",
    "all_gather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
    "all_reduce_barrier": "barrier",
}
"""The names of the process group's methods for these operations."""
NCCL, OTHERS = "nccl", "others"
_DUMPS = {NCCL: "_dump_nccl_trace", OTHERS: "_dump_fr_trace"}
TIMING_VARIABLE = "TORCH_NCCL_ENABLE_TIMING"
"""Has NCCL's calls timed by events on the device."""
Entries = Callable[[], list[dict[str, Any]]]


class FlightCall(NamedTuple):
    """One recorded call."""

    at_ns: int
    """When it was made, on the wall clock."""
    thread: int
    """The thread that made it, as ``threading.get_ident()`` has it; 0 if unknown."""
    operation: str
    group: str
    dtype: str | None
    elements: int
    bytes: int | None
    """The size of the larger of input and output; ``None`` if the type is not known here."""
    sequence: int = 0
    """Its number in its group, from 1; 0 for sends and receives, which have numbers of their own."""
    device_ns: int | None = None
    """How long its kernel ran, with its waiting for other ranks; known of NCCL's if `TIMING_VARIABLE` is set."""


@dataclass(frozen=True)
class FlightRecord:
    """The calls of a period, in order."""

    calls: tuple[FlightCall, ...]
    complete: bool
    """Whether the buffer reaches back to the beginning of the period."""


def read_flight_recorder(since_ns: int, until_ns: int) -> FlightRecord | None:
    """The calls between two readings of the wall clock, without NCCL's; ``None`` if there is no flight recorder, or it
    is off."""
    read = flight_recorders().get(OTHERS)
    entries = read() if read is not None else []
    if not entries:
        return None
    made = sorted(((int(e["time_created_ns"]), int(e["record_id"]), e) for e in entries), key=lambda entry: entry[:2])
    calls = tuple(flight_call(at, entry) for at, _, entry in made if since_ns <= at <= until_ns)
    return FlightRecord(calls, complete=made[0][1] == 0 or made[0][0] < since_ns)


def flight_recorders() -> dict[str, Entries]:
    """What gives the entries of each buffer that can be read: `NCCL` and `OTHERS`."""
    native = getattr(torch._C, "_distributed_c10d", None)
    device = device_in_use()
    readable = {NCCL: device == "cuda", OTHERS: device != "xpu"}
    dumps = {name: getattr(native, function, None) for name, function in _DUMPS.items() if readable[name]}
    return {name: functools.partial(_entries, dump) for name, dump in dumps.items() if dump is not None}


def _entries(dump: Callable[[bool, bool, bool], bytes]) -> list[dict[str, Any]]:
    with queries_beside_capture() as allowed:
        if not allowed:
            return []
        # Torch's own bytes, from this process: calls without their stacks, in half the time that its JSON takes.
        found: list[dict[str, Any]] = pickle.loads(dump(True, False, False)).get("entries", [])
        return found


def records_all_calls() -> bool:
    """Whether the buffers get all collectives of this process: it has no process group, or those of gloo and NCCL."""
    if not flight_recorders():
        return False
    if not torch.distributed.is_initialized():
        return True
    backends = str(torch.distributed.get_backend_config())
    return {each.rpartition(":")[2] for each in backends.split(",")} <= {"gloo", "nccl"}


def flight_call(at_ns: int, entry: Mapping[str, Any]) -> FlightCall:
    """One entry of the buffer."""
    group = str((entry.get("process_group") or ("",))[0])
    sides = (
        (tuple(map(tuple, entry.get(f"{side}_sizes") or ())), tuple(entry.get(f"{side}_dtypes") or ()))
        for side in ("input", "output")
    )
    kind = _flight_kind(str(entry["profiling_name"]), *sides)
    thread = str(entry.get("thread_id") or "")
    return FlightCall(
        at_ns,
        int(thread) if thread.isdecimal() else 0,
        kind.operation,
        group,
        kind.dtype,
        kind.elements,
        kind.bytes,
        0 if entry.get("is_p2p") else int(entry.get("collective_seq_id") or 0),
        _duration_ns(entry.get("duration_ms")),
    )


def _duration_ns(ms: object) -> int | None:
    return round(ms * 1e6) if isinstance(ms, float) and 0 <= ms < 1e9 else None


class _FlightKind(NamedTuple):
    operation: str
    dtype: str | None
    elements: int
    bytes: int | None


_Side = tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]


@functools.lru_cache(maxsize=4096)
def _flight_kind(name: str, inputs: _Side, outputs: _Side) -> _FlightKind:
    """What calls with the same tensors have in common."""
    # A collective that gathers or scatters has all the data on one side: the larger side is its size.
    sides = [(sum(map(math.prod, shapes)), types) for shapes, types in (inputs, outputs)]
    elements, types = max(sides, key=lambda side: side[0])
    first = types[0] if types else None
    dtype = None if first is None else _NAMES.get(first, first.lower())
    kind = getattr(torch, dtype or "", None)
    item = kind.itemsize if isinstance(kind, torch.dtype) else None
    operation = name.rpartition(":")[2]
    size = elements * item if item is not None else (0 if elements == 0 else None)
    return _FlightKind(_PLAIN.get(operation, operation), dtype, elements, size)
