"""Requests to record by way of `torch.distributed.debug`, where torch has it.

Each watched rank answers ``/handler/rankscope_trigger?steps=3&ranks=all`` on the worker server that
``torch.distributed.debug.start_debug_server`` starts. A link on the page of that server: ::

    from torch.distributed.debug._debug_handlers import default_handlers
    start_debug_server(handlers=[*default_handlers(), rankscope.capture.watch.debug_page.debug_handler()])

In: requests over HTTP. Out: requests for the watchers of this process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from html import escape
from typing import Any

from rankscope.errors import ConfigError
from rankscope.rundir.ranks import parse_ranks
from rankscope.rundir.watch_files import Request, is_request_id

NAME = "rankscope_trigger"
_MOST_STEPS = 1000
_asked: list[Callable[[Request], None]] = []
_registered = False


def answer_requests(ask: Callable[[Request], None]) -> None:
    """Pass on the requests to this process, until :func:`answer_no_requests`; nothing if torch has no such server."""
    global _registered
    _asked.append(ask)
    if not _registered:
        with suppress(Exception):
            import ctypes

            from torch._C._distributed_c10d import _register_handler

            # Torch drops its reference when the interpreter is gone already: were it the last, the process would abort.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(_handle))
            _register_handler(NAME, _handle)
            _registered = True


def answer_no_requests(ask: Callable[[Request], None]) -> None:
    """The end of a watcher."""
    if ask in _asked:
        _asked.remove(ask)


def _handle(request: Any, response: Any) -> None:
    """In a thread of torch's worker server: an exception there would end the process."""
    try:
        status, content = _ask(lambda name: _parameter(request, name))
    except Exception as error:
        status, content = 500, {"error": f"{type(error).__name__}: {error}"}
    response.set_content(json.dumps(content), "application/json")
    response.set_status(status)


def _ask(parameter: Callable[[str], str]) -> tuple[int, dict[str, object]]:
    steps, ranks = parameter("steps") or "3", parameter("ranks") or "all"
    number = parameter("id") or f"debug-{time.time_ns()}"
    if not steps.isascii() or not steps.isdigit() or not 1 <= int(steps) <= _MOST_STEPS:
        return 400, {"error": f"steps: {steps[:20]!r} is not a number from 1 to {_MOST_STEPS}"}
    try:
        parse_ranks(ranks)
    except ConfigError as error:
        return 400, {"error": str(error)}
    if not is_request_id(number):
        return 400, {"error": "id: letters, digits, - and _"}
    if not _asked:
        return 409, {"error": "this rank is not watched"}
    for ask in list(_asked):
        ask(Request(number, int(steps), ranks, "torch.distributed.debug"))
    return 200, {"id": number, "steps": int(steps), "ranks": ranks}


def _parameter(request: Any, name: str) -> str:
    with suppress(Exception):  # torch raises for one that is not given
        return str(request.get_param(name))
    return ""


def debug_handler() -> Any:
    """A handler for ``start_debug_server``: a page that makes all ranks record their next steps.

    Raises:
        ConfigError: this torch has no such handlers.
    """
    try:
        from torch.distributed.debug._frontend import DebugHandler, NavLink, Route, fetch_all
    except ImportError as error:
        raise ConfigError("this torch has no torch.distributed.debug with handlers", hint="torch 2.12 has") from error

    class Handler(DebugHandler):
        def routes(self) -> list[Any]:
            return [Route(f"/{NAME}", self.respond)]

        def nav_links(self) -> list[Any]:
            return [NavLink(f"/{NAME}", "record steps (rankscope)")]

        def respond(self, request: Any) -> bytes:
            steps, ranks = request.get_query_arg("steps"), request.get_query_arg("ranks", default="all")
            if steps is None:
                return _FORM.encode()
            # One id: each rank hears of it, and one window is recorded.
            number = f"debug-{time.time_ns()}"
            query = f"steps={_quoted(steps)}&ranks={_quoted(ranks)}&id={number}"
            addresses, answers = fetch_all(NAME, query, timeout=self.fetch_timeout)
            rows = zip(addresses, answers, strict=True)
            lines = [
                f"{address.partition('/handler')[0]}: {answer.status_code} {answer.text}" for address, answer in rows
            ]
            return (_FORM + "<pre>" + escape("\n".join(lines)) + "</pre>").encode()

    return Handler()


def _quoted(value: object) -> str:
    from urllib.parse import quote

    return quote(str(value), safe=":,-")


_FORM = (
    "<!doctype html><title>rankscope</title><h1>Record the next steps</h1>"
    f'<form action="/{NAME}">steps <input name="steps" value="3" size="4"> ranks <input name="ranks" value="all"> '
    "<button>Record</button></form><p>rankscope watch RUN shows what becomes of it.</p>"
)
