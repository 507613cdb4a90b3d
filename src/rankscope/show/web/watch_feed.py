"""The state of a watched job as server-sent events: for the page of `rankscope serve` on a run directory.

In: a run directory. Out: JSON for `api/watch`, and a stream of it that goes on while the page is open.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rankscope.answers.watch.log import RankLog
from rankscope.answers.watch.status import significance_of
from rankscope.answers.watch.status_json import as_json
from rankscope.errors import RankscopeError
from rankscope.rundir.watch_files import WATCH_FOLDER
from rankscope.show.monitor.job import JobState, WatchedJob, pause_after
from rankscope.show.report.watch import no_straggler_sentence, straggler_sentence
from rankscope.show.web.responses import RefusedError, json_answer

LOOK_S = 2.0
"""The state is read at most so often, for all pages together."""
KEEP_ALIVE_S = 15.0
HISTORY_STEPS = 400
MOST_LINES = 16
"""Of more ranks, the chart has the slowest and the fastest in each step."""


class WatchFeed:
    """The watched job of what is served.

    Args:
        source: what the server was started with.
    """

    def __init__(self, source: Sequence[str]) -> None:
        self._folders = [Path(each) for each in source if "://" not in each]
        self._lock = threading.Lock()
        self._job: WatchedJob | None = None
        self._text = ""
        self._next_at = float("-inf")

    @property
    def folder(self) -> Path | None:
        """The run directory with a log; None if there is none."""
        return next((each for each in self._folders if (each / WATCH_FOLDER).is_dir()), None)

    def text(self) -> str:
        """The state now, as JSON.

        Raises:
            RefusedError: no job is watched here.
        """
        with self._lock:
            began = time.monotonic()
            if began >= self._next_at:
                self._text = json.dumps(self._read(), separators=(",", ":"))
                self._next_at = began + pause_after(time.monotonic() - began, LOOK_S)
            return self._text

    def _read(self) -> dict[str, object]:
        folder = self.folder
        if folder is None:
            raise RefusedError(404, "this job has no log", "it was started with --no-watch, or is of another profiler")
        try:
            self._job = self._job or WatchedJob(folder)
            return as_payload(self._job.read(), self._job.logs.latest())
        except RankscopeError as error:
            raise RefusedError(409, error.what, error.hint or "the log begins with the first steps") from error

    def respond(self, request: Request) -> Response:
        """The response of ``api/watch``."""
        return json_answer(request, json.loads(self.text()))

    async def stream(self, request: Request) -> Response:
        """The response of ``api/watch/events``."""
        return StreamingResponse(
            self._events(request), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    async def _events(self, request: Request) -> AsyncIterator[str]:
        sent, sent_at = "", time.monotonic()
        while not await request.is_disconnected():
            try:
                text = await run_in_threadpool(self.text)
                event = f"data: {text}\n\n"
            except RefusedError as error:
                event = f"event: unavailable\ndata: {json.dumps({'what': error.what, 'hint': error.hint})}\n\n"
            if event != sent:
                sent, sent_at = event, time.monotonic()
                yield event
            elif time.monotonic() - sent_at > KEEP_ALIVE_S:
                sent_at = time.monotonic()
                yield ": still here\n\n"  # a proxy may close what is silent
            await asyncio.sleep(LOOK_S)


def as_payload(state: JobState, logs: dict[int, RankLog]) -> dict[str, object]:
    """What the page shows."""
    status = as_json(state.status)
    # They would change with every look.
    ranks = [{"rank": each.rank, "last_step": each.last_step, "state": each.state} for each in state.status.ranks]
    return {
        **status,
        "ranks": ranks,
        "no_straggler": no_straggler_sentence(state.status)
        if not status["unknown"] and all(each.found.once for each in state.status.late_ranks)
        else None,
        "significance": significance_of(state.status).value,
        "sentences": [straggler_sentence(each) for each in state.status.late_ranks],
        "history": _history(logs),
        "hang": None
        if state.verdict is None
        else {
            "hangs": state.hangs,
            "over": not state.lasts,
            "summary": state.verdict.summary,
            "cause": state.verdict.cause.value,
            "culprits": list(state.verdict.culprits),
            "ranks": [
                {"rank": each.rank, "cause": each.cause.value, "evidence": each.evidence}
                for each in state.verdict.ranks[:MOST_LINES]
            ],
        },
    }


def _history(logs: dict[int, RankLog]) -> dict[str, object]:
    """The duration of the latest steps by rank; of many ranks, the slowest and fastest."""
    lines = {rank: list(log.steps)[-HISTORY_STEPS:] for rank, log in logs.items()}
    if len(lines) <= MOST_LINES:
        series = {f"rank {rank}": [[each.step, each.ns] for each in steps] for rank, steps in lines.items()}
        return {"series": series}
    by_step: dict[int, list[int]] = {}
    for steps in lines.values():
        for each in steps:
            by_step.setdefault(each.step, []).append(each.ns)
    ends = {"slowest rank": max, "fastest rank": min}
    return {"series": {name: [[step, of(ns)] for step, ns in sorted(by_step.items())] for name, of in ends.items()}}
