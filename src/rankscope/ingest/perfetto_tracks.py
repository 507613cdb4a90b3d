"""The tracks of a Perfetto trace, and the categories of events that were written without one.

In: a track, and an event's name and arguments. Out: its category in Kineto's terms.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_DRIVER_CALL = re.compile(r"cu[A-Z]")
_STREAM = re.compile(r"stream \d+")
_OPERATOR = re.compile(r"Backward\d*$|^record_param_comms$")
_OPERATOR_KEYS = {"Sequence number", "Fwd thread id", "kernel_backend"}
_RANGE_KEYS = {"External id", "Record function id", "Ev Idx"}
_OVERHEAD_PID = -1


@dataclass
class TrackInfo:
    """What a track is, as far as its descriptor says."""

    name: str = ""
    parent: int = 0
    pid: int | None = None
    tid: int | None = None
    is_process: bool = False
    labels: tuple[str, ...] = ()
    sort_index: int | None = None


def category_of(name: str, args: Collection[str], track: TrackInfo | None) -> str | None:
    """The category of an event that has none, by what Kineto's categories have; PyTorch's export writes none."""
    if "cuda_sync_kind" in args:
        return "cuda_sync"
    if "cbid" in args or "cid" in args or ("correlation" in args and "stream" not in args):
        return "cuda_driver" if _DRIVER_CALL.match(name) else "cuda_runtime"
    if "correlation" in args and "stream" in args:
        if "copy kind" in args or name.startswith("Memcpy"):
            return "gpu_memcpy"
        return "gpu_memset" if "memory kind" in args or name.startswith("Memset") else "kernel"
    if "Python id" in args:
        return "python_function"
    if "Total Allocated" in args:
        return "cpu_instant_event"
    if track is not None and track.pid == _OVERHEAD_PID:
        return "overhead"
    if "External id" in args and track is not None and _STREAM.match(track.name):
        return "gpu_user_annotation"
    if _RANGE_KEYS.isdisjoint(args):
        return None
    is_operator = "::" in name or not _OPERATOR_KEYS.isdisjoint(args) or _OPERATOR.search(name) is not None
    return "cpu_op" if is_operator else "user_annotation"
