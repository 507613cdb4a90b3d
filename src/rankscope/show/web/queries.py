"""SQL queries of the page.

A query runs with limits of rows, bytes, memory and time, and is ended when the browser leaves.
A few run at a time; others are refused. What it may name is the tables of events, and results that are there.

In: a request with SQL. Out: the rows, with their places in the timeline, or a file of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from rankscope.engine.pipeline.sql import SCHEMA_VERSION, QueryOptions, QueryResult, prepare_query, tables_of
from rankscope.engine.query.examples import EXAMPLES
from rankscope.engine.query.statement import MAX_CHARACTERS
from rankscope.engine.query.tables import traces_of
from rankscope.engine.query.values import LARGEST_EXACT, shortened, simple
from rankscope.errors import ConfigError
from rankscope.results import finite
from rankscope.results.failures import FAILURES
from rankscope.show.export.query import QUERY_FORMATS
from rankscope.show.web.downloads import PARQUET
from rankscope.show.web.responses import RefusedError, answer, answer_of, json_answer
from rankscope.show.web.runs import Runs, ServedRun

logger = logging.getLogger(__name__)

MAX_ROWS = 100_000
DEFAULT_ROWS = 1_000
MAX_SECONDS = 120.0
DEFAULT_SECONDS = 30.0
MAX_BYTES = 32 << 20
LONGEST_TEXT = 10_000
AT_ONCE = 2
_BODY_BYTES = 4 * MAX_CHARACTERS + (64 << 10)
_LOOK_S = 0.25
_ROWS = "_row"
_LONG_NS = 10**12
"""Longer than any event: of several that start at an instant the longest is meant."""
_KINDS = {"csv": "text/csv; charset=utf-8", "parquet": PARQUET, "arrow": "application/vnd.apache.arrow.file"}


class Queries:
    """Answers queries, a few at a time."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._places = threading.BoundedSemaphore(AT_ONCE)

    async def respond(self, request: Request) -> Response:
        """The response of ``api/query``."""
        try:
            asked = await _body(request)
            run = self._runs.get(request.query_params.get("run"))
            return await self._answered(request, run, asked)
        except FAILURES as error:
            if isinstance(error, ConfigError):  # the query is at fault
                return answer_of(RefusedError(400, error.what, error.hint))
            if not isinstance(error, RefusedError):
                logger.exception("a query could not be answered")
            return answer_of(error)

    async def _answered(self, request: Request, run: ServedRun, asked: dict[str, Any]) -> Response:
        if not self._places.acquire(blocking=False):
            raise RefusedError(429, f"{AT_ONCE} queries are running", "wait for one of them, or stop it")
        left = threading.Event()
        watch = asyncio.create_task(_watch(request, left))
        try:
            return await run_in_threadpool(_respond, request, run, asked, left.is_set)
        finally:
            left.set()
            watch.cancel()
            self._places.release()


async def _watch(request: Request, left: threading.Event) -> None:
    """Notice that the browser does not wait any more."""
    while not await request.is_disconnected():
        await asyncio.sleep(_LOOK_S)
    left.set()


async def _body(request: Request) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        RefusedError: it is too large, or something else.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > _BODY_BYTES:
            raise RefusedError(413, "the query is too long")
    with suppress(ValueError, RecursionError):
        asked = json.loads(bytes(data))
        if isinstance(asked, dict) and isinstance(asked.get("sql"), str):
            return asked
    raise RefusedError(400, "this is not a query", 'send {"sql": "SELECT …"}')


def _respond(request: Request, run: ServedRun, asked: dict[str, Any], stopped: Callable[[], bool]) -> Response:
    loaded = run.loaded
    if loaded.run is None or not loaded.about:
        raise RefusedError(409, "the run is not read yet", "api/state has the progress")
    form = asked.get("format", "json")
    if form != "json" and form not in _KINDS:
        raise RefusedError(400, f"format must be json, {', '.join(_KINDS)}")
    limit = int(_number(asked, "limit", 1, MAX_ROWS, DEFAULT_ROWS))
    seconds = _number(asked, "timeout_s", 0.01, MAX_SECONDS, DEFAULT_SECONDS)
    options = QueryOptions(limit, seconds)
    result = prepare_query(loaded.run, asked["sql"], options, loaded.results, loaded.clock).run(stopped)
    if form == "json":
        return json_answer(request, shown_rows(result))
    name = {"Content-Disposition": f'attachment; filename="rankscope_query.{form}"'}
    return answer(request, QUERY_FORMATS[form](result, loaded.about), _KINDS[form], None, name)


def _number(asked: dict[str, Any], name: str, low: float, high: float, default: float) -> float:
    value = asked.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RefusedError(400, f"{name} is not a number from {low:g} to {high:g}")
    return value


def schema_of_run(run: ServedRun) -> dict[str, Any]:
    """What a query can name: tables and columns; examples and limits."""
    ranks = run.loaded.run.loaded.ranks if run.loaded.run is not None and run.loaded.about else {}
    written = {name.partition(".")[0] for _, _, trace in traces_of(ranks) for name in _names_in(trace.folder)}
    return {
        "version": SCHEMA_VERSION,
        "tables": [
            {
                "name": table.name,
                "kind": table.kind,
                "doc": table.table.doc,
                "empty": table.kind == "trace" and table.name not in written,
                "columns": [
                    {"name": each.name, "type": str(each.dtype), "unit": each.unit, "doc": each.doc}
                    for each in table.columns
                ],
            }
            for table in tables_of(run.loaded.results.keys()).values()
        ],
        "examples": [{"name": name, "title": each.title, "sql": each.sql} for name, each in EXAMPLES.items()],
        "limits": {
            "rows": MAX_ROWS,
            "default_rows": DEFAULT_ROWS,
            "timeout_s": MAX_SECONDS,
            "default_timeout_s": DEFAULT_SECONDS,
        },
    }


def _names_in(folder: Path) -> list[str]:
    with suppress(OSError):
        return [file.name for file in folder.iterdir()]
    return []


# -- the rows as the page shows them ----------------------------------------------------------------------------------


def shown_rows(result: QueryResult) -> dict[str, Any]:
    """Rows for the page: columns, data by column, the place of each row in the timeline."""
    frame, truncated = result.frame, result.truncated
    columns = {column.name: column for column in result.columns}
    instants = [name for name, column in columns.items() if column.instant and frame.schema[name].is_integer()]
    places = _places(frame, instants)
    frame = _exact(shortened(simple(finite(frame)), LONGEST_TEXT))
    size = frame.estimated_size()
    if size > MAX_BYTES:
        frame, truncated = frame.head(max(1, int(frame.height * MAX_BYTES / size))), True
    return {
        "columns": {
            name: {
                "unit": column.unit if frame.schema[name].is_numeric() else "",
                "doc": column.doc,
                "type": str(result.frame.schema[name]),
                **({"instant": True} if name in instants else {}),
            }
            for name, column in columns.items()
        },
        "data": frame.to_dict(as_series=False),
        "rows": frame.height,
        "truncated": truncated,
        "seconds": round(result.seconds, 3),
        "places": None if places is None else places[: frame.height],
    }


def _exact(frame: pl.DataFrame) -> pl.DataFrame:
    """Integers that a browser's numbers cannot hold become text."""
    too_large = frame.select(
        ((pl.col(name) > LARGEST_EXACT) | (pl.col(name) < -LARGEST_EXACT)).any()
        for name, dtype in frame.schema.items()
        if dtype.is_integer()
    )
    large = [name for name in too_large.columns if too_large[name].item()]
    return frame.with_columns(pl.col(large).cast(pl.String)) if large else frame


def _places(frame: pl.DataFrame, instants: list[str]) -> list[list[int] | None] | None:
    """The place of each row in the timeline: rank, start, end; None where no row can have one."""
    if "rank" not in frame.columns or not frame.schema["rank"].is_integer() or not instants:
        return None
    if "start_ns" not in instants:
        return []
    end = (
        pl.col("end_ns")
        if "end_ns" in instants
        else pl.col("start_ns") + (pl.col("duration_ns") if "duration_ns" in frame.columns else _LONG_NS)
    )
    rows = frame.select("rank", pl.col("start_ns").alias("start"), end.cast(pl.Int64).alias("end")).rows()
    return [list(place) if None not in place else None for place in rows]
