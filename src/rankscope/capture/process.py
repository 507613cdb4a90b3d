"""What is known of this process and its job: rank, groups, mesh, device, versions, run id and run directory.

Nothing here is a collective: ranks that are not profiled do not come here, so a collective would hang. What
ranks have to agree on goes through the job's store, where the first to come decides.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from rankscope.capture.environment import numa_node_of
from rankscope.capture.notices import warn
from rankscope.errors import ConfigError, LauncherError
from rankscope.rundir.directory import directory_of
from rankscope.rundir.launcher import Identity, identify
from rankscope.rundir.metadata import ClockAnchor, Device, Mesh, ProcessGroup

_PACKAGES = (
    "torchvision",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "accelerate",
    "deepspeed",
    "megatron.core",
    "torchtitan",
    "oneccl_bindings_for_pytorch",
    "intel_extension_for_pytorch",
    "triton",
)


@dataclass(frozen=True)
class Process:
    """Who this process is, as far as both the launcher and ``torch.distributed`` say."""

    rank: int
    world_size: int
    local_rank: int | None
    host: str
    launcher: str
    job_id: str | None
    restart_count: int
    known_run_id: str | None


def this_process(environ: Mapping[str, str] | None = None) -> tuple[Process | None, list[str]]:
    """Resolve it, and say what was odd about it.

    ``torch.distributed`` decides where it is initialised: it is what the job itself goes by. ``None`` where
    the launcher's variables contradict each other and it is not.
    """
    notes: list[str] = []
    try:
        identity = identify(os.environ if environ is None else environ)
    except LauncherError as error:
        notes.append(str(error))
        identity = None
    initialised = dist.is_available() and dist.is_initialized()
    if identity is None and not initialised:
        return None, notes
    environ = os.environ if environ is None else environ
    known_rank = identity.rank if identity is not None else None
    if environ.get("RANK") and not environ.get("WORLD_SIZE") and not initialised and known_rank is None:
        notes.append(
            f"RANK={environ['RANK'][:20]} without WORLD_SIZE says nothing: this process counts as a job of its own, "
            "rank 0 of 1; set both, or start it under torchrun"
        )
    known = identity or Identity(host=socket.gethostname())
    rank, world_size, local_rank = known.rank, known.world_size, known.local_rank
    if initialised:
        if rank != dist.get_rank():
            local_rank = None
        rank, world_size = dist.get_rank(), dist.get_world_size()
    elif not known.started_by_launcher:
        # A Slurm batch script has the rank variables of the whole allocation and is one process.
        rank, world_size, local_rank = 0, 1, 0
    if world_size == 1:
        local_rank = 0
    return (
        Process(
            rank=rank or 0,
            world_size=world_size if world_size is not None else (rank or 0) + 1,
            local_rank=local_rank,
            host=known.host,
            launcher=known.launcher,
            job_id=known.job_id,
            restart_count=known.restart_count,
            known_run_id=known.known_run_id(),
        ),
        notes,
    )


def agree(key: str, mine: str) -> str | None:
    """One value for all ranks, through the job's store: the first to come decides.

    ``None`` where ``torch.distributed`` is not initialised or its store cannot do it.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    if dist.get_world_size() == 1:
        return mine
    try:
        # Torch has no public name for the default group's store; without it, ranks keep a value each.
        store = dist.distributed_c10d._get_default_store()
        return bytes(store.compare_set(f"rankscope/{key}", "", mine)).decode()
    except Exception:
        return None


def resolve_run_id(given: str | None, process: Process) -> tuple[str, str | None]:
    """The run's id, and what is doubtful about it.

    Given, else the scheduler's job and step, else torchrun's rendezvous id, else agreed through the job's
    store.
    """
    if given:
        return given, None
    if process.known_run_id:
        return process.known_run_id, None
    mine = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
    if process.job_id:
        mine = f"{process.job_id}-{mine}"
    agreed = agree("run_id", mine)
    if agreed is not None:
        return agreed, None
    if process.world_size == 1:
        return mine, None
    doubt = (
        "the ranks could not agree on a run id: start the Profiler after init_process_group, or set RANKSCOPE_RUN_ID"
    )
    return process.job_id or mine, doubt


def resolve_run_dir(given: str | None, run_id: str, process: Process) -> str:
    """The run directory: given, else ``rankscope_run_<time>``, the same for all ranks."""
    if given:
        try:
            given = directory_of(given)
        except ConfigError as error:
            warn(f"{error.what}: the traces go to a directory rankscope_run_<time>. {error.hint}")
            given = None
    if given:
        return os.path.abspath(os.path.expanduser(given))  # noqa: PTH100, PTH111  # before any chdir of the job
    mine = f"rankscope_run_{time.strftime('%Y%m%d_%H%M%S')}"
    name = mine if process.world_size == 1 else agree("run_dir", mine)
    if name is None:
        name = "rankscope_run_" + re.sub(r"[^A-Za-z0-9._-]", "-", run_id)
    return os.path.abspath(name)  # noqa: PTH100


def process_groups(mesh_dims: Mapping[str, str] | None = None) -> tuple[ProcessGroup, ...]:
    """The groups that this rank is in, with their global ranks.

    Args:
        mesh_dims: which dimension of a DeviceMesh a group runs along, by the group's name.
    """
    dims = mesh_dims or {}
    if not (dist.is_available() and dist.is_initialized()):
        return ()
    try:
        # What the profiler itself writes as distributedInfo.pg_config; torch has no public list of groups.
        configs = dist.distributed_c10d._get_all_pg_configs()
        groups = [
            ProcessGroup(
                name := str(c.get("pg_name", "")),
                str(c.get("pg_desc", "")),
                tuple(int(r) for r in c.get("ranks") or ()),
                dims.get(name),
                str(c["backend_config"]) if c.get("backend_config") else None,
            )
            for c in configs
        ]
        world = tuple(range(dist.get_world_size()))
        # The default group says no ranks where it holds them all.
        return tuple(g if g.ranks else replace(g, ranks=world) for g in groups)
    except Exception:
        ranks = tuple(dist.get_process_group_ranks(dist.group.WORLD))
        return (ProcessGroup("0", "default_pg", ranks),)


def mesh_from(dist_context: object) -> object:
    """The mesh of an object that has one; ``None`` where that says that the job is not distributed."""
    if getattr(getattr(dist_context, "mesh_params", None), "is_distributed", True) is False:
        return None
    mesh_for = getattr(dist_context, "mesh_for", None)
    return mesh_for("regular") if callable(mesh_for) else getattr(dist_context, "mesh", None)


def mesh_of(mesh: object, dist_context: object = None) -> Mesh | None:
    """A DeviceMesh (or what looks like one) as plain numbers; ``None`` where there is none.

    Args:
        mesh: a ``torch.distributed.device_mesh.DeviceMesh``.
        dist_context: an object that has one: by ``mesh_for("regular")`` as d9d's, or as ``.mesh``.
    """
    if mesh is None and dist_context is not None:
        mesh = mesh_from(dist_context)
    if mesh is None:
        return None
    shape = tuple(int(n) for n in getattr(mesh, "shape", ()) or ())
    dims = tuple(str(d) for d in getattr(mesh, "mesh_dim_names", None) or (f"dim{i}" for i in range(len(shape))))
    get = getattr(mesh, "get_coordinate", None)
    coordinate = (get() if callable(get) else None) or ()
    return Mesh(dims, shape, tuple(int(c) for c in coordinate))


def device_of() -> Device:
    """The device that this rank computes on, without waking one that the job has not touched."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is None or not module.is_available() or not module.is_initialized():
            continue
        index = int(module.current_device())
        properties = module.get_device_properties(index)
        return Device(
            kind,
            str(properties.name),
            index,
            int(properties.total_memory),
            _text_of(properties, "uuid"),
            pci := _pci(properties),
            numa_node_of(pci),
        )
    return Device("cpu", cpu_name(), None, None)


def versions() -> dict[str, str]:
    """What the job ran on. Packages that are not loaded are not loaded for this."""
    from rankscope import __version__  # it is being imported when this module is

    found = {
        "rankscope": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
    }
    for name in ("cuda", "hip", "xpu"):
        value = getattr(torch.version, name, None)
        if value:
            found[name] = str(value)
    with suppress(Exception):
        if torch.cuda.is_available():
            found["nccl"] = ".".join(str(part) for part in _untyped(torch.cuda.nccl.version))
            found["cudnn"] = str(_untyped(torch.backends.cudnn.version))
    for name in (
        "torchvision",
        "lightning",
        "pytorch_lightning",
        "oneccl_bindings_for_pytorch",
        "transformers",
        "accelerate",
        "deepspeed",
    ):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            found[name] = str(version)
    return found


def _untyped(ask: Any) -> Any:
    return ask()


def clock_anchor() -> ClockAnchor:
    """This moment on the clocks of the host; of a few readings, the one that was least interrupted."""
    readings = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        perf = time.perf_counter_ns()
        after = time.monotonic_ns()
        readings.append((after - before, wall, (before + after) // 2, perf))
    _, wall, monotonic, perf = min(readings)
    return ClockAnchor(wall, monotonic, perf)


def activities() -> list[torch.profiler.ProfilerActivity]:
    """What can be recorded here: the CPU, and the accelerator that is there (CUDA is ROCm too)."""
    kinds = torch.profiler.ProfilerActivity
    found = [kinds.CPU]
    supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    for name, kind in (("cuda", "CUDA"), ("xpu", "XPU"), ("mtia", "MTIA")):
        activity = getattr(kinds, kind, None)
        module = getattr(torch, name, None)
        if activity is not None and activity in supported and module is not None and module.is_available():
            found.append(activity)
    return found


def _text_of(properties: object, name: str) -> str | None:
    value = getattr(properties, name, None)
    return None if value is None else str(value)


def _pci(properties: object) -> str | None:
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    numbers = [part for part in parts if isinstance(part, int)]
    return "{:04x}:{:02x}:{:02x}.0".format(*numbers) if len(numbers) == len(parts) else None


def cpu_name() -> str | None:
    """The CPU's name, as Linux or Python say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None
