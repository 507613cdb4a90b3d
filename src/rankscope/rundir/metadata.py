"""What a trace carries about itself, under one top-level key, so that a file is never orphaned.

``prof.add_metadata_json(METADATA_KEY, metadata.to_json())`` puts it there, before the profiler stops. Torch's
writer turns every backslash of a metadata value into a slash, which makes any JSON escape a broken file:
:func:`kineto_json` therefore writes text without a character that would need one.

In: facts about a rank and a window, or JSON. Out: JSON, or dataclasses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from rankscope.rundir.fields import Positive, Rank, Signed, Step, WorldSize, read

METADATA_KEY = "rankscope"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Mesh:
    """The DeviceMesh that the job was laid out on."""

    dims: tuple[str, ...]
    shape: tuple[Rank, ...] = ()
    coordinate: tuple[Rank, ...] = ()
    """This rank's place in it; empty on a rank outside the mesh."""

    def by_name(self) -> dict[str, int]:
        """This rank's coordinate by dimension name."""
        return dict(zip(self.dims, self.coordinate, strict=False))


@dataclass(frozen=True)
class ProcessGroup:
    """A process group of the job that this rank is in."""

    name: str = ""
    description: str = ""
    ranks: tuple[Rank, ...] = ()
    """Global ranks, in the order of the group's own ranks."""
    mesh_dim: str | None = None
    """The dimension of the DeviceMesh that this group runs along."""
    backend: str | None = None
    """As torch has it: ``cpu:gloo,cuda:nccl``."""

    @classmethod
    def from_json(cls, raw: object) -> ProcessGroup | None:
        """Read one; None if it has neither a name nor ranks."""
        group = read(cls, raw)
        return group if group is not None and (group.name or group.ranks) else None


@dataclass(frozen=True)
class ClockAnchor:
    """One moment read on the clocks of this host."""

    wall_ns: Signed
    """Nanoseconds since 1970, as the host had it."""
    monotonic_ns: Signed
    """Nanoseconds of the host's monotonic clock."""
    perf_ns: Signed | None = None
    """Nanoseconds of this process's ``time.perf_counter``, the clock of the step times."""


@dataclass(frozen=True)
class Device:
    """The device that this rank computes on."""

    type: str
    """``cpu``, ``cuda`` (also ROCm), ``xpu`` …"""
    name: str | None = None
    index: int | None = None
    total_memory: int | None = None
    """Bytes."""
    uuid: str | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    """The host's memory that is nearest to it."""


@dataclass(frozen=True)
class StepSpan:
    """Successive steps that ran in one state of the profiler, and how long each took."""

    first_step: Step
    state: str = "wait"
    """``wait``, ``warmup`` or ``active``."""
    ns: tuple[int, ...] = ()


@dataclass(frozen=True)
class TraceMetadata:
    """Everything that analysis needs to know of a trace and that torch does not write; ``None`` where
    unknown."""

    schema_version: Positive = SCHEMA_VERSION
    run_id: str | None = None
    rank: Rank | None = None
    world_size: WorldSize | None = None
    local_rank: Rank | None = None
    host: str | None = None
    boot_id: str | None = None
    """Linux's id of the host's boot: containers of one host have the same, hosts of one name have not."""
    launcher: str | None = None
    restart_count: int = 0
    mesh: Mesh | None = None
    process_groups: tuple[ProcessGroup, ...] = ()
    schedule: Mapping[str, int] = field(default_factory=dict)
    """wait, warmup, active, repeat, skip_first; period_steps if it was set."""
    first_step: Step | None = None
    """The first ``ProfilerStep#`` in the file."""
    last_step: Step | None = None
    """The last complete ``ProfilerStep#`` in the file, inclusive."""
    partial_step: Step | None = None
    """A step that had begun when the recording ended; its range is named ``PartialStep#`` in the file."""
    clock_anchors: tuple[ClockAnchor, ...] = ()
    """At this recording's beginning and end, then those of the run before it, the oldest first."""
    device: Device | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    profiler: Mapping[str, object] = field(default_factory=dict)
    """The switches, and what the profiler itself cost so far: ``start_stall_ns`` of this window (time that
    the loop was blocked for it), ``previous_stall_ns``, ``previous_windows`` and ``previous_bytes`` of all windows
    before it, ``step_median_ns`` by state so far; ``stop``, ``stop_reason`` and ``compressor`` as in
    :class:`~rankscope.rundir.manifest.RankManifest`; ``recorded_by`` if a profiler of the script recorded it."""
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
    def from_json(cls, raw: object) -> TraceMetadata:
        """Read the value under :data:`METADATA_KEY` (parsed JSON, or its text); odd fields keep their default.

        Never raises.
        """
        if isinstance(raw, (str, bytes)):
            try:
                raw = json.loads(raw)
            except (ValueError, RecursionError):
                raw = {}
        return read(cls, raw) or cls()


def kineto_json(value: object) -> str:
    """JSON in one line in which no string needs an escape.

    Double quotes become single ones, backslashes slashes, control characters spaces: Kineto would turn the
    backslash of an escape into a slash, and the trace would not be valid JSON.
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
