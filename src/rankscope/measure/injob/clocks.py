"""What time it is for a step: on the device where the work is asynchronous, on the host where it is not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks that are cheap to set and are read later, all at once."""

    name: str

    def now(self) -> Any:
        """A mark."""

    def read(self, marks: Sequence[Any]) -> list[int]:
        """Nanoseconds of each mark since the first, once all of them have come to pass."""

    def settle(self) -> None:
        """Wait for the device."""


class HostClock:
    """The CPU's work is done when the call returns, and the host's clock is right."""

    name = "host"

    def now(self) -> int:
        """Read ``perf_counter_ns``."""
        return time.perf_counter_ns()

    def read(self, marks: Sequence[Any]) -> list[int]:
        """Differences."""
        return [mark - marks[0] for mark in marks]

    def settle(self) -> None:
        """Nothing to wait for."""


class DeviceClock:
    """Events on the device's current stream: the host runs ahead of the device, and its clock says nothing.

    Args:
        device: ``cuda`` (also ROCm) or ``xpu``.
    """

    def __init__(self, device: torch.device) -> None:
        self._module: Any = getattr(torch, device.type)
        self._device = device
        self.name = f"{device.type} events"

    def now(self) -> Any:
        """Record an event."""
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def read(self, marks: Sequence[Any]) -> list[int]:
        """What the device measured between them, to about half a microsecond."""
        self.settle()
        # From one to the next: a float of milliseconds has too few digits for a long block.
        total, read = 0.0, [0]
        for before, after in pairwise(marks):
            total += before.elapsed_time(after)
            read.append(round(total * 1e6))
        return read

    def settle(self) -> None:
        """Wait for the device."""
        self._module.synchronize(self._device)


def clock_for(device: torch.device) -> Clock:
    """The clock that is right for work on ``device``."""
    module = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(module, "Event") and hasattr(module, "synchronize"):
        return DeviceClock(device)
    return HostClock()


def launch_latencies(device: torch.device, times: int = 200) -> list[int]:
    """Nanoseconds from a kernel's launch to its end with an empty queue, as the host sees it: the launch, the way to
    the device and back. None on the CPU.

    The host's clock is right here: it is synchronised after each.
    """
    if device.type == "cpu":
        return []
    module: Any = getattr(torch, device.type)
    small = torch.zeros(1, device=device)
    found = []
    for _ in range(times):
        module.synchronize(device)
        began = time.perf_counter_ns()
        small.add_(1)
        module.synchronize(device)
        found.append(time.perf_counter_ns() - began)
    return found[times // 4 :]
