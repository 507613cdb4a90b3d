"""`rankscope trigger`."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from rankscope.errors import ConfigError, LaunchError
from rankscope.rundir.ranks import parse_ranks
from rankscope.rundir.watch_files import Request, answer_path, read_answer, request_path, write_request
from rankscope.watch.log import WatchLogs
from rankscope.watch.status import read_status

_LOOK_S = 0.2


def trigger(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory of a watched job that runs.")],
    steps: Annotated[int, typer.Option(min=1, max=1000, help="How many steps to record.")] = 3,
    ranks: Annotated[str, typer.Option(help="Which of the watched ranks, as for --ranks of rankscope run.")] = "all",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the answer of the job.")] = 60.0,
) -> None:
    """Make a watched job record its next steps, the same on all chosen ranks.

    Run it where one of the job's ranks sees the run directory. It prints which steps will be recorded; the traces
    are in the run directory some seconds after them.
    """
    parse_ranks(ranks)
    status = read_status(run, WatchLogs(run))
    if not status.running:
        raise ConfigError("this job has ended: it records nothing any more", hint=f"its log: rankscope watch {run}")
    request = Request(f"cli-{time.time_ns():x}-{secrets.token_hex(4)}", steps, ranks, "rankscope trigger")
    try:
        write_request(run, request)
    except OSError as error:
        raise ConfigError(f"{run} cannot be written: {error.strerror or error}") from error
    answer, warned = None, False
    until = time.monotonic() + timeout
    while (answer is None or answer.waits) and time.monotonic() < until:
        time.sleep(_LOOK_S)
        answer = read_answer(answer_path(run, request.id))
        if answer is not None and answer.waits and not warned:
            warned = True
            recording = f"{answer.script_profiler} is recording"
            typer.echo(f"warning: {recording}: the steps will be those after its end", err=True)
    if answer is None:
        request_path(run, request.id).unlink(missing_ok=True)
        silent = [each.rank for each in status.ranks if each.state == "silent"]
        hint = (
            f"ranks without a new step: {', '.join(map(str, silent))}" if silent else "does the job still make steps?"
        )
        raise LaunchError(f"no rank has answered within {timeout:.0f} s; the request is withdrawn", hint=hint)
    if answer.refused:
        raise ConfigError(f"the job refuses: {answer.refused}")
    for each in status.ranks:
        if each.state == "silent":
            typer.echo(f"warning: rank {each.rank} has logged no step for {each.silent_s:.0f} s", err=True)
    if answer.waits:
        typer.echo(f"{steps} steps will be recorded once the script's own profiler has ended; the request stays")
        return
    if answer.script_profiler:
        where = f"the script has a profiler of its own ({answer.script_profiler})"
        typer.echo(f"warning: {where}: if it records then, later steps are recorded instead", err=True)
    now = f"; the job is in step {answer.at_step}" if answer.at_step is not None else ""
    typer.echo(f"steps {answer.first_step} to {answer.last_step} will be recorded on ranks {ranks}{now}")
