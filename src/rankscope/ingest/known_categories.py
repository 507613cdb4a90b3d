"""The categories of ranges that rankscope knows, and how many ranges of a trace have none of them.

Traces of other tools (JAX, rocprof, Horovod) have the same form, and other categories or none. As none of their ranges
is in a table that analyses read, a part of a trace would look idle, and all of it empty.

In: a trace's events by phase and category. Out: its ranges of unknown categories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

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
_NOTEWORTHY = 0.01
"""Of the timed events."""


@dataclass(frozen=True)
class UnknownRanges:
    """The timed events of a trace, and those of them that have no known category.

    Attributes:
        timed: all of its timed events.
        unknown: those without a known category, by category; the key of those without any is None.
    """

    timed: int
    unknown: Counter[str | None]

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> UnknownRanges:
        """Those of a trace.

        Args:
            counts: its events by `phase category` (`TraceInfo.counts`).
        """
        timed, unknown = 0, Counter[str | None]()
        for kind, number in counts.items():
            phase, _, category = kind.partition(" ")
            if phase in _RANGES:
                timed += number
                if category.lower() not in _KNOWN:
                    unknown[None if category in ("", "None") else category] += number
        return cls(timed, unknown)

    @property
    def total(self) -> int:
        """How many have no known category."""
        return self.unknown.total()

    @property
    def share(self) -> float:
        """The part of the timed events that they are; 0 without any."""
        return self.total / max(self.timed, 1)

    @property
    def is_noteworthy(self) -> bool:
        """Whether they are enough to change figures."""
        return self.share >= _NOTEWORTHY

    @property
    def named(self) -> str:
        """The most frequent categories, with their numbers."""
        names = [
            f"{number:,} {'without a category' if category is None else repr(category[:40])}"
            for category, number in self.unknown.most_common(_NAMED)
        ]
        more = len(self.unknown) - _NAMED
        return ", ".join(names) + (f" and {counted(more, 'other category', 'other categories')}" if more > 0 else "")
