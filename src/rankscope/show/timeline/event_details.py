"""Details of one event: its arguments, what launched it, its collective on other ranks, other events with its name.

In: a lane and a row. Out: JSON values, as `api/event` sends them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl

from rankscope.show.timeline.categories import CATEGORIES
from rankscope.show.timeline.event_links import LAUNCHING, forward_and_backward, launched
from rankscope.show.timeline.timeline import RankInRun, Timeline
from rankscope.show.timeline.tracks import TABLES
from rankscope.store.cache import CachedTrace

# Shown separately, or not useful to a reader.
_OWN = {
    "start_ns", "end_ns", "name", "launch_row", "op_row", "launch_ns", "parent_row", "depth", "self_ns",
    "is_collective",
}  # fmt: skip
SHAPES = ("input_dims", "input_types", "input_strides", "concrete_inputs")
# Tables whose events may have rows in `collectives`.
RECORDED = ("device_events", "host_ops")
# Tables of the host: Python frames of the same thread can enclose their events.
FRAMED = ("host_ops", "runtime_calls", "annotations", "python_frames")
_MAX_TEXT = 20_000
_MAX_STEPS = 2_000


def details(
    timeline: Timeline, lane: int, row: int, collectives: pl.DataFrame | None = None
) -> dict[str, Any] | None:  # fmt: skip
    """An event as JSON values; None if there is no such event.

    Args:
        timeline: the run.
        lane: the run's number of the lane.
        row: the event's number in that.
        collectives: the analysis's result, if it is there already.
    """
    try:
        in_run, own = timeline.place(lane)
    except KeyError:
        return None
    events, arrays = in_run.lanes.events, in_run.lanes.arrays
    at = int(events.pointer[own]) + row
    if not 0 <= row < int(events.pointer[own + 1] - events.pointer[own]):
        return None
    rank = in_run.lanes.rank
    table = TABLES[int(arrays["table"][at])]
    trace = timeline.traces[rank][int(arrays["window"][at])]
    source_row = int(arrays["row"][at])
    values = _row(trace, table, source_row)
    start, end = int(events.start[at]), int(events.end[at])
    name = timeline.names[int(in_run.names[arrays["name"][at]])]
    window = int(arrays["window"][at])
    launch, operator = _origin(timeline, in_run, window, table, source_row, values)
    return {
        "lane": lane,
        "row": row,
        "rank": rank,
        "name": name,
        "category": CATEGORIES[int(events.category[at])][0],
        "start_ns": start,
        "end_ns": end,
        "step": _step_at(in_run, start),
        "args": _arguments(trace, table, source_row, values),
        "shapes": _shapes(values, trace, operator, in_run),
        "stack": stack_of(values) or _python_stack(trace, table, values),
        "launch": launch,
        "operator": operator,
        **_links(timeline, in_run, window, trace, table, values),
        "collective": _collective(timeline, rank, window, values, collectives),
        "statistics": _statistics(timeline, int(in_run.names[arrays["name"][at]])),
    }


def _row(trace: CachedTrace, table: str, row: int) -> dict[str, Any]:
    found = trace.scan(table).slice(row, 1).collect()
    return as_written(found.row(0, named=True), found.schema) if found.height else {}


def as_written(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its floats as written in the trace: 0.06 instead of float32's 0.05999999865889549."""
    short = [name for name, dtype in schema.items() if dtype == pl.Float32 and values.get(name) is not None]
    return {**values, **{name: float(str(np.float32(values[name]))) for name in short}}


def _arguments(trace: CachedTrace, table: str, row: int, values: Mapping[str, Any]) -> dict[str, Any]:
    if table not in RECORDED:
        return arguments_of(values)
    recorded = trace.load("collectives").filter((pl.col("source") == table) & (pl.col("row") == row))
    return arguments_of(values, recorded.iter_rows(named=True))


def arguments_of(values: Mapping[str, Any], recorded: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The arguments in a table's row, as text and numbers that JavaScript represents exactly.

    Args:
        values: the row.
        recorded: the rows of the table `collectives` that are of this event.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in _OWN or name in SHAPES or name in ("call_stack", "args") or value is None:
            continue
        found[name] = value if isinstance(value, bool | int | float) else cut(str(value))
    text = values.get("args")
    if isinstance(text, str):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            parsed = text
        for name, value in parsed.items() if isinstance(parsed, dict) else [("args", parsed)]:
            found[str(name)] = value if isinstance(value, int | float) else cut(json.dumps(value, ensure_ascii=False))
    for each in recorded:
        found |= {
            name: value if isinstance(value, int | float) else cut(str(value))
            for name, value in each.items()
            if name not in ("source", "row", "external_id") and value is not None
        }
    # JavaScript's numbers end at 2**53: beyond, the digits are the point.
    return {
        name: str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1 << 53 else
        (value if not isinstance(value, float) or np.isfinite(value) else str(value))
        for name, value in found.items()
    }  # fmt: skip


def cut(text: str) -> str:
    """A text, shortened to a limit."""
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"


def _shapes(
    values: Mapping[str, Any], trace: CachedTrace, operator: Mapping[str, Any] | None, in_run: RankInRun
) -> str | None:  # fmt: skip
    """Shapes and types of the inputs: its own, else those of the operator that launched it."""
    source = values
    if not has_shapes(values) and operator is not None:
        at = int(in_run.lanes.events.pointer[operator["lane"] - in_run.first_lane]) + operator["row"]
        if TABLES[int(in_run.lanes.arrays["table"][at])] == "host_ops":
            source = _row(trace, "host_ops", int(in_run.lanes.arrays["row"][at]))
    return shapes_of(source)


def has_shapes(values: Mapping[str, Any]) -> bool:
    """Whether a row has shapes or types of inputs."""
    return any(values.get(name) for name in SHAPES)


def shapes_of(values: Mapping[str, Any]) -> str | None:
    """Shapes and types of the inputs in a row."""
    lines = [f"{name.replace('_', ' ')}: {values[name]}" for name in SHAPES if values.get(name)]
    return cut("\n".join(lines)) if lines else None


def stack_of(values: Mapping[str, Any]) -> list[str]:
    """The stack in a row, innermost first."""
    text = values.get("call_stack")
    return [cut(line) for line in text.split(";")] if isinstance(text, str) and text else []


def _python_stack(trace: CachedTrace, table: str, values: Mapping[str, Any]) -> list[str]:
    """The Python frames around an event of the host, innermost first."""
    if table not in FRAMED or "tid" not in values:
        return []
    same = pl.all_horizontal(pl.col(name).eq_missing(values[name]) for name in ("pid", "tid"))
    around = (pl.col("start_ns") <= values["start_ns"]) & (pl.col("end_ns") >= values["end_ns"])
    frames = trace.scan("python_frames").select("start_ns", "end_ns", "name", "pid", "tid").filter(same & around)
    found = frames.sort("start_ns", -pl.col("end_ns"), descending=True).collect()
    return [cut(name) for name in found["name"].fill_null("").to_list()]


def _origin(
    timeline: Timeline, in_run: RankInRun, window: int, table: str, row: int, values: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The runtime call that launched a device event, and the operator it belongs to; of a host event its parent."""
    if table == "device_events":
        launch = _find(timeline, in_run, window, "runtime_calls", values.get("launch_row"))
        operator = _find(timeline, in_run, window, "host_ops", values.get("op_row"))
        return launch, operator or _around(timeline, in_run, launch)
    if table == "runtime_calls":
        return None, _around(timeline, in_run, _find(timeline, in_run, window, table, row))
    return None, _find(timeline, in_run, window, table, values.get("parent_row")) if table == "host_ops" else None


def _links(
    timeline: Timeline, in_run: RankInRun, window: int, trace: CachedTrace, table: str, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The forward operator, the backward, and the kernels of an event of the host."""
    rows = forward_and_backward(trace, values) if table == "host_ops" else (None, None)
    forward, backward = (_find(timeline, in_run, window, "host_ops", row) for row in rows)
    found = launched(trace, values) if table in LAUNCHING and not values.get("on_device") else None
    kernels = None
    if found is not None:
        count, total, first = found
        places = [_find(timeline, in_run, window, "device_events", row) for row in first]
        kernels = {"count": count, "total_ns": total, "first": [place for place in places if place is not None]}
    return {"forward": forward, "backward": backward, "kernels": kernels}


def _find(
    timeline: Timeline, in_run: RankInRun, window: int, table: str, row: int | None
) -> dict[str, Any] | None:  # fmt: skip
    """The lane and row of a table's event, by its row in the table."""
    if row is None:
        return None
    arrays = in_run.lanes.arrays
    first = int(in_run.lanes.events.pointer[1])
    mine = (arrays["row"][first:] == row) & (arrays["table"][first:] == TABLES.index(table))
    found = np.flatnonzero(mine & (arrays["window"][first:] == window))
    return _place(timeline, in_run, first + int(found[0])) if found.size else None


def _around(timeline: Timeline, in_run: RankInRun, inner: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The innermost operator around an event of a thread: in the lanes above its own."""
    if inner is None:
        return None
    events, arrays, lanes = in_run.lanes.events, in_run.lanes.arrays, in_run.lanes.lanes
    own = inner["lane"] - in_run.first_lane
    for lane in range(own - 1, 0, -1):
        if lanes[lane].track != lanes[own].track:
            break
        first, last = int(events.pointer[lane]), int(events.pointer[lane + 1])
        at = first + int(np.searchsorted(events.start[first:last], inner["start_ns"], side="right")) - 1
        if at >= first and events.end[at] >= inner["end_ns"] and arrays["table"][at] == TABLES.index("host_ops"):
            return _place(timeline, in_run, at)
    return None


def _place(timeline: Timeline, in_run: RankInRun, at: int) -> dict[str, Any]:
    events = in_run.lanes.events
    lane = int(np.searchsorted(events.pointer, at, side="right")) - 1
    return {
        "lane": in_run.first_lane + lane,
        "row": at - int(events.pointer[lane]),
        "name": timeline.names[int(in_run.names[in_run.lanes.arrays["name"][at]])],
        "start_ns": int(events.start[at]),
        "end_ns": int(events.end[at]),
    }


def _collective(
    timeline: Timeline, rank: int, window: int, values: Mapping[str, Any], collectives: pl.DataFrame | None
) -> dict[str, Any] | None:
    """The same collective on every rank, as the analysis `collectives` has matched it."""
    if collectives is None or collectives.is_empty() or "start_ns" not in values:
        return None
    same = (pl.col("rank") == rank) & (pl.col("window") == window) & (pl.col("name") == (values.get("name") or ""))
    times = (pl.col("start_ns") == values["start_ns"]) & (pl.col("end_ns") == values["end_ns"])
    found = collectives.filter(same & times)
    if found.is_empty():
        return None
    mine = found.row(0, named=True)
    members = found.head(1) if mine["match"] is None else collectives.filter(pl.col("match") == mine["match"])
    listed = []
    for each in members.sort("rank").iter_rows(named=True):
        in_run = timeline.ranks.get(each["rank"])
        if in_run is None:
            continue
        clock = timeline.clock.ranks[each["rank"]]
        start, end = (int(clock.run_time(each["window"], np.array([each[n]]))[0]) for n in ("start_ns", "end_ns"))
        events = in_run.lanes.events
        first = int(events.pointer[1])
        at = np.flatnonzero((events.start[first:] == start) & (events.end[first:] == end))
        wanted = [
            int(one) + first
            for one in at
            if timeline.names[int(in_run.names[in_run.lanes.arrays["name"][first + one]])] == each["name"]
        ]
        if wanted:
            where = _place(timeline, in_run, wanted[0])
            listed.append(
                {
                    "rank": each["rank"],
                    "lane": where["lane"],
                    "row": where["row"],
                    "start_ns": start,
                    "end_ns": end,
                    "wait_ns": each["wait_ns"],
                }
            )
    return {
        "name": mine["collective"],
        "group": mine["group"],
        "sequence": _number(mine, members, collectives),
        "bytes": mine["bytes"],
        "members": listed,
    }


def _number(mine: Mapping[str, Any], members: pl.DataFrame, collectives: pl.DataFrame) -> int | None:
    """Its sequence number in its group, if all ranks agree: unmatched, each rank counts from its own first."""
    alone = mine["match"] is None and collectives["rank"].n_unique() > 1
    return None if alone or members["sequence"].n_unique() > 1 else mine["sequence"]


def _step_at(in_run: RankInRun, start: int) -> int | None:
    for number, first, last in in_run.lanes.steps:
        if first <= start < last:
            return number
    return None


def _statistics(timeline: Timeline, name: int) -> dict[str, Any]:
    """Statistics of all events with a name, by rank and step; the summary lane repeats others and is left out."""
    ranks: list[dict[str, Any]] = []
    by_step: dict[int | None, list[int]] = {}
    everything = []
    for in_run in timeline.drawn():
        local = np.flatnonzero(in_run.names == name)
        if not local.size:
            continue
        events, arrays = in_run.lanes.events, in_run.lanes.arrays
        first = int(events.pointer[1])
        at = first + np.flatnonzero(arrays["name"][first:] == local[0])
        if not at.size:
            continue
        start, length = events.start[at], events.end[at] - events.start[at]
        ranks.append({"rank": in_run.lanes.rank, "count": int(at.size), "total_ns": int(length.sum())})
        everything.append(length)
        left = np.ones(at.size, dtype=np.bool_)
        for number, low, high in in_run.lanes.steps:
            inside = left & (start >= low) & (start < high)
            left &= ~inside
            total = by_step.setdefault(number, [0, 0])
            total[0] += int(inside.sum())
            total[1] += int(length[inside].sum())
        total = by_step.setdefault(None, [0, 0])
        total[0] += int(left.sum())
        total[1] += int(length[left].sum())
    lengths = np.concatenate(everything) if everything else np.zeros(1, dtype=np.int64)
    numbered = sorted(by_step.items(), key=lambda each: (each[0] is None, each[0] or 0))
    steps = [
        {"step": number, "count": count, "total_ns": total} for number, (count, total) in numbered if count
    ]  # fmt: skip
    return {
        "count": int(lengths.size) if everything else 0,
        "total_ns": int(lengths.sum()),
        "mean_ns": float(lengths.mean()),
        "min_ns": int(lengths.min()),
        "max_ns": int(lengths.max()),
        "steps": steps[:_MAX_STEPS],
        "ranks": sorted(ranks, key=lambda each: each["rank"]),
    }
