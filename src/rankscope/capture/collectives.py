"""The collectives that the job calls in a recorded window: group, type and size, which traces of gloo and xccl lack.

Every call from Python goes through a method of torch's ``ProcessGroup``, whichever function of ``torch.distributed`` is
used. These methods are wrapped while a window is recorded, and only then: each notes the call and makes it. What DDP's
reducer and compiled code call from C++ does not go through them: it is added from torch's flight recorder, if that has
it.

The flight recorder is a ring buffer of the latest calls (2,000 unless ``TORCH_FR_BUFFER_SIZE`` is set), kept by torch
whether a profiler runs or not: gloo's calls are in it from torch 2.8 on. It is read after a recording and off the loop:
2,000 calls take about 25 ms. It is not read if an accelerator is in use: NCCL and xccl write the same into the trace
itself, and their buffer holds device events, which must not be queried while the job captures a graph.

In: the calls of torch's process groups. Out: a description of each, for the trace's metadata.
"""

from __future__ import annotations

import functools
import math
import pickle
import sys
import threading
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from rankscope.capture.inflight import InFlight
from rankscope.capture.process import process_groups
from rankscope.rundir.metadata import ProcessGroup

_METHODS = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
MAX_CALLS = 10_000
"""Per window; later ones are only counted."""
PYTHON, NATIVE = "python", "c++"


class CallKind(NamedTuple):
    """What calls of one kind have in common."""

    operation: str
    group: str
    ranks: int | None
    dtype: str | None
    elements: int
    bytes: int | None
    caller: str


class CollectiveCalls:
    """The calls of one window.

    Args:
        in_flight: gets those on CPU memory.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._calls: list[tuple[int, CallKind]] = []
        # Thread, beginning and end of each call from Python.
        self._python_calls: deque[list[int]] = deque(maxlen=MAX_CALLS)
        self._left_out = 0
        # Torch's class: it can no longer be looked up once the job has destroyed its process groups.
        self._kind: Any = None
        self._replaced: dict[str, Any] = {}
        self.groups: tuple[ProcessGroup, ...] = ()
        """The job's process groups when the window began."""
        self._began = self._ended = 0
        self._flight_recorder: str | None = None

    def begin(self) -> None:
        """Record calls from now on."""
        self._kind = kind = _process_group()
        if kind is None:
            return
        self.groups = process_groups()
        self._began = time.time_ns()
        for name in _METHODS:
            original = kind.__dict__.get(name)
            if original is not None:
                setattr(kind, name, self._wrapped(name, original))
                self._replaced[name] = original

    def end(self) -> None:
        """Stop recording calls; harmless if that was done already."""
        replaced, self._replaced = self._replaced, {}
        self._ended = self._ended or time.time_ns()
        for name, original in replaced.items():
            setattr(self._kind, name, original)

    def add_native_calls(self) -> None:
        """Add what C++ called, as far as torch still has it: call it soon after the end, and off the loop."""
        if not self._began:
            return
        with suppress(Exception):  # its format is not documented, and the calls from Python are known without it
            record = read_flight_recorder(self._began, self._ended)
            if record is None:
                return
            self._flight_recorder = "whole" if record.complete else "part"
            sizes = {group.name: len(group.ranks) for group in (*self.groups, *process_groups())}
            python_calls = _PythonCalls(list(self._python_calls))
            for call in record.calls:
                if call not in python_calls:
                    size = sizes.get(call.group)
                    kind = CallKind(call.operation, call.group, size, call.dtype, call.elements, call.bytes, NATIVE)
                    self._add(call.at_ns, kind)
            self._calls.sort(key=lambda call: call[0])

    def describe(self) -> dict[str, object]:
        """As the trace's metadata has them; empty if there was no call.

        ``kinds``: each kind of call once; ``order``: one index into ``kinds`` per call, in the order of the calls;
        ``us``: when each was made, in µs after ``began_ns`` (wall clock); ``left_out``: how many more there were;
        ``flight_recorder``: whether all calls from C++ are there (``whole``), only the latest (``part``), or none
        (``None``)."""
        if not self._calls:
            return {}
        kinds: dict[CallKind, int] = {}
        order = [kinds.setdefault(kind, len(kinds)) for _, kind in self._calls]
        return {
            "began_ns": self._began,
            "kinds": [kind._asdict() for kind in kinds],
            "order": order,
            "us": [(at - self._began) // 1000 for at, _ in self._calls],
            "left_out": self._left_out,
            "flight_recorder": self._flight_recorder,
        }

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        plain = name.strip("_")

        @functools.wraps(original, assigned=("__name__", "__doc__"), updated=())
        def recorded(group: Any, *args: Any, **options: Any) -> Any:
            call, on_cpu = [threading.get_ident(), time.time_ns(), sys.maxsize], False
            with suppress(Exception):  # whatever fails here, the call is made
                self._python_calls.append(call)
                kind, on_cpu = _call_kind(plain, group, args, options)
                self._add(call[1], kind)
            try:
                work = original(group, *args, **options)
            finally:
                call[2] = time.time_ns()
            if on_cpu:
                self._in_flight.add(work, plain)
            return work

        return recorded

    def _add(self, at_ns: int, kind: CallKind) -> None:
        if len(self._calls) >= MAX_CALLS:
            self._left_out += 1
            return
        self._calls.append((at_ns, kind))


class _PythonCalls:
    """When the calls from Python ran, by thread: a call of the flight recorder at such a time is one of them."""

    def __init__(self, calls: list[list[int]]) -> None:
        # The list keeps only the latest: an earlier call may be from Python or not.
        self._since = calls[0][1] if len(calls) == MAX_CALLS else 0
        began: dict[int, list[int]] = defaultdict(list)
        ended: dict[int, list[int]] = defaultdict(list)
        for thread, begin, end in calls:
            began[thread].append(begin)
            ended[thread].append(end)
        # Calls may be nested.
        self._began, self._reach = began, {thread: list(accumulate(ends, max)) for thread, ends in ended.items()}

    def __contains__(self, call: FlightCall) -> bool:
        before = bisect_right(self._began.get(call.thread, ()), call.at_ns)
        return call.at_ns < self._since or (before > 0 and self._reach[call.thread][before - 1] >= call.at_ns)


def _call_kind(name: str, group: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[CallKind, bool]:
    """The kind of a call, and whether its tensors are in CPU memory."""
    # A collective that gathers or scatters has all the data on one side: the larger side is its size.
    sides = [_collect(value, [], 3) for value in (*args, *options.values())]
    largest = max(sides, key=lambda side: sum(t.numel() for t in side), default=[])
    elements = sum(t.numel() for t in largest)
    size = sum(t.numel() * t.element_size() for t in largest)
    dtype = str(largest[0].dtype).removeprefix("torch.") if largest else None
    on_cpu = bool(largest) and largest[0].device.type == "cpu"
    return CallKind(name, str(group.group_name), int(group.size()), dtype, elements, size, PYTHON), on_cpu


def _collect(value: Any, into: list[torch.Tensor], depth: int) -> list[torch.Tensor]:
    """All tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        into.append(value)
    elif isinstance(value, (list, tuple)) and depth:
        for item in value:
            _collect(item, into, depth - 1)
    return into


def _process_group() -> Any:
    """Torch's class, if the job has a process group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return getattr(torch.distributed, "ProcessGroup", None)


# --- torch's flight recorder --------------------------------------------------------------------------------

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


@dataclass(frozen=True)
class FlightRecord:
    """The calls of a period, in order."""

    calls: tuple[FlightCall, ...]
    complete: bool
    """Whether the buffer reaches back to the beginning of the period."""


def read_flight_recorder(since_ns: int, until_ns: int) -> FlightRecord | None:
    """The calls between two readings of the wall clock; ``None`` if there is no flight recorder, it is off, or an
    accelerator is in use."""
    read = flight_recorder()
    entries = read() if read is not None else []
    if not entries:
        return None
    made = sorted(((int(e["time_created_ns"]), int(e["record_id"]), e) for e in entries), key=lambda entry: entry[:2])
    calls = tuple(flight_call(at, entry) for at, _, entry in made if since_ns <= at <= until_ns)
    return FlightRecord(calls, complete=made[0][1] == 0 or made[0][0] < since_ns)


def flight_recorder() -> Callable[[], list[dict[str, Any]]] | None:
    """What gives the buffer's entries; ``None`` if there is no flight recorder, or an accelerator is in use."""
    dump = getattr(getattr(torch._C, "_distributed_c10d", None), "_dump_fr_trace", None)
    if dump is None or _accelerator_in_use():
        return None

    def entries() -> list[dict[str, Any]]:
        # Torch's own bytes, from this process: calls without their stacks, in half the time that its JSON takes.
        found: list[dict[str, Any]] = pickle.loads(dump(True, False, False)).get("entries", [])
        return found

    return entries


def records_all_calls() -> bool:
    """Whether the buffer gets all collectives of this process: it has no process group, or those of gloo."""
    if flight_recorder() is None:
        return False
    if not torch.distributed.is_initialized():
        return True
    return str(torch.distributed.get_backend()) == "gloo"


def _accelerator_in_use() -> bool:
    modules = (getattr(torch, kind, None) for kind in ("cuda", "xpu"))
    return any(module is not None and module.is_initialized() for module in modules)


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
    )


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
