"""Write the run directory of a job, in one process or several.

In: a job and a directory. Out: a run directory, and the truth.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.errors import ConfigError
from rankscope.experiments.simulate import engine as engines
from rankscope.experiments.simulate.clocks import EPOCH_NS
from rankscope.experiments.simulate.engine import Engine
from rankscope.experiments.simulate.events import EventTable
from rankscope.experiments.simulate.files import SUFFIXES, write
from rankscope.experiments.simulate.identity import host_of, run_id
from rankscope.experiments.simulate.job import Job
from rankscope.experiments.simulate.losses import LostEvent
from rankscope.experiments.simulate.trace import RankTrace
from rankscope.experiments.simulate.truth import Truth, step_times
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.manifest import RunManifest, to_json
from rankscope.rundir.metadata import Mesh
from rankscope.rundir.names import RUN_MANIFEST, TraceIdentity, format_trace_name, rank_folder


@dataclass(frozen=True)
class Written:
    """One rank's file."""

    rank: int
    file: str
    """Relative to the run directory, with ``/`` between folders."""
    json_bytes: int
    events: int
    lost: tuple[LostEvent, ...]


def simulate_timing(job: Job, *, costs: bool = True) -> Truth:
    """The truth of a job, without writing anything.

    Args:
        job: the job.
        costs: whether to run it again without each fault, and with each alone, to find what each costs.
    """
    engine, nominal = engines.run(job)
    steps = step_times(engine)
    clean: tuple[int, ...] = ()
    cost: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()
    if costs and job.faults:

        def steps_of(other: Job) -> tuple[int, ...]:
            return step_times(engines.run(other)[0])

        clean = steps_of(job.without_faults())
        n = range(len(job.faults))
        only_one = len(n) == 1
        without = [clean] if only_one else [steps_of(job.without(i)) for i in n]
        with_only = [steps] if only_one else [steps_of(replace(job, faults=(job.faults[i],))) for i in n]
        cost = tuple((sum(steps) - sum(other)) // len(steps) for other in without)
        alone = tuple((sum(other) - sum(clean)) // len(steps) for other in with_only)
    return Truth(engine, nominal, steps, cost, alone, clean)


def simulate(
    out: str | Path, job: Job, *, jobs: int = 1, costs: bool = True, progress: Callable[[Written], None] | None = None
) -> Truth:
    """Write a run directory: one trace per rank, ``run.json`` and ``truth.json``.

    Args:
        out: the directory; created if it does not exist.
        job: what to simulate.
        jobs: the number of processes that write.
        costs: whether to compute what each fault costs.
        progress: called with each finished file.

    Raises:
        ConfigError: ``out`` holds another run.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise ConfigError("the directory is not empty", path=out, hint="give a new one: runs must not be mixed")
    truth = simulate_timing(job, costs=costs)
    ranks = [rank for rank in range(job.ranks) if rank not in job.recording.missing]
    written = []
    for file in _write_all(out, truth.engine, ranks, jobs):
        written.append(file)
        if progress is not None:
            progress(file)
    written.sort(key=lambda file: file.rank)
    truth = replace(
        truth,
        lost=tuple(event for file in written for event in file.lost),
        files={file.rank: file.file for file in written},
        json_bytes={file.rank: file.json_bytes for file in written},
        events={file.rank: file.events for file in written},
    )
    if job.recording.rankscope_metadata:
        layout = job.layout()
        manifest = RunManifest(
            run_id=run_id(job),
            command=("rankscope", "simulate"),
            world_size=job.ranks,
            launcher="simulate",
            host=host_of(job, 0),
            ranks="all",
            schedule={"wait": 0, "warmup": job.warmup_steps, "active": job.steps, "repeat": 1},
            mesh=Mesh(layout.dims, layout.shape, layout.coordinate(0)),
            started_ns=EPOCH_NS,
        )
        write_atomic(out / RUN_MANIFEST, to_json(manifest))
    truth.write(out)
    return truth


class RankWriter:
    """Writes ranks' files, one after another; a stage's table of events is made once."""

    def __init__(self, out: Path, engine: Engine) -> None:
        self.out, self.engine = out, engine
        self._tables: dict[int, EventTable] = {}

    def write(self, rank: int) -> Written:
        """Write one rank's file."""
        job, layout = self.engine.job, self.engine.layout
        number = layout.stage_of(rank)
        stage = self.engine.stages[number]
        if number not in self._tables:
            self._tables[number] = EventTable(stage.program)
        coordinate = dict(zip(layout.dims, layout.coordinate(rank), strict=True))
        trace = RankTrace(self.engine, stage, self._tables[number], rank)
        first, last, _ = trace.steps_inside()
        identity = TraceIdentity(
            rank,
            job.first_step if first is None else first,
            job.first_step + job.steps - 1 if last is None else last,
            mesh=coordinate if len(coordinate) > 1 else None,
        )
        name = format_trace_name(identity, compression="none") + SUFFIXES[job.recording.compression]
        file = "/".join(part for part in (rank_folder(rank, job.ranks), name) if part)
        keep = job.recording.truncated.get(rank)
        size = write(self.out / file, trace.chunks(name), job.recording.compression, keep)
        return Written(rank, file, size, trace.events, tuple(trace.lost))


def _write_all(out: Path, engine: Engine, ranks: list[int], jobs: int) -> Iterator[Written]:
    if jobs <= 1:
        writer = RankWriter(out, engine)
        yield from map(writer.write, ranks)
        return
    context = multiprocessing.get_context("spawn")
    # Simulating again in each worker gives the same result, and is cheaper than sending it.
    with ProcessPoolExecutor(jobs, context, _start_worker, (out, engine.job)) as pool:
        yield from _in_any_order(pool, ranks)


def _in_any_order(pool: Executor, ranks: list[int]) -> Iterator[Written]:
    for future in as_completed([pool.submit(_work, rank) for rank in ranks]):
        yield future.result()


_worker: RankWriter | None = None


def _start_worker(out: Path, job: Job) -> None:
    global _worker
    _worker = RankWriter(out, engines.run(job)[0])


def _work(rank: int) -> Written:
    assert _worker is not None
    return _worker.write(rank)


def scaled(job: Job, *, events_per_rank: int = 0, bytes_per_rank: int = 0) -> Job:
    """The same job with as many kernels per layer as give files of about this size; its steps get longer.

    Give one of the two sizes; files are within a few percent of it.
    """
    if not events_per_rank and not bytes_per_rank:
        return job

    def size(kernels: int) -> int:
        engine = Engine(replace(job, kernels_per_layer=kernels, faults=()), alone=True)
        engine.run()
        stage = engine.stages[0]
        trace = RankTrace(engine, stage, EventTable(stage.program), 0)
        total = sum(map(len, trace.chunks("trace.json")))
        return trace.events if events_per_rank else total

    # The size is linear in the number of kernels: two points determine it.
    few, many = 8, 40
    low, high = size(few), size(many)
    kernels = few + ((events_per_rank or bytes_per_rank) - low) * (many - few) / (high - low)
    return replace(job, kernels_per_layer=max(2, round(kernels)))
