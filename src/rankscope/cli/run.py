"""``rankscope run``: a training job under torchrun, with a run directory made and handed to its ranks."""

from __future__ import annotations

from typing import Annotated

import typer

from rankscope.launch.job import run_job
from rankscope.launch.torchrun import split

CONTEXT_SETTINGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    # Everything after the script is the script's own, `--help` too.
    "allow_interspersed_args": False,
}

NO_TRACES = """\
No trace was written to {run_dir}.
A script is profiled by a Profiler around its training loop:

    import rankscope

    with rankscope.Profiler() as prof:
        for batch in loader:
            ...
            prof.step()

By default it records steps 15 to 17: a loop must be longer, or wait= and warmup= smaller.
"""


def run(
    context: typer.Context,
    run_dir: Annotated[
        str | None,
        typer.Option("--run-dir", metavar="DIR", help="Where traces go; rankscope_run_<time> by default."),
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="What all ranks of this run share; made up by default.")
    ] = None,
) -> None:
    """Run a training script under torchrun, its traces in one run directory.

    rankscope run [--run-dir DIR] [TORCHRUN OPTIONS] SCRIPT.py [ARGS]

    All options of torchrun are taken as they are, for example --nproc-per-node 4 or --nnodes and --rdzv-endpoint on
    several hosts. Without any, one rank is started for each accelerator (one, if there is none), with a rendezvous of
    its own on a free port. The exit code is the job's.
    """
    options, script = split(context.args)
    # Reading stops at the first word that is no option, which may be the value of one of torchrun's.
    run_dir = _take(options, "--run-dir") or run_dir
    run_id = _take(options, "--run-id") or run_id
    result = run_job(options, script, run_dir=run_dir, run_id=run_id)
    if result.traces():
        typer.echo(f"Traces: {result.run_dir}\n  rankscope summary {result.run_dir}", err=True)
    elif result.exit_code == 0:
        typer.echo(NO_TRACES.format(run_dir=result.run_dir), err=True, nl=False)
    raise typer.Exit(result.exit_code)


def _take(options: list[str], name: str) -> str | None:
    """Take an option of ours out of torchrun's."""
    value = None
    for index in reversed(range(len(options))):
        given, equals, text = options[index].partition("=")
        if given == name:
            value = text if equals else options.pop(index + 1) if index + 1 < len(options) else None
            del options[index]
    return value
