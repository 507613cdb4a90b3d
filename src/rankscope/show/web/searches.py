"""Searches of the page.

In: a request and the search of its run. Out: the next match, and a part of all matches.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rankscope.show.timeline.search import InvalidPatternError, Query, Search
from rankscope.show.web.params import MAX_NS, number
from rankscope.show.web.responses import RefusedError, json_answer

MAX_QUERY = 4_000
"""Names of kernels that are templates have up to 2,000 characters, and more once escaped."""
MAX_LISTED = 1_000


def search_answer(request: Request, search: Search, tag: str) -> Response:
    """The next match of a search, and a part of all matches.

    Raises:
        RefusedError: the request is not valid, or names no event.
    """
    direction = request.query_params.get("direction", "next")
    if direction not in ("next", "previous"):
        raise RefusedError(400, "direction must be next or previous")
    forward = direction == "next"
    after = number(request, "after", -MAX_NS, MAX_NS, -MAX_NS if forward else MAX_NS)
    place = after, number(request, "lane", -1, MAX_NS, -1), number(request, "row", -1, MAX_NS, -1)
    query = _query(request, search, place)
    rank = number(request, "rank", 0, 1 << 31) if "rank" in request.query_params else None
    try:
        hit, hits, index = search.step(query, place, forward=forward, rank=rank)
    except InvalidPatternError:
        hint = "a regular expression without backreferences and look-around, such as gemm|attn"
        raise RefusedError(400, "q is not a valid regular expression", hint) from None
    found: dict[str, Any] = {"hit": hit, "hits": hits, "index": index}
    if "count" in request.query_params:
        count = number(request, "count", 1, MAX_LISTED)
        found["first"] = number(request, "first", 0, MAX_NS, max(0, index - count // 2))
        found["listed"] = search.part(query, found["first"], count, rank)
    return json_answer(request, found, tag)


def _query(request: Request, search: Search, place: tuple[int, int, int]) -> Query:
    match = request.query_params.get("match", "text")
    if match == "name":
        name = search.name_at(*place[1:])
        if name is None:
            raise RefusedError(404, "there is no such event")
        return Query(name, "name")
    if match not in ("text", "regex"):
        raise RefusedError(400, "match must be text, regex or name")
    text = request.query_params.get("q", "")
    if not text or len(text) > MAX_QUERY:
        raise RefusedError(400, f"q must have 1 to {MAX_QUERY} characters")
    return Query(text, "regex" if match == "regex" else "text")
