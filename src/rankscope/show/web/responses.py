"""HTTP responses.

In: JSON values, column files and errors. Out: responses with an ETag, compressed as the browser accepts.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from typing import Any

import zstandard
from isal import igzip
from starlette.requests import Request
from starlette.responses import Response

from rankscope.errors import RankscopeError

# Compressing smaller responses saves nothing.
COMPRESSED_FROM = 1 << 10
_LOCAL = threading.local()
_ACCEPTED = re.compile(r"\s*([\w*-]+)\s*(?:;\s*q\s*=\s*([0-9.]+))?\s*")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class RefusedError(Exception):
    """A request that gets an error response: status, problem and hint."""

    def __init__(self, status: int, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.status, self.what, self.hint = status, what, hint


def error_answer(status: int, what: str, path: str | None = None, hint: str | None = None) -> Response:
    """An error response."""
    body = json.dumps({"error": {"what": what, "path": path, "hint": hint}}).encode()
    headers = {**HEADERS, "Cache-Control": "no-store"}
    return Response(body, status, headers, media_type="application/json")


def answer_of(error: BaseException) -> Response:
    """The response to a request that failed."""
    if isinstance(error, RefusedError):
        return error_answer(error.status, error.what, None, error.hint)
    if isinstance(error, RankscopeError):
        return error_answer(500, error.what, error.path, error.hint)
    return error_answer(500, f"{type(error).__name__}: internal error", None, "see the terminal of rankscope serve")


def tag_of(*parts: object) -> str:
    """An ETag from the inputs of a response."""
    return f'"{hashlib.blake2b(repr(parts).encode("utf-8", "replace"), digest_size=12).hexdigest()}"'


def not_changed(request: Request, tag: str) -> Response | None:
    """304 if the browser has this response already."""
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if tag not in known:
        return None
    return Response(status_code=304, headers={**HEADERS, "ETag": tag, "Cache-Control": "private, no-cache"})


def answer(
    request: Request, body: bytes, kind: str, tag: str | None = None, more: Mapping[str, str] | None = None
) -> Response:  # fmt: skip
    """A response, compressed as the browser accepts.

    Args:
        request: the request.
        body: the bytes.
        kind: their media type.
        tag: the ETag; None for what changes without a request.
        more: further headers.
    """
    headers = {**HEADERS, "Vary": "Accept-Encoding", **(more or {})}
    headers["Cache-Control"] = "no-store" if tag is None else "private, no-cache"
    if tag is not None:
        headers["ETag"] = tag
    way = _encoding(request.headers.get("accept-encoding", "")) if len(body) >= COMPRESSED_FROM else None
    if way == "zstd":
        body, headers["Content-Encoding"] = _zstd().compress(body), "zstd"
    elif way == "gzip":
        body, headers["Content-Encoding"] = igzip.compress(body, compresslevel=1), "gzip"
    return Response(body, 200, headers, media_type=kind)


def json_answer(request: Request, value: Any, tag: str | None = None) -> Response:
    """JSON."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return answer(request, text.encode("utf-8", "replace"), "application/json", tag)


def _zstd() -> zstandard.ZstdCompressor:
    # A compressor belongs to one thread, and making one takes longer than most responses.
    if not hasattr(_LOCAL, "zstd"):
        _LOCAL.zstd = zstandard.ZstdCompressor(level=1)
    made: zstandard.ZstdCompressor = _LOCAL.zstd
    return made


def _encoding(accepted: str) -> str | None:
    taken = {}
    for part in accepted.split(","):
        found = _ACCEPTED.fullmatch(part)
        if found:
            try:
                taken[found.group(1).lower()] = float(found.group(2) or 1)
            except ValueError:
                continue
    return next((way for way in ("zstd", "gzip") if taken.get(way, taken.get("*", 0.0)) > 0), None)
