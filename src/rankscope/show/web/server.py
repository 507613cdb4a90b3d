"""The server of the page.

In: requests (`PROTOCOL.md`). Out: responses from the runs that it was started with.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import rankscope
from rankscope.analyses import current_name
from rankscope.engine.pipeline.clock import in_run_time
from rankscope.results import Finding, Result, by_severity
from rankscope.results.failures import FAILURES
from rankscope.show.report.experiments.tables import measured
from rankscope.show.report.html_report import PAYLOAD_SCHEMA_VERSION, located, not_shown, table_of
from rankscope.show.timeline.call_trees import CALLS, call_trees
from rankscope.show.timeline.event_details import details
from rankscope.show.timeline.named_lanes import NameTracks
from rankscope.show.timeline.pyramid import MAX_LEVELS
from rankscope.show.timeline.selection_stats import measure
from rankscope.show.timeline.timeline import Timeline
from rankscope.show.web.auth import AuthMiddleware, without_token
from rankscope.show.web.diff_runs import Comparisons
from rankscope.show.web.downloads import parquet_answer
from rankscope.show.web.gaps import gaps_file
from rankscope.show.web.named import named_lanes, named_place
from rankscope.show.web.page import served_page
from rankscope.show.web.params import MAX_NS, number, numbers, ranks_of, span
from rankscope.show.web.queries import Queries, schema_of_run
from rankscope.show.web.responses import RefusedError, answer, answer_of, error_answer, json_answer, not_changed, tag_of
from rankscope.show.web.runs import Runs, ServedRun
from rankscope.show.web.searches import search_answer
from rankscope.show.web.security import Gate
from rankscope.show.web.watch_feed import WatchFeed
from rankscope.show.web.whatif import Replays

logger = logging.getLogger(__name__)

BINARY = "application/octet-stream"
MAX_BINS = 1 << 14
MAX_TILE = 1 << 22
MAX_EVENTS = 500_000
MAX_POINTS = 20_000
NAMES_BYTES = 4 << 20
# Rows of a table in one response: what a browser sorts and filters without a delay.
MAX_ROWS = 100_000

Answer = Callable[[Request, ServedRun], Response]
T = TypeVar("T")


def make_app(runs: Runs, gate: Gate) -> ASGIApp:
    """The application.

    Args:
        runs: the runs to show.
        gate: access control.
    """
    watched = WatchFeed(runs.source)
    once = secrets.token_hex(8)
    comparisons = Comparisons()
    replays = Replays()

    def page(request: Request) -> Response:
        if "token" in request.query_params:
            return without_token()  # this browser has the cookie already: the token stays valid for another
        body, policy = served_page()
        tag = tag_of(once, "page", len(body), hash(body))
        return not_changed(request, tag) or answer(
            request, body, "text/html; charset=utf-8", tag, {"Content-Security-Policy": policy}
        )

    def listed(request: Request) -> Response:
        return json_answer(request, runs.listed(request.query_params.get("run")))

    def diff(request: Request) -> Response:
        run, other = runs.get(request.query_params.get("run")), request.query_params.get("with")
        ranks = ranks_of(request) or []
        if other is None and len(ranks) != 2:
            raise RefusedError(400, "a diff needs two runs or two ranks", "add with=KEY or ranks=0,1")
        return json_answer(request, comparisons.ask(run, None if other is None else runs.get(other), ranks))

    def whatif(request: Request, run: ServedRun) -> Response:
        return json_answer(request, replays.ask(request, run), _tag(request))

    def about_run(respond: Answer, version: Callable[[ServedRun], object] | None = None) -> Any:
        """A request about one run. With a version, the same request gets the same response until that changes."""

        def ask(request: Request) -> Response:
            run = runs.get(request.query_params.get("run"))
            if version is None:
                return respond(request, run)
            request.state.tag = tag_of(once, run.key, version(run), request.url.path, request.url.query)
            return not_changed(request, request.state.tag) or respond(request, run)

        return ask

    def route(path: str, ask: Callable[[Request], Response]) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return await run_in_threadpool(ask, request)
            except FAILURES as error:
                if not isinstance(error, RefusedError):
                    logger.exception("%s could not be answered", path)
                return answer_of(error)

        return Route(path, endpoint, methods=["GET"])

    def changes(run: ServedRun) -> object:
        return run.loaded.state.version

    def lanes(run: ServedRun) -> object:
        # Lanes never change; only their number does.
        return ("lanes", run.loaded.state.generation) if run.loaded.timeline is not None else None

    def drawn(run: ServedRun) -> object:
        timeline = run.loaded.timeline
        return (timeline.version, run.loaded.state.generation) if timeline is not None else None

    app = Starlette(
        routes=[
            route("/", page),
            route("/api/runs", listed),
            route("/api/state", about_run(lambda request, run: _state(request, run, watched.folder is not None))),
            route("/api/summary", about_run(_summary, changes)),
            route("/api/table/{name}", about_run(_table, changes)),
            route("/api/parquet/{name}", about_run(_parquet, changes)),
            route("/api/diff", diff),
            route("/api/timeline", about_run(_layout, drawn)),
            route("/api/names", about_run(_names, drawn)),
            route("/api/tiles", about_run(_tiles, lanes)),
            route("/api/events", about_run(_events, lanes)),
            route("/api/event", about_run(_event, changes)),
            route("/api/named/tiles", about_run(_named_tiles, drawn)),
            route("/api/named/events", about_run(_named_events, drawn)),
            route("/api/named/event", about_run(_named_event, changes)),
            route("/api/heat", about_run(_heat, changes)),
            route("/api/search", about_run(_search, drawn)),
            route("/api/range", about_run(_range, drawn)),
            route("/api/calls", about_run(_calls, drawn)),
            route("/api/counters", about_run(_counters, lanes)),
            route("/api/path", about_run(_path, changes)),
            route("/api/gaps", about_run(_gaps, lanes)),
            route("/api/whatif", about_run(whatif, changes)),
            route("/api/schema", about_run(lambda request, run: json_answer(request, schema_of_run(run)))),
            Route("/api/query", Queries(runs).respond, methods=["POST"]),
            route("/api/watch", watched.respond),
            Route("/api/watch/events", watched.stream, methods=["GET"]),
        ],
        exception_handlers={404: _nowhere, 405: _nowhere},
    )
    return AuthMiddleware(app, gate)


async def _nowhere(request: Request, error: Exception) -> Response:
    return error_answer(404, "there is nothing at this address")


def _tag(request: Request) -> str:
    tag: str = request.state.tag
    return tag


def _ready(part: T | None, what: str) -> T:
    """A part of a run that may still be in the making."""
    if part is None:
        raise RefusedError(409, f"{what} not ready yet", "api/state has the progress")
    return part


def _timeline(run: ServedRun) -> Timeline:
    return _ready(run.loaded.timeline, "the timeline is")


def _state(request: Request, run: ServedRun, watched: bool) -> Response:
    loaded, state = run.loaded, run.loaded.state
    return json_answer(
        request,
        {
            "phase": state.phase,
            "what": state.what,
            "done": state.done,
            "total": state.total,
            "bytes": state.bytes,
            "ready": loaded.ready,
            "error": state.error,
            "version": state.version,
            "following": state.following,
            "generation": state.generation,
            "watched": watched,
        },
    )


def _summary(request: Request, run: ServedRun) -> Response:
    loaded = run.loaded
    analyses: dict[str, Any] = {}
    lost: list[Finding] = []
    results = _results(run, lambda name, error: lost.append(not_shown(f"The table {name}", error)))
    further = {name: result.analysis for name, result in results.items() if name not in loaded.results}
    for name, analysis in {**loaded.analyses(), **further}.items():
        result = results.get(name)
        try:
            headline = loaded.headline_of(result) if result is not None else None
        except FAILURES as error:
            lost.append(not_shown(f"The table {name}", error))
            result = headline = None
        analyses[name] = {
            "title": analysis.title,
            "doc": analysis.doc.strip(),
            "headline": headline.to_json() if headline else None,
            "columns": {column.name: {"unit": column.unit, "doc": column.doc} for column in analysis.columns},
            "rows": result.frame.height if result is not None else 0,
            "state": "ready"
            if result is not None
            else "failed"
            if name in loaded.failed | results.keys()
            else "pending",
        }
    value = {
        "schema_version": PAYLOAD_SCHEMA_VERSION,
        "generated_by": f"rankscope {rankscope.__version__}",
        "generated_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "run": loaded.about,
        "diagnosis": loaded.diagnosis.to_json() if loaded.diagnosis is not None else None,
        "findings": [located(finding, loaded.heat, loaded.clock) for finding in by_severity([*loaded.findings, *lost])],
        "analyses": analyses,
    }
    return json_answer(request, value, _tag(request))


def _table(request: Request, run: ServedRun) -> Response:
    result = _results(run).get(current_name(request.path_params["name"]))
    clock = run.loaded.clock
    if result is None or clock is None:
        raise RefusedError(404, "there is no such table, or it is not ready yet", "api/summary lists the tables")
    table = table_of(in_run_time(result, clock), MAX_ROWS, headline=run.loaded.headline_of(result))
    return json_answer(request, table, _tag(request))


def _parquet(request: Request, run: ServedRun) -> Response:
    return parquet_answer(request, _results(run), run.loaded.clock, _tag(request))


def _results(
    run: ServedRun, on_failure: Callable[[str, BaseException], object] = lambda name, error: None
) -> dict[str, Result]:
    """Results of analyses, and of experiments next to the traces."""
    loaded = run.loaded
    return {**loaded.results, **(measured(loaded.run.path, on_failure) if loaded.run is not None else {})}


def _layout(request: Request, run: ServedRun) -> Response:
    return json_answer(request, _timeline(run).layout(), _tag(request))


def _names(request: Request, run: ServedRun) -> Response:
    names = _timeline(run).names
    first = number(request, "from", 0, 1 << 40, 0)
    size, last, count = 0, first, len(names)
    while last < count and (size < NAMES_BYTES or last == first):
        size += len(names[last]) + 3
        last += 1
    return json_answer(request, {"names": names[first:last], "next": last if last < count else None}, _tag(request))


def _tiles(request: Request, run: ServedRun) -> Response:
    timeline = _timeline(run)
    return _tiles_of(request, timeline, _lanes(request, timeline))


def _events(request: Request, run: ServedRun) -> Response:
    timeline = _timeline(run)
    return _events_of(request, timeline, _lanes(request, timeline))


def _event(request: Request, run: ServedRun) -> Response:
    return _event_of(request, run, number(request, "lane", 0, MAX_NS), number(request, "row", 0, MAX_NS))


def _named_tiles(request: Request, run: ServedRun) -> Response:
    return _tiles_of(request, *named_lanes(request, _name_tracks(run)))


def _named_events(request: Request, run: ServedRun) -> Response:
    return _events_of(request, *named_lanes(request, _name_tracks(run)))


def _named_event(request: Request, run: ServedRun) -> Response:
    return _event_of(request, run, *named_place(request, _name_tracks(run)))


def _name_tracks(run: ServedRun) -> NameTracks:
    return _ready(run.loaded.name_tracks, "the timeline is")


def _lanes(request: Request, timeline: Timeline) -> list[int]:
    return numbers(request.query_params.get("lanes", ""), "lanes", timeline.lane_count)


def _tiles_of(request: Request, timeline: Timeline, lanes: list[int]) -> Response:
    level = number(request, "level", 0, min(timeline.levels, MAX_LEVELS) - 1)
    first, bins = number(request, "first", 0, MAX_NS), number(request, "bins", 1, MAX_BINS)
    if bins * len(lanes) > MAX_TILE:
        raise RefusedError(400, f"more than {MAX_TILE} bins", "request fewer bins or fewer lanes")
    return answer(request, timeline.tiles(level, first, bins, lanes), BINARY, _tag(request))


def _events_of(request: Request, timeline: Timeline, lanes: list[int]) -> Response:
    limit = number(request, "limit", 1, MAX_EVENTS, 50_000)
    return answer(request, timeline.events(lanes, *span(request), limit), BINARY, _tag(request))


def _event_of(request: Request, run: ServedRun, lane: int, row: int) -> Response:
    collectives = run.loaded.results.get("collectives")
    found = details(_timeline(run), lane, row, collectives.frame if collectives is not None else None)
    if found is None:
        raise RefusedError(404, "there is no such event")
    return json_answer(request, found, _tag(request))


def _heat(request: Request, run: ServedRun) -> Response:
    return json_answer(request, _ready(run.loaded.heat, "waiting and lateness are"), _tag(request))


def _search(request: Request, run: ServedRun) -> Response:
    _timeline(run)
    return search_answer(request, _ready(run.loaded.search, "the timeline is"), _tag(request))


def _range(request: Request, run: ServedRun) -> Response:
    timeline = _timeline(run)
    return answer(request, measure(timeline, *span(request), ranks_of(request)), BINARY, _tag(request))


def _calls(request: Request, run: ServedRun) -> Response:
    timeline = _timeline(run)
    by = request.query_params.get("by", "operators")
    if by not in CALLS:
        raise RefusedError(400, f"by must be one of {', '.join(CALLS)}")
    return answer(request, call_trees(timeline, *span(request), by, ranks_of(request)), BINARY, _tag(request))


def _counters(request: Request, run: ServedRun) -> Response:
    timeline = _timeline(run)
    rank = number(request, "rank", 0, 1 << 31)
    if rank not in timeline.traces:
        raise RefusedError(404, "there is no such rank")
    points = number(request, "points", 2, MAX_POINTS, 2000)
    body = run.loaded.counters.window(timeline.traces[rank], timeline.clock.ranks[rank], *span(request), points)
    return answer(request, body, BINARY, _tag(request))


def token_address(base: str, gate: Gate) -> str:
    """The address to open."""
    return f"{base.rstrip('/')}/?token={gate.token}"


def _path(request: Request, run: ServedRun) -> Response:
    paths = _ready(run.loaded.paths, "the critical path is")
    rank = number(request, "rank", 0, 1 << 31) if "rank" in request.query_params else None
    found = paths.path(number(request, "at", 0, MAX_NS), rank)
    if found is None:
        raise RefusedError(404, "there is no critical path here", "it needs complete steps; across ranks, collectives")
    return answer(request, found, BINARY, _tag(request))


def _gaps(request: Request, run: ServedRun) -> Response:
    timeline = _timeline(run)
    options = _ready(run.loaded.run, "the run is").options
    return answer(request, gaps_file(request, timeline, options), BINARY, _tag(request))
