"""The lines that the scheduler reads: one function each for Slurm, PBS and Flux.

In: a completed request. Out: lines of a script.
"""

from __future__ import annotations

from rankscope.jobs.jobscript.meanings import last_number, options, without_replaced
from rankscope.jobs.jobscript.request import JobRequest, memory_of, seconds

_MARKS = {"slurm": "#SBATCH", "pbs": "#PBS", "flux": "#flux:"}
_OF_THE_USER = ("--account=", "--bank=", "-A ", "--mem=")
"""Lines for options that only the user gives."""


def directives(job: JobRequest) -> list[str]:
    """The lines at the top of the script, with their marks.

    Args:
        job: a resolved request: its values are checked.
    """
    return [f"{_MARKS[job.scheduler]} {line}" for line in _lines(job)]


def _lines(job: JobRequest) -> list[str]:
    """Without their marks: the machine's in place of those of their meaning, then the user's in place of all these."""
    lines = {"slurm": _slurm, "pbs": _pbs, "flux": _flux}[job.scheduler](job)
    users = [line for line in lines if line.startswith(_OF_THE_USER)]
    machine = without_replaced(job.machine.directives_lines, users, job.scheduler)
    lines = [*without_replaced(lines, machine, job.scheduler), *machine]
    return [*without_replaced(lines, job.directives, job.scheduler), *job.directives]


def follows_devices(job: JobRequest) -> bool:
    """Whether there is a rank for each of the devices that Slurm is asked for per node, so that ``sbatch
    --gpus-per-node`` can change how many ranks there are. (Settings of XPU list the ranks.)"""
    nvidia_or_amd = job.scheduler == "slurm" and job.device in ("cuda", "rocm")
    return nvidia_or_amd and last_number(_lines(job), "slurm", "gpus-per-node") == job.ranks_per_node


def _slurm(job: JobRequest) -> list[str]:
    machine, ranks = job.machine, job.ranks_per_node or 1
    a_node = job.launcher == "torchrun"
    cpus = job.cpus_per_rank
    days, rest = divmod(seconds(job.walltime), 86_400)
    gpus = machine.directives_gpus or "--gpus-per-node={devices}"
    values = {
        "job-name": job.job_name,
        "account": job.account,
        "partition": job.queue,
        "qos": machine.directives_qos,
        "constraint": machine.directives_constraint,
        "nodes": job.nodes,
        # torchrun is one task a node and starts the ranks itself.
        "ntasks-per-node": 1 if a_node else ranks,
        "cpus-per-task": None if cpus is None else cpus * (ranks if a_node else 1),
        "mem": None if job.memory is None else memory_of(job.memory, "slurm"),
        "time": (f"{days}-" if days else "") + _clock(rest),
        "output": "%x-%j.out",
    }
    lines = [f"--{name}={value}" for name, value in values.items() if value is not None]
    if job.device != "cpu":
        lines.append(gpus.replace("{devices}", str(ranks)))
    return lines


def _pbs(job: JobRequest) -> list[str]:
    return [
        f"-N {job.job_name}",
        *([f"-A {job.account}"] if job.account else []),
        *([f"-q {job.queue}"] if job.queue else []),
        f"-l select={job.nodes}{_chunk(job)}",
        f"-l walltime={_clock(seconds(job.walltime))}",
        *([f"-l filesystems={job.filesystems}"] if job.filesystems else []),
        "-j oe",
        # Else two parts of the job may be put on one host, and it would have half of the nodes.
        "-l place=scatter",
    ]


def _chunk(job: JobRequest) -> str:
    """What each node has to have, behind ``select=N``; nothing where the machine, which says how its nodes are given
    out, gives whole ones. A chunk that asks for nothing gets one core."""
    memory = "" if job.memory is None else f":mem={memory_of(job.memory, 'pbs')}"
    if any(option.name == "place" for line in job.machine.directives_lines for option in options(line, "pbs")):
        return memory
    ranks = job.ranks_per_node or 1
    devices = "" if job.device == "cpu" else f":ngpus={ranks}"
    return f":ncpus={ranks * (job.cpus_per_rank or 1)}:mpiprocs={ranks}{devices}{memory}"


def _flux(job: JobRequest) -> list[str]:
    ranks = job.ranks_per_node or 1
    values = {
        "job-name": job.job_name,
        "bank": job.account,
        "queue": job.queue,
        "nodes": job.nodes,
        "nslots": job.nodes * ranks,
        "cores-per-slot": job.cpus_per_rank,
        "gpus-per-slot": None if job.device == "cpu" else 1,
        "time-limit": f"{seconds(job.walltime)}s",
        "output": f"{job.job_name}-{{{{id}}}}.out",
    }
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def _clock(total: int) -> str:
    hours, rest = divmod(total, 3600)
    return f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
