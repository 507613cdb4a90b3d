"""The events with one name as lanes of their own, one per rank: the page shows them as a track.

In: the timeline of a run and a name. Out: a timeline of these lanes, and the place of each of their events in the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.show.timeline.last_used import LastUsed
from rankscope.show.timeline.pyramid import LaneEvents, build, merge_lane
from rankscope.show.timeline.rank_lanes import RankLanes
from rankscope.show.timeline.timeline import RankInRun, Timeline
from rankscope.store.sidecar import Sidecar

Array = npt.NDArray[Any]
_KEPT = 16


@dataclass(frozen=True)
class NamedLanes:
    """The events with one name.

    Attributes:
        timeline: a lane per rank, in which events may overlap, as in a summary lane.
        places: of each rank, where its events are in the arrays of the run's lanes of that rank.
    """

    timeline: Timeline
    places: Mapping[int, Array]

    def lanes(self, ranks: Sequence[int]) -> list[int]:
        """The lanes of ranks, ascending.

        Raises:
            KeyError: the run has no such rank, or it is not drawn yet.
        """
        return [self.timeline.ranks[rank].first_lane for rank in ranks]


@dataclass
class NameTracks:
    """The tracks of names that a page shows; the last few are kept."""

    timeline: Timeline
    _kept: LastUsed[NamedLanes] = field(default_factory=lambda: LastUsed(_KEPT))

    def of(self, name: int) -> NamedLanes:
        """The events with a name, by its number in the run."""
        key = (name, self.timeline.version)
        return self._kept.get(key, lambda: _named_lanes(self.timeline, name))

    def place(self, name: int, rank: int, row: int) -> tuple[int, int] | None:
        """The lane and row in the run of an event on a rank's lane of a name; None if there is no such event."""
        in_run = self.timeline.ranks.get(rank)
        places = self.of(name).places.get(rank)
        if in_run is None or places is None or not 0 <= row < places.size:
            return None
        place, pointer = int(places[row]), in_run.lanes.events.pointer
        lane = int(np.searchsorted(pointer, place, side="right")) - 1
        return in_run.first_lane + lane, place - int(pointer[lane])


def _named_lanes(timeline: Timeline, name: int) -> NamedLanes:
    named = timeline.emptied()
    places = {}
    for in_run in sorted(timeline.drawn(), key=lambda each: each.lanes.rank):
        rank = in_run.lanes.rank
        places[rank] = _places(in_run, name)
        named.add(RankLanes(rank, _drawn(in_run, places[rank], timeline.names[name], timeline.levels)))
    return NamedLanes(named, places)


def _places(in_run: RankInRun, name: int) -> Array:
    """The rank's events with the name by start, then end, without those of the summary lane, which repeats others."""
    local = np.flatnonzero(in_run.names == name)
    if not local.size:
        return np.empty(0, dtype=np.int64)
    events = in_run.lanes.events
    first = int(events.pointer[1])
    places = first + np.flatnonzero(in_run.lanes.arrays["name"][first:] == local[0])
    order: Array = places[np.lexsort((events.end[places], events.start[places]))]
    return order


def _drawn(in_run: RankInRun, places: Array, name: str, levels: int) -> Sidecar:
    """The events at some places as the only lane of a rank."""
    own = in_run.lanes.events
    start, end, category = own.start[places], own.end[places], own.category[places]
    pointer = np.array([0, places.size], dtype=np.int64)
    merged = merge_lane(start, end, category)
    text = name.encode()
    zero = np.zeros(1, dtype=np.int32)
    arrays = {
        "pointer": pointer,
        "lane_track": zero,
        "lane_depth": zero,
        "lane_overflow": zero.astype(np.uint8),
        "lane_first": start[:1] if start.size else zero.astype(np.int64),
        "lane_last": end.max(keepdims=True) if end.size else zero.astype(np.int64),
        "start": start,
        "end": end,
        "category": category,
        "name": np.zeros(places.size, dtype=np.uint32),
        "merged_start": merged[0],
        "merged_end": merged[1],
        "merged_category": merged[2],
        "name_text": np.frombuffer(text, dtype=np.uint8),
        "name_ends": np.array([len(text)], dtype=np.int64),
        **build(LaneEvents(pointer, start, end, category, merged), levels),
    }
    return Sidecar("", {"tracks": [["rank", name, False]], "steps": [], "counters": []}, arrays)
