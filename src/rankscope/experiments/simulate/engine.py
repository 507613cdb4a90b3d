"""Execute a job: hosts launch, streams run in order, collectives end on all ranks after the last arrival.

In: the program of each pipeline stage. Out: the start of each item on the host and on the compute stream, and the
arrival and end of each collective, for all ranks. From these the writer recomputes every moment (``times``). Times are
the job's true time in nanoseconds from 0.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from rankscope.experiments.simulate.faults import Effects, Nominal, pauses_of, sums
from rankscope.experiments.simulate.jitter import I64, KERNEL_GAP_NS, ONE, SKEW_CAP_NS, Chance
from rankscope.experiments.simulate.job import Job
from rankscope.experiments.simulate.mesh import WORLD, MeshLayout
from rankscope.experiments.simulate.program import Communication, Program, build
from rankscope.experiments.simulate.times import Clockwork, Slowness, in_order

SYNC_RETURN_NS = 4_000
EVENT_WAIT_NS = 700
"""From the end of the compute kernel to the start of a communication kernel that waits for it."""
MEDIAN_TRANSFER_NS = 237_000
"""The median transfer of the collectives whose end skew was measured; shorter ones end closer together."""
MIN_SKEW_SHARE = 0.1

BUS_INTRA = 200e9
BUS_INTER = 40e9
BASE_LATENCY_NS = 9_000
HOP_LATENCY_NS = 2_000

Waiting = Generator[None, None, None]


@dataclass
class Stage:
    """A pipeline stage: its ranks, its program and what happened; arrays are (steps, items or collectives, ranks)."""

    index: int
    ranks: I64
    program: Program
    effects: Effects
    clockwork: Clockwork
    host: I64
    """When each item began on the host; one more, for the step's end."""
    stream: I64
    """When the compute stream was free, as each item began."""
    arrival: I64
    end: I64
    transfer: I64
    last: I64
    """When the last of the group arrived."""
    resolved: set[tuple[int, int]] = field(default_factory=set)


@dataclass
class _Meeting:
    """A collective between stages: the stages that have arrived."""

    arrived: list[tuple[Stage, int, int]] = field(default_factory=list)


class Engine:
    """Runs a job."""

    def __init__(self, job: Job, nominal: Nominal | None = None, *, alone: bool = False) -> None:
        """``alone`` runs one rank of each stage, as if its peers did the same, and draws no jitter."""
        self.job = job
        self.layout: MeshLayout = job.layout()
        self.alone = alone
        self.steps = job.warmup_steps + job.steps + job.cooldown_steps
        self.step_numbers = [job.first_step - job.warmup_steps + i for i in range(self.steps)]
        self.chance = None if alone else Chance(job.seed, job.jitter)
        pauses = pauses_of(job, nominal) if nominal is not None else []
        self.stages = [self._stage(i, nominal, build(job, i, pauses)) for i in range(self.layout.stages)]
        self._meetings: dict[tuple[object, ...], _Meeting] = {}

    def _stage(self, index: int, nominal: Nominal | None, program: Program) -> Stage:
        ranks = self.layout.stage_ranks(index)
        if self.alone:
            ranks = ranks[:1]
        count, items, communications = len(ranks), len(program.items), len(program.communications)

        def array(size: int) -> I64:
            return np.zeros((self.steps, size, count), dtype=np.int64)

        return Stage(
            index,
            ranks,
            program,
            Effects(self.job, nominal, index, ranks, self.step_numbers),
            Clockwork(self.job, program, self.chance),
            array(items + 1),
            array(items),
            array(communications),
            array(communications),
            array(communications),
            array(communications),
        )

    @property
    def sequences_per_step(self) -> int:
        """How many sequence numbers a step uses."""
        return max(max(stage.program.sequence) for stage in self.stages) + 1

    def run(self) -> None:
        """Run all stages to the end."""
        running = [self._run_stage(stage) for stage in self.stages]
        while running:
            alive = []
            before = sum(len(stage.resolved) for stage in self.stages)
            for stage in running:
                for _ in stage:
                    alive.append(stage)
                    break
            if len(alive) == len(running) and before == sum(len(stage.resolved) for stage in self.stages):
                raise RuntimeError("the simulated job has deadlocked: its program is wrong")
            running = alive

    def slowness(self, stage: Stage, step: int) -> Slowness:
        """The slowdown of a step on each rank of the stage."""
        effects = stage.effects
        kernel = effects.kernel[step]
        if self.chance is not None:
            device = self.chance.factors("rank_speed", self.chance.keys("device", 0, stage.ranks), _ZERO)
            kernel = kernel * device // ONE
        return Slowness(effects.host[step], kernel, effects.loader[step])

    def _run_stage(self, stage: Stage) -> Waiting:
        count = len(stage.ranks)
        start = np.zeros(count, dtype=np.int64)
        if self.chance is not None:
            # Ranks do not start at exactly the same time.
            start += (self.chance.hashes(self.chance.keys("start", 0, stage.ranks), _ZERO) % np.uint64(20_000)).astype(
                np.int64
            )
        host, free = start, start.copy()
        streams: dict[int, tuple[int, int]] = {}
        for step in range(self.steps):
            keys, slow = stage.clockwork.keys(step, stage.ranks), self.slowness(stage, step)
            for number, item in enumerate(stage.program.items):
                stage.host[step, number], stage.stream[step, number] = host, free
                active = None
                if item.fault >= 0:
                    active = stage.effects.active[item.fault, step]
                    if not active.any():
                        continue
                rows = np.arange(item.first, item.first + item.count)
                spans = stage.clockwork.host_spans(rows, keys, slow)
                moments = host[:, None, None] + np.cumsum(spans.reshape(count, -1), axis=1).reshape(spans.shape)
                after = moments[:, -1, -1]
                if item.kind == "communication":
                    communication = stage.program.communications[item.communication]
                    last = streams.get(communication.message.stream)
                    if last is not None:
                        while last not in stage.resolved:
                            yield
                        tail = stage.end[last]
                    else:
                        tail = start
                    launched = stage.clockwork.launched(rows, moments)[:, 0]
                    ready = np.maximum(free - KERNEL_GAP_NS + EVENT_WAIT_NS, tail + KERNEL_GAP_NS)
                    stage.arrival[step, item.communication] = np.maximum(launched, ready)
                    streams[communication.message.stream] = (step, item.communication)
                    self._meet(stage, step, communication)
                elif item.kind == "wait":
                    waited = (step, item.communication)
                    while waited not in stage.resolved:
                        yield
                    free = np.maximum(free, stage.end[waited] + KERNEL_GAP_NS)
                else:
                    works = stage.clockwork.table(rows).kernel_ns > 0
                    if works.any():
                        durations = stage.clockwork.kernels(rows, keys, slow)
                        launched = np.maximum(stage.clockwork.launched(rows, moments), free[:, None])
                        _, freed = in_order(launched, durations, works)
                        free_after = freed[:, -1]
                    else:
                        free_after = free
                    if item.kind == "synchronize":
                        after = self._synchronized(stage, rows, moments, free_after)
                    if active is not None:
                        after = np.where(active, after, host)
                        free_after = np.where(active, free_after, free)
                    free = free_after
                host = after
            stage.host[step, len(stage.program.items)] = host

    @staticmethod
    def _synchronized(stage: Stage, rows: I64, moments: I64, free: I64) -> I64:
        at = stage.program.rows[int(rows[-1])].waits_at
        reached = moments[:, -1, at]
        returns = np.maximum(reached, free - KERNEL_GAP_NS + SYNC_RETURN_NS)
        found: I64 = moments[:, -1, -1] + returns - reached
        return found

    # --- communication ---

    def _meet(self, stage: Stage, step: int, communication: Communication) -> None:
        message = communication.message
        if message.dim not in ("pp", WORLD):
            self._end(communication, step, [(stage, step, communication.index)])
            return
        if message.dim == WORLD:
            key: tuple[object, ...] = (WORLD, step, communication.sequence)
            parties = len(self.stages)
        else:
            from_stage = stage.index if message.kind == "send" else stage.index + (-1 if message.forward else 1)
            key = ("pp", step, from_stage, message.forward, communication.sequence)
            parties = 2
        meeting = self._meetings.setdefault(key, _Meeting())
        meeting.arrived.append((stage, step, communication.index))
        if len(meeting.arrived) == parties:
            del self._meetings[key]
            meeting.arrived.sort(key=lambda c: c[0].index)
            self._end(communication, step, meeting.arrived)

    def _end(self, communication: Communication, step: int, arrived: list[tuple[Stage, int, int]]) -> None:
        """All have arrived: compute the end on each rank."""
        message = communication.message
        arrivals = [stage.arrival[step, index] for stage, step, index in arrived]
        if message.dim == WORLD:
            last = np.full_like(arrivals[0], max(int(a.max()) for a in arrivals))
        elif message.dim == "pp":
            last = np.maximum(*arrivals)
        elif self.alone:
            last = arrivals[0]
        else:
            shape, axis = self.layout.stage_shape, self.layout.stage_dims.index(message.dim)
            latest = arrivals[0].reshape(shape).max(axis=axis, keepdims=True)
            last = np.broadcast_to(latest, shape).ravel()
        first = arrived[0][0]
        transfer = self.transfer_ns(communication) * first.effects.transfer(communication, step) // ONE
        if self.chance is not None:
            leaders = self.layout.leaders(first.index, message.dim)
            keys = self.chance.keys("transfer", step, leaders)
            # Keyed by the lower stage's index, which both ends agree on.
            place = np.asarray([arrived[0][2]], dtype=np.int64)
            transfer = transfer * self.chance.factors("transfer", keys, place) // ONE
        for stage, at, index in arrived:
            end = last + transfer
            if self.chance is not None:
                skews = self.chance.factors(
                    "end_skew", self.chance.keys("skew", step, stage.ranks), np.asarray([index])
                )
                share = np.clip(transfer, int(MEDIAN_TRANSFER_NS * MIN_SKEW_SHARE), MEDIAN_TRANSFER_NS)
                end = end + np.minimum(skews * share // ONE, SKEW_CAP_NS)
            stage.end[at, index] = end
            stage.transfer[at, index] = transfer
            stage.last[at, index] = last
            stage.resolved.add((at, index))

    def transfer_ns(self, communication: Communication) -> int:
        """The duration of the transfer after the last arrival, without jitter."""
        message = communication.message
        n = self.layout.extent(message.dim)
        group = self.layout.group_of(0, message.dim)
        if message.kind in ("send", "recv"):
            group, n = group[:2], 2
        within = len({rank // self.job.gpus_per_host for rank in group}) == 1
        share = {"all_reduce": 2 * (n - 1) / n, "send": 1.0, "recv": 1.0}.get(message.kind, (n - 1) / n)
        wire = message.bytes * share / (BUS_INTRA if within else BUS_INTER) * 1e9
        latency = BASE_LATENCY_NS + HOP_LATENCY_NS * max(n - 1, 1).bit_length() * (1 if within else 3)
        return round((wire + latency) * self.job.network_scale)


_ZERO = np.asarray([0], dtype=np.int64)


def nominal_of(job: Job) -> Nominal:
    """The undisturbed step of a job, without jitter, to which the magnitudes of faults refer."""
    engine = Engine(job.without_faults(), alone=True)
    engine.run()
    ends = max(stage.host[-1, -1, 0] for stage in engine.stages)
    begins = max(stage.host[-1, 0, 0] for stage in engine.stages)
    if not job.synchronize and engine.steps > 1:
        # The host runs ahead, so the device determines the step.
        ends = max(stage.stream[-1, -1, 0] for stage in engine.stages)
        begins = max(stage.stream[-2, -1, 0] for stage in engine.stages)
    transfers = []
    for stage in engine.stages:
        by_dim: dict[str, int] = {}
        for communication in stage.program.communications:
            dim = communication.message.dim
            by_dim[dim] = by_dim.get(dim, 0) + int(stage.transfer[-1, communication.index, 0])
        transfers.append(by_dim)
    kernels, hosts = zip(*(sums(stage.program) for stage in engine.stages), strict=True)
    return Nominal(max(int(ends - begins), 1), kernels, hosts, tuple(transfers))


def run(job: Job) -> tuple[Engine, Nominal]:
    """Simulate a job in memory."""
    nominal = nominal_of(job)
    engine = Engine(job, nominal)
    engine.run()
    return engine, nominal
