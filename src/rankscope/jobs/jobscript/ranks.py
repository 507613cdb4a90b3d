"""How ranks are started: the launcher's command, and what each process does before the training script.

In: a completed request. Out: lines of a script.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankscope.jobs.jobscript.quoting import quoted, words
from rankscope.jobs.jobscript.request import JobRequest, usual_launcher
from rankscope.rundir.cpus import cpu_masks


@dataclass(frozen=True)
class Variables:
    """The shell variables in which a launcher gives a process its ranks."""

    rank: str
    local_rank: str


VARIABLES = {
    "srun": Variables("$SLURM_PROCID", "$SLURM_LOCALID"),
    "flux": Variables("$FLUX_TASK_RANK", "$FLUX_TASK_LOCAL_ID"),
    "pals": Variables("$PALS_RANKID", "$PALS_LOCAL_RANKID"),
    "openmpi": Variables("$OMPI_COMM_WORLD_RANK", "$OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpich": Variables("$PMI_RANK", "${PMI_LOCAL_RANK:-$MPI_LOCALRANKID}"),
    "intel": Variables("$PMI_RANK", "$MPI_LOCALRANKID"),
}


def starter(job: JobRequest) -> str:
    """What starts processes on the nodes: ``srun``, ``flux``, or which ``mpiexec``, also for torchrun's agents."""
    if job.launcher in ("srun", "flux"):
        return job.launcher
    if job.launcher == "torchrun" and job.scheduler != "pbs":
        return {"slurm": "srun", "flux": "flux"}[job.scheduler]
    return job.mpi or "openmpi"


def one_per_rank(job: JobRequest) -> JobRequest:
    """The same job with a launcher that starts each rank, where torchrun would."""
    kind = starter(job)
    return replace(job, launcher=kind if kind in ("srun", "flux") else "mpiexec")


def launch_words(job: JobRequest, exported: list[str], *, per_node: bool = False) -> str:
    """The launcher with its options: one process per rank, or one per node.

    Args:
        job: a resolved request.
        exported: variables that have to be on every node.
        per_node: one process per node.
    """
    kind = starter(job)
    alone = per_node or job.launcher == "torchrun"
    count, each = ('"$NODES"', "1") if alone else ('"$RANKS"', '"$RANKS_PER_NODE"')
    # The machine's are its own launcher's, which another one need not know.
    usual = kind == starter(
        replace(job, launcher=usual_launcher(job.machine, job.scheduler), mpi=job.machine.launch_mpi)
    )
    own = words((*(job.machine.launch_arguments if usual else ()), *job.launcher_arguments))
    bind = _binding(job, kind, alone)
    mpiexec = quoted(job.mpiexec or "mpiexec")
    if kind == "srun":
        cpus = job.cpus_per_rank
        # srun does not take over --cpus-per-task from sbatch since Slurm 22.05.
        tasks = f"--cpus-per-task={cpus * (job.ranks_per_node or 1) if alone else cpus}" if cpus else ""
        parts = ["srun", '--nodes="$NODES"', f"--ntasks={count}", f"--ntasks-per-node={each}", tasks, "--export=ALL"]
    elif kind == "flux":
        cpus = job.cpus_per_rank
        parts = ["flux run", '--nodes="$NODES"', f"--ntasks={count}"]
        parts += ["--exclusive"] if alone else [f"--cores-per-task={cpus}" if cpus else ""]
        parts += ["" if alone or job.device == "cpu" else "--gpus-per-task=1"]
    elif kind == "openmpi":
        # Over ssh it exports only the variables that are named, not even PATH.
        sent = " ".join(f"-x {name}" for name in dict.fromkeys(("PATH", *exported)))
        if "LD_LIBRARY_PATH" not in exported:
            sent += " ${LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH}"
        # A build without PBS's own interface, as Debian's, knows of the job's nodes by this alone.
        hosts = '--hostfile "$PBS_NODEFILE"' if job.scheduler == "pbs" else ""
        parts = [mpiexec, hosts, f"-n {count}", f"--map-by ppr:{each}:node", "--bind-to none", sent]
    else:
        # PALS and Hydra pass the entire environment on.
        parts = [mpiexec, f"-n {count}", f"-ppn {each}"]
    return " ".join(part for part in (*parts, bind, own) if part)


def _binding(job: JobRequest, kind: str, alone: bool) -> str:
    """The launcher's own option for binding, where it has one."""
    if kind not in ("srun", "pals"):
        return ""
    if job.cpu_bind is not None or alone:
        return f"--cpu-bind={quoted('none' if alone else job.cpu_bind or 'none')}"
    cores = job.machine.bound(job.ranks_per_node or 1)
    if cores:
        return "--cpu-bind=" + (f"mask_cpu:{cpu_masks(cores)}" if kind == "srun" else "list:" + ":".join(cores))
    if job.machine.launch_cpu_bind:
        return f"--cpu-bind={quoted(job.machine.launch_cpu_bind)}"
    return f"--cpu-bind=depth -d {job.cpus_per_rank}" if kind == "pals" and job.cpus_per_rank else ""


def binds_itself(job: JobRequest) -> bool:
    """Whether each rank binds itself to its cores: the launcher starts nodes, or takes no list of cores."""
    native = starter(job) in ("srun", "pals") and job.launcher != "torchrun"
    return not native and job.cpu_bind is None and bool(job.machine.bound(job.ranks_per_node or 1))


def rank_script(job: JobRequest) -> list[str]:
    """What each rank does before its command: the variables that torch reads, and its cores."""
    who = VARIABLES[starter(job)]
    lines = ["#!/bin/bash", "# Every rank of this job runs this first. Written by the job script.", "set -euo pipefail"]
    if job.launcher != "torchrun":
        lines += [
            "# The launcher's variables, by the names that torch.distributed reads.",
            f'export RANK="{who.rank}" LOCAL_RANK="{who.local_rank}"',
        ]
        if job.traces == "local":
            lines += ['mkdir -p "$LOCAL_DIR"']
    if binds_itself(job):
        # Of all that the machine has, as the job may get more devices than the script says.
        cores = " ".join(f'"{each}"' for each in job.machine.node_cores)
        lines += [
            "# The cores nearest to this rank's device.",
            f"cores=({cores})",
            'if [ "$LOCAL_RANK" -lt "${#cores[@]}" ] && command -v taskset >/dev/null; then',
            '  taskset -cp "${cores[LOCAL_RANK]}" $$ >/dev/null || echo "rank $RANK: its cores are not free" >&2',
            "fi",
        ]
    return [*lines, 'exec "$@"']


def node_script(job: JobRequest) -> list[str]:
    """What torchrun's agent on each node needs: which host has the rendezvous, and its own name on the network."""
    who = VARIABLES[starter(job)]
    suffix = job.master_suffix or ""
    lines = [
        "#!/bin/bash",
        "# Runs before torchrun on every node of this job. Written by the job script.",
        "set -euo pipefail",
        "# The first node hosts the rendezvous; torchrun's guess by host name fails with a second network.",
        f'if [ "{who.rank}" = 0 ]; then export PET_RDZV_CONF=is_host=1; else export PET_RDZV_CONF=is_host=0; fi',
    ]
    if suffix:
        lines += [
            "# This node's name on the network that connects the nodes.",
            f'PET_LOCAL_ADDR="$(hostname -s)"{quoted(suffix)}',
            "export PET_LOCAL_ADDR",
        ]
    if job.traces == "local":
        lines += ['mkdir -p "$LOCAL_DIR"']
    return [*lines, 'exec "$@"']
