"""Which collectives the job calls while it is recorded: group, type and size, which a trace of gloo or xccl lacks.

Every call from Python passes a method of torch's ``ProcessGroup``, from whatever name of ``torch.distributed`` it was
made. While a window is recorded, and only then, these methods are wrapped: each notes the call and makes it. What DDP's
reducer and compiled code call from within C++ does not come by: it is added from torch's flight recorder where that has
it (:mod:`.flight`).
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

from rankscope.capture.flight_recorder import FlightCall, read_flight
from rankscope.capture.inflight import InFlight
from rankscope.capture.process import process_groups

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
"""Of a window; later ones are counted."""


PYTHON, NATIVE = "python", "c++"


class CallKind(NamedTuple):
    """What calls have in common."""

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
        in_flight: is told of those on the CPU's memory.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._calls: list[tuple[int, CallKind]] = []
        # Thread, beginning and end of each of Python's calls.
        self._ran: deque[list[int]] = deque(maxlen=MAX_CALLS)
        self._left_out = 0
        self._replaced: dict[str, Any] = {}
        self._began = self._ended = 0
        self._flight: str | None = None

    def begin(self) -> None:
        """Note calls from now on."""
        kind = _process_group()
        if kind is None:
            return
        self._began = time.time_ns()
        for name in _METHODS:
            original = kind.__dict__.get(name)
            if original is not None:
                setattr(kind, name, self._noting(name, original))
                self._replaced[name] = original

    def end(self) -> None:
        """Note nothing further; harmless where that was done already."""
        kind, replaced = _process_group(), self._replaced
        self._replaced = {}
        self._ended = self._ended or time.time_ns()
        for name, original in replaced.items():
            setattr(kind, name, original)

    def gather(self) -> None:
        """Add what C++ called, as far as torch remembers it: soon after the end, and off the loop."""
        if not self._began:
            return
        with suppress(Exception):  # torch promises nothing of what it says, and Python's calls are known without it
            flight = read_flight(self._began, self._ended)
            if flight is None:
                return
            self._flight = "whole" if flight.whole else "part"
            sizes = {group.name: len(group.ranks) for group in process_groups()}
            ran = _Ran(list(self._ran))
            for call in flight.calls:
                if call not in ran:
                    size = sizes.get(call.group)
                    kind = CallKind(call.operation, call.group, size, call.dtype, call.elements, call.bytes, NATIVE)
                    self._keep(call.at_ns, kind)
            self._calls.sort(key=lambda noted: noted[0])

    def describe(self) -> dict[str, object]:
        """``kinds``: each kind of call once; ``order``: one index into them a call, in the order of the calls; ``us``:
        when each was made, µs after ``began_ns`` (wall clock); ``left_out``: how many more there were;
        ``flight_recorder``: whether C++'s calls are all there (``whole``), only the latest (``part``), or not known
        (``None``). Empty where there was no call."""
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
            "flight_recorder": self._flight,
        }

    def _noting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        plain = name.strip("_")

        @functools.wraps(original, assigned=("__name__", "__doc__"), updated=())
        def noted(group: Any, *args: Any, **options: Any) -> Any:
            ran, on_cpu = [threading.get_ident(), time.time_ns(), sys.maxsize], False
            with suppress(Exception):  # whatever goes wrong here, the call is made
                self._ran.append(ran)
                kind, on_cpu = _kind(plain, group, args, options)
                self._keep(ran[1], kind)
            try:
                work = original(group, *args, **options)
            finally:
                ran[2] = time.time_ns()
            if on_cpu:
                self._in_flight.add(work, plain)
            return work

        return noted

    def _keep(self, at_ns: int, kind: CallKind) -> None:
        if len(self._calls) >= MAX_CALLS:
            self._left_out += 1
            return
        self._calls.append((at_ns, kind))


class _Ran:
    """When Python's calls ran, by thread: what was called meanwhile is one of them."""

    def __init__(self, calls: list[list[int]]) -> None:
        # Of so many only the latest are here: what came before them may be any one's.
        self._since = calls[0][1] if len(calls) == MAX_CALLS else 0
        began: dict[int, list[int]] = defaultdict(list)
        ended: dict[int, list[int]] = defaultdict(list)
        for thread, begin, end in calls:
            began[thread].append(begin)
            ended[thread].append(end)
        # One call may lie within another.
        self._began, self._reach = began, {thread: list(accumulate(ends, max)) for thread, ends in ended.items()}

    def __contains__(self, call: FlightCall) -> bool:
        before = bisect_right(self._began.get(call.thread, ()), call.at_ns)
        return call.at_ns < self._since or (before > 0 and self._reach[call.thread][before - 1] >= call.at_ns)


def _kind(name: str, group: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[CallKind, bool]:
    """Its kind, and whether its tensors are in the CPU's memory."""
    # A collective that gathers or scatters has the whole on one side: the largest side is its size.
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
    """Torch's class, where the job has a process group at all."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return getattr(torch.distributed, "ProcessGroup", None)
