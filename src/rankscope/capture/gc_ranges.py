"""Ranges around Python's garbage collections while a window is recorded: the profiler itself does not show them.

A collection stops its process: kernels are not launched meanwhile, and the other ranks wait. Young generations are
collected hundreds of times a second in microseconds, and are left out; a range costs some microseconds for each of the
others.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any

import torch

NAME = "gc: generation "
_OLD = 1


class GarbageRanges:
    """Marks collections from `begin` to `end`; both may be called again, and in any thread."""

    def __init__(self) -> None:
        self._range: Any = None

    def begin(self) -> None:
        """Mark what is collected from now on."""
        if self._mark not in gc.callbacks:
            gc.callbacks.append(self._mark)

    def end(self) -> None:
        """Mark nothing further."""
        with suppress(ValueError):
            gc.callbacks.remove(self._mark)

    def _mark(self, phase: str, info: dict[str, int]) -> None:
        # A collection begins and ends in one thread, and there is never more than one.
        with suppress(Exception):
            if phase == "start" and info.get("generation", 0) >= _OLD:
                self._range = torch.profiler.record_function(f"{NAME}{info['generation']}")
                self._range.__enter__()
            elif phase == "stop" and self._range is not None:
                opened, self._range = self._range, None
                opened.__exit__(None, None, None)
