"""What a trace carries about itself, under one top-level key, so that a file is never orphaned.

``prof.add_metadata_json(METADATA_KEY, metadata.to_json())`` puts it there, before the profiler stops. Torch's
writer turns every backslash of a metadata value into a slash, which makes any JSON escape a broken file:
:func:`kineto_json` therefore writes text without a character that would need one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from rankscope.rundir import fields

METADATA_KEY = "rankscope"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Mesh:
    """The DeviceMesh that the job was laid out on."""

    dims: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    coordinate: tuple[int, ...] = ()
    """This rank's place in it; empty on a rank outside the mesh."""

    def by_name(self) -> dict[str, int]:
        """This rank's coordinate by dimension name."""
        return dict(zip(self.dims, self.coordinate, strict=False))

    @classmethod
    def from_json(cls, obj: object) -> Mesh | None:
        """Read one; ``None`` if it names no dimension."""
        raw = fields.mapping(obj)
        dims = fields.items(raw.get("dims"), fields.text)
        shape = fields.items(raw.get("shape"), fields.count)
        coordinate = fields.items(raw.get("coordinate"), fields.count)
        return cls(dims, shape, coordinate) if dims else None


@dataclass(frozen=True)
class ProcessGroup:
    """A process group of the job that this rank is in."""

    name: str = ""
    description: str = ""
    ranks: tuple[int, ...] = ()
    """Global ranks, in the order of the group's own ranks."""
    mesh_dim: str | None = None
    """The dimension of the DeviceMesh that this group runs along."""
    backend: str | None = None
    """As torch has it: ``cpu:gloo,cuda:nccl``."""

    @classmethod
    def from_json(cls, obj: object) -> ProcessGroup | None:
        """Read one; ``None`` if it has neither a name nor ranks."""
        raw = fields.mapping(obj)
        name = fields.text(raw.get("name")) or ""
        ranks = fields.items(raw.get("ranks"), fields.count)
        if not name and not ranks:
            return None
        said = [fields.text(raw.get(key)) for key in ("description", "mesh_dim", "backend")]
        return cls(name, said[0] or "", ranks, said[1], said[2])


@dataclass(frozen=True)
class ClockAnchor:
    """One moment read on the clocks of this host."""

    wall_ns: int
    """Nanoseconds since 1970, as the host had it."""
    monotonic_ns: int
    """Nanoseconds of the host's monotonic clock."""
    perf_ns: int | None = None
    """Nanoseconds of this process's ``time.perf_counter``, the clock of the step times."""

    @classmethod
    def from_json(cls, obj: object) -> ClockAnchor | None:
        """Read one; ``None`` if a clock is missing."""
        raw = fields.mapping(obj)
        wall, monotonic = fields.integer(raw.get("wall_ns")), fields.integer(raw.get("monotonic_ns"))
        if wall is None or monotonic is None:
            return None
        return cls(wall, monotonic, fields.integer(raw.get("perf_ns")))


@dataclass(frozen=True)
class Device:
    """The device that this rank computes on."""

    type: str | None = None
    """``cpu``, ``cuda`` (also ROCm), ``xpu`` …"""
    name: str | None = None
    index: int | None = None
    total_memory: int | None = None
    """Bytes."""
    uuid: str | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    """The host's memory that is nearest to it."""

    @classmethod
    def from_json(cls, obj: object) -> Device | None:
        """Read one; ``None`` if it has no type."""
        raw = fields.mapping(obj)
        kind = fields.text(raw.get("type"))
        if kind is None:
            return None
        return cls(
            kind,
            fields.text(raw.get("name")),
            fields.count(raw.get("index")),
            fields.count(raw.get("total_memory")),
            fields.text(raw.get("uuid")),
            fields.text(raw.get("pci_bus_id")),
            fields.count(raw.get("numa_node")),
        )


@dataclass(frozen=True)
class StepSpan:
    """Successive steps that ran in one state of the profiler, and how long each took."""

    first_step: int = 0
    state: str = "wait"
    """``wait``, ``warmup`` or ``active``."""
    ns: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, obj: object) -> StepSpan | None:
        """Read one; ``None`` if it does not say where it begins."""
        raw = fields.mapping(obj)
        first = fields.count(raw.get("first_step"))
        if first is None:
            return None
        return cls(first, fields.text(raw.get("state")) or "wait", fields.items(raw.get("ns"), fields.count))


@dataclass(frozen=True)
class TraceMetadata:
    """Everything that analysis needs to know of a trace and that torch does not write; ``None`` where
    unknown."""

    schema_version: int = SCHEMA_VERSION
    run_id: str | None = None
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    host: str | None = None
    launcher: str | None = None
    restart_count: int = 0
    mesh: Mesh | None = None
    process_groups: tuple[ProcessGroup, ...] = ()
    schedule: Mapping[str, int] = field(default_factory=dict)
    """wait, warmup, active, repeat, skip_first; period_steps where that was asked for."""
    first_step: int | None = None
    """The first ``ProfilerStep#`` in the file."""
    last_step: int | None = None
    """The last complete ``ProfilerStep#`` in the file, inclusive."""
    partial_step: int | None = None
    """A step that had begun when the recording ended; its range is named ``PartialStep#`` in the file."""
    clock_anchors: tuple[ClockAnchor, ...] = ()
    """At this recording's beginning and end, then those of the run before it, the oldest first."""
    device: Device | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    profiler: Mapping[str, object] = field(default_factory=dict)
    """The switches, and what the profiler itself cost so far: ``start_stall_ns`` of this window (time that
    the loop stood still for it), ``previous_stall_ns``, ``previous_windows`` and ``previous_bytes`` of all windows
    before it, ``step_median_ns`` by state so far; ``stop``, ``stop_reason`` and ``compressor`` as in
    :class:`~rankscope.rundir.manifest.RankManifest`."""
    environment: Mapping[str, object] = field(default_factory=dict)
    """``cpu_affinity``, ``numa_nodes``, ``settings``, ``torch``: as in the rank's manifest."""
    step_times: tuple[StepSpan, ...] = ()
    """How long steps took until now: the first and the latest, all of them in the rank's manifest."""
    parallelism: tuple[Mapping[str, object], ...] = ()
    """One entry a wrapped module. ``kind`` is ``ddp`` (``buckets`` in the order in which they are reduced, with
    ``bytes`` and ``parameters``), ``fsdp1`` or ``fsdp2`` (``bytes`` of the whole and ``shard_bytes`` of this rank);
    ``group`` is a process group's name."""
    collectives: Mapping[str, object] = field(default_factory=dict)
    """What this rank called while it was recorded: ``kinds`` (operation, group, ranks, dtype, elements, bytes, and the
    ``caller``: ``python`` or ``c++``), ``order`` (an index into them for each call), ``us`` (when, after ``began_ns``
    on the wall clock), ``left_out``, and ``flight_recorder``: whether C++'s calls are there as a ``whole``, in ``part``
    (the latest), or not at all (``None``)."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes at the recording's end: ``host_rss``, ``host_peak``, and of an accelerator ``allocated``,
    ``peak_allocated``, ``reserved``."""

    def to_json(self) -> str:
        """One line of JSON that survives torch's writer."""
        return kineto_json(asdict(self))

    @classmethod
    def from_json(cls, obj: object) -> TraceMetadata:
        """Read the value under :data:`METADATA_KEY` (parsed JSON, or its text); odd fields keep their
        default.

        Never raises.
        """
        if isinstance(obj, (str, bytes)):
            try:
                obj = json.loads(obj)
            except (ValueError, RecursionError):
                obj = {}
        raw = fields.mapping(obj)
        schedule = {k: n for k, v in fields.mapping(raw.get("schedule")).items() if (n := fields.count(v)) is not None}
        return cls(
            schema_version=fields.count(raw.get("schema_version")) or SCHEMA_VERSION,
            run_id=fields.text(raw.get("run_id")),
            rank=fields.count(raw.get("rank")),
            world_size=fields.count(raw.get("world_size")),
            local_rank=fields.count(raw.get("local_rank")),
            host=fields.text(raw.get("host")),
            launcher=fields.text(raw.get("launcher")),
            restart_count=fields.count(raw.get("restart_count")) or 0,
            mesh=Mesh.from_json(raw.get("mesh")),
            process_groups=fields.items(raw.get("process_groups"), ProcessGroup.from_json),
            schedule=schedule,
            first_step=fields.count(raw.get("first_step")),
            last_step=fields.count(raw.get("last_step")),
            partial_step=fields.count(raw.get("partial_step")),
            clock_anchors=fields.items(raw.get("clock_anchors"), ClockAnchor.from_json),
            device=Device.from_json(raw.get("device")),
            versions=fields.strings(raw.get("versions")),
            profiler=fields.mapping(raw.get("profiler")),
            environment=fields.mapping(raw.get("environment")),
            step_times=fields.items(raw.get("step_times"), StepSpan.from_json),
            parallelism=fields.items(raw.get("parallelism"), lambda item: fields.mapping(item) or None),
            collectives=fields.mapping(raw.get("collectives")),
            memory={k: n for k, v in fields.mapping(raw.get("memory")).items() if (n := fields.count(v)) is not None},
        )


def kineto_json(value: object) -> str:
    """JSON in one line in which no string needs an escape.

    Double quotes become single ones, backslashes slashes, control characters spaces: Kineto would turn the
    backslash of an escape into a slash, and the whole trace would be no JSON any more.
    """
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> object:
    if isinstance(value, str):
        # Lone surrogates (undecodable file names) cannot be written as UTF-8.
        text = value.encode("utf-8", "replace").decode("utf-8")
        return re.sub(r"[\x00-\x1f\x7f]", " ", text.replace('"', "'").replace("\\", "/"))
    if isinstance(value, Mapping):
        return {_plain(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _plain(str(value))
