"""Reads the collectives of a recording from torch's flight recorder, including those that C++ called, as DDP's reducer
and compiled code do.

The flight recorder is a ring buffer of the latest calls (2,000 unless ``TORCH_FR_BUFFER_SIZE`` is set), kept by torch
whether a profiler runs or not: gloo's calls are in it from torch 2.8 on. It is read after a recording and off the loop:
2,000 calls take about 40 ms. It is not read if an accelerator is in use: NCCL and xccl write the same into the trace
itself, and their buffer holds device events, which must not be queried while the job captures a graph.

In: the time of a recording. Out: descriptions of its collectives, and whether they are complete.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

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
_PLAIN = {"all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"}
"""The names of the process group's methods for these operations."""


@dataclass(frozen=True)
class FlightCall:
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


@dataclass(frozen=True)
class FlightRecord:
    """The calls of a period, in order."""

    calls: tuple[FlightCall, ...]
    complete: bool
    """Whether the buffer reaches back to the beginning of the period."""


def read_flight_recorder(since_ns: int, until_ns: int) -> FlightRecord | None:
    """The calls between two readings of the wall clock; ``None`` if there is no flight recorder, it is off, or an
    accelerator is in use."""
    dump = flight_recorder_dump()
    if dump is None:
        return None
    entries = json.loads(dump()).get("entries")
    if not isinstance(entries, list) or not entries:
        return None
    made = sorted(((int(e["time_created_ns"]), int(e["record_id"]), e) for e in entries), key=lambda entry: entry[:2])
    calls = tuple(flight_call(at, entry) for at, _, entry in made if since_ns <= at <= until_ns)
    return FlightRecord(calls, complete=made[0][1] == 0 or made[0][0] < since_ns)


def flight_recorder_dump() -> Callable[[], bytes] | None:
    """What gives the buffer as JSON; ``None`` if there is no flight recorder, or an accelerator is in use."""
    dump = getattr(getattr(torch._C, "_distributed_c10d", None), "_dump_fr_trace_json", None)
    return None if dump is None or _accelerator_in_use() else dump


def _accelerator_in_use() -> bool:
    modules = (getattr(torch, kind, None) for kind in ("cuda", "xpu"))
    return any(module is not None and module.is_initialized() for module in modules)


def flight_call(at_ns: int, entry: Mapping[str, Any]) -> FlightCall:
    """One entry of the buffer."""
    # A collective that gathers or scatters has all the data on one side: the larger side is its size.
    sides = [
        (sum(_product(shape) for shape in entry.get(f"{side}_sizes") or ()), entry.get(f"{side}_dtypes") or ())
        for side in ("input", "output")
    ]
    elements, types = max(sides, key=lambda side: side[0])
    name = str(types[0]) if types else None
    dtype = None if name is None else _NAMES.get(name, name.lower())
    kind = getattr(torch, dtype or "", None)
    item = kind.itemsize if isinstance(kind, torch.dtype) else None
    operation = str(entry["profiling_name"]).rpartition(":")[2]
    thread = str(entry.get("thread_id") or "")
    return FlightCall(
        at_ns,
        int(thread) if thread.isdecimal() else 0,
        _PLAIN.get(operation, operation),
        str((entry.get("process_group") or ("",))[0]),
        dtype,
        elements,
        elements * item if item is not None else (0 if elements == 0 else None),
        0 if entry.get("is_p2p") else int(entry.get("collective_seq_id") or 0),
    )


def _product(shape: Iterable[int]) -> int:
    return math.prod(map(int, shape))
