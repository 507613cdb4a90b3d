"""The lines that the scheduler reads: one function each for Slurm, PBS and Flux.

In: a completed request. Out: lines of a script.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.jobs.jobscript.request import JobRequest, seconds


def directives(job: JobRequest) -> list[str]:
    """The lines at the top of the script, with their marks.

    Args:
        job: a resolved request: its values are checked.
    """
    return {"slurm": _slurm, "pbs": _pbs, "flux": _flux}[job.scheduler](job)


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
        "time": (f"{days}-" if days else "") + _clock(rest),
        "output": "%x-%j.out",
    }
    lines = [f"--{name}={value}" for name, value in values.items() if value is not None]
    if job.device != "cpu":
        lines.append(gpus.replace("{devices}", str(min(ranks, machine.node_ranks or ranks))))
    return [f"#SBATCH {line}" for line in (*lines, *machine.directives_lines, *job.directives)]


def _pbs(job: JobRequest) -> list[str]:
    given = (*job.machine.directives_lines, *job.directives)
    lines = [
        f"-N {job.job_name}",
        *([f"-A {job.account}"] if job.account else []),
        *([f"-q {job.queue}"] if job.queue else []),
        *([] if _requests(given, "select") else [f"-l select={job.nodes}{_chunk(job)}"]),
        f"-l walltime={_clock(seconds(job.walltime))}",
        *([f"-l filesystems={job.filesystems}"] if job.filesystems else []),
        "-j oe",
        # Else two parts of the job may be put on one host, and it would have half of the nodes.
        *([] if _requests(given, "place") else ["-l place=scatter"]),
    ]
    return [f"#PBS {line}" for line in (*lines, *given)]


def _chunk(job: JobRequest) -> str:
    """What each node has to have, behind ``select=N``; nothing where the machine, which says how its nodes are given
    out, gives whole ones. A chunk that asks for nothing gets one core."""
    if _requests(job.machine.directives_lines, "place"):
        return ""
    ranks = job.ranks_per_node or 1
    devices = "" if job.device == "cpu" else f":ngpus={min(ranks, job.machine.node_ranks or ranks)}"
    return f":ncpus={ranks * (job.cpus_per_rank or 1)}:mpiprocs={ranks}{devices}"


def _requests(lines: Sequence[str], resource: str) -> bool:
    return any(line.removeprefix("-l").strip().startswith(f"{resource}=") for line in lines if line.startswith("-l"))


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
    lines = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return [f"#flux: {line}" for line in (*lines, *job.machine.directives_lines, *job.directives)]


def _clock(total: int) -> str:
    hours, rest = divmod(total, 3600)
    return f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
