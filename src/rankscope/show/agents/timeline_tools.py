"""Tools about a place in the timeline: events, one event, statistics of a range, a picture.

In: runs and arguments. Out: answers, from the functions that answer the page's requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rankscope.errors import ConfigError
from rankscope.show.agents.answers import Answer, Rows
from rankscope.show.agents.arguments import Argument
from rankscope.show.agents.places import ARGUMENTS, Place, place_of
from rankscope.show.agents.runs import AgentRuns, OpenRun
from rankscope.show.agents.tool import LIMIT, OFFSET, RUN, Tool, column
from rankscope.show.report.timeline_picture import timeline_picture
from rankscope.show.timeline.categories import CATEGORIES
from rankscope.show.timeline.column_file import read_column_file
from rankscope.show.timeline.event_details import details
from rankscope.show.timeline.search import InvalidPatternError, Query
from rankscope.show.timeline.selection_stats import measure

MAX_EVENTS = 500_000
"""Events of a window that are looked at, as on the page."""
CLOCK_NOTE = (
    "All times are ns on the run's one clock, which starts at its earliest event; clocks of ranks agree to within "
    "residual_ns."
)
_NAMES = [name for name, _ in CATEGORIES]
_COLUMNS = (
    column("rank", "", "the rank"),
    column("track", "", "stream, thread or range of the rank"),
    column("name", "", "the event's name, as recorded"),
    column("category", "", f"one of {', '.join(_NAMES)}"),
    column("start_ns", "ns", "when it starts, on the run's clock"),
    column("duration_ns", "ns", "how long it lasts"),
    column("lane", "", "with row: the event's identity, for the tool event"),
    column("row", "", "its number within the lane"),
)


def _events(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    opened = runs.get(given["run"])
    place = place_of(opened, given)
    timeline = opened.timeline
    # The first lane of a rank summarizes the others.
    lanes = [
        in_run.first_lane + lane
        for in_run in timeline.drawn()
        if in_run.lanes.rank in place.ranks
        for lane in range(1, len(in_run.lanes.lanes))
    ]
    head, found = read_column_file(timeline.events(lanes, place.from_ns, place.to_ns, MAX_EVENTS))
    kept = found["end_ns"] - found["start_ns"] >= given["at_least_ns"]
    if given["category"] is not None:
        kept &= found["category"] == _NAMES.index(given["category"])
    if given["match"] is not None:
        try:
            matching = Query(given["match"], "regex" if given["regex"] else "text").matching(list(timeline.names))
        except InvalidPatternError:
            raise ConfigError(
                "match is not a valid regular expression", hint="one without backreferences and look-around"
            ) from None
        kept &= matching[found["name"]]
    chosen = np.flatnonzero(kept)
    length = (found["end_ns"] - found["start_ns"])[chosen]
    order = np.argsort(-length if given["longest_first"] else found["start_ns"][chosen], kind="stable")
    shown = chosen[order][given["offset"] : given["offset"] + given["limit"]]
    rows = [_event_row(opened, lanes, found, int(at)) for at in shown]
    data = {"run": {"key": opened.keyed.key, "name": opened.run.name}, **_where(opened, place)}
    notes = [CLOCK_NOTE]
    if head["more"]:
        notes.append(f"The window has more than {MAX_EVENTS} events: the rest was not looked at. Choose a shorter one.")
    sources = [f"trace files: {', '.join(opened.file_of(rank) for rank in place.ranks[:4])}"]
    part = Rows(_COLUMNS, rows, int(chosen.size), given["offset"])
    return Answer(data, part, sources, opened.page("timeline", place.params()), notes=notes)


def _event_row(opened: OpenRun, lanes: list[int], found: Mapping[str, Any], at: int) -> list[Any]:
    lane = lanes[int(found["lane"][at])]
    in_run, own = opened.timeline.place(lane)
    start, end = int(found["start_ns"][at]), int(found["end_ns"][at])
    name, kind = opened.timeline.names[int(found["name"][at])], _NAMES[int(found["category"][at])]
    track = in_run.lanes.tracks[in_run.lanes.lanes[own].track].title
    return [in_run.lanes.rank, track, name, kind, start, end - start, lane, int(found["row"][at])]


def _where(opened: OpenRun, place: Place) -> dict[str, Any]:
    return {
        "ranks": place.ranks,
        "ranks_left_out": place.left_out,
        "from_ns": place.from_ns,
        "to_ns": place.to_ns,
        "event": place.event,
        "aligned": opened.clock.aligned,
        "residual_ns": opened.clock.residual_ns,
    }


def _event(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    opened = runs.get(given["run"])
    collectives = opened.run.attempt("collectives").get("collectives")
    found = details(
        opened.timeline, given["lane"], given["row"], collectives.frame if collectives is not None else None
    )
    if found is None:
        raise ConfigError("there is no such event", hint="lane and row are columns of events")
    sources = [f"trace file: {opened.file_of(found['rank'])}"]
    params = {"open": found["rank"], "ev": f"{found['rank']}_{found['start_ns']}_{found['end_ns']}"}
    return Answer({"event": found}, None, sources, opened.page("timeline", params), notes=[CLOCK_NOTE])


def _range_statistics(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    opened = runs.get(given["run"])
    place = place_of(opened, given)
    head, found = read_column_file(measure(opened.timeline, place.from_ns, place.to_ns, place.ranks))
    rows = [
        [int(rank), _NAMES[int(kind)], int(busy), int(count)]
        for rank, kind, busy, count in zip(
            *(found[f"busy_{name}"] for name in ("rank", "category", "ns", "count")), strict=True
        )
    ]
    top = [
        {
            "name": opened.timeline.names[int(name)],
            "category": _NAMES[int(kind)],
            "count": int(count),
            "self_ns": int(own),
            "total_ns": int(total),
        }
        for name, kind, count, own, total in zip(
            *(found[f"top_{name}"] for name in ("name", "category", "count", "self_ns", "ns")), strict=True
        )
    ]
    columns = (
        column("rank", "", "the rank"),
        column("category", "", "kind of activity"),
        column("busy_ns", "ns", "length of the union of the category's events within the window"),
        column("events", "count", "events that touch the window"),
    )
    data = {
        "run": {"key": opened.keyed.key, "name": opened.run.name},
        **_where(opened, place),
        "top_names": top,
        "ranks_not_read": head["left_out"],
    }
    offset = given["offset"]
    notes = [CLOCK_NOTE, "busy_ns are unions of intervals: categories overlap each other, so they do not add up."]
    part = Rows(columns, rows[offset : offset + given["limit"]], len(rows), offset)
    params = {**place.params(), "m": f"{place.from_ns}_{place.to_ns}"}
    return Answer(data, part, ("range statistics of the page",), opened.page("timeline", params), notes=notes)


def _timeline_picture(runs: AgentRuns, given: Mapping[str, Any]) -> Answer:
    opened = runs.get(given["run"])
    place = place_of(opened, given)
    window = place.from_ns, place.to_ns
    png = timeline_picture(
        opened.timeline, window, place.ranks, every_lane=given["every_lane"], width=given["width"], event=place.event
    )
    data = {"run": {"key": opened.keyed.key, "name": opened.run.name}, **_where(opened, place)}
    return Answer(data, None, (), opened.page("timeline", place.params()), png, [CLOCK_NOTE])


EVENTS = Tool(
    "events",
    "List the events at a place: of a finding, a step, or a window of time, on some ranks. In order of time, or the "
    "longest first.",
    (
        RUN,
        *ARGUMENTS,
        Argument("match", "text", "Only events whose name contains this, ignoring case."),
        Argument("regex", "flag", "Take match as a regular expression.", False),
        Argument("category", "text", "Only this kind of event.", choices=tuple(_NAMES)),
        Argument("at_least_ns", "integer", "Only events of this duration or longer.", 0),
        Argument("longest_first", "flag", "Order by duration instead of time.", False),
        OFFSET,
        LIMIT,
    ),
    _events,
)
EVENT = Tool(
    "event",
    "All about one event: arguments, shapes, stack, the call that launched it, its collective on the other ranks with "
    "each rank's wait, and statistics of the events with its name.",
    (
        RUN,
        Argument("lane", "integer", "Column lane of events.", required=True),
        Argument("row", "integer", "Column row of events.", required=True),
    ),
    _event,
)
RANGE_STATISTICS = Tool(
    "range_statistics",
    "What the ranks did in a finding's window, a step, or a window of time: per rank and category the union of its "
    "events, and the names with the most self time.",
    (RUN, *ARGUMENTS, OFFSET, LIMIT),
    _range_statistics,
)
TIMELINE_PICTURE = Tool(
    "timeline_picture",
    "A picture (PNG) of the timeline: one row per rank, or all lanes of a few ranks, colored by category.",
    (
        RUN,
        *ARGUMENTS,
        Argument("every_lane", "flag", "All streams and threads of the ranks instead of one row per rank.", False),
        Argument("width", "integer", "Width in pixels.", 1200, low=400, high=2400),
    ),
    _timeline_picture,
)
