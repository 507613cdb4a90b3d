"""`rankscope serve`."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import webbrowser
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from rankscope.cli.options import Communication, Engine, RunId, Source, Steps, Workers
from rankscope.errors import ConfigError
from rankscope.ingest.discover import find_traces
from rankscope.report.words import plain
from rankscope.web.runs import Runs
from rankscope.web.security import LOCAL_NAMES, Gate
from rankscope.web.server import make_app, token_address

# After Ctrl-C, how long answers that are on their way may take.
GRACE_S = 2


def serve(
    source: Source,
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 for any that is free.")] = 0,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name of a proxy under which the page is opened."),
    ] = None,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
    steps: Steps = None,
    run: RunId = None,
    communication: Communication = None,
    executor: Engine = "processes",
    workers: Workers = None,
) -> None:
    """Show a run in the browser: the report's pages, and a timeline of all ranks.

    The page is there at once and fills while traces are read. It is for whoever has the printed address, on this
    machine or through ssh. Ctrl-C ends it.
    """
    find_traces(source)  # what is not there is said here and now
    options = {"steps": steps, "communication": communication, "executor": executor, "workers": workers}
    runs = Runs(list(source), run, **options)
    listener = _listen(host, port)
    bound = listener.getsockname()[1]
    gate = Gate.of([*(allow_host or []), *([] if host in ("0.0.0.0", "::") else [host])])
    address = token_address(f"http://{_shown(host)}:{bound}", gate)
    _say(address, host, bound)
    runs.start()
    if show and _has_browser():
        webbrowser.open(address)
    _run(make_app(runs, gate), listener)
    runs.stop()
    _leave()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            # A port that has just been left may be taken again. On Windows this would let others share it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="choose another --port, or 0 for any"
        ) from error
    return listener


def _shown(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _say(address: str, host: str, port: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"rankscope serves at {address}"))
    if host in LOCAL_NAMES:
        machine = plain(socket.gethostname())
        console.print(
            Text(f"  from another machine: ssh -L {port}:127.0.0.1:{port} {machine}, and open the same address")
        )
    else:
        console.print(Text("  whoever reaches this machine and knows the address sees the run; nothing is encrypted"))
    console.print(Text("  Ctrl-C ends it"))
    sys.stdout.flush()


def _has_browser() -> bool:
    # Without a display a text browser would take the terminal.
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _run(app: object, listener: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def _leave() -> None:
    """End now: reading in the background would keep the interpreter until its last task is done."""
    for child in multiprocessing.active_children():
        child.terminate()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
