"""Who may ask the server: browsers that opened the printed address.

In: requests. Out: the application's responses to those with the cookie, refusals to all others.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rankscope.show.web.responses import HEADERS, answer_of, error_answer
from rankscope.show.web.security import Gate

STRANGER = "this browser did not open the address that rankscope serve printed, or that address was used before"
WAY_IN = "open the last address in the terminal of rankscope serve: it ends in /?token=… and works in one browser"

QUERY = "/api/query"
"""The only address that takes a request with a body: SQL may be longer than an address. It changes nothing."""


class AuthMiddleware:
    """Requires the right address and the cookie for everything except `/?token=…`, which sets the cookie once."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        refusal = self._gate.refuse_address(request.headers)
        if refusal is not None:
            await answer_of(refusal)(scope, receive, send)
            return
        refused = _refuse_method(request)
        if refused is not None:
            await refused(scope, receive, send)
            return
        if self._gate.knows(request.headers.getlist("cookie")):
            await self._app(scope, receive, send)
            return
        # Only GET: a program that previews a link must not use up its token.
        token = request.query_params.get("token") if scope["path"] == "/" and request.method == "GET" else None
        if token is not None and self._gate.redeem(token):
            answered = without_token()
            answered.headers["Set-Cookie"] = self._gate.set_cookie()
        elif "text/html" in request.headers.get("accept", ""):
            words = f"{STRANGER}.\n\n{WAY_IN}.\n"
            answered = Response(words, 401, {**HEADERS, "Cache-Control": "no-store"}, "text/plain")
        else:
            answered = error_answer(401, STRANGER, None, WAY_IN)
        await answered(scope, receive, send)


def _refuse_method(request: Request) -> Response | None:
    """Only a query is sent, as JSON: a form of another site cannot send that."""
    if request.method in ("GET", "HEAD"):
        return None
    if request.method != "POST" or request.scope["path"] != QUERY:
        return error_answer(405, "this server only answers GET and HEAD", None, "use GET")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return error_answer(415, "a query is sent as JSON", None, "set Content-Type: application/json")
    return None


def without_token() -> Response:
    """Redirect to the page without the token, which would stay in the history and leak as a referrer."""
    return Response(status_code=303, headers={**HEADERS, "Location": "./", "Cache-Control": "no-store"})
