"""`rankscope trigger`.

In: the run directory of a watched job. Out: recorded steps; what was recorded, as text.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.requested import Progress, chosen_ranks, read_progress
from rankscope.answers.watch.state import WatchStatus
from rankscope.answers.watch.status import read_status
from rankscope.errors import ConfigError, LaunchError
from rankscope.rundir.ranges import as_ranges, named_ranks
from rankscope.rundir.ranks import parse_ranks
from rankscope.rundir.watch_files import Answer, Request, answer_path, read_answer, request_path, write_request

NOT_RECORDED = 1
"""Exit status if the job agreed and not all chosen ranks have a trace, or none has one yet because the script's own
profiler records; an error's, and a refusal's, is 2."""
_LOOK_S = 0.2
_FOLLOW_S = 0.5


def trigger(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory of a running watched job.")],
    steps: Annotated[int, typer.Option(min=1, max=1000, help="How many steps to record.")] = 3,
    ranks: Annotated[str, typer.Option(help="Which of the watched ranks, as for --ranks of rankscope run.")] = "all",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the job's answer.")] = 60.0,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the steps are recorded.")] = True,
) -> None:
    """Make a watched job record its next steps, the same on all chosen ranks.

    Run it on a host that shares the run directory with at least one rank. It prints which steps will be recorded, and
    waits until the traces are in the run directory. Exit code 0: all chosen ranks were recorded; 1: some were not, or
    none yet because the script's own profiler records; 2: the job refuses, does not answer, or has ended. Ctrl-C ends
    the waiting, not the recording.
    """
    choice = parse_ranks(ranks)
    logs = WatchLogs(run)
    status = _running(run, logs, timeout)
    # A rank that was dead or had left its loop before is not one that the job has promised.
    gone = {each.rank: each.state for each in status.ranks if each.state not in ("running", "silent")}
    named = chosen_ranks(run, logs, choice)
    here = [rank for rank in named if logs.latest()[rank].header.profiled]
    chosen = [rank for rank in here if rank not in gone]
    if named and not here:
        only = "only logs its" if len(named) == 1 else "only log their"
        profiled = [rank for rank, log in logs.latest().items() if log.header.profiled]
        hint = f"ranks that record: {as_ranges(profiled)}"
        raise ConfigError(f"{named_ranks(named)} {only} steps: the job was started with other --ranks", hint=hint)
    if not here and len(status.ranks) == status.world_size:
        raise ConfigError(
            f"the job has no rank {ranks}: its ranks are {as_ranges([each.rank for each in status.ranks])}"
        )
    if here and not chosen:
        states = " or ".join(sorted({gone[rank] for rank in here}))
        raise ConfigError(f"ranks {as_ranges(here)} are {states}: they record nothing any more")
    request = Request(f"cli-{time.time_ns():x}-{secrets.token_hex(4)}", steps, ranks, "rankscope trigger")
    try:
        write_request(run, request)
    except OSError as error:
        raise ConfigError(f"{run} cannot be written: {error.strerror or error}") from error
    answer = _first_answer(run, request, status, timeout)
    for rank, state in gone.items():
        if choice.selects(rank):
            typer.echo(f"warning: rank {rank} is not recorded: it is {state}", err=True)
    for each in status.ranks:
        if each.state == "silent":
            typer.echo(f"warning: rank {each.rank} has logged no step for {each.silent_s:.0f} s", err=True)
    if answer.waits:
        waiting = f"{steps} steps will be recorded once the script's own profiler has ended; the request stays"
        if not wait:
            typer.echo(waiting)
            return
        typer.echo(f"nothing was recorded within {timeout:.0f} s: {waiting}", err=True)
        raise typer.Exit(NOT_RECORDED)
    if answer.script_profiler:
        where = f"the script has a profiler of its own ({answer.script_profiler})"
        typer.echo(f"warning: {where}: if it records then, later steps are recorded instead", err=True)
    now = f"; the job is in step {answer.at_step}" if answer.at_step is not None else ""
    where = "all ranks" if ranks == "all" else f"rank {ranks}" if ranks.isdigit() else f"ranks {ranks}"
    if here != named:
        where = f"{named_ranks(here)}, which the job was started to profile"
    typer.echo(f"steps {answer.first_step} to {answer.last_step} will be recorded on {where}{now}")
    if not wait:
        return
    if not chosen:
        typer.echo("this directory has no log of these ranks: whether they are recorded is not known here", err=True)
        return
    progress = _follow(run, logs, chosen, answer)
    for path in (request_path(run, request.id), answer_path(run, request.id)):
        path.unlink(missing_ok=True)
    failed = _report(progress)
    if status.world_size is not None and len(named) < sum(map(choice.selects, range(status.world_size))):
        typer.echo("the other ranks have no log in this directory: whether they recorded is not known here", err=True)
    if failed:
        raise typer.Exit(NOT_RECORDED)


def _running(run: Path, logs: WatchLogs, timeout: float) -> WatchStatus:
    """The state of a job that runs; one that restarts is waited for.

    Raises:
        ConfigError: it has ended.
        LaunchError: its next attempt does not begin in time.
    """
    until = time.monotonic() + timeout
    status = read_status(run, logs)
    if status.restarting:
        typer.echo("the job restarts after a failure: waiting for the first steps of its next attempt", err=True)
    while status.restarting and time.monotonic() < until:
        time.sleep(_FOLLOW_S)
        logs.look()
        status = read_status(run, logs)
    if status.restarting:
        hint = "ask again once it makes steps, or wait longer: --timeout"
        raise LaunchError(f"the job restarts after a failure, and has made no step within {timeout:.0f} s", hint=hint)
    if not status.running:
        raise ConfigError("this job has ended: it records nothing any more", hint=f"its log: rankscope watch {run}")
    return status


def _first_answer(run: Path, request: Request, status: WatchStatus, timeout: float) -> Answer:
    """The job's answer to a request.

    Raises:
        LaunchError: there is none in time.
        ConfigError: the job refuses.
    """
    path = answer_path(run, request.id)
    answer, warned = None, False
    until = time.monotonic() + timeout
    while (answer is None or answer.waits) and time.monotonic() < until:
        time.sleep(_LOOK_S)
        answer = read_answer(path)
        if answer is not None and answer.waits and not warned:
            warned = True
            recording = f"{answer.script_profiler} is recording"
            typer.echo(f"warning: {recording}: the steps will be those after its end", err=True)
    if answer is None:
        request_path(run, request.id).unlink(missing_ok=True)
        answer = read_answer(path)  # a rank may have been about to write it
    if answer is None:
        silent = [each.rank for each in status.ranks if each.state == "silent"]
        hint = (
            f"ranks without a new step: {', '.join(map(str, silent))}" if silent else "does the job still make steps?"
        )
        raise LaunchError(f"no rank has answered within {timeout:.0f} s; the request is withdrawn", hint=hint)
    if answer.refused:
        raise ConfigError(f"the job refuses: {answer.refused}")
    return answer


def _follow(run: Path, logs: WatchLogs, chosen: list[int], answer: Answer) -> Progress:
    """Wait until it is known what became of a request."""
    tried = answer.tries
    while True:
        logs.look()
        latest = read_answer(answer_path(run, answer.id)) or answer
        if latest.tries > tried and latest.first_step is not None:
            tried = latest.tries
            typer.echo(f"not recorded; the job tries again: steps {latest.first_step} to {latest.last_step}")
        progress = read_progress(run, logs, read_status(run, logs), chosen, latest)
        # A rank whose log does not grow is waited for as long as another one's does.
        if progress.settled or not progress.waiting:
            return progress
        time.sleep(_FOLLOW_S)


def _report(progress: Progress) -> bool:
    """Say what became of a request; returns whether a rank was not recorded."""
    spans: dict[tuple[int, int], list[int]] = {}
    for rank, span in progress.recorded.items():
        spans.setdefault(span, []).append(rank)
    for (first, last), ranks in spans.items():
        typer.echo(f"steps {first} to {last} were recorded on {named_ranks(ranks)}")
    reasons: dict[str, list[int]] = {}
    for rank, reason in progress.lost.items():
        reasons.setdefault(reason, []).append(rank)
    if progress.silent:
        reasons["no step has been logged for long"] = list(progress.silent)
    for reason, ranks in reasons.items():
        typer.echo(f"not recorded on {named_ranks(ranks)}: {reason}", err=True)
    return bool(reasons)
