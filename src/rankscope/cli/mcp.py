"""`rankscope mcp`.

In: directories of runs. Out: a server for agents, on standard input and output or over HTTP, until it is ended.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rankscope.errors import ConfigError, RankscopeError

if TYPE_CHECKING:
    from rankscope.show.agents.toolbox import Toolbox

_INSTALL = "pip install 'rankscope[mcp]'"


def mcp(
    folders: Annotated[
        list[str] | None, typer.Argument(metavar="DIR…", help="Directories with runs. Nothing else is read.")
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP instead of standard input and output.")] = False,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port for --http; 0 chooses a free one.")
    ] = 0,
    page: Annotated[
        str | None, typer.Option("--page", metavar="URL", help="Address of a running rankscope serve, for links.")
    ] = None,
    guide: Annotated[bool, typer.Option("--guide", help="Print the guide for agents, a SKILL.md, and exit.")] = False,
    executor: Annotated[str, typer.Option("--executor", help="Where tasks run: processes or serial.")] = "processes",
) -> None:
    """Serve runs to agents over the Model Context Protocol: findings, analyses, diffs, events, pictures. Read-only.

    An agent's configuration starts it: the command is `rankscope`, the arguments are `mcp` and the directories. With
    `--http` it is reached on 127.0.0.1, with the address and the token that it prints.
    """
    if guide:
        from rankscope.show.agents.job_tools import guide as guide_text

        typer.echo(guide_text(), nl=False)
        return
    if not folders:
        raise ConfigError("there is no directory to serve", hint="name one or more: rankscope mcp DIR…")
    if page is not None and not page.startswith(("http://", "https://")):
        raise ConfigError(f"--page {page!r} is not an address", hint="for example http://127.0.0.1:8000")
    _check_installed()
    from rankscope.show.agents.roots import Roots
    from rankscope.show.agents.toolbox import Toolbox

    # Standard output belongs to the protocol.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    toolbox = Toolbox(Roots(folders), page, executor)
    try:
        if http:
            _serve_http(toolbox, port)
        else:
            from rankscope.show.agents.server import run_stdio

            run_stdio(toolbox)
    except KeyboardInterrupt:
        pass
    finally:
        toolbox.close()


def _check_installed() -> None:
    """Check that the protocol's SDK is there, in a version that is supported.

    Raises:
        RankscopeError: it is not.
    """
    try:
        import mcp_types  # noqa: F401  # version 2 has it, version 1 does not
        from mcp.server import lowlevel  # noqa: F401  # only whether it is there
    except ImportError as error:
        raise RankscopeError(
            f"this needs the package mcp, version 2, which is not installed ({error.name or error})", hint=_INSTALL
        ) from None


def _serve_http(toolbox: Toolbox, port: int) -> None:
    from rankscope.show.agents.server import http_app
    from rankscope.show.web.listening import listen, run_app
    from rankscope.show.web.security import Gate

    gate = Gate()
    listener = listen("127.0.0.1", port)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    entry = {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {gate.session}"}}
    print(f"rankscope mcp serves at {url}", flush=True)
    print(f"  configuration: {json.dumps({'mcpServers': {'rankscope': entry}})}", flush=True)
    print("  Ctrl-C ends it", flush=True)
    run_app(http_app(toolbox, gate), listener, lifespan=True)
