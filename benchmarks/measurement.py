"""How sure `rankscope measure` is of itself, on a quiet machine.

The same measurement ten times over: the half-width of the stated interval, and how many repeats fall into the first
one's. And a job whose cost is known (40 ms of compute, 10 ms of synchronisation): 20 % is right.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from rankscope.measure.jobs import Start, target_of
from rankscope.measure.overhead import measure_overhead
from rankscope.measure.results import Overhead, Share, Time
from rankscope.measure.sampling import Sampling

REPEATS = 10
WORKLOAD = ("resnet18", "--image-size", "32", "--batch-size", "4")
KNOWN = Path(__file__).resolve().parents[1] / "tests" / "measure" / "known_job.py"


def main() -> None:
    """Measure and print."""
    folder = Path(tempfile.mkdtemp(prefix="rankscope-measurement-"))
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    try:
        known = measure_overhead(
            target_of([str(KNOWN), "0.04", "0", "0.01"]), folder / "known", Start(ranks=2), Sampling(traced_steps=0)
        )
        share = known.measured_overhead
        print(f"known cost of 20 %: measured {share.value:.2%}, {_between(share)}", flush=True)
        found: list[Overhead] = []
        for repeat in range(REPEATS + 1):
            began = time.monotonic()
            sampling = Sampling(traced_steps=0, seed=repeat)
            found.append(measure_overhead(target_of(WORKLOAD), folder / str(repeat), Start(ranks=2), sampling))
            each = found[-1]
            print(
                f"{repeat}: step {each.sync.step.median_ns / 1e6:.2f} ms, half-width {_half(each.sync.step):.2%}; "
                f"overhead {each.measured_overhead.value:.2%}, {_between(each.measured_overhead)}; "
                f"load {each.setting.load}; {time.monotonic() - began:.0f} s",
                flush=True,
            )
        first, repeats = found[0], found[1:]
        step, overhead = first.sync.step, first.measured_overhead
        steps = sum(_holds(step.low_ns, each.sync.step.median_ns, step.high_ns) for each in repeats)
        shares = sum(_holds(overhead.low, each.measured_overhead.value, overhead.high) for each in repeats)
        print(f"within the first one's interval: {steps} of {len(repeats)} steps, {shares} of {len(repeats)} overheads")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _half(time: Time) -> float:
    return (
        float("nan")
        if time.low_ns is None or time.high_ns is None
        else (time.high_ns - time.low_ns) / 2 / time.median_ns
    )


def _between(share: Share) -> str:
    return "no interval" if share.low is None or share.high is None else f"{share.low:.2%} to {share.high:.2%}"


def _holds(low: float | None, value: float, high: float | None) -> bool:
    return low is not None and high is not None and low <= value <= high
