"""``rankscope exec``: a command whose Python processes are profiled, under whatever launcher is there."""

from __future__ import annotations

import typer

from rankscope.jobs.exec import exec_command

CONTEXT_SETTINGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    # Everything after the command is the command's own, `--help` too.
    "allow_interspersed_args": False,
}


def exec_(context: typer.Context) -> None:
    """Run a training script as it is, profiled, under any launcher.

    srun|mpiexec|torchrun … rankscope exec [OPTIONS] python train.py [ARGS]

    The script needs no change: a step is over when its optimizer has made one. A rankscope.Profiler in the script is
    obeyed instead. Options, each also a variable (--wait is RANKSCOPE_WAIT): --run-dir --run-id --ranks --wait
    --warmup --active --repeat --skip-first --period-steps --record-shapes --with-stack --profile-memory --compression
    --keep-windows --keep-bytes and the other settings of rankscope.Profiler. The exit code is the command's.
    """
    exec_command(context.args)
