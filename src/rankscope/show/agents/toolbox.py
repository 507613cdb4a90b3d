"""All tools, and calls of them in other threads.

A first call may have to read gigabytes of traces, for which no client waits. What is not done in time continues, and
the answer reports how far it is: the same call again returns the result. Meanwhile the tools that need no run are
answered, and so is the rest of those that no longer need theirs (queries).

In: the name of a tool and its arguments. Out: a JSON object and perhaps a picture, or an error for the agent.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from rankscope.errors import RankscopeError
from rankscope.results.failures import FAILURES
from rankscope.show.agents.answers import MAX_CHARACTERS, Answer, as_text, to_json
from rankscope.show.agents.job_tools import GUIDE, HANG, WATCH
from rankscope.show.agents.query_tools import LIST_TABLES, QUERY
from rankscope.show.agents.roots import Roots
from rankscope.show.agents.run_tools import ANALYZE, DIFF, FINDINGS, LIST_ANALYSES, LIST_RUNS, SUMMARY
from rankscope.show.agents.runs import AgentRuns
from rankscope.show.agents.timeline_tools import EVENT, EVENTS, RANGE_STATISTICS, TIMELINE_PICTURE
from rankscope.show.agents.tool import Rest, Tool
from rankscope.show.report.formatting import plain

logger = logging.getLogger(__name__)

TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        GUIDE, LIST_RUNS, SUMMARY, FINDINGS, LIST_ANALYSES, ANALYZE, DIFF, LIST_TABLES, QUERY, EVENTS, EVENT,
        RANGE_STATISTICS, TIMELINE_PICTURE, HANG, WATCH,
    )
}  # fmt: skip
PATIENCE_S = 40.0
"""How long a call waits for its answer: clients give up after a minute."""
AT_ONCE = 4
"""Calls without a run, and queries, that are handled at the same time."""
KEPT = 16
"""Calls whose answers are kept until they are asked for again."""


@dataclass(frozen=True)
class Reply:
    """What a call returns: a JSON object as text, a picture if there is one, and whether it is an error."""

    text: str
    picture: bytes | None = None
    is_error: bool = False


class Toolbox:
    """Answers calls; those that need a run one after the other.

    Args:
        roots: the directories that may be read.
        page_url: the address of a `rankscope serve`, for links.
        executor: where tasks run, as for `open_run`.
        patience_s: how long a call waits, seconds.
    """

    def __init__(
        self, roots: Roots, page_url: str | None = None, executor: str = "processes", patience_s: float = PATIENCE_S
    ) -> None:  # fmt: skip
        self.runs = AgentRuns(roots, page_url, executor, self._on_progress)
        self._patience_s = patience_s
        self._lock = threading.Lock()
        # One thread: runs are not made for several.
        self._with_runs = ThreadPoolExecutor(1, "rankscope-runs")
        self._without_runs = ThreadPoolExecutor(AT_ONCE, "rankscope-tools")
        self._rests = ThreadPoolExecutor(AT_ONCE, "rankscope-rests")
        self._calls: OrderedDict[str, Future[Answer | Rest]] = OrderedDict()
        self._progress: dict[str, object] = {}

    def call(self, name: str, given: Mapping[str, Any]) -> Reply:
        """The reply to a call of a tool."""
        until = time.monotonic() + self._patience_s
        try:
            future, key = self._started(name, given)
            wait([future], until - time.monotonic())
            if future.done() and future.exception() is None and isinstance(rest := future.result(), Rest):
                with self._lock:
                    future = self._calls[key] = self._rests.submit(rest.finish)
                wait([future], until - time.monotonic())
            if not future.done():
                return Reply(as_text(self._working()))
            with self._lock:
                self._calls.pop(key, None)
            answer = future.result()
            assert isinstance(answer, Answer)
            value = to_json(answer)
            text = as_text(value)
            if len(text) > MAX_CHARACTERS:
                raise RankscopeError("the answer is too large", hint="ask for fewer rows, ranks or columns")
            return Reply(text, answer.picture)
        except RankscopeError as error:
            return _refusal(error.what, error.path, error.hint)
        except FAILURES:
            logger.exception("the tool %s failed", plain(name))
            return _refusal("internal error", None, "see the standard error of rankscope mcp")

    def close(self) -> None:
        """Start no further work."""
        for pool in (self._with_runs, self._without_runs, self._rests):
            pool.shutdown(wait=False, cancel_futures=True)

    def _started(self, name: str, given: Mapping[str, Any]) -> tuple[Future[Answer | Rest], str]:
        tool = TOOLS.get(name)
        if tool is None:
            raise RankscopeError("there is no such tool", hint=f"there are: {', '.join(TOOLS)}")
        key = json.dumps([name, given], sort_keys=True)
        with self._lock:
            future = self._calls.get(key)
            if future is None:
                if len([each for each in self._calls.values() if not each.done()]) >= KEPT:
                    raise RankscopeError("too many calls wait for their answers", hint="repeat one of them later")
                pool = self._with_runs if tool.opens_runs else self._without_runs
                future = self._calls[key] = pool.submit(tool.call, self.runs, dict(given))
                while len(self._calls) > KEPT:
                    oldest = next(each for each, made in self._calls.items() if made.done() or each == key)
                    del self._calls[oldest]
            return future, key

    def _on_progress(self, what: str, done: int, total: int, read: int) -> None:
        self._progress = {"what": what, "done": done, "total": total, "bytes": read}

    def _working(self) -> dict[str, object]:
        return {
            "state": "working",
            "progress": self._progress,
            "hint": "The work continues. Make the same call again in a while to get the answer.",
        }


def _refusal(what: str, path: str | None, hint: str | None) -> Reply:
    error = {"what": plain(what, limit=1000), "path": path and plain(path), "hint": hint and plain(hint, limit=1000)}
    return Reply(as_text({"error": error}), is_error=True)
