"""Requests by way of torch's debug server: its worker server on this host, asked as its page asks it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import torch

from rankscope.capture.watch import debug_page
from rankscope.capture.watch.debug_page import NAME, answer_no_requests, answer_requests, debug_handler
from rankscope.rundir.watch_files import Request

WorkerServer = getattr(torch._C._distributed_c10d, "_WorkerServer", None)
needs_server = pytest.mark.skipif(
    WorkerServer is None or not hasattr(torch._C._distributed_c10d, "_register_handler"),
    reason="this torch has no worker server with handlers",
)


@pytest.fixture
def asked():
    found = []
    answer_requests(found.append)
    yield found
    answer_no_requests(found.append)


@pytest.fixture
def server():
    server = WorkerServer("127.0.0.1", 0)
    yield lambda query: post(f"http://127.0.0.1:{server.port}/handler/{NAME}{query}")
    server.shutdown()


def post(address):
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="POST")) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@needs_server
def test_a_request_reaches_the_watcher(server, asked):
    status, content = server("?steps=2&ranks=0-1&id=web-1")
    assert (status, content) == (200, {"id": "web-1", "steps": 2, "ranks": "0-1"})
    assert asked == [Request("web-1", 2, "0-1", "torch.distributed.debug")]
    status, content = server("")
    assert (status, content["steps"], content["ranks"]) == (200, 3, "all")
    assert asked[1].id != "web-1"


@needs_server
@pytest.mark.parametrize(
    ("query", "why"), [("?steps=0", "steps"), ("?steps=x", "steps"), ("?ranks=first", "ranks"), ("?id=../x", "id")]
)
def test_what_is_not_valid_is_refused(server, asked, query, why):
    status, content = server(query)
    assert status == 400
    assert why in content["error"]
    assert asked == []


@needs_server
def test_a_rank_without_a_watch_says_so(server, asked):
    answer_no_requests(asked.append)
    status, content = server("")
    assert (status, content["error"]) == (409, "this rank is not watched")


@pytest.mark.slow
@needs_server
def test_a_process_that_answers_ends_as_without():
    code = "from rankscope.capture.watch.debug_page import answer_requests\nanswer_requests([].append)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_asks_every_rank_with_one_id(monkeypatch):
    frontend = pytest.importorskip("torch.distributed.debug._frontend", exc_type=ImportError)
    if not hasattr(frontend, "DebugHandler"):
        pytest.skip("this torch's debug server takes no handlers")
    sent = []

    def fetch_all(endpoint, args="", *, timeout):
        sent.append((endpoint, args))
        return ["http://h0:1/handler/x?y"], [frontend.Response(200, "<b>fine</b>")]

    monkeypatch.setattr(frontend, "fetch_all", fetch_all)
    handler = debug_handler()
    assert [link.path for link in handler.nav_links()] == [f"/{NAME}"]
    (route,) = handler.routes()

    class Page:
        def __init__(self, **query):
            self._query = query

        def get_query_arg(self, name, default=None, type=str):
            return self._query.get(name, default)

    assert b"<form" in route.handler(Page())
    assert sent == []
    shown = route.handler(Page(steps="2 &x", ranks="0-3")).decode()
    ((endpoint, args),) = sent
    assert endpoint == NAME
    assert args.startswith("steps=2%20%26x&ranks=0-3&id=debug-")
    assert "http://h0:1: 200 &lt;b&gt;fine" in shown


def test_it_is_not_imported_for_what_torch_lacks(monkeypatch):
    monkeypatch.setattr(debug_page, "_registered", False)
    monkeypatch.setattr(torch._C._distributed_c10d, "_register_handler", None, raising=False)
    answer_requests(print)
    answer_no_requests(print)
