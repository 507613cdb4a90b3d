"""The plan that an experiment gives to a job, and the measurements that each rank writes.

The plan is one JSON file that all ranks read; its path is in :data:`PLAN_VARIABLE`. Each rank writes its own
``measured/rank3.json`` into the plan's directory, atomically, and no other file.

In: plans and measurements, or files. Out: files, or dataclasses.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rankscope.errors import RankscopeError
from rankscope.rundir import fields
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.fields import Rank, Signed, WorldSize

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")
_MAX_BYTES = 256 << 20
PLAN_VARIABLE = "RANKSCOPE_EXPERIMENT"
SCHEMA = 1
COMPLETE, EARLY, FAILED = "complete", "early", "failed"
"""How a rank's measurement ended: as planned, with the script before its time, by an error."""


@dataclass(frozen=True)
class Plan:
    """What is done in one job, step by step, the same on all ranks."""

    out: str
    """Where results and traces go, absolute."""
    rounds: tuple[tuple[str, ...], ...] = ()
    """Names of conditions in the order in which they are run: one block of steps each. Each round has all of them."""
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name, ``{"kind": …}`` and what that kind needs; see ``rankscope.capture.measured.conditions``."""
    warmup: int = 5
    """Steps before the first block."""
    settle: int = 1
    """Steps of each block that do not count."""
    steps: int = 5
    """Steps of each block that count."""
    limit_s: float | None = None
    """No new round begins this many seconds after the first block, once there are ``least_rounds``."""
    least_rounds: int = 5
    traced_steps: int = 0
    """Steps to record after the last block."""
    traced_condition: str | None = None
    """In which condition."""
    wrapper: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that DistributedDataParallel or FullyShardedDataParallel get, over the script's own."""
    cpus: tuple[str, ...] = ()
    """CPUs of each local rank, as ``0-3,8``: the process binds itself to them before anything is loaded."""
    latency: bool = False
    """Measure how long a kernel takes from its launch to its start."""


@dataclass(frozen=True)
class Block:
    """Consecutive steps of one condition on one rank; nanoseconds by step."""

    condition: str
    round: int
    step_ns: tuple[int, ...] = ()
    forward_ns: tuple[int, ...] = ()
    """Empty where no forward was seen; the same for the others."""
    backward_ns: tuple[int, ...] = ()
    forward_backward_ns: tuple[int, ...] = ()
    """Forward and backward with the loss, which is computed between them."""
    optimizer_ns: tuple[int, ...] = ()
    backward_passes: tuple[int, ...] = ()
    """How often a step went backward: several times with gradient accumulation, and where the optimizer calls a closure
    as often as it likes (LBFGS)."""
    stop_ns: int | None = None
    """How long a recording's stop took."""
    save_ns: int | None = None
    """How long it took to write it."""
    trace_bytes: int | None = None


@dataclass(frozen=True)
class RankMeasurement:
    """What one rank measured."""

    rank: Rank
    world_size: WorldSize
    local_rank: Rank
    host: str
    ended: str
    steps: int
    """Steps that the job made, all of them."""
    clock: str
    device: str
    torch: str
    error: str | None = None
    wrapper: str | None = None
    batch: int | None = None
    buckets: tuple[int, ...] = ()
    """Bytes of DDP's buckets in their order."""
    cpus: str = ""
    """CPUs that this process may use."""
    blocks: tuple[Block, ...] = ()
    latency_ns: tuple[Signed, ...] = ()
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """:func:`digest_of` the training's own source files, by their absolute paths; of rank 0 alone."""
    schema: int = SCHEMA


def digest_of(content: bytes) -> str:
    """The state of a file, to detect changes."""
    return hashlib.sha256(content).hexdigest()[:16]


def plan_path(folder: Path) -> Path:
    """The path of a job's plan."""
    return folder / "plan.json"


def measured_path(folder: Path, rank: int) -> Path:
    """The path of a rank's measurement."""
    return folder / "measured" / f"rank{rank}.json"


def progress_path(folder: Path) -> Path:
    """The file in which rank 0 reports which block it has reached."""
    return folder / "measured" / "progress"


def write_plan(plan: Plan) -> Path:
    """Write it into its directory."""
    path = plan_path(Path(plan.out))
    write_atomic(path, json.dumps(asdict(plan)))
    return path


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan.

    Raises:
        RankscopeError: it cannot be read, or is not a plan.
    """
    return _read(Plan, Path(path), "plan of an experiment")


def write_measurement(folder: Path, measured: RankMeasurement) -> Path:
    """Write a rank's measurement, atomically."""
    path = measured_path(folder, measured.rank)
    write_atomic(path, json.dumps(asdict(measured)))
    return path


def read_measurements(folder: Path) -> list[RankMeasurement]:
    """What the ranks of a job measured, in their order; none where no rank wrote anything.

    Raises:
        RankscopeError: a file that is not a measurement.
    """
    found = [_measurement(path) for path in (folder / "measured").glob("rank*.json")]
    return sorted(found, key=lambda each: each.rank)


def _measurement(path: Path) -> RankMeasurement:
    found = _read(RankMeasurement, path, "measurement of a rank")
    if found.schema != SCHEMA:
        raise RankscopeError(f"a measurement of schema {found.schema}, not {SCHEMA}", path=path)
    return found


def _read(cls: type[D], path: Path, what: str) -> D:
    """What a file holds, all of it: a number that was left out would make the result another one."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise RankscopeError(f"not a {what}: it has more than {_MAX_BYTES >> 20} MB", path=path)
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RankscopeError(f"cannot be read: {error}", path=path) from None
    found = fields.read(cls, raw)
    if found is None:
        raise RankscopeError(f"not a {what}: a required field is missing", path=path)
    understood = json.loads(json.dumps(asdict(found)))
    if odd := sorted(key for key, value in raw.items() if key not in understood or understood[key] != value):
        raise RankscopeError(f"not a {what}: {', '.join(odd)} cannot be understood", path=path)
    return found
