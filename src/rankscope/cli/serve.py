"""`rankscope serve`.

In: runs. Out: a server, until it is interrupted.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
import webbrowser
from dataclasses import asdict
from multiprocessing import util
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from rankscope.cli.options import DEFAULTS, RunOptions, Source
from rankscope.cli.signature import with_options
from rankscope.engine.pipeline import open_run
from rankscope.errors import ConfigError, NoTracesError, RankscopeError
from rankscope.ingest.watch import Watch
from rankscope.rundir.watch_files import WATCH_FOLDER
from rankscope.show.report.errors import print_error
from rankscope.show.report.experiments.tables import jobs_of
from rankscope.show.report.formatting import plain
from rankscope.show.web.listening import listen, run_app
from rankscope.show.web.loading import LoadedRun
from rankscope.show.web.runs import Runs
from rankscope.show.web.security import LOCAL_NAMES, Gate, is_host_name
from rankscope.show.web.server import make_app, token_address

# Wait this long for the files to be read before printing the address: small or cached runs are ready by then, and their
# errors end the command. Larger runs fill the page as they are read.
READ_S = 1.5
_ANY = ("0.0.0.0", "::")


@with_options()
def serve(  # noqa: PLR0913  # each is an option that users give by name
    source: Source,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 0,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    public_host: Annotated[
        str | None,
        typer.Option(
            "--public-host", metavar="NAME", help="The name by which others open the page, with --host 0.0.0.0."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Host name of a proxy through which the page is opened."),
    ] = None,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--no-follow",
            help="Pick up new traces, and wait for the first; --no-follow: neither. Default: pick up new traces.",
        ),
    ] = None,
    options: RunOptions = DEFAULTS,
) -> None:
    """Show a run in the browser: the report's pages, and a timeline of all ranks.

    The page opens at once and fills while traces are read. Only those who have the printed address can open it,
    on this machine or through ssh. Each address works in one browser: once it is used, the next one is printed. Ctrl-C
    stops the server.
    """
    _check_public_host(public_host, host)
    settings = {name: value for name, value in asdict(options).items() if name != "run"}
    if follow is None and all(os.path.isdir(Path(path, WATCH_FOLDER)) for path in source):  # noqa: PTH112 (without rights too)
        follow = True  # a watched job may have no trace yet, and is worth seeing without one
    if follow and not Watch.supports(source):
        raise ConfigError("a URL cannot be followed", hint="leave --follow out, or name a directory of this machine")
    try:
        open_run(list(source), **settings)  # an error is reported before the page opens
    except NoTracesError as error:
        if len(source) == 1 and jobs_of(source[0]) is not None:
            raise NoTracesError(
                "the jobs of this experiment recorded no trace",
                path=source[0],
                hint=f"its result: rankscope summary {source[0]}; to see its steps, measure with --trace-steps",
            ) from error
        # The directory of a job may exist before its first trace.
        if not follow or not all(Path(path).is_dir() for path in source):
            raise
    runs = Runs(list(source), options.run, follow=follow, **settings)
    listener = listen(host, port)
    bound = listener.getsockname()[1]
    gate = Gate.of(allow_host or [], [public_host.strip("[]")] if public_host else [] if host in _ANY else [host])
    base = f"http://{public_host or _shown(host)}:{bound}"
    address = token_address(base, gate)
    loaded = runs.shown.loaded
    try:
        runs.start()
        known = loaded.wait_read(READ_S)
        if isinstance(loaded.error, RankscopeError):
            listener.close()
            raise loaded.error
        _say(address, host, bound, public_host)
        gate.renewed = lambda: _say_next(token_address(base, gate))
        if not known:
            threading.Thread(target=_say_failure, args=(loaded,), daemon=True).start()
        if show and _has_browser():
            webbrowser.open(address)
        run_app(make_app(runs, gate), listener)
    except KeyboardInterrupt:
        pass
    runs.stop()
    _leave()


def _say_failure(loaded: LoadedRun) -> None:
    """Print an error of reading on the terminal, in addition to the page."""
    loaded.wait_read()
    if isinstance(loaded.error, RankscopeError):
        print_error(loaded.error)


def _check_public_host(name: str | None, host: str) -> None:
    if name is None:
        return
    if not is_host_name(name):
        raise ConfigError(f"--public-host {name!r} is not a host name", hint="without http:// and port: node07.site")
    if host in LOCAL_NAMES:
        raise ConfigError(
            f"--public-host {name}: others cannot reach {host}", hint="add --host 0.0.0.0, or --host ADDRESS"
        )


def _shown(host: str) -> str:
    if host in _ANY:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _say(address: str, host: str, port: int, public_host: str | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"rankscope serves at {address}"))
    if host in LOCAL_NAMES:
        machine = plain(socket.gethostname())
        console.print(
            Text(f"  from another machine: ssh -L {port}:127.0.0.1:{port} {machine}, and open the same address")
        )
    elif host in _ANY and public_host is None:
        console.print(Text("  other machines are refused: name this one as they open it, with --public-host NAME"))
    else:
        console.print(
            Text("  it opens once, for whoever has it; the next address is printed then; nothing is encrypted")
        )
    console.print(Text("  Ctrl-C ends it"))
    sys.stdout.flush()


def _say_next(address: str) -> None:
    """Print another address, as the first one works only once."""
    print(f"  opened; for another browser: {address}", flush=True)


def _has_browser() -> bool:
    # Without a display a text browser would take the terminal.
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _leave() -> None:
    """Exit now: reading in the background would keep the interpreter running until its last task ends."""
    # Release the pool's semaphores, else Python's resource tracker warns. A normal exit does this; there is no public
    # name for it.
    finalize = getattr(util, "_run_finalizers", None)
    if callable(finalize):
        finalize(0)
    sys.stdout.flush()
    sys.stderr.flush()
    # Last: the reading thread would replace a pool whose workers end, with new semaphores.
    for child in multiprocessing.active_children():
        child.terminate()
    os._exit(0)
