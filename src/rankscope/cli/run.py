"""``rankscope run``: a training job under torchrun, with a run directory made and handed to its ranks."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rankscope.jobs.exec import hooked, take_options
from rankscope.jobs.run import run_job
from rankscope.jobs.torchrun import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, installed_options, split

CONTEXT_SETTINGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    # Everything after the script is the script's own, `--help` too.
    "allow_interspersed_args": False,
}

_RANKS = "RANKSCOPE_RANKS"

NO_TRACES = """\
No trace was written to {run_dir}.
A rankscope.Profiler in the script that names a directory of its own has written there: leave it out, to have them here.
By default steps 16 to 18 are recorded: a job must make more steps of its optimizer, or --wait and --warmup be smaller.
A script without a torch.optim.Optimizer is profiled by a Profiler around its loop:

    import rankscope

    with rankscope.Profiler() as prof:
        for batch in loader:
            ...
            prof.step()
"""


def run(
    context: typer.Context,
    run_dir: Annotated[
        str | None,
        typer.Option("--run-dir", metavar="DIR", help="Where traces go; rankscope_run_{time} by default."),
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="What all ranks of this run share; made up by default.")
    ] = None,
) -> None:
    """Run a training script under torchrun, profiled, its traces in one run directory.

    rankscope run [--run-dir DIR] [OPTIONS] [TORCHRUN OPTIONS] SCRIPT.py [ARGS]

    The script needs no change: a step is over when its optimizer has made one. A rankscope.Profiler in the script is
    obeyed instead. Options, each also a variable (--wait is RANKSCOPE_WAIT): --ranks --wait --warmup --active --repeat
    --skip-first --period-steps --record-shapes --with-stack --profile-memory --compression --keep-windows --keep-bytes
    and the other settings of rankscope.Profiler.

    All options of torchrun are taken as they are, for example --nproc-per-node 4 or --nnodes and --rdzv-endpoint on
    several hosts. Without any, one rank is started for each accelerator (one, if there is none), with a rendezvous of
    its own on a free port. The exit code is torchrun's.
    """
    # Reading stops at the first word that is no option, which may be the value of one of torchrun's.
    flags = installed_options().flags
    variables, rest = take_options(context.args, flags)
    options, script = split(rest, flags)
    result = run_job(
        options,
        script,
        run_dir=variables.get(RUN_DIR_VARIABLE, run_dir),
        run_id=variables.get(RUN_ID_VARIABLE, run_id),
        env=hooked({**os.environ, **variables}),
    )
    if result.traces():
        typer.echo(f"Traces: {result.run_dir}\n  rankscope summary {result.run_dir}", err=True)
    elif result.exit_code == 0:
        typer.echo(NO_TRACES.format(run_dir=result.run_dir), err=True, nl=False)
        if chosen := variables.get(_RANKS, os.environ.get(_RANKS)):
            typer.echo(f"And of the ranks that were chosen, {chosen}, the job must have some.", err=True)
    raise typer.Exit(result.exit_code)
