"""A torch profiler that does nothing: what ``take_over`` makes of the script's (`script_profilers`).

In: the calls of a script. Out: empty results.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import EventList

from rankscope.capture.notices import warn


class InertProfile(torch.autograd.profiler.profile):
    """Records nothing, and gives empty results."""

    def __init__(self) -> None:
        super().__init__(enabled=False)
        self.kineto_results = None
        self.trace_id = ""

    def __enter__(self) -> InertProfile:
        return self

    def __exit__(self, *_args: Any) -> None: ...

    @property
    def function_events(self) -> Any:
        """No events."""
        make: Any = EventList
        events = make([])
        events._build_tree()  # without it, torch makes no averages
        return events

    def key_averages(self, *_args: Any, **_options: Any) -> Any:
        """No averages; the analysis of rankscope's trace has them."""
        warn("key_averages() is empty: the script's profiler was taken over; see `rankscope analyze operators`")
        return self.function_events.key_averages()

    def table(self, *_args: Any, **_options: Any) -> str:
        """Empty."""
        return ""

    def total_average(self) -> Any:
        """Of no events."""
        return self.function_events.total_average()

    @property
    def self_cpu_time_total(self) -> int:
        """Of no events."""
        return 0

    def export_chrome_trace(self, path: str, *_args: Any, **_options: Any) -> None:
        """A trace without events: the script may read it."""
        warn(f"{path} has no events: the script's profiler was taken over, and rankscope records instead")
        content = b'{"traceEvents": []}'
        _write(path, gzip.compress(content, mtime=0) if os.fspath(path).endswith(".gz") else content)

    def export_stacks(self, path: str, *_args: Any, **_options: Any) -> None:
        """An empty file."""
        _write(path, b"")

    def toggle_collection_dynamic(self, *_args: Any, **_options: Any) -> None:
        """Nothing: it would switch off what rankscope records."""

    def __repr__(self) -> str:
        return "<torch profiler, taken over by rankscope>"

    __str__ = __repr__


def _write(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        warn(f"{path} could not be written: {error}")
