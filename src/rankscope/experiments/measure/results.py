"""The result files of experiments: one JSON object per file.

=================  ======================
``overhead.json``  :class:`Overhead`
``scaling.json``   :class:`Scaling`
``buckets.json``   :class:`Buckets`
``binding.json``   :class:`Binding`
``profiler.json``  :class:`ProfilerCost`
=================  ======================

Each has ``schema`` (:data:`SCHEMA`), ``measurement`` (the name of the file without its ending) and ``setting``
(:class:`Setting`) in addition to its own fields. Times are integer nanoseconds, shares are fractions of 1, sizes bytes;
what was not measured is null. ``low`` and ``high`` of an interval are null if there were too few blocks.
Fields may be added within a schema number; readers ignore those that they do not know. ``files`` writes and reads them.

In: fields, or JSON. Out: dataclasses, or JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rankscope.experiments.measure import SCHEMA


@dataclass(frozen=True)
class Time:
    """A duration: the median, and its interval with the confidence in ``setting.confidence``."""

    median_ns: int
    low_ns: int | None = None
    high_ns: int | None = None
    p25_ns: int | None = None
    """Spread of the single steps: their lower quartile."""
    p75_ns: int | None = None
    samples: int = 0
    """The number of steps per rank."""
    blocks: int = 0
    """The number of blocks of consecutive steps, which the interval resamples."""


@dataclass(frozen=True)
class Share:
    """A ratio with its interval: 0.09 is 9 %. Also used for speed-ups."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Setting:
    """How it was measured."""

    created: str
    """UTC, ISO 8601."""
    target: str
    """The script, module or function, with its arguments."""
    command: list[str]
    """The command line that made this file."""
    seed: int
    """The seed of the order of blocks and jobs, and of the bootstrap."""
    confidence: float
    """The confidence of every interval in the file: 0.99."""
    method: str
    """How the intervals were made, in words."""
    warmup_steps: int
    """Steps at the beginning of each job that do not count."""
    settle_steps: int
    """Steps at the beginning of each block that do not count."""
    block_steps: int
    """Steps of a block that count."""
    blocks: int
    """Blocks per condition in each job; fewer if the job reached its time limit."""
    repeats: int
    """Jobs of each configuration; for ``overhead`` those that were run."""
    rankscope: str
    torch: str | None = None
    hosts: list[str] = field(default_factory=list)
    device: str | None = None
    """The device's name, or the CPU's."""
    clock: str | None = None
    """``cuda events``, ``xpu events``, or ``host`` (on the CPU)."""
    load: float | None = None
    """The machine's load average over one minute at the start: near 0 on an idle machine."""
    notes: list[str] = field(default_factory=list)
    """Notes for the reader: few blocks, a script that ended early, a batch that changed."""


@dataclass(frozen=True)
class Phases:
    """A step and its parts. The medians of the parts do not sum exactly to the median of the step."""

    step: Time
    """From the end of one optimizer step to the end of the next, on the slowest rank."""
    forward: Time | None = None
    """In the wrapped model's forward."""
    backward: Time | None = None
    """In ``backward``, with the part of the gradient synchronization that it does not overlap."""
    forward_backward: Time | None = None
    """Forward and backward with the loss between them: no data loading, and no optimizer."""
    optimizer: Time | None = None
    rest: Time | None = None
    """The step minus forward, backward and optimizer: data loading, zero_grad, the loss, logging."""


@dataclass(frozen=True)
class TraceSummary:
    """A summary of a profiled window: means over its steps, for the rank with the most exposed communication."""

    run: str
    """The run directory, relative to the file; ``rankscope summary`` reads it."""
    steps: int
    """Recorded steps of a rank."""
    window_ns: int
    """A step, profiled."""
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    overlap_ratio: float | None
    """The share of communication overlapped by compute."""
    exposed_share: float
    """Exposed communication divided by the window: the traced overhead."""
    wait_ns: int | None = None
    """Waiting for other ranks within collectives; null if the trace does not separate it from transfer."""
    data_loading_ns: int | None = None
    other_ns: int | None = None
    """The window minus compute, exposed communication and data loading."""
    all_reduces: float | None = None
    """Gradient all-reduces of a step."""
    exposed_wait_ns: int | None = None
    """The part of the exposed communication that is waiting for other ranks."""
    rank: int | None = None
    """The rank that these figures are of."""


@dataclass(frozen=True)
class RankTimes:
    """One rank's medians."""

    rank: int
    host: str
    sync_ns: int
    no_sync_ns: int | None = None


@dataclass(frozen=True)
class Overhead:
    """``overhead.json``: what gradient synchronization costs."""

    setting: Setting
    wrapper: str
    """``ddp``, ``fsdp1`` or ``fsdp2``."""
    world_size: int
    sync: Phases
    no_sync: Phases
    sync_cost: Time
    """T_sync - T_no_sync."""
    measured_overhead: Share
    """(T_sync - T_no_sync) / T_sync."""
    traced: TraceSummary | None
    ranks: list[RankTimes]
    forward_backward_overhead: Share | None = None
    """The same ratio of forward and backward alone: (F_sync - F_no_sync) / F_sync. Larger than that of the step, as the
    whole cost of synchronization is in backward."""
    measurement: str = "overhead"
    schema: int = SCHEMA


@dataclass(frozen=True)
class Size:
    """One size of a scaling study."""

    name: str
    """``plain`` (a process alone, without a wrapper), else the number of ranks: ``1``, ``2``, ``8 on 2 nodes`` …"""
    ranks: int
    nodes: int
    state: str
    """``done``, ``failed``, or ``pending`` (not run yet)."""
    error: str | None = None
    """Why it failed."""
    oversubscribed: bool = False
    """More ranks than cores or devices: it does not show how the job scales."""
    wrapper: str | None = None
    """``ddp``, ``fsdp1``, ``fsdp2``; null for a model that is not wrapped."""
    batch_per_rank: int | None = None
    """The first dimension of the model's input, as seen in the job."""
    repeats: int = 0
    """Jobs that were finished."""
    step: Time | None = None
    phases: Phases | None = None
    speed_up: Share | None = None
    """Strong: T1 / Tn. Weak: n T1 / Tn."""
    efficiency: Share | None = None
    """Speed-up / n."""
    derived_overhead: Share | None = None
    """1 - efficiency."""
    measured_overhead: Share | None = None
    """(T_sync - T_no_sync) / T_sync at this size."""
    traced: TraceSummary | None = None
    lost: EfficiencyLoss | None = None


@dataclass(frozen=True)
class EfficiencyLoss:
    """Where a step of this size is longer than the perfect step (T1 / n strong, T1 weak): each part of the step at this
    size minus the same part at the base (divided by n for strong scaling), from the traces, scaled to the unprofiled
    step. The parts sum to ``total_ns`` up to rounding; a negative one got shorter."""

    total_ns: int
    compute_ns: int
    exposed_communication_ns: int
    wait_ns: int | None
    """The part of the exposed communication that is waiting for other ranks; null if a trace does not show it."""
    data_loading_ns: int
    other_ns: int


@dataclass(frozen=True)
class Projected:
    """The projection for one size."""

    ranks: int
    speed_up: Share
    efficiency: Share
    step_ns: int


@dataclass(frozen=True)
class Projection:
    """A projection, not a measurement."""

    model: str
    """``usl`` (Gunther's Universal Scalability Law), or ``amdahl``: the same with coherence 0."""
    formula: str
    contention: float
    """sigma: the serial part of the work."""
    coherence: float
    """kappa: the cost per pair of ranks."""
    fitted_ranks: list[int]
    assumptions: list[str]
    points: list[Projected]


@dataclass(frozen=True)
class Scaling:
    """``scaling.json``."""

    setting: Setting
    mode: str
    """``weak`` (the same batch per rank) or ``strong`` (the same global batch)."""
    base: str | None
    """The size of T1: ``plain``, or ``1`` if the script does not run as a plain process; null without either."""
    sizes: list[Size]
    projection: Projection | None = None
    measurement: str = "scaling"
    schema: int = SCHEMA


@dataclass(frozen=True)
class Variant:
    """One way to set the wrapper."""

    name: str
    settings: dict[str, float | int | bool | str]
    """What was set: ``bucket_cap_mb``, ``gradient_as_bucket_view``, ``static_graph``, ``reshard_after_forward`` …"""
    base: bool
    """Whether it is the base of the comparison: the script's own setting."""
    state: str
    """``done`` or ``failed``."""
    error: str | None = None
    step: Time | None = None
    difference: Share | None = None
    """(T - T_base) / T_base: negative is faster."""
    beyond_chance: bool | None = None
    """Whether the interval of the difference excludes 0."""
    bucket_bytes: list[int] | None = None
    """DDP's buckets in the order in which they are reduced; the first is the one that is ready first."""
    traced: TraceSummary | None = None


@dataclass(frozen=True)
class Recommendation:
    """The recommended change, if there is one."""

    variant: str | None
    """Null if no variant is significantly faster than the base."""
    saving_ns: int | None
    """Per step."""
    text: str


@dataclass(frozen=True)
class Buckets:
    """``buckets.json``."""

    setting: Setting
    wrapper: str
    world_size: int
    variants: list[Variant]
    recommendation: Recommendation
    measurement: str = "buckets"
    schema: int = SCHEMA


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node of the host."""

    node: int
    cpus: str
    """``0-3,8-11``."""


@dataclass(frozen=True)
class TopologyDevice:
    """An accelerator and its NUMA node."""

    index: int
    name: str | None
    pci: str | None
    numa_node: int | None


@dataclass(frozen=True)
class Topology:
    """The host, according to /sys and the vendor's tool."""

    cpus: str
    """Those that this process may use."""
    sockets: int
    cores: int
    """Physical ones; a core with two hardware threads is one."""
    nodes: list[NumaNode]
    devices: list[TopologyDevice]
    source: list[str]
    """Where it was read: ``/sys``, ``nvidia-smi``, ``xpu-smi``."""


@dataclass(frozen=True)
class BoundVariant:
    """One way to bind ranks to CPUs."""

    name: str
    """``none``, ``compact``, ``spread``, ``numa`` or ``list``."""
    base: bool
    cpus: list[str]
    """By local rank; empty for ``none``."""
    state: str
    error: str | None = None
    step: Time | None = None
    difference: Share | None = None
    """(T - T_base) / T_base."""
    beyond_chance: bool | None = None
    launch_latency: Time | None = None
    """From a kernel's launch to when the host knows that it is done, with an empty queue; null on the CPU."""
    flags: dict[str, str] = field(default_factory=dict)
    """The options that set it: ``--cpu-bind``, ``taskset``, ``numactl``, and environment variables, as they apply."""


@dataclass(frozen=True)
class Binding:
    """``binding.json``."""

    setting: Setting
    world_size: int
    topology: Topology
    variants: list[BoundVariant]
    recommendation: Recommendation
    measurement: str = "binding"
    schema: int = SCHEMA


@dataclass(frozen=True)
class ProfiledVariant:
    """One way to profile."""

    name: str
    """``none``, ``waiting``, ``recording`` (no switch), the name of one switch, or ``all``."""
    base: bool
    """``none``: the step without a profiler."""
    switches: list[str]
    step: Time | None = None
    cost: Share | None = None
    """(T - T_none) / T_none of the steps that are recorded."""
    beyond_chance: bool | None = None
    stop: Time | None = None
    """How long the training loop stops while the recording is stopped."""
    save: Time | None = None
    """How long writing the trace as JSON takes."""
    bytes_per_step: int | None = None
    """The size of a rank's uncompressed trace."""
    state: str = "done"
    error: str | None = None


@dataclass(frozen=True)
class ProfilerCost:
    """``profiler.json``."""

    setting: Setting
    world_size: int
    variants: list[ProfiledVariant]
    measurement: str = "profiler"
    schema: int = SCHEMA


AnyResult = Overhead | Scaling | Buckets | Binding | ProfilerCost
