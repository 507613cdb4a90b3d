"""Simulated jobs with known faults: drawn by seed, written as files, opened like any trace."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import rankscope
from benchmarks.diagnosis.replay import keep as keep_record
from benchmarks.diagnosis.replay import record_of_run, with_errors
from benchmarks.diagnosis.scoring import Case, Done, said_of
from rankscope.experiments.simulate import Fault, Job, Lost, Recording, Truth, simulate, simulate_timing
from rankscope.experiments.simulate.faults import affected_groups, affected_ranks

SIZES = ((8, 0.34), (16, 0.3), (32, 0.2), (64, 0.1), (128, 0.04), (256, 0.02))
KINDS = (
    ("slow_device", "stretch"),
    ("more_work", "kernels"),
    ("data_loading", "late"),
    ("slow_host", "stretch"),
    ("slow_host", "gc"),
    ("slow_host", "asleep"),
    ("memory", "retries"),
    ("memory", "copies"),
    ("slow_network", "stretch"),
)


def job_of(
    seed: int,
    *,
    clean: bool = False,
    lean: bool = False,
    host_bound: bool = False,
    steps: int | None = None,
    ranks: int | None = None,
) -> Job:
    """The job of a seed: a fifth without a fault, three fifths with one, a fifth with two; ``clean``: without any.

    A step has 20 to 800 pieces of work, 40 at the median (the real sets' 58 to 795); ``lean`` jobs have half as many.
    ``steps``: as many instead of those that the seed draws, at least four unless ``clean``; ``ranks`` likewise.
    ``host_bound``: hosts that are slow and devices that are fast, so that devices wait for launches.
    """
    draw = random.Random(seed)
    drawn = draw.choices([size for size, _ in SIZES], [weight for _, weight in SIZES])[0]
    ranks = ranks or drawn
    mesh = _mesh(draw, ranks)
    recording = Recording(
        clock_spread_ns=draw.choice([0, 10**6, 10**9, 3_600 * 10**9]),
        drift_spread_ppm=draw.choice([0.0, 20.0, 100.0]),
        window_spread_ns=draw.choice([0, 300_000, 1_000_000]),
        lost=tuple(Lost(r, count=draw.choice([1, 2, 5])) for r in range(ranks) if draw.random() < 0.2),
        base_time=draw.choice(["shared", "per-rank", "epoch"]),
        sequence_numbers=draw.random() < 0.3,
        group_names=draw.choice(["unique", "shared"]),
        compression="zst",
    )
    job = Job(
        ranks=ranks,
        steps=draw.choice([4, 6, 10]) if steps is None else steps,
        mesh=mesh,
        seed=seed,
        layers=draw.choice(([1, 2, 4] if ranks <= 32 else [1, 2]) if lean else ([2, 4, 8] if ranks <= 32 else [2, 4])),
        kernels_per_layer=draw.choice([4, 6, 8]),
        data_parallel=draw.choice(["ddp", "fsdp"]),
        tensor_parallel=draw.choice(["all_reduce", "sequence"]),
        layers_per_bucket=draw.choice([1, 2]),
        synchronize=draw.random() < 0.7,
        device_scale=draw.choice([0.7, 1.0, 2.0, 4.0]),
        host_scale=draw.choice([0.5, 1.0, 1.5]),
        network_scale=draw.choice([0.5, 1.0, 2.0]),
        jitter=draw.choice([1.0, 1.0, 1.3]),
        gpus_per_host=draw.choice([4, 8]),
        recording=recording,
    )
    if host_bound:
        job = replace(job, host_scale=draw.choice([1.5, 2.5]), device_scale=draw.choice([0.3, 0.6]))
    count = 0 if clean else (0, 1, 1, 1, 2)[seed % 5]
    faults: list[Fault] = []
    while len(faults) < count:
        fault = _fault(draw, job)
        if fault is None or any(fault.kind == each.kind and fault.kind == "slow_network" for each in faults):
            continue
        if any(set(fault.ranks) & set(each.ranks) for each in faults):
            continue
        faults.append(fault)
    return replace(_exposed(draw, job, faults), faults=tuple(faults))


def _exposed(draw: random.Random, job: Job, faults: list[Fault]) -> Job:
    """The job with a slower host or network, mostly: far ahead of its device, a slow host costs nothing."""
    host = any(fault.kind == "slow_host" for fault in faults) or (not faults and draw.random() < 0.2)
    network = any(fault.kind == "slow_network" for fault in faults) or (not faults and draw.random() < 0.2)
    if host and draw.random() < 0.75:
        job = replace(job, host_scale=draw.choice([1.5, 2.5]), device_scale=draw.choice([0.3, 0.6]))
    if network and draw.random() < 0.75:
        job = replace(job, network_scale=draw.choice([2.0, 4.0]))
    return job


def _mesh(draw: random.Random, ranks: int) -> dict[str, int]:
    """Sizes of dimensions that multiply to the number of ranks; dp at least 2."""
    left = ranks // 2
    mesh = {"dp": 2, "pp": 1, "ep": 1, "tp": 1}
    kinds = draw.choice([("dp",), ("dp", "tp"), ("dp", "pp"), ("dp", "ep"), ("dp", "tp", "pp"), ("dp", "tp", "ep")])
    while left > 1:
        dim = draw.choice(kinds)
        limit = {"tp": 8, "pp": 8, "ep": 8, "dp": ranks}[dim]
        if mesh[dim] * 2 <= limit:
            mesh[dim] *= 2
            left //= 2
    return {dim: size for dim, size in mesh.items() if size > 1 or dim == "dp"}


def _fault(draw: random.Random, job: Job) -> Fault | None:
    kind, style = draw.choice(KINDS)
    magnitude = float(np.exp(draw.uniform(np.log(0.02), np.log(0.5))))
    numbers = range(job.first_step, job.first_step + job.steps)
    steps = None
    if draw.random() < 0.25:
        # What comes in one step alone cannot be told from a machine's hiccup of that size, and of the first step the
        # beginning is not recorded: two whole steps at least.
        steps = tuple(sorted(draw.sample(list(numbers)[1:], draw.randint(2, job.steps // 2))))
    rank = draw.randrange(job.ranks)
    if kind != "slow_network":
        return Fault(kind, ranks=(rank,), steps=steps, magnitude=magnitude, style=style)
    layout = job.layout()
    dim = draw.choice([d for d in layout.dims if layout.extent(d) > 1])
    if job.ranks // layout.extent(dim) < 3 and steps is None:
        # One or two groups, slow all the time: nothing in the trace says that they could be faster.
        return None
    return Fault(kind, ranks=(rank,), steps=steps, magnitude=magnitude, style=style, dim=dim)


def done_to(job: Job, truth: Truth) -> tuple[Done, ...]:
    """The ranks and the cost of each fault; if it affects only some steps, its cost per affected step."""
    layout = job.layout()
    found = []
    clean = sum(truth.clean_step_ns) / max(len(truth.clean_step_ns), 1)
    for fault, cost in zip(job.faults, truth.fault_cost_ns, strict=True):
        hit = affected_ranks(fault, layout)
        if fault.kind == "slow_network":
            hit = affected_groups(fault, fault.dim, layout, np.arange(job.ranks))
        in_steps = job.steps if fault.steps is None else len(fault.steps)
        kind = f"{fault.kind}, {fault.style}" if fault.kind in ("slow_host", "memory") else fault.kind
        ranks = frozenset(np.flatnonzero(hit).tolist())
        when = f"{in_steps:2d} of {job.steps:2d} steps"
        found.append(Done(ranks, (fault.kind,), cost * job.steps / in_steps / clean, kind, when))
    return tuple(found)


def size_of(job: Job) -> int:
    """What simulating and reading a job costs grows with this: ranks · steps · layers."""
    return job.ranks * job.steps * job.layers


def case_of(seed: int, keep: Path | None = None, **drawn: Any) -> Case:
    """The case of a seed's job.

    Args:
        seed: of the job.
        keep: where files are kept.
        drawn: what `job_of` takes.
    """
    name = f"{'clean ' if drawn.get('clean') else ''}seed {seed}"
    name += "".join(f" {key} {value}" for key, value in drawn.items() if key != "clean" and value)
    return case_of_job(name, job_of(seed, **drawn), keep)


def case_of_job(name: str, job: Job, keep: Path | None = None) -> Case:
    """Simulate, write, open and diagnose. Files are kept in ``keep`` for the next time."""
    begun = time.process_time()
    truth = simulate_timing(job)
    out = (keep or Path(tempfile.mkdtemp())) / name.replace(" ", "-")
    os.environ["RANKSCOPE_CACHE"] = str(out / "cache")
    try:
        if not (out / "run" / "truth.json").exists():
            shutil.rmtree(out, ignore_errors=True)
            simulate(out / "run", job, costs=False)
        run = rankscope.open(out / "run", executor="serial")
        run.stragglers()
        said = said_of(run.findings)
        record = record_of_run(run, name, done_to(job, truth), steps=job.steps)
        done = with_errors(record)
        if keep is not None:
            keep_record(replace(record, done=done), keep / "records")
    finally:
        if keep is None:
            shutil.rmtree(out.parent)
    sizes = "·".join(f"{dim}{size}" for dim, size in job.mesh.items())
    faults = "; ".join(
        f"{f.kind}/{f.style} {f.ranks or dict(f.where)} {f.magnitude:.2f} steps {f.steps} {f.dim}" for f in job.faults
    )
    note, seconds = f"{sizes} {faults}", time.process_time() - begun
    return Case(name, done, said, note, seconds, job.steps)


def run_seeds(seeds: Iterable[int], keep: Path | None = None, workers: int = 2, **drawn: Any) -> Iterator[Case]:
    """The cases of these seeds, as they finish; ``drawn``: what `job_of` takes."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        futures = [pool.submit(case_of, seed, keep, **drawn) for seed in seeds]
        for future in as_completed(futures):
            yield future.result()
