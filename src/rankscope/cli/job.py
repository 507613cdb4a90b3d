"""``rankscope job slurm|pbs|flux``: a complete job script, with capture set up; ``rankscope job machines``."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from rankscope.cli.signature import with_options
from rankscope.cli.writing import show
from rankscope.errors import ConfigError, RankscopeError
from rankscope.jobs.exec import OPTIONS, SWITCHES
from rankscope.jobs.jobscript import JobRequest, Machine, find_machine, job_script, known_machines
from rankscope.report.formatting import plain

job = typer.Typer(no_args_is_help=True, help="Write a job script for a cluster, with capture set up.")

_SETTINGS = {
    "allow_extra_args": True,
    # Everything after the script is the script's own.
    "allow_interspersed_args": False,
}
_CAPTURE = "rankscope.capture"


class _WithCapture(TyperCommand):
    """A command that takes the options of a capture too, in any order before the training script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {name for param in self.params if getattr(param, "is_flag", False) for name in _names(param)}
        every = {*OPTIONS, "--help", *(name for param in self.params for name in _names(param))}
        own: list[str] = []
        taken: list[str] = []
        rest = list(args)
        while rest and rest[0].startswith("-") and rest[0] not in ("-", "--", "-m"):
            word = rest.pop(0)
            name, equals, _ = word.partition("=")
            near = difflib.get_close_matches(name, sorted(every), 2, 0.7) if name not in every else []
            if near and name.startswith("--"):
                said = f"{name} is no option of rankscope job {ctx.info_name}"
                raise ConfigError(said, hint=f"did you mean {' or '.join(near)}?")
            kept = taken if name in OPTIONS else own
            kept.append(word)
            switch = name in SWITCHES if kept is taken else word in flags or word == "--help"
            if not equals and not switch and rest and (kept is taken or word.startswith("--") or len(word) == 2):
                kept.append(rest.pop(0))
        ctx.meta[_CAPTURE] = taken
        return super().parse_args(ctx, [*own, *(rest if rest[:1] == ["--"] else ["--", *rest])])


def _names(param: Any) -> list[str]:
    return [*param.opts, *getattr(param, "secondary_opts", ())]


_DEFAULTS = JobRequest(scheduler="")


@with_options()
def write(
    context: typer.Context,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="The machine: rankscope job machines lists them.")
    ] = None,
    request: JobRequest = _DEFAULTS,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a job script that trains, captures and reports.

    rankscope job slurm|pbs|flux [OPTIONS] [CAPTURE OPTIONS] SCRIPT.py [ARGS]

    The capture options are those of rankscope exec: --ranks --wait --warmup --active --repeat --skip-first
    --period-steps --record-shapes --with-stack --profile-memory and the others.
    """
    request = replace(
        request,
        scheduler=str(context.info_name),
        machine=Machine() if profile is None else find_machine(profile),
        capture=tuple(context.meta[_CAPTURE]),
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
        raise RankscopeError("exists already", path=output, hint="--force, or another -o") from None
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=output, hint="choose another -o") from error
    typer.echo(f"{output}: review it, then {_SUBMIT[request.scheduler]} {output}", err=True)


_SUBMIT = {"slurm": "sbatch", "pbs": "qsub", "flux": "flux batch"}


for _scheduler in _SUBMIT:
    job.command(_scheduler, cls=_WithCapture, context_settings=_SETTINGS)(write)


@job.command()
def machines() -> None:
    """List the machines that --profile knows by name, and the files they are in."""
    table = Table("name", "what", "scheduler", "ranks per node", "file", box=None, pad_edge=False)
    for name, path in sorted(known_machines().items()):
        machine = find_machine(name)
        shown = (name, machine.title, machine.scheduler or "", str(machine.node_ranks or ""), str(path))
        table.add_row(*(Text(plain(text)) for text in shown))
    show(table, None)
