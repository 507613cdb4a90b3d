"""Simulated pipelines in which one rank or one stage is slow: the same jobs each time
but for `--draw`, which draws other random variation.

Pipelines with one rank per stage, whose ranks have no peers, and with several. A stage that always has more work than
the others is no fault that a trace shows, as stages differ by design; so that fault is in some steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.scoring import Case
from benchmarks.diagnosis.simulated import case_of_job
from rankscope.experiments.simulate import Fault, Job

MESHES = ({"pp": 4}, {"pp": 4, "dp": 2})
MAGNITUDES = (0.1, 0.3)
SOME_STEPS = (12, 15)
STEPS = 6
HOST_BOUND: dict[str, Any] = {"host_scale": 2.5, "device_scale": 0.3}
"""A slow host costs nothing while it is ahead of its device."""
CLEAN = 2
"""Clean jobs for each mesh."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault: whether all ranks of the stage have it, and whether in all steps."""

    fault: str
    stage: bool = False
    always: bool = True


KINDS = (
    Kind("slow_device"),
    Kind("slow_device", stage=True),
    Kind("slow_device", always=False),
    Kind("more_work", always=False),
    Kind("data_loading"),
    Kind("slow_host"),
)


def jobs(draw: int = 0) -> Iterator[tuple[str, Job]]:
    """The jobs with their names; another ``draw`` has other seeds, so other random variation."""
    of_draw = f" draw {draw}" if draw else ""
    for number, mesh in enumerate(MESHES):
        sizes = "-".join(f"{dim}{size}" for dim, size in mesh.items())
        base = Job(ranks=4 if mesh == {"pp": 4} else 8, mesh=mesh, steps=STEPS, layers=2)
        first = 1000 * draw + 100 * number
        alone = mesh["pp"] == base.ranks
        for seed in range(CLEAN):
            yield f"stages {sizes} clean {seed}{of_draw}", _of(base, first + seed, host_bound=seed % 2 == 1)
        for at, kind in enumerate(KINDS):
            if kind.stage and alone:
                continue
            for magnitude in MAGNITUDES:
                # A middle stage; only the first one loads data.
                stage = 0 if kind.fault == "data_loading" else mesh["pp"] // 2
                rank = stage * (base.ranks // mesh["pp"])
                steps = None if kind.always else SOME_STEPS
                whom: dict[str, Any] = {"where": {"pp": stage}} if kind.stage else {"ranks": (rank,)}
                fault = Fault(kind.fault, steps=steps, magnitude=magnitude, **whom)
                words = f"{kind.fault}{' of a stage' if kind.stage else ''}{'' if kind.always else ' at times'}"
                job = _of(base, first + 10 + at, fault, host_bound=kind.fault == "slow_host")
                yield f"stages {sizes} {words} {magnitude:.0%}{of_draw}", job


def _of(base: Job, seed: int, *faults: Fault, host_bound: bool) -> Job:
    return replace(base, seed=seed, faults=faults, **(HOST_BOUND if host_bound else {}))


def run_stages(keep: Path | None = None, workers: int = 2, draw: int = 0) -> Iterator[Case]:
    """The cases of all jobs."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for future in [pool.submit(case_of_job, name, job, keep) for name, job in jobs(draw)]:
            yield future.result()
