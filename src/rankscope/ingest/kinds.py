"""Which table an event belongs to, by its phase, category and name."""

from __future__ import annotations

import re

# Kineto's category names, lower case; 2020–21 files write `Kernel`, `Memcpy`, `Memset`, `Operator`, `Runtime`.
DEVICE_KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    # What MTIA's engines ran; newer Kineto calls it `kernel`.
    "mtia_ccp_events": "kernel",
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

_TABLE_OF_CATEGORY = {
    **dict.fromkeys(DEVICE_KINDS, "device_events"),
    **dict.fromkeys(RUNTIME_CATEGORIES | DRIVER_CATEGORIES, "runtime_calls"),
    "cpu_op": "host_ops",
    "operator": "operator_2020",
    "python_function": "python_frames",
    "user_annotation": "annotations",
    "gpu_user_annotation": "annotations",
}

# In 2020–21 named ranges share the category of operators.
ANNOTATION_2020 = re.compile(r"ProfilerStep#|enumerate\(Data(Loader|Pipe)\)#|Optimizer\.|DistributedDataParallel\.")
PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
MEMORY_NAME = "[memory]"


def table_of(phase: str | None, category: str | None) -> str:
    """The table for events of a phase and category.

    Two answers are no tables: ``operator_2020`` and ``instant`` want a look at the name.
    """
    if phase == "X":
        return _TABLE_OF_CATEGORY.get((category or "").lower(), "other_events")
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
