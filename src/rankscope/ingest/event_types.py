"""The events of a Kineto trace: as msgspec decodes them, their arguments by kind, and the table that each belongs to.

An event is decoded with its arguments left as raw JSON. The arguments of all events of one kind are then decoded
together, into a struct with only the fields of that kind's table. The two passes cost as much as one pass into a struct
of every argument, and arguments that no table has a column for are kept as written.

In: an event's phase and category. Out: its struct and its table.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Raw, Struct, field
from msgspec.json import Decoder

NO_ARGS = Raw(b"{}")
Number = int | str | float | None


class Event(Struct, gc=False):
    """One event, its arguments undecoded. ``ts`` and ``dur`` are microseconds, as written."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: int | float | None = None
    dur: float | None = None
    pid: Number = None
    tid: Number = None
    id: Number = None
    args: Raw = NO_ARGS


class StructEvent(Event, gc=False):
    """An event that does not come from JSON: its arguments are the struct of its category."""

    args: Any = None


class ExactTime(Struct, gc=False):
    """An event's instant as text, for files whose numbers a float64 cannot hold to the nanosecond."""

    ts: Raw = Raw(b"null")
    dur: Raw = Raw(b"null")


class DeviceArgs(Struct, gc=False):
    """Arguments of kernels, copies and fills."""

    external_id: int | None = field(name="External id", default=None)
    external_id_2020: int | None = field(name="external id", default=None)
    correlation: int | None = None
    device: int | None = None
    context: Raw = Raw(b"")
    stream: int | None = None
    sycl_queue: int | None = field(name="sycl queue", default=None)
    queued: int | None = None
    registers: int | None = field(name="registers per thread", default=None)
    shared_memory: int | None = field(name="shared memory", default=None)
    blocks_per_sm: float | None = field(name="blocks per SM", default=None)
    warps_per_sm: float | None = field(name="warps per SM", default=None)
    occupancy: float | None = field(name="est. achieved occupancy %", default=None)
    grid: Raw = Raw(b"")
    block: Raw = Raw(b"")
    bytes: int | None = None
    graph_id: int | None = field(name="graph id", default=None)
    graph_node_id: int | None = field(name="graph node id", default=None)
    collective: str | None = field(name="Collective name", default=None)


class CollectiveArgs(Struct, gc=False):
    """The collective metadata among the arguments of a kernel or of ``record_param_comms``."""

    external_id: int | None = field(name="External id", default=None)
    collective: str | None = field(name="Collective name", default=None)
    dtype: str | None = None
    in_elements: int | None = field(name="In msg nelems", default=None)
    out_elements: int | None = field(name="Out msg nelems", default=None)
    in_split: Raw = field(name="In split size", default=Raw(b""))
    out_split: Raw = field(name="Out split size", default=Raw(b""))
    group_name: str | int | None = field(name="Process Group Name", default=None)
    group_id: str | int | None = field(name="Process Group ID", default=None)
    group_description: str | None = field(name="Process Group Description", default=None)
    group_ranks: Raw = field(name="Process Group Ranks", default=Raw(b""))
    group_size: int | None = field(name="Group size", default=None)
    group_rank: int | None = field(name="Rank", default=None)
    collective_sequence: int | None = field(name="Seq", default=None)
    source_rank: int | None = field(name="Src Rank", default=None)
    destination_rank: int | None = field(name="Dst Rank", default=None)


class OperatorArgs(Struct, gc=False):
    """Arguments of host operators."""

    external_id: int | None = field(name="External id", default=None)
    sequence: int | None = field(name="Sequence number", default=None)
    forward_thread: int | None = field(name="Fwd thread id", default=None)
    record_function_id: int | None = field(name="Record function id", default=None)
    input_dims: Raw = field(name="Input Dims", default=Raw(b""))
    input_types: Raw = field(name="Input type", default=Raw(b""))
    input_strides: Raw = field(name="Input Strides", default=Raw(b""))
    concrete_inputs: Raw = field(name="Concrete Inputs", default=Raw(b""))
    call_stack: str | None = field(name="Call stack", default=None)
    module_hierarchy: str | None = field(name="Module Hierarchy", default=None)
    kernel_name: str | None = None
    kernel_backend: str | None = None
    kernel_file: str | None = None
    kernel_hash: str | None = None
    kernel_kwargs: str | None = None


class RuntimeArgs(Struct, gc=False):
    """Arguments of calls into the device's runtime or driver."""

    external_id: int | None = field(name="External id", default=None)
    external_id_2020: int | None = field(name="external id", default=None)
    correlation: int | None = None
    cbid: int | None = None
    bytes: int | None = None
    size: int | None = None
    stream: int | None = None
    kind: Number = None
    kernel: str | None = None


class FrameArgs(Struct, gc=False):
    """Arguments of Python frames."""

    python_id: int | None = field(name="Python id", default=None)
    python_parent_id: int | None = field(name="Python parent id", default=None)
    python_module_id: int | None = field(name="Python module id", default=None)
    python_thread: int | None = field(name="Python thread", default=None)
    finished: bool | None = None


class AnnotationArgs(Struct, gc=False):
    """Arguments of named ranges."""

    external_id: int | None = field(name="External id", default=None)
    input_dims: Raw = field(name="Input Dims", default=Raw(b""))
    input_types: Raw = field(name="Input type", default=Raw(b""))
    concrete_inputs: Raw = field(name="Concrete Inputs", default=Raw(b""))


class MemoryArgs(Struct, gc=False):
    """Arguments of ``[memory]`` events."""

    address: int | None = field(name="Addr", default=None)
    bytes: int | None = field(name="Bytes", default=None)
    device_type: int | None = field(name="Device Type", default=None)
    device: int | None = field(name="Device Id", default=None)
    total_allocated: int | None = field(name="Total Allocated", default=None)
    total_reserved: int | None = field(name="Total Reserved", default=None)


class TrackArgs(Struct, gc=False):
    """Arguments of metadata events."""

    name: Number = None
    labels: Number = None
    sort_index: Number = None


# Numbers as text (`"ts": "123.4"`) are numbers: not strict.
EVENTS = Decoder(list[Event], strict=False)
EVENT = Decoder(Event, strict=False)
EXACT_TIMES = Decoder(list[ExactTime], strict=False)

# -- the table of an event ----------------------------------------------------------------------------------------

UNITRACE = "gpu_op"
# Kineto's category names, lower case; 2020–21 files write `Kernel`, `Memcpy`, `Memset`, `Operator`, `Runtime`.
DEVICE_KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    # What MTIA's engines ran; newer Kineto calls it `kernel`.
    "mtia_ccp_events": "kernel",
    # What unitrace has of a device; their names distinguish copies and fills.
    UNITRACE: "kernel",
}
RUNTIME_CATEGORIES = {
    "cuda_runtime",
    "hip_runtime",
    "xpu_runtime",
    "mtia_runtime",
    "glow_runtime",
    "privateuse1_runtime",
    "hpu_op",
    "runtime",
}
DRIVER_CATEGORIES = {"cuda_driver", "xpu_driver", "privateuse1_driver", "driver"}

TABLE_OF_CATEGORY = {
    **dict.fromkeys(DEVICE_KINDS, "device_events"),
    **dict.fromkeys(RUNTIME_CATEGORIES | DRIVER_CATEGORIES, "runtime_calls"),
    "cpu_op": "host_ops",
    "operator": "operator_2020",
    "python_function": "python_frames",
    "user_annotation": "annotations",
    "gpu_user_annotation": "annotations",
}

# As 2020–21 files and newer ones write them.
_CAPITALIZED = {
    "kernel": "Kernel",
    "memcpy": "Memcpy",
    "memset": "Memset",
    "operator": "Operator",
    "runtime": "Runtime",
}
_RANGES: dict[str, tuple[type[Struct], ...]] = {
    **dict.fromkeys(DEVICE_KINDS, (DeviceArgs, CollectiveArgs)),
    **dict.fromkeys(RUNTIME_CATEGORIES | DRIVER_CATEGORIES, (RuntimeArgs,)),
    "cpu_op": (OperatorArgs, CollectiveArgs),
    "operator": (OperatorArgs, CollectiveArgs),
    "python_function": (FrameArgs,),
    "user_annotation": (AnnotationArgs,),
    "gpu_user_annotation": (AnnotationArgs,),
}
CATEGORIES: dict[str, tuple[type[Struct], ...] | type[Raw] | None] = {
    **_RANGES,
    **{_CAPITALIZED[category]: kinds for category, kinds in _RANGES.items() if category in _CAPITALIZED},
    **dict.fromkeys(("ac2g", "fwdbwd", "async", "async_gpu", "async_cpu_to_gpu"), None),
    **dict.fromkeys(
        ("cpu_instant_event", "overhead", "cuda_sync", "Trace", "cuda_profiler_range", "xpu_profiler_range"), Raw
    ),
}
"""What determines the arguments of most events: their categories, with the arguments of ranges, `Raw` for those of
instants and other ranges, and None for arrows, whose arguments are not needed."""

# In 2020–21 named ranges share the category of operators.
ANNOTATION_2020 = re.compile(r"ProfilerStep#|enumerate\(Data(Loader|Pipe)\)#|Optimizer\.|DistributedDataParallel\.")
# How torch's Python tracer names a garbage collection (`record_python_gc_info`): a range, no function.
PYTHON_GC = "Python GC"
PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
MEMORY_NAME = "[memory]"
# Arrows from operators to what they launched: the autograd profiler's, torch_npu's, unitrace's. Kineto's `ac2g` begin
# at calls, which correlation ids lead to.
LAUNCH_ARROWS = re.compile(r"cpu_to_\w+|async_npu|Flow_H2D")


def table_of(phase: str | None, category: str | None) -> str:
    """The table for events of a phase and category.

    Two results are not tables: for ``operator_2020`` and ``instant`` the name decides; and also in ``python_frames``.
    """
    if phase == "X":
        return TABLE_OF_CATEGORY.get((category or "").lower(), "other_events")
    if phase in ("s", "t", "f"):
        return "flows"
    if phase == "M":
        return "tracks"
    if phase == "C":
        return "counters"
    if phase in ("i", "I"):
        return "instant"
    if phase in ("B", "E"):
        return "half"
    return "other_events"
