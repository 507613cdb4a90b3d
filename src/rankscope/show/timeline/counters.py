"""A rank's counters over time: memory, and launches queued on the device.

In: a rank, a counter and a window. Out: the curve, downsampled to the screen, as a column file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.engine.pipeline.clock import RankClock
from rankscope.primitives.allocations import TOTALS_COLUMNS, with_totals
from rankscope.primitives.intervals import Int64
from rankscope.show.timeline.column_file import column_file
from rankscope.show.timeline.last_used import LastUsed
from rankscope.store.cache import CachedTrace

POINTS = 2000
# Ranks whose curves are kept in memory: the rows of a screen.
_KEPT = 16


@dataclass(frozen=True)
class Curve:
    """A counter: it has `value[i]` from `at[i]` (ns on the run's clock) on."""

    name: str
    unit: str
    at: Int64
    value: Int64

    @property
    def description(self) -> dict[str, str | int]:
        """Its name, unit and range, for the page."""
        low, high = int(self.value.min(initial=0)), int(self.value.max(initial=0))
        return {"name": self.name, "unit": self.unit, "low": low, "high": high}


class Counters:
    """The counters of a run's ranks; those of the last requested ranks are cached."""

    def __init__(self) -> None:
        self._kept: LastUsed[list[Curve]] = LastUsed(_KEPT)

    def window(
        self, traces: Sequence[CachedTrace], clock: RankClock, from_ns: int, to_ns: int, points: int = POINTS
    ) -> bytes:  # fmt: skip
        """A rank's counters in a window, as a column file; minimum and maximum per bin if there are more than `points`.

        The last sample before the window comes first, for its value holds until the next.
        """
        key = (*(trace.folder for trace in traces), clock)
        curves = self._kept.get(key, lambda: curves_of(traces, clock))
        parts = [_thinned(curve, from_ns, to_ns, points) for curve in curves]
        none = np.empty(0, dtype=np.int64)
        number = np.concatenate([none, *(np.full(part[0].size, i) for i, part in enumerate(parts))])
        at, low, high = (np.concatenate([none, *(part[i] for part in parts)]) for i in range(3))
        columns = {"counter": ("u32", number), "at_ns": ("f64", at), "low": ("f64", low), "high": ("f64", high)}
        return column_file(columns, {"counters": [curve.description for curve in curves]})


def curves_of(traces: Sequence[CachedTrace], clock: RankClock) -> list[Curve]:
    """The counters of a rank.

    Args:
        traces: its files.
        clock: how its times become the run's.
    """
    memory, queue = [], []
    for window, trace in enumerate(traces):
        rows = with_totals(trace.load("memory_events", TOTALS_COLUMNS))
        memory.append(rows.with_columns(pl.Series("time_ns", clock.run_time(window, rows["time_ns"].to_numpy()))))
        device = trace.load("device_events", ["launch_ns", "start_ns"]).drop_nulls()
        queue.append(_queue(*(clock.run_time(window, device[name].to_numpy()) for name in ("launch_ns", "start_ns"))))
    curves = []
    samples = pl.concat(memory)
    for (name,), rows in sorted(samples.group_by("memory", maintain_order=True), key=lambda each: str(each[0])):
        for which in ("allocated", "reserved"):
            known = rows.filter(pl.col(which).is_not_null())
            if known.height:
                time, value = known["time_ns"].to_numpy(), known[which].to_numpy()
                order = np.argsort(time, kind="stable")
                curves.append(Curve(f"memory:{name}:{which}", "bytes", time[order], value[order]))
    at, value = np.concatenate([each[0] for each in queue]), np.concatenate([each[1] for each in queue])
    if at.size:
        curves.append(Curve("queue", "count", at, value))
    return curves


def _queue(launch: Int64, start: Int64) -> tuple[Int64, Int64]:
    """The number of kernels launched but not started: +1 at each launch, −1 at each start."""
    at = np.concatenate([launch, np.maximum(start, launch)])
    change = np.concatenate([np.ones(launch.size, dtype=np.int64), -np.ones(start.size, dtype=np.int64)])
    order = np.lexsort((-change, at))
    at, depth = at[order], np.cumsum(change[order])
    last = np.flatnonzero(np.append(np.diff(at) != 0, True)) if at.size else np.empty(0, dtype=np.int64)
    return at[last], depth[last]


def _thinned(curve: Curve, from_ns: int, to_ns: int, points: int) -> tuple[Int64, Int64, Int64]:
    first = max(int(np.searchsorted(curve.at, from_ns, side="right")) - 1, 0)
    last = int(np.searchsorted(curve.at, to_ns))
    at, value = curve.at[first:last], curve.value[first:last]
    if at.size <= points:
        return at, value, value
    # A bin also holds the value that it began with, or a curve that only falls would not fall in it.
    number = (np.maximum(at, from_ns) - from_ns) * points // max(to_ns - from_ns, 1)
    groups = np.flatnonzero(np.append(True, np.diff(number) != 0))
    low, high = np.minimum.reduceat(value, groups), np.maximum.reduceat(value, groups)
    before = value[np.maximum(groups - 1, 0)]
    return at[groups], np.minimum(low, before), np.maximum(high, before)
