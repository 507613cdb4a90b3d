"""``rankscope job slurm|pbs|flux``: a complete job script, with capture in it; ``rankscope job machines``."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from rankscope.cli.writing import show
from rankscope.errors import ConfigError, RankscopeError
from rankscope.jobs.exec import OPTIONS, SWITCHES
from rankscope.jobs.jobscript import JobRequest, Machine, find_machine, job_script, known_machines
from rankscope.jobs.jobscript.request import RUN_NAME
from rankscope.report.formatting import plain

job = typer.Typer(no_args_is_help=True, help="Write a job script for a cluster, with capture in it.")

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


def write(
    context: typer.Context,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="The machine: rankscope job machines lists them.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="How many.")] = 1,
    ranks_per_node: Annotated[int | None, typer.Option(min=1, help="Default: the machine's devices, or 1.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda, rocm, xpu or cpu.")] = None,
    cpus_per_rank: Annotated[int | None, typer.Option(min=1, help="Cores, or hardware threads, of each rank.")] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="Project that pays.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", "--partition", "-q", help="Queue or partition.")] = None,
    walltime: Annotated[str, typer.Option("--walltime", "-t", help="01:30:00, 1-12:00, 90m or 2h.")] = "00:30:00",
    job_name: Annotated[str, typer.Option(help="The job's name.")] = "rankscope",
    filesystems: Annotated[str | None, typer.Option(help="PBS: file systems to wait for, home:eagle.")] = None,
    directive: Annotated[list[str] | None, typer.Option(help="A further line for the scheduler, --exclusive.")] = None,
    module: Annotated[list[str] | None, typer.Option(help="Module to load. Can be repeated.")] = None,
    module_path: Annotated[list[str] | None, typer.Option(help="module use PATH.")] = None,
    conda: Annotated[str | None, typer.Option(help="Conda environment to activate.")] = None,
    venv: Annotated[str | None, typer.Option(help="Virtual environment to activate.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE to export. Can be repeated.")] = None,
    container: Annotated[str | None, typer.Option(help="Image to run in, with Apptainer or Singularity.")] = None,
    container_command: Annotated[str | None, typer.Option(help="apptainer or singularity.")] = None,
    bind: Annotated[list[str] | None, typer.Option(help="Path to bind into the container. Can be repeated.")] = None,
    rankscope_dir: Annotated[
        str | None, typer.Option(help="Where pip install --no-deps --target put rankscope, for an image without it.")
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(help="torchrun (one a node), or a process a rank by srun, mpiexec or flux.")
    ] = None,
    mpi: Annotated[str | None, typer.Option(help="Whose mpiexec: pals, openmpi, mpich or intel.")] = None,
    mpiexec: Annotated[
        str | None, typer.Option(metavar="PROGRAM", help="What it is called: mpirun, mpiexec.hydra.")
    ] = None,
    launcher_arg: Annotated[list[str] | None, typer.Option(help="A further argument of the launcher.")] = None,
    cpu_bind: Annotated[
        str | None, typer.Option(help="none, or what --cpu-bind takes there. Default: what suits the machine.")
    ] = None,
    master_suffix: Annotated[
        str | None, typer.Option(help="What makes the first host's name that of the fast network.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=0, help="In the run's name; the script's --epochs.")] = None,
    run_name: Annotated[str, typer.Option(help="The run directory's name; {job} can stand in it too.")] = RUN_NAME,
    runs_dir: Annotated[str, typer.Option(help="Where run directories are made; every node must see it.")] = "runs",
    traces: Annotated[
        str, typer.Option(help="shared: into the run directory. local: to each host's disk, gathered in the end.")
    ] = "shared",
    local_dir: Annotated[str, typer.Option(help="The local disk of --traces local.")] = "/tmp",
    nccl_debug: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Keep what NCCL says, a file a process: WARN or INFO.")
    ] = None,
    report: Annotated[bool, typer.Option(help="End with a summary and report.html in the run directory.")] = True,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a job script that trains, captures and reports.

    rankscope job slurm|pbs|flux [OPTIONS] [CAPTURE OPTIONS] SCRIPT.py [ARGS]

    Also understood are all options of rankscope exec that say what is captured: --ranks --wait --warmup --active
    --repeat --skip-first --period-steps --record-shapes --with-stack --profile-memory and the others.
    """
    request = JobRequest(
        scheduler=str(context.info_name),
        machine=Machine() if profile is None else find_machine(profile),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        device=device,
        cpus_per_rank=cpus_per_rank,
        account=account,
        queue=queue,
        walltime=walltime,
        job_name=job_name,
        filesystems=filesystems,
        directives=tuple(directive or ()),
        modules_use=tuple(module_path or ()),
        modules=tuple(module or ()),
        conda=conda,
        venv=venv,
        environment=tuple(env or ()),
        container=container,
        container_command=container_command,
        binds=tuple(bind or ()),
        rankscope_dir=rankscope_dir,
        launcher=launcher,
        mpi=mpi,
        mpiexec=mpiexec,
        launcher_arguments=tuple(launcher_arg or ()),
        cpu_bind=cpu_bind,
        master_suffix=master_suffix,
        epochs=epochs,
        run_name=run_name,
        runs_dir=runs_dir,
        traces=traces,
        local_dir=local_dir,
        nccl_debug=nccl_debug,
        report=report,
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
        raise RankscopeError("is there already", path=output, hint="--force, or another -o") from None
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=output, hint="choose another -o") from error
    typer.echo(f"{output}: look it through, then {_SUBMIT[request.scheduler]} {output}", err=True)


_SUBMIT = {"slurm": "sbatch", "pbs": "qsub", "flux": "flux batch"}


for _scheduler in _SUBMIT:
    job.command(_scheduler, cls=_WithCapture, context_settings=_SETTINGS)(write)


@job.command()
def machines() -> None:
    """List the machines that --profile knows by name, and the files they are in."""
    table = Table("name", "what", "scheduler", "ranks a node", "file", box=None, pad_edge=False)
    for name, path in sorted(known_machines().items()):
        machine = find_machine(name)
        shown = (name, machine.title, machine.scheduler or "", str(machine.node_ranks or ""), str(path))
        table.add_row(*(Text(plain(text)) for text in shown))
    show(table, None)
