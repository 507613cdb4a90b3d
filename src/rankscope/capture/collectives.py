"""The collectives that the job calls in a recorded window: group, type and size, which traces of gloo and xccl lack.

Every call from Python goes through a method of torch's ``ProcessGroup``, whichever function of ``torch.distributed`` is
used. These methods are wrapped while a window is recorded, and only then: each notes the call and makes it. What DDP's
reducer and compiled code call from C++ does not go through them: it is added from torch's flight recorder
(`flight_recorder`), if that has it. It is read after a recording and off the loop.

In: the calls of torch's process groups. Out: a description of each, for the trace's metadata.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from rankscope.capture.dynamo import never_compile
from rankscope.capture.flight_recorder import FlightCall, read_flight_recorder
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
        self._replaced: dict[str, tuple[Any, Any]] = {}
        """By name: torch's method, and the one that replaces it."""
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
                self._replaced[name] = original, self._wrapped(name, original)
                setattr(kind, name, self._replaced[name][1])

    def end(self) -> None:
        """Stop recording calls; harmless if that was done already."""
        replaced, self._replaced = self._replaced, {}
        self._ended = self._ended or time.time_ns()
        for name, (original, recorded) in replaced.items():
            if self._kind.__dict__.get(name) is recorded:  # else the job has replaced it since
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
            if self._ended:
                return original(group, *args, **options)
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

        never_compile(recorded, callees=True)
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
