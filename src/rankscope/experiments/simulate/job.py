"""The description of a simulated job: its size and parallelism, its faults, and how it is recorded.

In: options as values or text. Out: a checked `Job`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from rankscope.errors import ConfigError
from rankscope.experiments.simulate.kineto import LAYOUTS
from rankscope.experiments.simulate.mesh import DIMENSIONS, MeshLayout
from rankscope.rundir.ranges import parse_numbers

FAULT_STYLES: dict[str, tuple[str, ...]] = {
    "slow_device": ("stretch",),
    "more_work": ("kernels",),
    "data_loading": ("late",),
    "slow_host": ("stretch", "gc", "asleep"),
    "memory": ("retries", "copies"),
    "slow_network": ("stretch",),
}
"""The kinds of fault and their styles; the first is the default."""

_MOST_NUMBERS = 1 << 20
"""Bounds ranks and steps of a fault."""

LOSABLE = ("any", "kernel", "collective", "launch", "operator")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong on some ranks in some steps, and costs a rank the same time in each of them.

    The time that the *job* loses is different (the host may run ahead of the device, others may wait anyway); the truth
    contains it, from a run of the same seed without the fault.
    """

    kind: str
    """slow_device, more_work, data_loading, slow_host, memory or slow_network."""
    ranks: tuple[int, ...] = ()
    """The affected ranks; all of them if ``where`` is empty, too."""
    where: Mapping[str, int] = field(default_factory=dict)
    """Affected mesh coordinates: ``{"dp": 3}`` is every rank of that replica."""
    steps: tuple[int, ...] | None = None
    """The affected ``ProfilerStep#`` numbers; None: every step, including those before the recording."""
    magnitude: float = 0.1
    """The time that it costs an affected rank per step, as a fraction of the undisturbed step."""
    ms: float | None = None
    """The same in milliseconds, instead of ``magnitude``."""
    style: str = ""
    """slow_host ``stretch`` (every host operation), ``gc`` (pauses recorded as Python GC), ``asleep`` (a pause in
    which nothing is recorded); memory ``retries`` (cudaFree and cudaMalloc) or ``copies`` (on the device)."""
    dim: str = ""
    """slow_network: the mesh dimension whose groups are slow."""
    link: tuple[int, int] | None = None
    """slow_network: a pair of ranks; every group that has both is slow."""
    pauses: int = 0
    """The number of pauses per step (gc, asleep, retries); 0: 4, 1 and 3."""

    def __post_init__(self) -> None:
        if self.kind not in FAULT_STYLES:
            raise ConfigError(f"unknown fault {self.kind!r}", hint=f"known: {', '.join(FAULT_STYLES)}")
        styles = FAULT_STYLES[self.kind]
        object.__setattr__(self, "style", self.style or styles[0])
        if self.style not in styles:
            raise ConfigError(f"{self.kind} has no style {self.style!r}", hint=f"known: {', '.join(styles)}")
        if self.kind == "slow_network" and not (self.dim or self.link):
            raise ConfigError("slow_network needs dim=… (whose groups are slow) or link=A-B (the slow pair)")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read ``kind:key=value,…``, as on the command line: ``slow_device:rank=3,steps=11-12,magnitude=0.05``.

        Ranks and steps are ``3``, ``3+5``, ``0-3`` or several joined by ``+``; a mesh dimension's name with a number is
        a slice of the mesh (``dp=3``).
        """
        kind, _, rest = text.partition(":")
        given: dict[str, object] = {}
        where: dict[str, int] = {}
        try:
            for part in filter(None, rest.split(",")):
                key, _, value = part.partition("=")
                if key in ("rank", "ranks"):
                    given["ranks"] = _numbers(value)
                elif key in ("step", "steps"):
                    given["steps"] = None if value == "all" else _numbers(value)
                elif key in ("magnitude", "ms"):
                    given[key] = float(value)
                elif key == "pauses":
                    given[key] = int(value)
                elif key in ("style", "dim"):
                    given[key] = value
                elif key == "link":
                    a, _, b = value.partition("-")
                    given["link"] = (int(a), int(b))
                elif key in DIMENSIONS:
                    where[key] = int(value)
                else:
                    raise ValueError(f"unknown key {key!r}")
        except ValueError as error:
            raise ConfigError(
                f"the fault {text!r} cannot be read: {error}",
                hint="for example slow_device:rank=3,steps=11-12,magnitude=0.05 or slow_network:dim=dp,rank=5,ms=2",
            ) from None
        return cls(kind=kind, where=where, **given)  # type: ignore[arg-type]  # __post_init__ checks them


@dataclass(frozen=True)
class Lost:
    """Events that are missing from one rank's file."""

    rank: int
    count: int = 0
    fraction: float = 0.0
    """Each event is lost with this probability, in addition to ``count``."""
    what: str = "any"
    """any, kernel, collective (its kernel), launch (the runtime's call) or operator."""

    def __post_init__(self) -> None:
        if self.what not in LOSABLE:
            raise ConfigError(f"events of kind {self.what!r} cannot be lost", hint=f"known: {', '.join(LOSABLE)}")


@dataclass(frozen=True)
class Recording:
    """How the job is recorded, and the defects of the recording."""

    clock_offset_ns: Mapping[int, int] = field(default_factory=dict)
    """By rank: how far its clock is ahead."""
    clock_spread_ns: int = 0
    """The clocks of other ranks are off by up to this much, in either direction."""
    drift_ppm: Mapping[int, float] = field(default_factory=dict)
    drift_spread_ppm: float = 0.0
    lost: tuple[Lost, ...] = ()
    window_start_ns: Mapping[int, int] = field(default_factory=dict)
    """By rank: the recording begins this much later (or, negative, earlier) than the first step's start."""
    window_end_ns: Mapping[int, int] = field(default_factory=dict)
    """By rank: the recording ends this much later (or, negative, earlier) than the last step's end."""
    window_spread_ns: int = 0
    """Other ranks begin and end up to this much early or late."""
    missing: tuple[int, ...] = ()
    """Ranks without a file."""
    truncated: Mapping[int, float] = field(default_factory=dict)
    """By rank: the fraction of the file's bytes that is written."""
    base_time: str = "shared"
    """``shared``, ``per-rank`` (baseTimeNanoseconds differs), or ``epoch`` (none: 16-digit microseconds)."""
    collective_metadata: bool = True
    """False: kernels without ``Collective name`` and related arguments, as older versions wrote them."""
    sequence_numbers: bool = False
    """True: ``Seq`` on collectives."""
    group_names: str = "unique"
    """``unique``, or ``shared``: all groups of a dimension have the same name."""
    distributed_info: bool = True
    rankscope_metadata: bool = True
    """Whether the file has the metadata that `rankscope.Profiler` adds."""
    stacks: bool = False
    """Python frames: modules, and a frame around every operator."""
    layout: str = "torch-2.13"
    """``torch-2.13``, ``torch-2.9`` or ``compact``."""
    compression: str = "gz"
    """gz, zst or none."""


@dataclass(frozen=True)
class Job:
    """A training job on ``ranks`` devices."""

    ranks: int = 8
    steps: int = 4
    mesh: Mapping[str, int] = field(default_factory=dict)
    """Sizes of dp, tp, pp and ep, outermost first, as in ``init_device_mesh``; empty: dp over all ranks."""
    seed: int = 0
    first_step: int = 10
    """The number of the first recorded ``ProfilerStep#``."""
    warmup_steps: int = 1
    """Steps before the recording: their kernels may still run when it begins."""
    layers: int = 4
    """Per pipeline stage."""
    kernels_per_layer: int = 8
    """Forward; the backward pass has as many."""
    microbatches: int = 0
    """Per step; 0: twice the pipeline's depth, or 1 without a pipeline."""
    data_parallel: str = "ddp"
    """``ddp`` (bucketed all_reduce) or ``fsdp`` (all_gather and reduce_scatter)."""
    tensor_parallel: str = "all_reduce"
    """``all_reduce``, or ``sequence`` (all_gather and reduce_scatter)."""
    layers_per_bucket: int = 2
    synchronize: bool = True
    """The host reads the loss at the end of every step; if False, it runs ahead of the device."""
    gradient_norm: bool = True
    """One small all_reduce over all ranks before the optimizer."""
    device_scale: float = 1.0
    """A factor on every kernel: above 1 the step is more device-bound, below 1 more host-bound."""
    host_scale: float = 1.0
    network_scale: float = 1.0
    jitter: float = 1.0
    """Widens (or narrows) every measured spread, in the logarithm."""
    gpus_per_host: int = 8
    faults: tuple[Fault, ...] = ()
    recording: Recording = field(default_factory=Recording)

    def __post_init__(self) -> None:
        for name in ("ranks", "steps", "layers", "kernels_per_layer", "layers_per_bucket", "gpus_per_host"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name in ("warmup_steps", "microbatches"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"{name} must be 0 or more, not {value}")
        object.__setattr__(self, "mesh", dict(self.mesh) or {"dp": self.ranks})
        layout = self.layout()
        for fault in self.faults:
            self._check_fault(fault, layout)
        recording = self.recording
        choices = {
            "data_parallel": (self.data_parallel, ("ddp", "fsdp")),
            "tensor_parallel": (self.tensor_parallel, ("all_reduce", "sequence")),
            "base_time": (recording.base_time, ("shared", "per-rank", "epoch")),
            "group_names": (recording.group_names, ("unique", "shared")),
            "layout": (recording.layout, LAYOUTS),
            "compression": (recording.compression, ("gz", "zst", "none")),
        }
        for name, (value, known) in choices.items():
            if value not in known:
                raise ConfigError(f"{name} cannot be {value!r}", hint=f"known: {', '.join(known)}")
        self._check_numbers()

    def _check_numbers(self) -> None:
        recording = self.recording
        for name in ("device_scale", "host_scale", "network_scale"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"{name} must be above 0, not {value}")
        if not 0 <= self.jitter < math.inf:
            raise ConfigError(f"jitter must be 0 or more, not {self.jitter}")
        by_rank = {
            "clock_offset": recording.clock_offset_ns,
            "drift": recording.drift_ppm,
            "lose": [lost.rank for lost in recording.lost],
            "window_start": recording.window_start_ns,
            "window_end": recording.window_end_ns,
            "missing": recording.missing,
            "truncate": recording.truncated,
        }
        for name, named in by_rank.items():
            if foreign := [rank for rank in named if not 0 <= rank < self.ranks]:
                raise ConfigError(f"{name} names ranks that the job does not have: {foreign}")
        if len(set(recording.missing)) == self.ranks:
            raise ConfigError("all ranks are missing: there is nothing to write")
        for rank, fraction in recording.truncated.items():
            if not 0 <= fraction <= 1:
                raise ConfigError(f"truncate: {fraction} of rank {rank}'s file is not a fraction", hint="0 to 1")
        for lost in recording.lost:
            if not 0 <= lost.fraction <= 1:
                raise ConfigError(
                    f"lose: {lost.fraction} of rank {lost.rank}'s events is not a fraction", hint="0 to 1"
                )

    def _check_fault(self, fault: Fault, layout: MeshLayout) -> None:
        named = [*fault.ranks, *(fault.link or ())]
        if any(not 0 <= rank < self.ranks for rank in named):
            raise ConfigError(f"the fault {fault.kind} names ranks that the job does not have: {named}")
        first, end = self.first_step - self.warmup_steps, self.first_step + self.steps
        if fault.steps is not None and not any(first <= step < end for step in fault.steps):
            raise ConfigError(
                f"the fault {fault.kind} is in no step of the job", hint=f"the steps are {first} to {end - 1}"
            )
        if fault.dim and fault.dim not in (*layout.dims, "world"):
            raise ConfigError(f"the fault {fault.kind} names {fault.dim!r}, which is not in the mesh")
        for dim, coordinate in fault.where.items():
            if dim not in layout.dims or not 0 <= coordinate < layout.shape[layout.dims.index(dim)]:
                raise ConfigError(f"the fault {fault.kind} names {dim}={coordinate}, which is not in the mesh")

    def layout(self) -> MeshLayout:
        """The mesh, checked.

        Raises:
            ConfigError: its sizes do not multiply to the number of ranks.
        """
        return MeshLayout.of(self.mesh, self.ranks)

    @property
    def microbatch_count(self) -> int:
        """Microbatches per step."""
        depth = self.mesh.get("pp", 1)
        return self.microbatches or (2 * depth if depth > 1 else 1)

    @property
    def cooldown_steps(self) -> int:
        """Steps after the recorded ones: one if a recording may end later than they do."""
        recording = self.recording
        return int(recording.window_spread_ns > 0 or any(late > 0 for late in recording.window_end_ns.values()))

    def without_faults(self) -> Job:
        """The same job and seed, without faults."""
        return replace(self, faults=())

    def without(self, fault: int) -> Job:
        """The same job and seed, without one of its faults."""
        return replace(self, faults=tuple(f for i, f in enumerate(self.faults) if i != fault))


def _numbers(text: str) -> tuple[int, ...]:
    """``3``, ``0-3``, ``1+5``, ``0-3+8`` as numbers."""
    return tuple(parse_numbers(text.replace(":", "-"), _MOST_NUMBERS, separator="+"))


def parse_mesh(text: str) -> dict[str, int]:
    """``dp=64,tp=8,pp=2`` as sizes by dimension.

    Raises:
        ConfigError: the text is not of this form.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"([a-z]+)=(\d+)", part)
        if match is None:
            raise ConfigError(f"the mesh {text!r} cannot be read", hint="for example dp=64,tp=8,pp=2")
        sizes[match[1]] = int(match[2])
    return sizes


def as_dict(value: object) -> object:
    """A job, fault or recording as plain JSON values."""
    if isinstance(value, (Job, Fault, Lost, Recording)):
        return {f.name: as_dict(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): as_dict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_dict(v) for v in value]
    return value
