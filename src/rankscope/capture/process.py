"""This process in its job: rank, run id, run directory, process groups and mesh, from the launcher and torch.

Nothing here is a collective: only profiled ranks come here, so a collective would hang. What the ranks must agree on
goes through the job's store, where the first value wins.

In: the launcher's variables, and torch's state. Out: this process's place in the job.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from rankscope.capture.attempts import earlier_starts, is_elastic
from rankscope.capture.notices import warn
from rankscope.errors import ConfigError, LauncherError
from rankscope.rundir.capture_files import DIRECTORIES_VARIABLE
from rankscope.rundir.directory import absolute_directory
from rankscope.rundir.launcher import Identity, identify
from rankscope.rundir.manifest import read_rank_manifest
from rankscope.rundir.metadata import Mesh, ProcessGroup
from rankscope.rundir.names import rank_manifest_name

CONNECT_LIMIT_S = 5.0
"""How long torchrun's store is tried."""
_connecting = threading.Lock()
_torchrun_stores: dict[tuple[str, int], Any] = {}
"""The connection to torchrun's store by its address; ``None`` if it failed, so that it is not tried again."""
_attempts: dict[int, int] = {}
"""The number of the attempt by process id: a forked child determines its own."""
_group_stores: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""This module's own connection, by the store of the default process group that it was made from."""


@dataclass(frozen=True)
class Process:
    """Which process of the job this is, from the launcher's variables and ``torch.distributed``."""

    rank: int
    world_size: int
    local_rank: int | None
    host: str
    launcher: str
    job_id: str | None
    restart_count: int
    """The number of this attempt of an elastic job, from 0 on."""
    known_run_id: str | None


def this_process() -> tuple[Process | None, list[str]]:
    """Find out which process this is; also returns warnings about contradictions.

    ``torch.distributed`` decides if it is initialized, because the job itself uses it. ``None`` if it is not and the
    launcher's variables contradict each other.
    """
    notes: list[str] = []
    environ = os.environ
    try:
        identity = identify(environ)
    except LauncherError as error:
        notes.append(str(error))
        identity = None
    initialized = dist.is_available() and dist.is_initialized()
    if identity is None and not initialized:
        return None, notes
    known_rank = identity.rank if identity is not None else None
    if environ.get("RANK") and not environ.get("WORLD_SIZE") and not initialized and known_rank is None:
        notes.append(
            f"RANK={environ['RANK'][:20]} is set without WORLD_SIZE: this process counts as a separate job, "
            "rank 0 of 1; set both, or start it under torchrun"
        )
    known = identity or Identity(host=socket.gethostname())
    rank, world_size, local_rank = known.rank, known.world_size, known.local_rank
    if initialized:
        if rank != dist.get_rank():
            local_rank = None
        rank, world_size = dist.get_rank(), dist.get_world_size()
    elif not known.started_by_launcher:
        # A Slurm batch script has the rank variables of the allocation and is a single process.
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
            restart_count=_attempts.get(os.getpid(), known.restart_count),
            known_run_id=known.known_run_id(),
        ),
        notes,
    )


def job_store() -> Any:
    """The key-value store that all ranks of the job share, or ``None``; the process keeps one connection to it.

    It is torchrun's if there is one, because that exists even without a process group, so all ranks use the same; else
    that of the default group.
    """
    with _connecting:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and (store := _torchrun_store()) is not None:
            return store
        if not (dist.is_available() and dist.is_initialized()):
            return None
        # Torch has no public name for it.
        default: Any = dist.distributed_c10d._get_default_store()
        if default not in _group_stores:
            _group_stores[default] = default.clone() if hasattr(default, "clone") else default
        return _group_stores[default]


def _after_fork() -> None:
    """The child makes connections of its own: on a shared one, each process would read the other's answers."""
    global _connecting
    _connecting = threading.Lock()
    _torchrun_stores.clear()
    _group_stores.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _torchrun_store() -> Any:
    """torchrun's store; ``None`` if it cannot be reached, for example because the script has changed its address. Each
    address is tried once."""
    try:
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError):
        return None
    if where not in _torchrun_stores:
        _torchrun_stores[where] = None
        with suppress(Exception):
            # Where nothing listens, torch's client would print its tries among the job's lines.
            socket.create_connection(where, CONNECT_LIMIT_S).close()
            limit = timedelta(seconds=CONNECT_LIMIT_S)
            _torchrun_stores[where] = dist.TCPStore(*where, is_master=False, timeout=limit)  # type: ignore[attr-defined]  # has no types
        if _torchrun_stores[where] is None:
            other = "the ranks agree on windows through their process group, or each records every window"
            warn(f"torchrun's store at {where[0]}:{where[1]} does not answer: {other}")
    return _torchrun_stores[where]


def agree_on_attempt(process: Process, run_dir: str, run_id: str) -> Process:
    """The process with the number of this attempt of an elastic job, which is the same on all ranks.

    On several nodes, torchrun's agents count restarts differently. Each rank knows how often its node was restarted,
    how often the rank itself was started there, and which manifests it has written. The highest number in the job's
    store wins, unless this rank had that number before. One limit: a rank on a node that joined late, and whose first
    attempt ended before capture began, may give the next attempt a lower number if it asks first.
    """
    if not is_elastic() or process.world_size == 1:
        return process
    if os.getpid() not in _attempts:
        own = max(process.restart_count, earlier_starts())
        while (
            known := read_rank_manifest(_manifest_path(run_dir, process, own))
        ) is not None and known.run_id == run_id:
            own += 1
        _attempts[os.getpid()] = own
        with suppress(Exception):
            if (store := job_store()) is not None:
                _attempts[os.getpid()] = _highest_attempt(store, process.rank, own)
    return replace(process, restart_count=_attempts[os.getpid()])


def _highest_attempt(store: Any, rank: int, own: int) -> int:
    own_key, shared_key = f"rankscope/attempt/rank{rank}", "rankscope/attempt"
    before = bytes(store.compare_set(own_key, "", "")).decode()
    own = max(own, int(before) + 1 if before else 0)
    held = bytes(store.compare_set(shared_key, "", str(own))).decode()
    while int(held) < own:
        held = bytes(store.compare_set(shared_key, held, str(own))).decode()
    store.set(own_key, held)
    return int(held)


def _manifest_path(run_dir: str, process: Process, restart: int) -> Path:
    return Path(run_dir, rank_manifest_name(process.rank, process.world_size, restart))


def agree(key: str, own_value: str, process: Process) -> str | None:
    """Agree with the other ranks on one value through the job's store: the first value wins.

    ``None`` if the ranks share no store, or theirs does not support this.
    """
    if process.world_size == 1:
        return own_value
    try:
        store = job_store()
        return None if store is None else bytes(store.compare_set(f"rankscope/{key}", "", own_value)).decode()
    except Exception:
        return None


def resolve_run_id(given: str | None, process: Process) -> tuple[str, str | None]:
    """The run's id, and a warning if the ranks may not share it.

    Given, else the scheduler's job and step, else torchrun's rendezvous id, else agreed on through the job's store.
    """
    if given:
        return given, None
    if process.known_run_id:
        return process.known_run_id, None
    own_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
    if process.job_id:
        own_id = f"{process.job_id}-{own_id}"
    agreed = agree("run_id", own_id, process)
    if agreed is not None:
        return agreed, None
    doubt = (
        "the ranks could not agree on a run id: start the Profiler after init_process_group, or set RANKSCOPE_RUN_ID"
    )
    return process.job_id or own_id, doubt


def resolve_run_dir(given: str | None, run_id: str, process: Process) -> str:
    """The run directory: given, else ``rankscope_run_<time>``, the same for all ranks."""
    if given:
        try:
            named = absolute_directory(given)  # before any chdir of the job
            _note_directory(named)
            return named
        except ConfigError as error:
            warn(f"{error.what}: the traces go to a directory rankscope_run_<time>. {error.hint}")
    own_name = f"rankscope_run_{time.strftime('%Y%m%d_%H%M%S')}"
    name = agree("run_dir", own_name, process)
    if name is None:
        name = "rankscope_run_" + re.sub(r"[^A-Za-z0-9._-]", "-", run_id)
    return absolute_directory(name)


def _note_directory(named: str) -> None:
    """Tell `rankscope run` about a run directory other than the one that it set, so that its last lines name it."""
    if (notes := os.environ.get(DIRECTORIES_VARIABLE)) and named != os.environ.get("RANKSCOPE_RUN_DIR"):
        with suppress(OSError), Path(notes).open("ab") as file:
            file.write(os.fsencode(named) + b"\n")


def process_groups(mesh_dims: Mapping[str, str] | None = None) -> tuple[ProcessGroup, ...]:
    """The process groups of this rank, with their global ranks.

    Args:
        mesh_dims: the dimension of a DeviceMesh that a group runs along, by the group's name.
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
        # The default group lists no ranks if it holds them all.
        return tuple(g if g.ranks else replace(g, ranks=world) for g in groups)
    except Exception:
        ranks = tuple(dist.get_process_group_ranks(dist.group.WORLD))
        return (ProcessGroup("0", "default_pg", ranks),)


def mesh_from_context(dist_context: object) -> object:
    """The mesh of a d9d-like context, from ``mesh_for("regular")`` or ``.mesh``; ``None`` if it is not distributed.

    A DeviceMesh is its own: its ``mesh`` is a tensor of ranks.
    """
    if callable(getattr(dist_context, "get_coordinate", None)):
        return dist_context
    if getattr(getattr(dist_context, "mesh_params", None), "is_distributed", True) is False:
        return None
    mesh_for = getattr(dist_context, "mesh_for", None)
    return mesh_for("regular") if callable(mesh_for) else getattr(dist_context, "mesh", None)


def describe_mesh(mesh: object) -> Mesh | None:
    """A ``torch.distributed.device_mesh.DeviceMesh``, or an object like one, as plain numbers."""
    if mesh is None:
        return None
    shape = tuple(int(n) for n in getattr(mesh, "shape", ()) or ())
    dims = tuple(str(d) for d in getattr(mesh, "mesh_dim_names", None) or (f"dim{i}" for i in range(len(shape))))
    get = getattr(mesh, "get_coordinate", None)
    coordinate = (get() if callable(get) else None) or ()
    return Mesh(dims, shape, tuple(int(c) for c in coordinate))
