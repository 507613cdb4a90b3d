"""Requests about the events with one name, as lanes of their own.

In: a request and the name tracks of its run. Out: the lanes and the event that it is about.
"""

from __future__ import annotations

from starlette.requests import Request

from rankscope.show.timeline.named_lanes import NameTracks
from rankscope.show.timeline.timeline import Timeline
from rankscope.show.web.params import number, ranks_of
from rankscope.show.web.responses import RefusedError


def named_lanes(request: Request, tracks: NameTracks) -> tuple[Timeline, list[int]]:
    """The timeline of a name, and its lanes of the requested ranks.

    Raises:
        RefusedError: there is no such name or rank.
    """
    named = tracks.of(_name(request, tracks))
    try:
        return named.timeline, named.lanes(ranks_of(request) or [])
    except KeyError as error:
        raise RefusedError(404, f"there is no rank {error}, or it is not drawn yet") from None


def named_place(request: Request, tracks: NameTracks) -> tuple[int, int]:
    """The lane and row in the run of an event in the lane of its name.

    Raises:
        RefusedError: there is no such event.
    """
    rank, row = number(request, "rank", 0, 1 << 31), number(request, "row", 0, 1 << 40)
    place = tracks.place(_name(request, tracks), rank, row)
    if place is None:
        raise RefusedError(404, "there is no such event")
    return place


def _name(request: Request, tracks: NameTracks) -> int:
    return number(request, "name", 0, max(0, len(tracks.timeline.names) - 1))
