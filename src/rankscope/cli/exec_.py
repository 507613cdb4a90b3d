"""``rankscope exec``: a command whose Python processes are profiled, under whatever launcher is there.

In: capture options and a command. Out: the command's own output and exit code.
"""

from __future__ import annotations

import typer

from rankscope.cli.capture_options import CAPTURE, OTHER_OPTIONS, PANELS, CaptureCommand
from rankscope.cli.capture_options import CONTEXT_SETTINGS as CONTEXT_SETTINGS
from rankscope.cli.signature import with_options
from rankscope.jobs.exec import exec_command
from rankscope.rundir.config import CaptureConfig


class COMMAND(CaptureCommand):
    """Takes a whole command."""

    usage_rest = "python SCRIPT.py [ARGS]..."


@with_options(panels=PANELS)
def exec_(context: typer.Context, capture: CaptureConfig = CAPTURE) -> None:
    """Run a training script unchanged, profiled, under any launcher.

    srun|mpiexec|torchrun … rankscope exec [OPTIONS] python train.py [ARGS]

    Each step of the script's optimizer counts as a step. A rankscope.Profiler in the script takes precedence; what its
    own torch.profiler records is adopted, with its schedule, unless --take-over is given. The exit code is the
    command's. Each option is also a variable: --wait is RANKSCOPE_WAIT.
    """
    exec_command([*context.meta[OTHER_OPTIONS], "--", *context.args])
