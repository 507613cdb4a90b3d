"""How repeatable `rankscope measure` is, and how repeatable it can be on this machine.

The same measurement eleven times over: the half-width of the stated interval, and how many repeats fall into the first
one's. Once of a job whose cost is known (sleeps of 40 ms, and a real all-reduce that one rank comes 10 ms late to: 20 %
is right), where the machine's noise is no limit; once of a real job, where it is. Before each of the latter a loop of
fixed work on as many cores, without any of rankscope, goes through the same statistics: no measurement of a job that
computes can be surer than that of this loop, and a machine is quiet where its half-width is well below that of the job.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rankscope.experiments.measure.jobs import Start, target_of
from rankscope.experiments.measure.overhead import SHORT_JOBS, measure_overhead, overhead_share
from rankscope.experiments.measure.results import Share, Time
from rankscope.experiments.measure.sampling import Sampling, load_average
from rankscope.experiments.measure.statistics import Series, correlation, replicates, time_of

REPEATS = 10
RANKS = 2
WORKLOAD = ("resnet18", "--image-size", "32", "--batch-size", "4")
KNOWN = Path(__file__).resolve().parents[1] / "tests" / "experiments" / "measure" / "known_job.py"

# Blocks of steps of two conditions in turn, as a job has them; both are the same work, some ten milliseconds a step.
_FLOOR = """
import sys, time
import torch
torch.set_num_threads(1)
a = torch.randn(256, 256) / 16
def work():
    x = a
    for _ in range(130):
        x = (x @ a).tanh()
for _ in range(8):
    work()
for _ in range(2 * int(sys.argv[1])):
    times = []
    for _ in range(1 + int(sys.argv[2])):
        began = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - began)
    print(*times[1:])
"""


@dataclass(frozen=True)
class Found:
    """The result of one repeat."""

    step: Time
    overhead: Share


def main() -> None:
    """Measure and print."""
    folder = Path(tempfile.mkdtemp(prefix="rankscope-measurement-"))
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    floors: list[Found] = []

    def known(seed: int) -> Found:
        return measured([str(KNOWN), "0.04", "0", "0", "0.01"], folder / f"known-{seed}", seed)

    def real(seed: int) -> Found:
        floors.append(floor(SHORT_JOBS, seed))
        _say(f"floor {seed}", floors[-1])
        return measured(list(WORKLOAD), folder / f"real-{seed}", seed)

    try:
        repeated("known cost of 20 %", known)
        repeated(" ".join(WORKLOAD), real)
        _sum_up("the floor: fixed work on as many cores, without rankscope", floors)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def repeated(name: str, once: Callable[[int], Found]) -> None:
    """Measure repeatedly, and print how the repeats agree."""
    print(f"\n{name}", flush=True)
    found = []
    for seed in range(REPEATS + 1):
        found.append(once(seed))
        _say(str(seed), found[-1])
    _sum_up(name, found)


def measured(words: list[str], folder: Path, seed: int) -> Found:
    """`rankscope measure overhead` with its defaults, without a recorded window."""
    sampling = replace(SHORT_JOBS, traced_steps=0, seed=seed)
    result = measure_overhead(target_of(words), folder, Start(ranks=RANKS), sampling)
    return Found(result.sync.step, result.measured_overhead)


def floor(sampling: Sampling, seed: int) -> Found:
    """The same statistics for as many independent processes that do fixed work.

    Args:
        sampling: how many jobs, blocks and steps.
        seed: of the bootstrap.
    """
    line = [sys.executable, "-c", _FLOOR, str(sampling.blocks), str(sampling.block_steps)]
    one, other = [], []
    for _ in range(sampling.repeats):
        ranks = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(RANKS)]
        said = [each.communicate(timeout=1800)[0] for each in ranks]
        if any(each.returncode for each in ranks):
            raise RuntimeError("the loop of fixed work failed")
        times = np.array([[row.split() for row in text.splitlines()] for text in said], dtype=np.float64)
        # (ranks, blocks of both conditions, steps) as (blocks, ranks, steps) of each.
        one.append(times[:, ::2].transpose(1, 0, 2))
        other.append(times[:, 1::2].transpose(1, 0, 2))
    a, b = Series(tuple(one)), Series(tuple(other))
    drawn = replicates({"one": a, "other": b}, seed)
    return Found(time_of(a, drawn["one"]), overhead_share(a, b, drawn["one"], drawn["other"]))


def _say(name: str, found: Found) -> None:
    print(
        f"{name}: step {found.step.median_ns / 1e6:.2f} ms, half-width {_half(found.step):.2%}; "
        f"overhead {found.overhead.value:.2%}, {_between(found.overhead)}; load {load_average()}; "
        f"{time.strftime('%H:%M:%S')}",
        flush=True,
    )


def _sum_up(name: str, found: Sequence[Found]) -> None:
    first, *repeats = found
    steps = sum(_holds(first.step.low_ns, each.step.median_ns, first.step.high_ns) for each in repeats)
    shares = sum(_holds(first.overhead.low, each.overhead.value, first.overhead.high) for each in repeats)
    medians = np.array([each.step.median_ns for each in found])
    print(
        f"{name}: half-width of the step {np.median([_half(each.step) for each in found]):.2%} (median), of the "
        f"overhead {100 * np.median([_half_share(each.overhead) for each in found]):.2f} points; within the first "
        f"one's interval {steps} of {len(repeats)} steps, {shares} of {len(repeats)} overheads; medians of steps from "
        f"{medians.min() / 1e6:.2f} to {medians.max() / 1e6:.2f} ms, correlation of one with the next "
        f"{correlation([medians]):.2f}",
        flush=True,
    )


def _half(time: Time) -> float:
    if time.low_ns is None or time.high_ns is None:
        return float("nan")
    return (time.high_ns - time.low_ns) / 2 / time.median_ns


def _half_share(share: Share) -> float:
    return float("nan") if share.low is None or share.high is None else (share.high - share.low) / 2


def _between(share: Share) -> str:
    return "no interval" if share.low is None or share.high is None else f"{share.low:.2%} to {share.high:.2%}"


def _holds(low: float | None, value: float, high: float | None) -> bool:
    return low is not None and high is not None and low <= value <= high
