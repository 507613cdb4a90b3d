"""The request for a job script: its options, checked and completed with the machine's values.

In: options and a machine. Out: a completed request, or an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from rankscope.errors import ConfigError
from rankscope.jobs.exec import take_options
from rankscope.jobs.jobscript.machine import DEVICES, LAUNCHERS, MPIS, SCHEDULERS, Machine
from rankscope.jobs.jobscript.meanings import last_number, options
from rankscope.jobs.jobscript.quoting import directive_value, variable_name
from rankscope.rundir.config import variable_of
from rankscope.rundir.cpus import cpu_lists
from rankscope.rundir.options import option
from rankscope.rundir.plurals import counted
from rankscope.rundir.ranks import parse_ranks

RUN_NAME = "E{epochs}_N{nodes}_R{ranks}_{time}"
RUN_NAME_VARIABLES = {name: name.upper() for name in ("epochs", "nodes", "ranks", "ranks_per_node", "time", "job")}
_DEFAULT_LAUNCHER = {"slurm": "srun", "pbs": "mpiexec", "flux": "flux"}
_MOST = 1_000_000
CONTAINERS = ("apptainer", "singularity")
"""Whose options the script uses; another program has others."""
# D-H, D-H:M, D-H:M:S; then M:S and H:M:S; then a number with a unit or without.
_DAYS = re.compile(r"(\d{1,3})-(\d{1,4})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,4}):)?(\d{1,6}):(\d{1,2})", re.ASCII)
_MEMORY = re.compile(r"(\d{1,9})\s*([KMGT])(?:i?B)?", re.ASCII | re.IGNORECASE)
_LISTS = re.compile(r"(?:(?:quiet|q|verbose|v),)?(list|mask_cpu|map_cpu):((?:[^*]|\*[0-9]{1,6}(?=,|$))*)", re.ASCII)
_NUMBER = re.compile(r"(\d{1,6})\s*(m|min|h|d|s)?", re.ASCII)


@dataclass(frozen=True)
class JobRequest:
    """A job to write a script for. Where a field is None or empty, the machine's value is used."""

    scheduler: str
    command: tuple[str, ...] = ()
    """The training script and its arguments; a first word that ends in ``.py`` runs under ``python``."""
    machine: Machine = field(default_factory=Machine)
    nodes: int = option(1, "How many nodes.", least=1)
    ranks_per_node: int | None = option(None, "Default: the machine's devices, or 1.", least=1)
    device: str | None = option(None, "cuda, rocm, xpu or cpu.")
    cpus_per_rank: int | None = option(None, "Cores, or hardware threads, of each rank.", least=1)
    account: str | None = option(None, "The project to charge.", "--account", "-A")
    queue: str | None = option(None, "Queue or partition.", "--queue", "--partition", "-q")
    walltime: str = option("00:30:00", "01:30:00, 1-12:00, 90m or 2h.", "--walltime", "-t")
    memory: str | None = option(None, "Memory of each node: 64G; 0 is all of it (Slurm).", "--mem", metavar="SIZE")
    job_name: str = option("rankscope", "The job's name.")
    filesystems: str | None = option(None, "PBS: file systems that the job needs, for example home:eagle.")
    directives: tuple[str, ...] = option(
        (), "A line for the scheduler, in place of those of its meaning. Repeatable.", "--directive"
    )
    modules: tuple[str, ...] = option((), "A module to load. Repeatable.", "--module")
    modules_use: tuple[str, ...] = option((), "A path for `module use`. Repeatable.", "--module-path")
    profile_modules: bool = option(True, "Load the profile's modules, and its conda environment.")
    conda: str | None = option(None, "Conda environment to activate.")
    venv: str | None = option(None, "Virtual environment to activate.")
    source_files: tuple[str, ...] = option(
        (), "A script that sets up the software, to source after the modules. Repeatable.", "--source", metavar="FILE"
    )
    environment: tuple[str, ...] = option((), "NAME=VALUE to export. Repeatable.", "--env")
    container: str | None = option(None, "Image to run in, with Apptainer or Singularity.")
    container_command: str | None = option(None, "apptainer or singularity.")
    binds: tuple[str, ...] = option((), "Path to bind into the container. Repeatable.", "--bind")
    rankscope_dir: str | None = option(
        None, "Where pip install --no-deps --target put rankscope, for an image or environment without it."
    )
    launcher: str | None = option(None, "torchrun (one per node), or one process per rank by srun, mpiexec or flux.")
    mpi: str | None = option(None, "Which MPI's mpiexec: pals, openmpi, mpich or intel.")
    mpiexec: str | None = option(None, "Its name: mpirun, mpiexec.hydra.", metavar="PROGRAM")
    launcher_arguments: tuple[str, ...] = option(
        (), "A further argument of the launcher. Repeatable.", "--launcher-arg"
    )
    cpu_bind: str | None = option(
        None, "none, or a value of the launcher's --cpu-bind. Default: the machine's binding, if one is known."
    )
    master_suffix: str | None = option(None, "Suffix that makes the first host's name its name on the fast network.")
    epochs: int | None = option(None, "For the run's name. Default: the script's --epochs, or 1.", least=0)
    run_name: str = option(RUN_NAME, "The run directory's name; {job} and {ranks_per_node} can be used too.")
    runs_dir: str = option("runs", "Where run directories are made; every node must see it.")
    traces: str = option("shared", "shared: into the run directory. local: to each host's disk, gathered at the end.")
    local_dir: str = option("/tmp", "The local disk for --traces local.")
    nccl_debug: str | None = option(None, "Keep NCCL's log, one file per process: WARN or INFO.", metavar="LEVEL")
    report: bool = option(True, "End with a summary, and report.html in the run directory.")
    analysis: str = option("node", "Where these are computed: node, the first one; dask or mpi, all nodes of the job.")
    capture: tuple[str, ...] = ()
    """Options of ``rankscope exec``."""

    def resolved(self) -> JobRequest:
        """The same with the machine's values for what was not given, checked.

        Raises:
            ConfigError: an invalid value.
        """
        machine = self.machine
        if not self.command:
            raise ConfigError(
                "there is no training script", hint=f"rankscope job {self.scheduler} [options] train.py [its arguments]"
            )
        _one_of("scheduler", self.scheduler, SCHEDULERS)
        if machine.scheduler not in (None, self.scheduler):
            raise ConfigError(
                f"{machine.name} uses {machine.scheduler}, not {self.scheduler}",
                hint=f"rankscope job {machine.scheduler} --profile {machine.name}",
            )
        launcher = self.launcher or usual_launcher(machine, self.scheduler)
        asked = self._asked(launcher)
        full = replace(
            self,
            nodes=asked.nodes,
            ranks_per_node=asked.ranks_per_node or machine.node_ranks or 1,
            device=self.device or machine.node_device,
            cpus_per_rank=asked.cpus_per_rank or machine.node_cpus_per_rank,
            queue=self.queue or machine.directives_queue,
            filesystems=self.filesystems or machine.directives_filesystems,
            modules_use=self.modules_use or (machine.software_modules_use if self.profile_modules else ()),
            modules=self.modules or (machine.software_modules if self.profile_modules else ()),
            conda=self.conda
            or (None if self.venv or self.container or not self.profile_modules else machine.software_conda),
            container_command=self.container_command or machine.container_command,
            launcher=launcher,
            mpi=self.mpi or machine.launch_mpi,
            mpiexec=self.mpiexec or machine.launch_mpiexec,
            master_suffix=machine.launch_master_suffix if self.master_suffix is None else self.master_suffix,
            epochs=self.epochs if self.epochs is not None else _epochs(self.command),
        )
        full._check()
        if self.filesystems is not None and self.scheduler != "pbs":
            raise ConfigError(
                f"{self.scheduler} has no option for the file systems that a job needs",
                hint="leave out --filesystems: it is for PBS",
            )
        return full

    def _asked(self, launcher: str) -> JobRequest:
        """The same with the numbers that lines for Slurm say and the script computes with."""
        if self.scheduler != "slurm":
            return self
        nodes = last_number(self.directives, "slurm", "nodes") or self.nodes

        def of_each_node(option: str, what: str) -> int:
            total = last_number(self.directives, "slurm", option) or 0
            if total % max(nodes, 1):
                raise ConfigError(
                    f"{total} {what} cannot be divided equally among {nodes} nodes", hint="--nodes and --ranks-per-node"
                )
            return total // max(nodes, 1)

        ranks = last_number(self.directives, "slurm", "gpus-per-node", "gres") or of_each_node("gpus", "devices")
        # There is one rank per device.
        cores = ["cpus-per-gpu"]
        if launcher != "torchrun":  # else a task is a node's torchrun
            tasks = of_each_node("ntasks", "tasks")
            ranks = last_number(self.directives, "slurm", "ntasks-per-node", "tasks-per-node") or tasks or ranks
            cores.append("cpus-per-task")
        cpus = last_number(self.directives, "slurm", *cores)
        return replace(
            self,
            nodes=nodes,
            ranks_per_node=self.ranks_per_node or ranks,
            cpus_per_rank=self.cpus_per_rank or cpus,
        )

    def _check(self) -> None:
        for what, number in (("nodes", self.nodes), ("ranks per node", self.ranks_per_node or 0)):
            if not 1 <= number <= _MOST:
                raise ConfigError(f"{number} {what} is out of range")
        _one_of("device", self.device or "", DEVICES)
        _one_of("launcher", self.launcher or "", LAUNCHERS)
        _one_of("MPI", self.mpi or "", MPIS)
        _one_of("--traces", self.traces, ("shared", "local"))
        _one_of("--analysis", self.analysis, ("node", "dask", "mpi"))
        fits = {"slurm": ("torchrun", "srun", "mpiexec"), "pbs": ("torchrun", "mpiexec"), "flux": ("torchrun", "flux")}
        if self.launcher not in fits[self.scheduler]:
            raise ConfigError(
                f"{self.launcher} does not start ranks under {self.scheduler}",
                hint=f"--launcher {', '.join(fits[self.scheduler])}",
            )
        if self.nccl_debug is not None:
            _one_of("NCCL_DEBUG", self.nccl_debug, ("VERSION", "WARN", "INFO", "TRACE"))
        for what, text in (
            ("account", self.account),
            ("queue", self.queue),
            ("job name", self.job_name),
            ("filesystems", self.filesystems),
            ("qos", self.machine.directives_qos),
            ("constraint", self.machine.directives_constraint),
            ("devices", self.machine.directives_gpus),
        ):
            if text is not None:
                directive_value(what, text)
        self._check_ranks()
        for line in (*self.directives, *self.machine.directives_lines):
            directive_value("directive", line, blanks=True)
            if not line.startswith("-"):
                raise ConfigError(
                    f"directive {line!r} is not an option of {self.scheduler}", hint=f"--directive=--{line}"
                )
        if self.container_command is not None:
            _one_of("container command", PurePath(self.container_command).name, CONTAINERS)
        for setting in self.environment:
            name, equals, _ = setting.partition("=")
            if not equals:
                raise ConfigError(f"{setting!r} sets nothing", hint="--env NAME=VALUE")
            variable_name(name)
        if not re.fullmatch(r"[A-Za-z0-9.-]*", self.master_suffix or ""):
            raise ConfigError(f"{self.master_suffix!r} cannot end a host's name", hint="for example .hsn.example.org")
        bare = self.run_name
        for name in RUN_NAME_VARIABLES:
            bare = bare.replace("{" + name + "}", "x")
        if not re.fullmatch(r"[A-Za-z0-9_.,=+-]+", bare) or bare.strip(".") == "":
            known = " ".join("{" + name + "}" for name in RUN_NAME_VARIABLES)
            raise ConfigError(f"{self.run_name!r} cannot name a run directory", hint=f"for example {RUN_NAME}: {known}")
        seconds(self.walltime, self.scheduler)
        if self.memory is not None:
            memory_of(self.memory, self.scheduler)
            if self.scheduler == "pbs" and any(
                "select" in each.meanings
                for line in (*self.machine.directives_lines, *self.directives)
                for each in options(line, "pbs")
            ):
                raise ConfigError(
                    "--mem is a part of select, which a line for PBS replaces",
                    hint=f"add :mem={memory_of(self.memory, 'pbs')} to it instead",
                )
        _check_capture(self.capture, self.nodes * (self.ranks_per_node or 1))

    def _check_ranks(self) -> None:
        """Each rank of a node needs a device, and cores where these are listed."""
        ranks, devices = self.ranks_per_node or 1, self.machine.node_ranks
        if devices is not None and ranks > devices and self.device == self.machine.node_device != "cpu":
            raise ConfigError(
                f"{ranks} ranks per node, and a node of {self.machine.name} has {devices} devices",
                hint=f"--ranks-per-node {devices} or fewer, and more --nodes; where a device takes several ranks, "
                f'write a profile with base = "{self.machine.name}" and [node] ranks = {ranks}',
            )
        lists = 0 if self.launcher == "torchrun" else _bound_ranks(self.cpu_bind or "")
        if 0 < lists < ranks:
            raise ConfigError(
                f"--cpu-bind {self.cpu_bind} has cores for {counted(lists, 'rank')}, and a node has {ranks}",
                hint=f"a list for each, or --ranks-per-node {lists}",
            )


def _bound_ranks(cpu_bind: str) -> int:
    """For how many ranks a value of PALS' or srun's ``--cpu-bind`` lists cores; 0 where it lists none.

    Raises:
        ConfigError: one is not a list of CPUs.
    """
    match = _LISTS.fullmatch(cpu_bind)
    if match is None:
        return 0
    if match[1] == "list":
        return len(cpu_lists(match[2]))
    # srun's, in which 0x3*4 stands for four.
    return sum(int(each.partition("*")[2] or 1) for each in match[2].split(","))


def usual_launcher(machine: Machine, scheduler: str) -> str:
    """What starts ranks by default."""
    return machine.launch_launcher or _DEFAULT_LAUNCHER[scheduler]


def seconds(walltime: str, scheduler: str = "slurm") -> int:
    """A wall time in seconds, in any form that Slurm, PBS or Flux knows.

    ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M``, ``D-H:M:S``, ``45s``, ``90m``, ``2h``, ``1d``; a number alone is minutes, as
    Slurm and Flux have it. To PBS it would be seconds, so there it needs its unit.

    Raises:
        ConfigError: it is none of these.
    """
    text = walltime.strip()
    found = 0
    if match := _DAYS.fullmatch(text):
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        found = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    elif match := _CLOCK.fullmatch(text):
        hours, minutes, rest = (int(part or 0) for part in match.groups())
        found = (hours * 60 + minutes) * 60 + rest
    elif match := _NUMBER.fullmatch(text):
        if match[2] is None and scheduler == "pbs":
            raise ConfigError(
                f"{walltime!r} is seconds to PBS and minutes to others", hint=f"write {text}m or {text}s, or 01:30:00"
            )
        found = int(match[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}[match[2] or "m"]
    if found <= 0:
        raise ConfigError(f"{walltime!r} is not a wall time", hint="01:30:00, 1-00:00:00, 1-12, 90m or 2h")
    return found


def memory_of(text: str, scheduler: str) -> str:
    """A node's memory as a scheduler has it: ``64G`` for Slurm, ``64gb`` for PBS.

    Raises:
        ConfigError: it is none, or the scheduler has no option for it.
    """
    if scheduler == "flux":
        raise ConfigError("flux has no option for memory", hint="leave out --mem")
    if scheduler == "slurm" and text == "0":
        return text
    match = _MEMORY.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"--mem {text!r} is not a size", hint="a number with its unit: 800M, 64G")
    return f"{match[1]}{match[2].upper()}" if scheduler == "slurm" else f"{match[1]}{match[2].lower()}b"


def _epochs(command: Sequence[str]) -> int:
    """The epochs in the training script's arguments, by the usual names of the option; else 1."""
    for word, following in zip(command, [*command[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        number = value if equals else following
        if name in ("--epochs", "--num-epochs", "--num_epochs", "--max-epochs", "--max_epochs") and number.isdigit():
            return int(number)
    return 1


def _one_of(what: str, text: str, known: Sequence[str]) -> None:
    if text not in known:
        raise ConfigError(f"{what} {text!r} is not known", hint=f"one of {', '.join(known)}")


def _check_capture(options: Sequence[str], world_size: int) -> None:
    settings: Mapping[str, str]
    settings, rest = take_options(options)
    if rest:
        raise ConfigError(f"{rest[0]!r} is not an option of rankscope exec", hint="rankscope exec --help lists them")
    if {"RANKSCOPE_RUN_DIR", "RANKSCOPE_RUN_ID"} & settings.keys():
        raise ConfigError("the script sets the run's name and directory", hint="--runs-dir and --run-name choose")
    chosen = settings.get(variable_of("ranks"))
    last = max((last for _, last in parse_ranks(chosen).spans), default=0) if chosen is not None else 0
    if last >= world_size:
        raise ConfigError(
            f"--ranks {chosen} names rank {last}, and the job has {world_size}: 0 to {world_size - 1}"
            if world_size > 1
            else f"--ranks {chosen} names rank {last}, and the job has only rank 0",
            hint="--nodes and --ranks-per-node say how many there are",
        )
