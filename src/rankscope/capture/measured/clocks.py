"""Clocks for timing steps: events on the device if the work is asynchronous, else the host's clock.

In: marks at the ends of steps. Out: durations in ns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch

_LAUNCHES = 200
"""Launches that are timed."""


class Clock(Protocol):
    """Sets marks cheaply, and reads them later, all together."""

    name: str

    def now(self) -> Any:
        """A mark."""

    def read(self, marks: Sequence[Any]) -> list[int]:
        """Nanoseconds of each mark since the first; waits until all have been reached."""

    def settle(self) -> None:
        """Wait for the device."""


class HostClock:
    """The host's clock, for the CPU, whose work is done when a call returns."""

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
    """Events on the device's current stream: the host runs ahead of the device, so its clock would be wrong.

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
        """Differences as the device measured them, to about half a microsecond."""
        self.settle()
        # Add up short differences: a float of milliseconds has too few digits for a long block.
        total, read = 0.0, [0]
        for before, after in pairwise(marks):
            total += before.elapsed_time(after)
            read.append(round(total * 1e6))
        return read

    def settle(self) -> None:
        """Wait for the device."""
        self._module.synchronize(self._device)


def clock_for(device: torch.device) -> Clock:
    """The clock for work on ``device``."""
    module = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(module, "Event") and hasattr(module, "synchronize"):
        return DeviceClock(device)
    return HostClock()


def launch_latencies(device: torch.device) -> list[int]:
    """Nanoseconds from a kernel's launch to its end with an empty queue, as the host sees it: the launch and the round
    trip to the device. Empty on the CPU.

    The host's clock is right here: the device is synchronized after each launch.
    """
    if device.type == "cpu":
        return []
    module: Any = getattr(torch, device.type)
    small = torch.zeros(1, device=device)
    latencies = []
    for _ in range(_LAUNCHES):
        module.synchronize(device)
        began = time.perf_counter_ns()
        small.add_(1)
        module.synchronize(device)
        latencies.append(time.perf_counter_ns() - began)
    return latencies[_LAUNCHES // 4 :]  # without the first, slower ones
