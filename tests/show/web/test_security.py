"""Who may ask the server what: every rule of the design, and what breaks it refused."""

from __future__ import annotations

import ast
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.show.web.asking import Asking, call

from rankscope.errors import RankscopeError
from rankscope.show.web import page as page_module
from rankscope.show.web import server as server_module
from rankscope.show.web.page import served_page, served_policy
from rankscope.show.web.runs import Runs
from rankscope.show.web.security import Gate
from rankscope.show.web.server import make_app

ADDRESSES = [
    "/", "/api/runs", "/api/state", "/api/summary", "/api/table/clock", "/api/timeline", "/api/names?from=0",
    "/api/parquet/clock",
    "/api/tiles?level=0&first=0&bins=10&lanes=0", "/api/events?lanes=0&from=0&to=10", "/api/event?lane=0&row=0",
    "/api/heat", "/api/search?q=gemm", "/api/range?from=0&to=10", "/api/calls?from=0&to=10", "/api/path?at=0",
    "/api/counters?rank=0&from=0&to=10", "/api/diff?ranks=0,1",
    "/api/named/tiles?name=0&ranks=0&level=0&first=0&bins=10", "/api/named/events?name=0&ranks=0&from=0&to=10",
    "/api/named/event?name=0&rank=0&row=0", "/api/gaps?rank=0&cause=nothing", "/api/schema",
    "/api/whatif?with=--overlap",
]  # fmt: skip
WATCHED = ["/api/watch", "/api/watch/events"]
"""Of a run with a log; `test_watch_feed` has what they answer."""
SENT = "/api/query"
"""The only one with a body: `test_queries` tries it."""


@pytest.mark.parametrize("address", WATCHED)
def test_the_watch_needs_the_cookie_too(server: Asking, address: str) -> None:
    for cookie in ("", f"{server.gate.cookie}=wrong"):
        assert server.ask(address, cookie=cookie).status == 401, cookie


@pytest.mark.parametrize("address", ADDRESSES)
def test_everything_needs_the_cookie(server: Asking, address: str) -> None:
    assert server.ask(address).status == 200
    for cookie in ("", "other=1", f"{server.gate.cookie}=wrong", f"{server.gate.cookie}={server.gate.token}"):
        answer = server.ask(address, cookie=cookie)
        assert answer.status == 401, cookie
        assert "rankscope serve" in answer.error["what"]
        assert server.gate.session not in answer.body.decode()


def test_every_address_is_among_those_that_are_tried() -> None:
    """A new one must not be forgotten here."""
    tree = ast.parse(Path(server_module.__file__).read_text(encoding="utf-8"))
    routes = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in ("route", "Route")
        and isinstance(node.args[0], ast.Constant)
    }
    tried = {each.partition("?")[0] for each in (*ADDRESSES, *WATCHED, SENT)}
    assert {re.sub(r"\{name\}", "clock", route) for route in routes} == tried


def test_the_token_becomes_a_cookie(server: Asking) -> None:
    token = server.gate.token
    answer = server.ask(f"/?token={token}", cookie="")
    assert answer.status == 303
    assert answer.headers["location"] == "./"  # where the page stands, behind a proxy too
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert cookie == f"{server.gate.cookie}={server.gate.session}"
    assert set(attributes) == {"HttpOnly", "SameSite=Strict"}
    assert token not in cookie
    assert server.ask("/", cookie=cookie).status == 200


def test_a_token_is_good_once(server: Asking) -> None:
    """Whoever finds it later, in a history or a list of processes, does not come in by it."""
    tokens: list[str] = []
    gate = Gate()
    gate.renewed = lambda: tokens.append(gate.token)
    app, host, first = make_app(server.runs, gate), ("host", "127.0.0.1:8000"), gate.token
    # What looks ahead at the link, or asks for it from another site, does not use it up.
    assert call(app, f"/?token={first}", [host], "HEAD").status == 401
    assert call(app, f"/?token={first}", [host, ("origin", "https://evil.example")]).status == 403
    assert call(app, f"/?token={first}x", [host]).status == 401
    assert tokens == []
    opened = call(app, f"/?token={first}", [host])
    cookie = ("cookie", opened.headers["set-cookie"].partition(";")[0])
    assert opened.status == 303
    assert tokens == [gate.token]
    assert gate.token != first
    again = call(app, f"/?token={first}", [host])
    assert again.status == 401
    assert "set-cookie" not in again.headers
    assert "the terminal of rankscope serve" in again.error["hint"]
    # The browser that is in stays in, at the same address too, and leaves the next token to another.
    back = call(app, f"/?token={first}", [host, cookie])
    assert (back.status, "set-cookie" in back.headers) == (303, False)
    assert call(app, f"/?token={gate.token}", [host, cookie]).status == 303
    assert call(app, "/api/runs", [host, cookie]).status == 200
    assert tokens == [gate.token]
    other = call(app, f"/?token={gate.token}", [host])
    assert other.status == 303
    assert len(tokens) == 2


def test_one_of_many_at_once_comes_in(server: Asking) -> None:
    gate = Gate()
    token = gate.token
    with ThreadPoolExecutor(8) as pool:
        came = list(pool.map(lambda _: gate.redeem(token), range(64)))
    assert came.count(True) == 1


def test_a_stranger_s_browser_is_told_in_words(server: Asking) -> None:
    answer = server.ask("/", cookie="", accept="text/html,*/*")
    assert (answer.status, answer.headers["content-type"]) == (401, "text/plain; charset=utf-8")
    assert b"last address in the terminal of rankscope serve" in answer.body
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("token", ["", "wrong", "x" * 10_000, "%00", "é"])
def test_a_wrong_token_gets_nothing(server: Asking, token: str) -> None:
    answer = server.ask(f"/?token={quote(token)}", cookie="")
    assert answer.status == 401
    assert "set-cookie" not in answer.headers


def test_the_token_opens_the_page_alone(server: Asking) -> None:
    assert server.ask(f"/api/summary?token={server.gate.token}", cookie="").status == 401


def test_servers_have_secrets_of_their_own(server: Asking) -> None:
    other = Gate()
    assert other.cookie != server.gate.cookie
    assert len({other.token, other.session, server.gate.token, server.gate.session}) == 4
    assert min(len(other.token), len(other.session)) >= 32


HOSTS = [
    "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "127.0.0.2",
    "127.0.0.1:8000@evil.example", "[::1", "evil.example#127.0.0.1", "127.0.0.1, evil.example",
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_that_is_not_this_machine_s_is_refused(server: Asking, host: str) -> None:
    """DNS rebinding: the attacker's name leads here, and the browser sends it."""
    for address in ("/", f"/?token={server.gate.token}", "/api/summary"):
        assert server.ask(address, host=host).status == 403
        assert server.ask(address, host=host, cookie="").status == 403


def test_two_hosts_are_none(server: Asking) -> None:
    assert server.ask("/", ("host", "evil.example")).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST:8000", "[::1]:8000", "127.0.0.1:65535"])
def test_this_machine_s_names_are_taken_with_any_port(server: Asking, host: str) -> None:
    # ssh -L may have another port at the other end.
    assert server.ask("/api/runs", host=host).status == 200


ORIGINS = [
    "https://evil.example",
    "null",
    "http://127.0.0.1:9999",
    "http://localhost:8000",
    "https://127.0.0.1:8000",
    "file://",
    "javascript:x",
    "x",
]


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_foreign_origin_is_refused(server: Asking, origin: str) -> None:
    for address in ("/", "/api/summary", f"/?token={server.gate.token}"):
        assert server.ask(address, origin=origin).status == 403


def test_the_page_s_own_origin_is_taken(server: Asking) -> None:
    assert server.ask("/api/summary", origin="http://127.0.0.1:8000").status == 200


def test_the_address_that_is_listened_on_is_no_proxy_s_name(server: Asking) -> None:
    """Another port of it is another server, and so it is if somebody allows this machine's own name."""
    for gate in (Gate.of([], ["127.0.0.1", "10.0.0.5"]), Gate.of(["127.0.0.1"], ["10.0.0.5"])):
        app, cookie = make_app(server.runs, gate), ("cookie", f"{gate.cookie}={gate.session}")
        for host in ("127.0.0.1", "10.0.0.5"):
            own = [("host", f"{host}:8000"), cookie]
            assert call(app, "/api/runs", [*own, ("origin", f"http://{host}:8000")]).status == 200
            assert call(app, "/api/runs", [*own, ("origin", f"http://{host}:9999")]).status == 403


def test_head_is_answered_like_get(server: Asking) -> None:
    answer = server.ask("/api/runs", method="HEAD")
    assert answer.status == 200
    assert server.ask("/api/runs", method="HEAD", cookie="").status == 401


def test_what_the_browser_says_comes_from_another_site_is_refused(server: Asking) -> None:
    for site in ("cross-site", "same-site"):
        assert server.ask("/api/summary", sec_fetch_site=site, sec_fetch_mode="no-cors").status == 403
    assert server.ask("/api/summary", sec_fetch_site="same-origin", sec_fetch_mode="cors").status == 200
    # A link in a mail or a note book may lead here: it is the cookie that it lacks.
    assert server.ask("/", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200


def test_a_proxy_s_name_is_taken_only_if_it_was_given(server: Asking, folder: Path) -> None:
    gate = Gate.of(["Hub.Example"])
    app = make_app(server.runs, gate)
    cookie = ("cookie", f"{gate.cookie}={gate.session}")
    assert call(app, "/api/runs", [("host", "hub.example"), cookie]).status == 200
    proxied = [("host", "127.0.0.1:8000"), ("origin", "https://hub.example"), cookie]
    assert call(app, "/api/runs", proxied).status == 200
    assert server.ask("/api/runs", origin="https://hub.example").status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE"])
def test_nothing_can_be_changed(server: Asking, method: str) -> None:
    for address in ADDRESSES:
        answer = server.ask(address, method=method)
        assert answer.status == 405
        assert "access-control-allow-origin" not in answer.headers


PATHS = [
    "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../server.py", "/static/report.html", "//etc/passwd",
    "/api/table/../../../etc/passwd", "/api/table/..%2f..%2fetc%2fpasswd", "/api/../server.py", "/report.html",
    "/..\\..\\windows", "/api/table/", "/api", "/api/", "/.git/config", "/api/run", "/%00",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_to_a_file(server: Asking, path: str) -> None:
    answer = server.ask(path)
    assert answer.status == 404
    assert answer.error["what"]
    assert b"root:" not in answer.body


def test_no_question_names_a_path_or_an_address(server: Asking, tmp_path: Path) -> None:
    """Only the run that it was started with, by a key of the server's own."""
    for run in (str(tmp_path), "/etc", "../run", "https://evil.example/run", "latest", "", "*"):
        assert server.ask(f"/api/state?run={quote(run, safe='')}").status == 404
        assert server.ask(f"/api/diff?with={quote(run, safe='')}").status == 404
    source = "".join(file.read_text(encoding="utf-8") for file in Path(server_module.__file__).parent.glob("*.py"))
    asked = set(re.findall(r"query_params(?:\.get\(|\[)\"(\w+)\"", source)) | set(
        re.findall(r"number\(request, \"(\w+)\"", source)
    )
    assert asked == {
        "after", "at", "bins", "by", "cause", "count", "detail", "direction", "first", "from", "lane", "lanes",
        "level", "limit", "match", "name", "points", "q", "rank", "ranks", "row", "run", "to", "token", "with",
    }  # fmt: skip


def test_the_policy_allows_no_other_address(server: Asking) -> None:
    answer = server.ask("/")
    policy = dict(rule.strip().partition(" ")[::2] for rule in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert re.fullmatch(r"('sha256-[\w+/=]+' ?)+", policy["script-src"])
    for value in policy.values():
        assert not re.search(r"https?:|\*|unsafe-eval|unsafe-inline", value)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-frame-options"] == "DENY"


def test_the_page_s_scripts_are_those_that_the_policy_names() -> None:
    """The data's element is no script that runs: putting them in must not change what the hashes are of."""
    import base64
    import hashlib

    body, policy = served_page()
    text = body.decode()
    assert "Content-Security-Policy" not in text
    assert '{"served": 1}' in text
    scripts = re.findall(r"<script(?![^>]*application/json)[^>]*>(.*?)</script>", text, re.DOTALL)
    assert scripts
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


@pytest.mark.parametrize("policy", ["script-src https://cdn.example", "default-src *", "script-src 'unsafe-eval'"])
def test_a_built_page_that_would_reach_out_is_not_served(policy: str) -> None:
    with pytest.raises(RankscopeError, match="other addresses"):
        served_policy(policy)


def test_a_page_without_a_policy_is_not_served() -> None:
    with pytest.raises(RankscopeError, match="policy"):
        page_module._served("<html><script>/*RANKSCOPE_DATA*/</script></html>")


def test_an_error_of_our_own_tells_no_secret(server: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(runs: Runs, asked: str | None = None) -> None:
        raise ValueError("/somewhere/secret")

    monkeypatch.setattr(Runs, "listed", fail)
    answer = server.ask("/api/runs")
    assert answer.status == 500
    assert "secret" not in answer.body.decode()
    assert answer.headers["cache-control"] == "no-store"
