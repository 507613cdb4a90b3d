"""Asking the server without a network: its application called as a server calls it."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import zstandard
from starlette.types import ASGIApp

from rankscope.show.web.runs import Runs
from rankscope.show.web.security import Gate
from rankscope.show.web.server import make_app


@dataclass(frozen=True)
class Answered:
    """An answer: status, headers by lower-case name, and what was sent."""

    status: int
    headers: dict[str, str]
    sent: bytes

    @property
    def body(self) -> bytes:
        """The body as it was before it was compressed."""
        way = self.headers.get("content-encoding")
        if way == "gzip":
            return gzip.decompress(self.sent)
        return zstandard.ZstdDecompressor().decompress(self.sent) if way == "zstd" else self.sent

    def json(self) -> Any:
        """The body as JSON values."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """What went wrong, as the page is told."""
        error: dict[str, Any] = self.json()["error"]
        return error


def call(
    app: ASGIApp, address: str, headers: list[tuple[str, str]], method: str = "GET", sent: bytes = b""
) -> Answered:
    """One request, with these headers and no others."""
    parts = urlsplit(address)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": quote(parts.path).encode(),
        "root_path": "",
        "query_string": parts.query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 80),
    }
    messages: list[Any] = []
    received: list[bool] = []

    async def receive() -> dict[str, Any]:
        if received:  # the browser waits for its answer
            await asyncio.Event().wait()
        received.append(True)
        return {"type": "http.request", "body": sent, "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(app(scope, receive, send))
    start = messages[0]
    body = b"".join(message.get("body", b"") for message in messages[1:])
    return Answered(start["status"], {k.decode(): v.decode("latin-1") for k, v in start["headers"]}, body)


@dataclass(frozen=True)
class Asking:
    """A server's application, and a browser that has come in by the printed address."""

    app: ASGIApp
    gate: Gate
    runs: Runs

    def ask(self, address: str, *more: tuple[str, str], method: str = "GET", **named: str) -> Answered:
        """A request with the right host and cookie; headers by name take their place, an empty one leaves it out."""
        usual = {"host": "127.0.0.1:8000", "cookie": f"{self.gate.cookie}={self.gate.session}"}
        headers = {**usual, **{name.replace("_", "-"): value for name, value in named.items()}}
        return call(self.app, address, [*((k, v) for k, v in headers.items() if v), *more], method)


def send(server: Asking, value: Any, **named: str) -> Answered:
    """A query that the page sends."""
    usual = {
        "host": "127.0.0.1:8000",
        "cookie": f"{server.gate.cookie}={server.gate.session}",
        "origin": "http://127.0.0.1:8000",
        "content-type": "application/json",
    }
    headers = {**usual, **{name.replace("_", "-"): text for name, text in named.items()}}
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return call(server.app, "/api/query", [(k, v) for k, v in headers.items() if v], "POST", body)


def serving(source: Path, **options: Any) -> Asking:
    """A server of a run that is ready."""
    runs = Runs([str(source)], executor="serial", **options)
    gate = Gate.of(options.pop("names", []))
    runs.start()
    assert runs.shown.loaded.wait(300)
    return Asking(make_app(runs, gate), gate, runs)
