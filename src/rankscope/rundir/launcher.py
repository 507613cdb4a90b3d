"""The rank of this process in its job, with local rank, world size, job and restart, from the launcher's variables.

Launchers nest, and the innermost is the one that torch sees. Three levels are known:

1. ``torchrun``, or anything else that sets ``RANK`` and ``WORLD_SIZE`` (what ``torch.distributed`` itself reads);
2. process managers of MPI: Open MPI, MVAPICH, PALS, PMI (MPICH, Cray, Intel MPI), PMIx;
3. resource managers that start tasks: Flux, Slurm.

``srun`` that starts one ``torchrun`` per node gives every rank of a node the same ``SLURM_PROCID``: that is nesting and
not a contradiction. Two process managers that give one process different ranks contradict each other, as does ``RANK``
set by hand next to a launcher that counts as many ranks in another order. torchrun assigns ranks in any order, so its
own are never compared with those of the level above.

In: environment variables. Out: an `Identity`, or an error that names the variables.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.errors import LauncherError


@dataclass(frozen=True)
class Identity:
    """This process's place in its job; None for what the environment does not have."""

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    launcher: str = "none"
    """``torchrun``, ``env`` (``RANK`` and ``WORLD_SIZE`` without torchrun), ``openmpi``, ``mvapich``,
    ``intelmpi``, ``pals``, ``pmi``, ``pmix``, ``flux``, ``slurm``, ``none``."""
    started_by_launcher: bool = False
    """False too in a Slurm batch script, which has rank variables although no ``srun`` started it."""
    job_id: str | None = None
    """The scheduler's, with its kind before it: ``slurm-1234``."""
    step_id: str | None = None
    """Which of the job's launches this is, where the scheduler counts them."""
    elastic_id: str | None = None
    """torchrun's rendezvous id, unless it is the default that all jobs share; Open MPI's own number of this launch."""
    restart_count: int = 0
    host: str = ""

    def known_run_id(self) -> str | None:
        """A run id that all ranks of this launch share and no other launch has; ``None`` if there is none."""
        if self.job_id and self.step_id:
            parts = [self.job_id, self.step_id]
            # A step may start torchrun more than once.
            return "-".join([*parts, self.elastic_id] if self.elastic_id else parts)
        if self.elastic_id:
            return f"{self.job_id}-{self.elastic_id}" if self.job_id else self.elastic_id
        return None


@dataclass(frozen=True)
class _Family:
    """Which variables a launcher sets; of several names for one thing, the first that is set counts."""

    name: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...] = ()
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Seen:
    """The values of one launcher's variables, with the names of the variables."""

    family: _Family
    rank: int
    rank_variable: str
    world_size: int | None
    size_variable: str
    local_rank: int | None
    local_size: int | None

    def described(self) -> str:
        size = f", {self.size_variable}={self.world_size}" if self.world_size is not None else ""
        return f"{self.rank_variable}={self.rank}{size}"


_TORCH = _Family("torchrun", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",))
_PROCESS_MANAGERS = (
    _Family(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Family(
        "mvapich",
        ("MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK"),
        ("MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE"),
    ),
    _Family("pals", ("PALS_RANKID",), ("PMI_SIZE",), ("PALS_LOCAL_RANKID",), ("PALS_LOCAL_SIZE",)),
    _Family(
        "pmi",
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("PMI_LOCAL_RANK", "MPI_LOCALRANKID"),
        ("PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"),
    ),
    _Family("pmix", ("PMIX_RANK",)),
)
_RESOURCE_MANAGERS = (
    _Family("flux", ("FLUX_TASK_RANK",), ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",)),
    _Family(
        "slurm",
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        ("SLURM_NTASKS_PER_NODE",),
    ),
)
_JOB_IDS = (("slurm", "SLURM_JOB_ID"), ("flux", "FLUX_JOB_ID"), ("pbs", "PBS_JOBID"))
_SLURM_STEP = ("SLURM_STEP_ID", "SLURM_STEPID")
_FIRST_SPECIAL_SLURM_STEP = 0xFFFFFFF0
"""Step numbers from here on are Slurm's own names for the batch script, the extern step and similar ones."""


def identify(environ: Mapping[str, str]) -> Identity:
    """Resolve the rank of this process.

    Args:
        environ: the process's environment.

    Raises:
        LauncherError: variables that contradict each other, named with their values.
    """
    torch = _seen(_TORCH, environ) if "RANK" in environ and "WORLD_SIZE" in environ else None
    managers = [seen for family in _PROCESS_MANAGERS if (seen := _seen(family, environ))]
    starters = [seen for family in _RESOURCE_MANAGERS if (seen := _seen(family, environ))]
    by_torchrun = any(name.startswith("TORCHELASTIC_") for name in environ)

    inner = _innermost(managers, starters)
    if torch is not None and not by_torchrun:
        for other in [inner] if inner else starters[:1]:
            _check_same_order(torch, other)
    chosen = torch or inner or (starters[0] if starters else None)
    job, step = _job(environ)
    elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
    unknown = Identity(
        job_id=job, step_id=step, elastic_id=None if elastic in ("", "none") else elastic, host=socket.gethostname()
    )
    if chosen is None:
        return unknown
    namespace = environ.get("PMIX_NAMESPACE", "")
    if unknown.elastic_id is None and chosen.family.name == "openmpi" and namespace:
        unknown = replace(unknown, elastic_id=f"openmpi-{namespace[:100]}")
    world_size, local_rank, local_size = chosen.world_size, chosen.local_rank, chosen.local_size
    if chosen in managers:
        # PMIx gives only the rank; another launcher's variables with the same rank give the rest.
        agreeing = [other for other in managers + starters if other.rank == chosen.rank]
        local_rank = _known([local_rank, *(other.local_rank for other in agreeing)])
        local_size = _known([local_size, *(other.local_size for other in agreeing)])
        world_size = _known([world_size, *(other.world_size for other in agreeing)])
        if world_size is None:
            world_size = _size_from_nodes(environ, local_size, chosen.rank)
    if local_rank is None and world_size == 1:
        local_rank = 0
    restart = _whole("TORCHELASTIC_RESTART_COUNT", environ) if torch is not None else None
    return replace(
        unknown,
        rank=chosen.rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_size,
        launcher=_name(chosen, by_torchrun, environ),
        started_by_launcher=chosen.family.name != "slurm" or _is_slurm_task(environ),
        restart_count=restart or 0,
    )


def max_restarts(environ: Mapping[str, str]) -> int:
    """How often torchrun starts the job of this process again after a failure."""
    text = environ.get("TORCHELASTIC_MAX_RESTARTS", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _known(values: list[int | None]) -> int | None:
    return next((value for value in values if value is not None), None)


def _innermost(managers: list[_Seen], starters: list[_Seen]) -> _Seen | None:
    """The process manager whose rank is this process's."""
    # A world size of 1 next to another launch is a leftover or a singleton.
    real = [m for m in managers if m.world_size != 1] or managers
    # A resource manager that starts the daemons of an MPI leaves its own PMI or PMIx rank, the daemon's,
    # behind.
    own = {(s.rank, s.world_size) for s in starters}
    inner = [m for m in real if m.family.name not in ("pmi", "pmix") or (m.rank, m.world_size) not in own] or real
    if not inner:
        return None
    chosen = inner[0]
    for other in inner[1:]:
        if other.rank == chosen.rank and (None in (other.world_size, chosen.world_size)):
            continue
        if other.rank != chosen.rank or other.world_size != chosen.world_size:
            if other.world_size is None and any(other.rank == s.rank for s in starters):
                continue
            _contradiction(chosen, other)
    return chosen


def _check_same_order(torch: _Seen, other: _Seen) -> None:
    if other.world_size == torch.world_size and (torch.world_size or 0) > 1 and other.rank != torch.rank:
        _contradiction(torch, other)


def _contradiction(one: _Seen, other: _Seen) -> None:
    raise LauncherError(
        f"two launchers contradict each other about this process: {one.described()}; {other.described()}",
        hint="start the job with one of them, or unset the variables that the other left behind",
    )


def _seen(family: _Family, environ: Mapping[str, str]) -> _Seen | None:
    rank_variable = _first(family.rank, environ)
    if rank_variable is None:
        return None
    rank = _whole(rank_variable, environ)
    if rank is None:
        return None
    size_variable = _first(family.world_size, environ) or ""
    world_size = _whole(size_variable, environ) if size_variable else None
    local_variable, local_size_variable = (_first(family.local_rank, environ), _first(family.local_size, environ))
    local_rank = _whole(local_variable, environ) if local_variable else None
    local_size = _whole(local_size_variable, environ) if local_size_variable else None
    _below(rank_variable, rank, size_variable, world_size)
    if local_variable and local_rank is not None:
        _below(local_variable, local_rank, size_variable, world_size)
        if family.name != "slurm":  # SLURM_NTASKS_PER_NODE is what was asked for, not what was started
            _below(local_variable, local_rank, local_size_variable or "", local_size)
    if family.name == "slurm":
        local_size = None
    return _Seen(family, rank, rank_variable, world_size, size_variable, local_rank, local_size)


def _below(variable: str, value: int, size_variable: str, size: int | None) -> None:
    if size is not None and value >= size:
        raise LauncherError(
            f"{variable}={value} is not below {size_variable}={size}: ranks count from 0",
            hint="unset the one that is left over from another job, or correct the launch script",
        )


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    return next((name for name in names if environ.get(name, "") != ""), None)


def _whole(name: str, environ: Mapping[str, str]) -> int | None:
    text = environ.get(name, "").strip()
    if text == "":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise LauncherError(f"{name}={text[:80]!r} is not a whole number", hint="unset it, or correct it")
    return int(text)


def _name(chosen: _Seen, by_torchrun: bool, environ: Mapping[str, str]) -> str:
    if chosen.family is _TORCH:
        return "torchrun" if by_torchrun else "env"
    # Intel MPI uses PMI and adds local ranks of its own. So does the Hydra of MPICH 4, which identifies itself.
    if chosen.family.name == "pmi" and "MPI_LOCALRANKID" in environ:
        theirs = "HYDI_CONTROL_FD" not in environ or any(name.startswith("I_MPI_") for name in environ)
        return "intelmpi" if theirs else "pmi"
    return chosen.family.name


def _job(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    for kind, variable in _JOB_IDS:
        job = environ.get(variable, "")
        if not job:
            continue
        if kind == "slurm":
            step = _slurm_step(environ)
            return f"slurm-{job}", None if step is None else str(step)
        if kind == "flux":
            return f"flux-{job}", "0"  # every `flux run` is a job of its own
        # PALS counts the launches of a PBS job.
        return f"pbs-{job}", environ.get("PALS_APID") or None
    return None, None


def _slurm_step(environ: Mapping[str, str]) -> int | None:
    for name in _SLURM_STEP:
        text = environ.get(name, "")
        if text.isascii() and text.isdigit() and int(text) < _FIRST_SPECIAL_SLURM_STEP:
            return int(text)
    return None


def _is_slurm_task(environ: Mapping[str, str]) -> bool:
    # A batch script has SLURM_PROCID=0 and SLURM_NTASKS=N too, and is one process.
    return _slurm_step(environ) is not None or "SLURM_STEP_NUM_TASKS" in environ or environ.get("SLURM_PROCID") != "0"


def _size_from_nodes(environ: Mapping[str, str], local_size: int | None, rank: int) -> int | None:
    """PALS sets no world size: ranks per node times the nodes of the job."""
    path = environ.get("PBS_NODEFILE", "")
    if local_size is None or not path:
        return None
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return None
    size = local_size * len({line.strip() for line in lines if line.strip()})
    return size if size > rank else None
