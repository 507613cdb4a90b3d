"""The call trees of a time range, rank by rank, on the same nodes.

In: a timeline, a range, ranks, and what the calls are. Out: nodes, and for each node and rank calls and times, as a
column file. Work and result are bounded: what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.primitives.call_tree import CallTree, call_tree, combined, largest, shared_name
from rankscope.primitives.intervals import Int64
from rankscope.primitives.phases import MODULE_FRAME
from rankscope.show.timeline.column_file import column_file
from rankscope.show.timeline.pyramid import touching
from rankscope.show.timeline.timeline import RankInRun, Timeline
from rankscope.show.timeline.tracks import TABLES

CALLS = {
    "operators": ("thread", ("host_ops", "runtime_calls", "annotations")),
    "frames": ("python", ("python_frames",)),
    "modules": ("python", ("python_frames",)),
}
"""What calls can be: the kind of their tracks and their tables."""

MAX_CALLS = 4_000_000
"""Calls in one response: a few seconds of work. Ranks beyond are left out."""
MAX_NODES = 5_000
MAX_CELLS = 200_000


@dataclass(frozen=True)
class Touching:
    """Events of a rank that touch a range, cut to it, lane by lane.

    Attributes:
        place: their places in the rank's lanes. track: the track of each. start, end: cut to the range, ns.
    """

    place: Int64
    track: Int64
    start: Int64
    end: Int64


def events_in(in_run: RankInRun, from_ns: int, to_ns: int, kind: str | None = None) -> Touching:
    """The events of a rank that touch a range, of tracks of one kind or all, without its summary lane."""
    lanes, events = in_run.lanes, in_run.lanes.events
    wanted = _lanes_of(in_run, kind)
    none = np.empty(0, dtype=np.int64)
    places = [touching(events, lane, from_ns, to_ns) for lane in wanted]
    place = np.concatenate([none, *places])
    track = np.repeat([lanes.lanes[lane].track for lane in wanted], [each.size for each in places]).astype(np.int64)
    return Touching(place, track, np.maximum(events.start[place], from_ns), np.minimum(events.end[place], to_ns))


def _lanes_of(in_run: RankInRun, kind: str | None) -> list[int]:
    """The lanes of tracks of a kind; for None all but the summary lane."""
    kinds = [track.kind for track in in_run.lanes.tracks]
    lanes = enumerate(in_run.lanes.lanes)
    return [number for number, lane in lanes if (kinds[lane.track] == kind if kind else kinds[lane.track] != "rank")]


def counted_in(in_run: RankInRun, from_ns: int, to_ns: int, kind: str | None = None) -> int:
    """How many events `events_in` has at most, from few reads."""
    lanes, events = in_run.lanes, in_run.lanes.events
    wanted = set(_lanes_of(in_run, kind))
    count = 0
    for number, lane in enumerate(lanes.lanes):
        if number in wanted and lane.events and lane.last_ns >= from_ns and lane.first_ns < to_ns:
            start = events.start[int(events.pointer[number]) : int(events.pointer[number + 1])]
            count += int(np.searchsorted(start, to_ns) - np.searchsorted(start, from_ns)) + 1
    return count


def chosen(
    timeline: Timeline, from_ns: int, to_ns: int, ranks: Sequence[int] | None, limit: int, kind: str | None = None
) -> tuple[list[RankInRun], list[int]]:
    """The ranks, as many as have no more than `limit` events in the range together; and the ranks that are left out."""
    kept: list[RankInRun] = []
    left_out: list[int] = []
    wanted = [one for one in timeline.drawn() if ranks is None or one.lanes.rank in set(ranks)]
    total = 0
    for in_run in sorted(wanted, key=lambda one: one.lanes.rank):
        more = counted_in(in_run, from_ns, to_ns, kind)
        if total + more > limit:
            left_out.append(in_run.lanes.rank)
        else:
            total += more
            kept.append(in_run)
    return kept, left_out


def call_trees(
    timeline: Timeline, from_ns: int, to_ns: int, by: str, ranks: Sequence[int] | None = None, limit: int = MAX_CALLS
) -> bytes:  # fmt: skip
    """The call trees of a range, as a column file.

    Args:
        timeline: the run.
        from_ns: first instant, on the run's clock.
        to_ns: the instant after the last.
        by: a key of `CALLS`.
        ranks: which; None for all.
        limit: how many events are read at most.
    """
    kind, tables = CALLS[by]
    in_runs, left_out = chosen(timeline, from_ns, to_ns, ranks, limit, kind)
    found = [_of_rank(one, events_in(one, from_ns, to_ns, kind), tables) for one in in_runs]
    numbers = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(name for _, name in found)]))
    spelled: dict[str, int] = {}
    code = np.full(numbers.size, -1, dtype=np.int64)
    for place, number in enumerate(numbers.tolist()):
        text = timeline.names[number]
        if by != "modules" or text.startswith(MODULE_FRAME):
            code[place] = spelled.setdefault(shared_name(text), len(spelled))
    trees = [_tree(calls, code[np.searchsorted(numbers, name)]) for calls, name in found]
    names = list(spelled)
    meta: dict[str, Any] = {
        "from_ns": from_ns,
        "to_ns": to_ns,
        "by": by,
        "ranks": [one.lanes.rank for one in in_runs],
        "left_out": left_out,
    }
    return _file(trees, names, meta)


def _of_rank(in_run: RankInRun, calls: Touching, tables: Sequence[str]) -> tuple[Touching, Int64]:
    """The calls of these tables, and the run's number of each name."""
    table = in_run.lanes.arrays["table"][calls.place]
    mine = np.isin(table, [TABLES.index(each) for each in tables])
    if not mine.all():
        calls = Touching(calls.place[mine], calls.track[mine], calls.start[mine], calls.end[mine])
    return calls, in_run.names[in_run.lanes.arrays["name"][calls.place]].astype(np.int64)


def _tree(calls: Touching, name: Int64) -> CallTree:
    mine = name >= 0
    return call_tree(calls.track[mine], calls.start[mine], calls.end[mine], name[mine])


def _file(trees: Sequence[CallTree], names: Sequence[str], meta: dict[str, Any]) -> bytes:
    tree, nodes = combined(trees)
    kept = largest(tree.total_ns, min(MAX_NODES, MAX_CELLS // max(len(trees), 1)))
    place = np.full(tree.name.size + 1, -1, dtype=np.int64)
    place[kept] = np.arange(kept.size)
    parts: list[list[npt.NDArray[Any]]] = [[], [], [], [], []]
    for rank, one, node in zip(meta["ranks"], trees, nodes, strict=True):
        own = np.flatnonzero(place[node] >= 0)
        for part, values in zip(
            parts,
            (place[node[own]], np.full(own.size, rank), one.calls[own], one.self_ns[own], one.total_ns[own]),
            strict=True,
        ):
            part.append(values)
    node, rank, calls, self_ns, total_ns = (np.concatenate([np.empty(0, dtype=np.int64), *part]) for part in parts)
    order = np.lexsort((rank, node))
    used = np.unique(tree.name[kept])
    return column_file(
        {
            "node_name": ("u32", np.searchsorted(used, tree.name[kept])),
            "node_parent": ("i32", place[tree.parent[kept]]),
            "cell_node": ("u32", node[order]),
            "cell_rank": ("u32", rank[order]),
            "cell_calls": ("u32", calls[order]),
            "cell_self_ns": ("f64", self_ns[order]),
            "cell_total_ns": ("f64", total_ns[order]),
        },
        {
            **meta,
            "names": [names[number] for number in used.tolist()],
            "nodes": int(tree.name.size),
            "self_ns": int(tree.self_ns.sum()),
            "calls": int(tree.calls.sum()),
        },
    )
