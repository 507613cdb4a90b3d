"""Which collectives the job calls while it is recorded: group, type and size, which a trace of gloo or xccl lacks.

Every call from Python passes a method of torch's ``ProcessGroup``, from whatever name of ``torch.distributed`` it was
made. While a window is recorded, and only then, these methods are wrapped: each notes the call and makes it. What DDP's
reducer and compiled code call from within C++ does not come by; DDP's buckets are in :mod:`.parallelism`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from rankscope.capture.inflight import InFlight

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


class CollectiveCalls:
    """The calls of one window.

    Args:
        in_flight: is told of those on the CPU's memory.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._kinds: dict[tuple[object, ...], int] = {}
        self._order: list[int] = []
        self._at: list[int] = []
        self._left_out = 0
        self._replaced: dict[str, Any] = {}
        self._began = 0

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
        for name, original in replaced.items():
            setattr(kind, name, original)

    def describe(self) -> dict[str, object]:
        """``kinds``: each kind of call once; ``order``: one index into them a call, in the order of the calls; ``us``:
        when each was made, µs after ``began_ns`` (wall clock); ``left_out``: how many more there were. Empty where
        there was no call."""
        if not self._order:
            return {}
        names = ("operation", "group", "ranks", "dtype", "elements", "bytes")
        return {
            "began_ns": self._began,
            "kinds": [dict(zip(names, kind, strict=True)) for kind in self._kinds],
            "order": self._order,
            "us": self._at,
            "left_out": self._left_out,
        }

    def _noting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        plain = name.strip("_")

        @functools.wraps(original, assigned=("__name__", "__doc__"), updated=())
        def noted(group: Any, *args: Any, **options: Any) -> Any:
            on_cpu = False
            with suppress(Exception):  # whatever goes wrong here, the call is made
                on_cpu = self._note(plain, group, args, options)
            work = original(group, *args, **options)
            if on_cpu:
                self._in_flight.add(work, plain)
            return work

        return noted

    def _note(self, name: str, group: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Whether its tensors are in the CPU's memory."""
        # A collective that gathers or scatters has the whole on one side: the largest side is its size.
        sides = [_collect(value, [], 3) for value in (*args, *options.values())]
        largest = max(sides, key=lambda side: sum(t.numel() for t in side), default=[])
        on_cpu = bool(largest) and largest[0].device.type == "cpu"
        if len(self._order) >= MAX_CALLS:
            self._left_out += 1
            return on_cpu
        elements = sum(t.numel() for t in largest)
        size = sum(t.numel() * t.element_size() for t in largest)
        dtype = str(largest[0].dtype).removeprefix("torch.") if largest else None
        kind = (name, str(group.group_name), int(group.size()), dtype, elements, size)
        self._order.append(self._kinds.setdefault(kind, len(self._kinds)))
        self._at.append((time.time_ns() - self._began) // 1000)
        return on_cpu


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
