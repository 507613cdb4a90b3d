"""Statistics of a time range.

In: a timeline, a range and ranks. Out: time per rank and category, and the top names by self time, as a column file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.primitives.call_tree import STEP
from rankscope.primitives.intervals import IntervalSet
from rankscope.primitives.nesting import nest
from rankscope.show.timeline.call_trees import chosen, events_in
from rankscope.show.timeline.categories import ANNOTATION, OTHER
from rankscope.show.timeline.column_file import column_file
from rankscope.show.timeline.timeline import Timeline

TOP = 40
MAX_EVENTS = 8_000_000
"""Events in one response: some seconds of work. Ranks beyond are left out."""


def measure(
    timeline: Timeline, from_ns: int, to_ns: int, ranks: Sequence[int] | None = None, limit: int = MAX_EVENTS
) -> bytes:
    """The statistics of a range, as a column file.

    Per rank and category the union over the rank's lanes, cut at the window, and the count of events that touch it.
    Self times are those of `nest`, track by track: time without the events of the same track directly inside. The
    rank's summary lane is left out: it repeats others. The top names are without what encloses everything: steps, and
    the ranges that the profiler draws around a stream's kernels, on a track without them.

    Args:
        timeline: the run.
        from_ns: first instant, on the run's clock.
        to_ns: the instant after the last.
        ranks: which; None for all.
        limit: how many events are read at most.
    """
    rows: list[tuple[int, int, int, int]] = []
    names, kinds, counts, times, owns = [], [], [], [], []
    in_runs, left_out = chosen(timeline, from_ns, to_ns, ranks, limit)
    for in_run in in_runs:
        found = events_in(in_run, from_ns, to_ns)
        place, start, end = found.place, found.start, found.end
        if not place.size:
            continue
        own = nest(found.track.astype(np.int32), start, end).self_ns
        category = in_run.lanes.events.category[place]
        for which in np.unique(category):
            mine = category == which
            length = IntervalSet.of(start[mine], end[mine]).length
            rows.append((in_run.lanes.rank, int(which), length, int(mine.sum())))
        name = in_run.names[in_run.lanes.arrays["name"][place]].astype(np.int64)
        inside = ~np.isin(
            found.track, [number for number, track in enumerate(in_run.lanes.tracks) if track.kind == "annotation"]
        )
        name, start, end, own = (each[inside] for each in (name, start, end, own))
        category = category[inside]
        key, first, group = np.unique(name << 8 | category, return_index=True, return_inverse=True)
        names.append(key >> 8)
        kinds.append(category[first])
        counts.append(np.bincount(group.reshape(-1), minlength=key.size))
        times.append(np.bincount(group.reshape(-1), weights=end - start, minlength=key.size).astype(np.int64))
        owns.append(np.bincount(group.reshape(-1), weights=own, minlength=key.size).astype(np.int64))
    rows.sort()
    busy = np.array(rows, dtype=np.int64).reshape(-1, 4)
    none = np.empty(0, dtype=np.int64)
    name, kind, count, time, own = (np.concatenate([none, *each]) for each in (names, kinds, counts, times, owns))
    # Steps and the profiler's marks of its own recording enclose everything.
    job = kind != OTHER
    marked = np.unique(name[kind == ANNOTATION])
    job &= ~np.isin(name, [number for number in marked.tolist() if STEP.match(timeline.names[number])])
    name, kind, count, time, own = name[job], kind[job], count[job], time[job], own[job]
    key, group = np.unique(name << 8 | kind, return_inverse=True)
    group = group.reshape(-1)
    total = np.bincount(group, weights=time, minlength=key.size)
    number = np.bincount(group, weights=count, minlength=key.size)
    mine = np.bincount(group, weights=own, minlength=key.size)
    best = np.lexsort((key, -total, -mine))[:TOP]
    return column_file(
        {
            "busy_rank": ("u32", busy[:, 0]),
            "busy_category": ("u8", busy[:, 1]),
            "busy_ns": ("f64", busy[:, 2]),
            "busy_count": ("u32", busy[:, 3]),
            "top_name": ("u32", key[best] >> 8),
            "top_category": ("u8", key[best] & 255),
            "top_count": ("u32", number[best]),
            "top_self_ns": ("f64", mine[best]),
            "top_ns": ("f64", total[best]),
        },
        {"from_ns": from_ns, "to_ns": to_ns, "left_out": left_out},
    )
