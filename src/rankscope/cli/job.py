"""``rankscope job slurm|pbs|flux``: a complete job script, with capture set up; ``rankscope job machines``.

In: a machine, options and a training script. Out: the job script.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from rankscope.cli.capture_options import CAPTURE, CONTEXT_SETTINGS, OTHER_OPTIONS, PANELS, CaptureCommand
from rankscope.cli.signature import with_options
from rankscope.cli.writing import show
from rankscope.errors import ConfigError, RankscopeError
from rankscope.jobs.jobscript import JobRequest, Machine, find_machine, job_script, known_machines
from rankscope.rundir.config import OPTIONS, CaptureConfig
from rankscope.show.report.formatting import plain

job = typer.Typer(no_args_is_help=True, help="Write a job script for a cluster, with capture set up.")


class _Command(CaptureCommand):
    module_is_script = True

    def unknown(self, name: str, command: str | None) -> None:
        near = difflib.get_close_matches(name, sorted({*OPTIONS, "--help", *self.command_options}), 2, 0.7)
        raise ConfigError(
            f"{name} is not an option of rankscope job {command}",
            hint=f"did you mean {' or '.join(near)}?" if near else f"rankscope job {command} --help lists them",
        )


_DEFAULTS = JobRequest(scheduler="")


@with_options(without=("save_dir", "run_id"), panels=PANELS)
def write(
    context: typer.Context,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="The machine: rankscope job machines lists them.")
    ] = None,
    request: JobRequest = _DEFAULTS,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    capture: CaptureConfig = CAPTURE,
) -> None:
    """Write a job script that trains, captures and reports."""
    request = replace(
        request,
        scheduler=str(context.info_name),
        machine=Machine() if profile is None else find_machine(profile),
        capture=tuple(context.meta[OTHER_OPTIONS]),
        command=tuple(context.args),
    )
    text = job_script(request)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        with output.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if os.name == "posix":
            output.chmod(output.stat().st_mode | 0o111)
    except FileExistsError:
        raise RankscopeError("exists already", path=output, hint="add --force, or choose another -o") from None
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=output, hint="choose another -o") from error
    typer.echo(f"{output}: review it, then {_SUBMIT[request.scheduler]} {output}", err=True)


_SUBMIT = {"slurm": "sbatch", "pbs": "qsub", "flux": "flux batch"}


for _scheduler in _SUBMIT:
    job.command(_scheduler, cls=_Command, context_settings=CONTEXT_SETTINGS)(write)


@job.command()
def machines() -> None:
    """List the machines that --profile knows by name, and the files they are in."""
    table = Table("name", "what", "scheduler", "ranks per node", "file", box=None, pad_edge=False)
    for name, path in sorted(known_machines().items()):
        machine = find_machine(name)
        shown = (name, machine.title, machine.scheduler or "", str(machine.node_ranks or ""), str(path))
        table.add_row(*(Text(plain(text)) for text in shown))
    show(table, None)
