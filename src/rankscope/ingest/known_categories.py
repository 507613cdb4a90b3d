"""The categories of ranges that rankscope knows, and how many ranges of a trace have none of them.

Traces of other tools (JAX, rocprof, Horovod) have the same form, and other categories or none. As none of their ranges
is in a table that analyses read, a part of a trace would look idle, and all of it empty.

In: a trace's events by phase and category. Out: its ranges, and those of unknown categories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rankscope.ingest.event_types import TABLE_OF_CATEGORY
from rankscope.ingest.track_categories import NOT_WORK
from rankscope.rundir.plurals import counted

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
