"""Which categories rankscope knows, and what events without one are, by the process that they belong to.

Two writers leave the category out: `EventList.export_chrome_trace` of torch's autograd profiler, in which the id of a
process is a text, and torch_npu (`trace_view.json`), which names the processes. `CATEGORIES` has both.

Traces of other tools (JAX, rocprof, Horovod) have the same form, and other categories or none. As none of their ranges
is in a table that analyses read, a part of a trace would look idle, and all of it empty: these are counted.

In: the names of a trace's processes, and events; or its events by phase and category. Out: the category of each event,
as Kineto or 2020's files have it; or how many events have a time, and how many of these have an unknown category.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct, field

from rankscope.ingest.event_types import TABLE_OF_CATEGORY, Event
from rankscope.rundir.plurals import counted


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


# -- known and unknown categories ---------------------------------------------------------------------------------

READ = "the traces of torch.profiler, and the formats of other tools that docs/formats.md lists"
"""What rankscope reads."""

_OF_TORCH = """trace overhead cpu_instant_event external_correlation cuda_sync cuda_event cuda_profiler_range
xpu_profiler_range xpu_scope_profiler collective_comm mtia_insight mtia_counters mtia_workloadd ac2g fwdbwd async
async_gpu async_cpu async_cpu_to_gpu"""
_KNOWN = {*TABLE_OF_CATEGORY, *_OF_TORCH.split(), *NOT_WORK}
# Complete, begun, and begun on several threads.
_RANGES = ("X", "B", "b")
_NAMED = 4
Counts = Mapping[tuple[str | None, str | None], int]


def timed(counts: Counts) -> int:
    """How many timed events a trace has, of its events by phase and category."""
    return sum(number for (phase, _), number in counts.items() if phase in _RANGES)


def unknown_categories(counts: Counts) -> dict[str, int]:
    """The timed events without a known category, by category, of a trace's events by phase and category."""
    unknown = Counter[str]()
    for (phase, category), number in counts.items():
        if phase in _RANGES and (category or "").lower() not in _KNOWN:
            unknown[category or ""] += number
    return dict(unknown)


def named(unknown: Mapping[str, int]) -> str:
    """The most frequent of unknown categories, with their numbers."""
    names = [
        f"{number:,} {repr(category[:40]) if category else 'without a category'}"
        for category, number in Counter(unknown).most_common(_NAMED)
    ]
    more = len(unknown) - _NAMED
    return ", ".join(names) + (f" and {counted(more, 'other category', 'other categories')}" if more > 0 else "")
