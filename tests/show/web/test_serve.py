"""`rankscope serve` as a person starts it: its address, its port, its end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.kineto import small_step, trace, write

import rankscope.cli as cli_module

STARTED = re.compile(rb"rankscope serves at (http://([\w.]+):(\d+)/\?token=\S+)")
WAIT_S = 300


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str, int]]:
    """A server of its own: the process, the printed address and the port."""
    command = [sys.executable, "-m", "rankscope", "serve", "--no-open", *arguments]
    environment = dict(os.environ, PYTHONUNBUFFERED="1", DISPLAY=":99")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    try:
        assert server.stdout is not None
        # Three lines, read here: what a reader has buffered, `communicate` would not see.
        printed = b"".join(server.stdout.readline() for _ in range(3))
        found = STARTED.search(printed)
        if found is None or b"Ctrl-C" not in printed:
            server.kill()
            raise AssertionError(printed + server.communicate()[1])
        if found[2] == b"127.0.0.1":
            assert f"ssh -L {int(found[3])}:127.0.0.1:{int(found[3])}".encode() in printed
        yield server, found[1].decode(), int(found[3])
    finally:
        if server.poll() is None:
            server.kill()
        server.communicate()


def browser() -> urllib.request.OpenerDirector:
    """What keeps cookies and follows redirects, and goes through no proxy of the environment."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
    )  # fmt: skip


def get(opener: urllib.request.OpenerDirector, address: str) -> Any:
    with opener.open(address, timeout=WAIT_S) as answer:
        return json.loads(answer.read())


def until_ready(opener: urllib.request.OpenerDirector, base: str) -> dict[str, Any]:
    until = time.monotonic() + WAIT_S
    while (state := get(opener, f"{base}api/state"))["phase"] not in ("ready", "failed"):
        assert time.monotonic() < until, state
        time.sleep(0.1)
    return dict(state)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for rank in (0, 1):
        write(tmp_path / "run" / f"rank{rank}.json", trace(small_step(), rank=rank, world_size=2))
    return tmp_path / "run"


def test_the_printed_address_shows_the_run_and_ctrl_c_ends_it(run: Path) -> None:
    with serving(str(run), "--executor", "serial") as (server, address, port):
        opener = browser()
        with opener.open(address, timeout=WAIT_S) as page:
            assert page.url == f"http://127.0.0.1:{port}/"  # the token is out of the address
            assert b'{"served": 1}' in page.read()
        assert until_ready(opener, page.url)["phase"] == "ready"
        assert [each["rank"] for each in get(opener, f"{page.url}api/timeline")["ranks"]] == [0, 1]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(browser(), f"{page.url}api/timeline")
        # The address has been used: it opens nothing more, and the next one is printed.
        with pytest.raises(urllib.error.HTTPError, match="401"):
            browser().open(address, timeout=WAIT_S)
        assert server.stdout is not None
        following = re.search(rb"for another browser: (http://\S+)", server.stdout.readline())
        assert following is not None
        with browser().open(following[1].decode(), timeout=WAIT_S) as another:
            assert another.status == 200
        # On this machine alone.
        listening = [c for c in psutil.Process(server.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert {(c.laddr.ip, c.laddr.port) for c in listening} == {("127.0.0.1", port)}
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=WAIT_S)
    assert server.returncode == 0
    assert b"Traceback" not in err


def ask_as(name: str, port: int, path: str, **headers: str) -> tuple[int, bytes]:
    """What a browser that opened the page under a name of this machine is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", path, headers={"Host": f"{name}:{port}", **headers})
        answer = connection.getresponse()
        return answer.status, (answer.headers["set-cookie"] or "").encode() + answer.read()
    finally:
        connection.close()


def test_others_open_it_by_the_public_name_and_the_token(run: Path) -> None:
    arguments = [str(run), "--executor", "serial", "--host", "0.0.0.0", "--public-host", "node7.example"]
    with serving(*arguments) as (_, address, port):
        assert address.startswith(f"http://node7.example:{port}/?token=")
        path = address.partition(str(port))[2]
        assert ask_as("node7.example", port, "/")[0] == 401
        # Under another name, that of an attacker's DNS for example, the token is of no use.
        assert ask_as("evil.example", port, path)[0] == 403
        assert ask_as("node7.example", port, path, Origin="http://evil.example")[0] == 403
        assert ask_as("node7.example", port, path, Origin=f"http://node7.example:{port + 1}")[0] == 403
        status, answer = ask_as("node7.example", port, path)
        assert status in (200, 302, 303, 307)
        cookie = answer.partition(b";")[0].decode()
        status, page = ask_as("node7.example", port, "/", Cookie=cookie, Origin=f"http://node7.example:{port}")
        assert (status, b'{"served": 1}' in page) == (200, True)
        assert ask_as("node7.example", port, "/api/state")[0] == 401


def test_a_client_that_asks_for_websockets_leaves_no_line(run: Path) -> None:
    with serving(str(run), "--executor", "serial") as (server, _, port):
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        assert ask_as("127.0.0.1", port, "/", **upgrade, **{"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="})[0] == 401
        server.send_signal(signal.SIGINT)
        assert server.communicate(timeout=WAIT_S)[1] == b""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(["--public-host", "node7"], "others cannot reach 127.0.0.1"), (["--public-host", "http://x"], "not a host name")],
)
def test_a_public_name_that_is_of_no_use(
    run: Path, arguments: list[str], problem: str, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problem in ended_with(capfd, monkeypatch, "serve", str(run), "--no-open", *arguments)[1]


class Proxy(BaseHTTPRequestHandler):
    """Passes `/proxy/PORT/…` on to the port, as JupyterHub's does: path shortened, everything else as it came."""

    def do_GET(self) -> None:
        _, _, port, rest = self.path.split("/", 3)
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{rest}", headers=dict(self.headers))
        opener = urllib.request.OpenerDirector()
        opener.add_handler(urllib.request.HTTPHandler())  # follows nothing: that is the browser's
        with opener.open(request, timeout=WAIT_S) as answer:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.read())

    def log_message(self, *arguments: Any) -> None:
        pass


def test_it_works_behind_a_proxy_s_path(run: Path) -> None:
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        with serving(str(run), "--executor", "serial") as (_, address, port):
            opener = browser()
            base = f"http://127.0.0.1:{proxy.server_port}/proxy/{port}/"
            with opener.open(base + address.rpartition("/")[2], timeout=WAIT_S) as page:
                assert page.url == base
                text = page.read().decode()
            # Nothing in the page leads to the root of the host that the proxy stands on.
            assert not re.search(r"""(src|href|action)=["']/""", text)
            assert until_ready(opener, base)["phase"] == "ready"
            # The cookie is for that path: what else stands behind the proxy does not get it.
            (cookie,) = next(h for h in opener.handlers if isinstance(h, urllib.request.HTTPCookieProcessor)).cookiejar
            assert cookie.path == f"/proxy/{port}"
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C comes otherwise there")
def test_ctrl_c_while_reading_leaves_no_process_behind(tmp_path: Path) -> None:
    event = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d,"dur":1}'
    for rank in (0, 1):
        text = ",".join(event % i for i in range(400_000))
        (tmp_path / f"rank{rank}.json").write_text(f'{{"traceEvents":[{text}]}}')
    with serving(str(tmp_path), "--workers", "2") as (server, _, _):
        process = psutil.Process(server.pid)
        until = time.monotonic() + WAIT_S
        while len(process.children(recursive=True)) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        children = process.children(recursive=True)
        assert len(children) >= 3
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=WAIT_S)
        assert server.returncode == 0
        assert err == b"", err.decode()  # no traceback, and nothing of semaphores
        _, alive = psutil.wait_procs(children, timeout=WAIT_S)
        assert not alive


def test_a_port_that_is_taken_is_said(run: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr("sys.argv", ["rankscope", "serve", str(run), "--port", str(taken.getsockname()[1])])
        with pytest.raises(SystemExit) as ended:
            cli_module.main()
    assert ended.value.code == 2
    assert "cannot listen" in capfd.readouterr().err


def test_a_folder_without_traces_is_said_at_once(tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["rankscope", "serve", str(tmp_path), "--no-open"])
    with pytest.raises(SystemExit) as ended:
        cli_module.main()
    assert ended.value.code == 2
    assert "no trace in this directory" in capfd.readouterr().err


WRONG = [
    (["--run", "nope"], "no run has the name, id or directory 'nope'"),
    (["--steps", "x"], "not a range of steps"),
    (["--steps", "900:901"], "no step 900:901"),
    (["--communication", "("], "not a regular expression"),
]


def ended_with(capfd: Any, patch: pytest.MonkeyPatch, *arguments: str) -> tuple[str, str]:
    patch.setattr("sys.argv", ["rankscope", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli_module.main()
    assert ended.value.code == 2
    printed = capfd.readouterr()
    return printed.out, printed.err


@pytest.mark.parametrize(("options", "what"), WRONG)
def test_what_is_wrong_is_said_as_summary_says_it(
    run: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch, options: list[str], what: str
) -> None:
    monkeypatch.setattr("rankscope.cli.serve.READ_S", WAIT_S)
    out, err = ended_with(capfd, monkeypatch, "serve", str(run), "--no-open", *options)
    assert out == ""  # no address
    assert what in err
    assert (out, err) == ended_with(capfd, monkeypatch, "summary", str(run), *options)


def test_a_file_that_is_no_trace_is_said_as_summary_says_it(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.cli.serve.READ_S", WAIT_S)
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    out, err = ended_with(capfd, monkeypatch, "serve", str(tmp_path / "passwd"), "--no-open")
    assert out == ""
    assert (out, err) == ended_with(capfd, monkeypatch, "summary", str(tmp_path / "passwd"))


def test_what_only_reading_tells_is_on_the_terminal_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reading takes longer than the address waits."""
    program = (
        "import sys, rankscope.cli.serve as s; s.READ_S = 0; "
        "from rankscope.cli import main; sys.argv[0] = 'rankscope'; main()"
    )
    command = [sys.executable, "-c", program, "serve", str(run), "--no-open", "--run", "nope"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        assert b"no run has the name, id or directory 'nope'" in server.stderr.readline()
    finally:
        server.kill()
        server.communicate()
