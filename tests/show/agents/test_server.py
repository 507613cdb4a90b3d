"""The protocol, with the SDK's own client: over standard input and output, and over HTTP with its checks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.show.web.asking import call as request

from rankscope.cli.mcp import mcp as mcp_command
from rankscope.errors import RankscopeError
from rankscope.show.agents.roots import Roots
from rankscope.show.agents.toolbox import TOOLS, Toolbox
from rankscope.show.web.security import Gate

PNG = "iVBORw0KGgo"  # the first bytes of each, in base64


def value(result: Any) -> dict[str, Any]:
    assert not result.is_error, result
    found: dict[str, Any] = json.loads(result.content[0].text)
    assert result.structured_content == found
    return found


async def use(client: Any) -> None:
    """What an agent does: lists, reads the guide, asks, and tries what it must not."""
    listed = await client.list_tools()
    assert [tool.name for tool in listed.tools] == list(TOOLS)
    assert all(tool.annotations.read_only_hint for tool in listed.tools)
    (guide,) = (await client.list_resources()).resources
    assert "ceiling" in (await client.read_resource(guide.uri)).contents[0].text
    (run,) = value(await client.call_tool("list_runs", {}))["rows"]
    assert value(await client.call_tool("summary", {"run": run[0]}))["data"]["run"]["ranks"] == "0-1"
    findings = value(await client.call_tool("findings", {}))["rows"]
    assert all({"evidence", "saving_ns", "severity"} <= set(each) for each in findings)
    drawn = await client.call_tool("timeline_picture", {"ranks": [0, 1]})
    assert drawn.content[1].mime_type == "image/png"
    assert drawn.content[1].data.startswith(PNG)
    for tool, arguments in (("hang", {"folder": "run/../.."}), ("summary", {"run": "/etc"}), ("summary", {"x": 1})):
        refused = await client.call_tool(tool, arguments)
        assert refused.is_error
        assert "error" in json.loads(refused.content[0].text)


@contextmanager
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    source = str(Path(__file__).resolve().parents[3] / "src")
    yield {**os.environ, "PYTHONPATH": source, "RANKSCOPE_CACHE": str(tmp_path / "cache"), "PYTHONUTF8": "1"}


@pytest.mark.slow
def test_a_client_over_standard_input_and_output(folder: Path, tmp_path: Path) -> None:
    """With worker processes, as a user has it: nothing but the protocol may get into standard output."""
    client_module = pytest.importorskip("mcp", reason="pip install --group tools")
    with environment(tmp_path) as variables:
        arguments = ["-m", "rankscope", "mcp", str(folder)]
        started = client_module.StdioServerParameters(command=sys.executable, args=arguments, env=variables)

        async def session() -> None:
            async with client_module.Client(started, read_timeout_seconds=300) as client:
                await use(client)

        asyncio.run(session())


@pytest.mark.slow
def test_a_client_over_http_needs_the_token(folder: Path, tmp_path: Path) -> None:
    client_module = pytest.importorskip("mcp", reason="pip install --group tools")
    httpx2 = pytest.importorskip("httpx2")
    from mcp.client.streamable_http import streamable_http_client

    with environment(tmp_path) as variables:
        command = [sys.executable, "-m", "rankscope", "mcp", str(folder), "--http", "--executor", "serial"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            entry = json.loads(server.stdout.readline().partition(": ")[2])["mcpServers"]["rankscope"]
            assert entry["url"] == url
            assert url.startswith("http://127.0.0.1:")

            async def session() -> None:
                async with httpx2.AsyncClient(timeout=300) as stranger:
                    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
                    assert (await stranger.post(url, json=body)).status_code == 401
                    wrong = {"Authorization": "Bearer wrong"}
                    assert (await stranger.post(url, json=body, headers=wrong)).status_code == 401
                    other = {**entry["headers"], "Host": "attacker.example"}
                    assert (await stranger.post(url, json=body, headers=other)).status_code == 403
                    foreign = {**entry["headers"], "Origin": "http://attacker.example"}
                    assert (await stranger.post(url, json=body, headers=foreign)).status_code == 403
                async with httpx2.AsyncClient(headers=entry["headers"], timeout=300) as allowed:
                    transport = streamable_http_client(url, http_client=allowed)
                    async with client_module.Client(transport, read_timeout_seconds=300) as client:
                        await use(client)

            asyncio.run(session())
        finally:
            server.terminate()
            server.wait(60)
            server.stdout.close()


def test_every_address_needs_host_origin_and_token(folder: Path) -> None:
    """The checks are those of the page, before any request reaches the protocol."""
    pytest.importorskip("mcp", reason="pip install --group tools")
    from rankscope.show.agents.server import http_app

    gate = Gate()
    app = http_app(Toolbox(Roots([str(folder)])), gate)
    token = ("authorization", f"Bearer {gate.session}")
    host = ("host", "127.0.0.1:8000")
    for address in ("/mcp", "/", "/.well-known/oauth-protected-resource"):
        for method in ("GET", "POST", "DELETE"):
            assert request(app, address, [host], method).status == 401
            assert request(app, address, [host, ("authorization", "Bearer ")], method).status == 401
            assert request(app, address, [host, ("cookie", gate.set_cookie())], method).status == 401
            assert request(app, address, [("host", "attacker.example"), token], method).status == 403
            assert request(app, address, [host, token, ("origin", "http://attacker.example")], method).status == 403
            assert request(app, address, [host, token, ("origin", "http://127.0.0.1:9")], method).status == 403
    assert request(app, "/", [host, token]).status == 404


def test_without_the_sdk_the_error_has_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    with pytest.raises(RankscopeError) as error:
        mcp_command([str(folder)])
    assert error.value.hint == "pip install 'rankscope[mcp]'"


def test_the_guide_needs_neither_sdk_nor_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    mcp_command(guide=True)
    assert capsys.readouterr().out.startswith("---\nname: rankscope\n")
    with pytest.raises(RankscopeError, match="no directory"):
        mcp_command([])
