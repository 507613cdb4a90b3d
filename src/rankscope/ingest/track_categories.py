"""What events without a category are, by the process that they belong to.

Two writers leave the category out: `EventList.export_chrome_trace` of torch's autograd profiler, in which the id of a
process is a text, and torch_npu (`trace_view.json`), which names the processes. `CATEGORIES` has both.

In: the names of a trace's processes, and events. Out: the category of each event, as Kineto or 2020's files have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct, field

from rankscope.ingest.event_types import Event


class _Args(Struct, gc=False):
    """Arguments of torch_npu's events that say what an event is and what launched it."""

    task: str | None = field(name="Task Type", default=None)
    connection: int | None = field(name="connection_id", default=None)


NPU_DEVICE, NPU_DETAIL, NPU_SUMMARY = "Ascend Hardware", "npu_detail", "npu_summary"
NOT_WORK = (NPU_DETAIL, NPU_SUMMARY, "enqueue", "dequeue")
"""Categories of ranges that no table but `other_events` has: waits and parts of collectives on NPUs, sums of the other
ranges, and torch_npu's queue of operators."""

# Of torch's list: its threads are devices.
_DEVICE_FUNCTIONS = tuple(f"{device} functions" for device in ("CUDA", "HIP", "XPU", "NPU", "PrivateUse1"))
# Of torch_npu: the threads are those of collectives, not streams of the device.
_COLLECTIVES = ("Communication", "HCCL")

# By process: what the task type and name of an event begin with, and its category. The first that fits counts.
CATEGORIES: dict[str, tuple[tuple[re.Pattern[str], str], ...]] = {
    # Since 1.8, torch writes device events as if the thread that launched them had run them: only names tell.
    "CPU functions": (
        (re.compile(r" Memcpy "), "gpu_memcpy"),
        (re.compile(r" Memset "), "gpu_memset"),
        (
            re.compile(
                r" (void |nccl\w*Kernel|triton_(poi|red|per|tem|for)_|Cijk_|nvjet_|(ampere|volta|turing|hopper|sm\d+)_"
                r"|cutlass|\w*_kernel\w*[(<])"
            ),
            "kernel",
        ),
        (re.compile(r" (cuda|hip|cu)[A-Z]\w*$"), "runtime"),
        (re.compile(r" (.+\(\d+\): |<built-in |nn\.Module: )"), "python_function"),
        (re.compile(""), "operator"),
    ),
    **dict.fromkeys(_DEVICE_FUNCTIONS, ((re.compile(""), "kernel"),)),
    NPU_DEVICE: (
        (re.compile(r"\w* ?(\w*(WAIT|RECORD|PLACE_?HOLDER|MAINTAIN)|Notify_)"), NPU_DETAIL),
        (re.compile(r"\w* ?\w*(MEMCPY|SDMA)"), "gpu_memcpy"),
        (re.compile(""), "kernel"),
    ),
    # The steps of an algorithm are on threads of their own, besides the collective that they belong to.
    **dict.fromkeys(_COLLECTIVES, ((re.compile(r"\w* hcom"), "kernel"), (re.compile(""), NPU_DETAIL))),
    "CANN": ((re.compile(""), "privateuse1_runtime"),),
    "Overlap Analysis": ((re.compile(""), NPU_SUMMARY),),
}
_TORCH = ("CPU functions", *_DEVICE_FUNCTIONS)


def known_processes(names: Mapping[int, str]) -> dict[int, str]:
    """The processes whose events have a category by `CATEGORIES`.

    Args:
        names: of all processes of a trace.
    """
    # Other names than the device's are ordinary words.
    known = CATEGORIES if NPU_DEVICE in names.values() else _TORCH
    return {pid: name for pid, name in names.items() if name in known}


def categorized(event: Event, process: str) -> Event:
    """An event of a known process with its category, and with the arguments that Kineto gives such an event."""
    try:
        args = msgspec.json.decode(event.args, type=_Args, strict=False)
    except msgspec.DecodeError:
        args = _Args()
    text = f"{args.task or ''} {event.name or ''}"
    event.cat = next(category for pattern, category in CATEGORIES[process] if pattern.match(text))
    added: dict[str, object] = {}
    if process in _DEVICE_FUNCTIONS:
        added["device"] = event.tid
    elif process in _COLLECTIVES and isinstance(event.tid, int):
        added["stream"] = -1 - event.tid  # a stream of the device may have the thread's number
    if args.connection is not None:
        added["correlation"] = args.connection
    if added and event.cat not in NOT_WORK:
        event.args = Raw(msgspec.json.encode(added))
    return event
