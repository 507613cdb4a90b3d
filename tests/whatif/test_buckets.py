"""Larger buckets: by hand, in simulated jobs with and without them, and what a run cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.whatif.pencil import GAP

import rankscope
from rankscope.errors import ConfigError
from rankscope.experiments.simulate import Job, simulate, simulate_timing
from rankscope.whatif.buckets import Buckets
from rankscope.whatif.graph import graph_of
from rankscope.whatif.moments import COLLECTIVE, SCHEMA, STEP, WORK
from rankscope.whatif.run import ReplayedRun
from rankscope.whatif.scenarios import Network, Overlapped
from rankscope.whatif.step_times import Steps

US = 1_000
STEPS = 4


@dataclass(frozen=True)
class Backward:
    """Two ranks whose steps are a backward with a bucket after each kernel; the next step waits for one of them.

    Attributes:
        device: by rank, ns of each kernel.
        size: bytes of each bucket.
        latency: of each transfer, ns; and 1 ns for each byte.
        awaited: the bucket that the next step waits for; of merged ones the one that has it.
        merged: so many buckets are one, launched with the last of them.
    """

    device: Sequence[Sequence[int]]
    size: Sequence[int]
    latency: int = 10 * US
    awaited: int = 3
    merged: int = 1

    def buckets(self) -> list[tuple[int, int]]:
        """The kernel after which each is launched, and its bytes."""
        groups = [range(len(self.size))[first : first + self.merged] for first in range(0, len(self.size), self.merged)]
        return [(group[-1], sum(self.size[n] for n in group)) for group in groups]

    def timeline(self) -> list[tuple[list[list[int]], list[list[int]], list[int]]]:
        """Of each step when the kernels of each rank end, when its buckets start, and when they end."""
        begin, free, found = [0, 0], 0, []
        for _ in range(STEPS):
            kernels = [list(np.cumsum(device) + begin[rank]) for rank, device in enumerate(self.device)]
            starts, ends = [], []
            for after, size in self.buckets():
                starts.append([max(int(each[after]), free) for each in kernels])
                free = max(starts[-1]) + self.latency + size
                ends.append(free)
            found.append((kernels, starts, ends))
            begin = [max(int(each[-1]), ends[self.awaited // self.merged] + GAP) for each in kernels]
        return found

    def step_ns(self) -> float:
        """The mean step without the first: until all its kernels and buckets have ended."""
        ends = [max(ends[-1], *(int(each[-1]) for each in kernels)) for kernels, _, ends in self.timeline()]
        return (ends[-1] - ends[0]) / (STEPS - 1)

    def run(self) -> ReplayedRun:
        """The job as rankscope reads and replays it."""
        rows: list[dict[str, object]] = []
        for step, (kernels, starts, ends) in enumerate(self.timeline()):
            for rank, device in enumerate(self.device):
                own = {"rank": rank, "window": 0, "at_ns": step, "latency_ns": 0, "step": None}
                buckets = {after: n for n, (after, _) in enumerate(self.buckets())}
                for n, ns in enumerate(device):
                    end = int(kernels[rank][n])
                    rows.append(
                        own | {"kind": WORK, "is_copy": False, "device_ns": ns, "start_ns": end - ns, "end_ns": end}
                    )
                    if n in buckets:
                        which = buckets[n]
                        # Launches until the next step's first.
                        left = 2 * len(device) - n - which - 1 if which == self.awaited else None
                        size = self.buckets()[which][1]
                        rows.append(
                            own | {"kind": COLLECTIVE, "match": step * len(ends) + which, "step": step, "stream": 20,
                                   "program": f"all_reduce 2 {size}", "start_ns": starts[which][rank],
                                   "end_ns": ends[which], "woken": left if step < STEPS - 1 else None}
                        )  # fmt: skip
                rows.append(own | {"kind": STEP, "step": step, "end_ns": step})
        schema = {"rank": pl.Int64, "window": pl.Int64, **SCHEMA}
        rows.sort(key=lambda row: row["rank"])  # type: ignore[arg-type, return-value]
        frame = pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)
        parts = [
            name
            for name in SCHEMA
            if name.endswith("_ns") and name not in ("at_ns", "start_ns", "end_ns", "latency_ns")
        ]
        graph = graph_of(frame.with_columns(pl.col(parts).fill_null(0)), {0: 0, 1: 0})
        return ReplayedRun(graph, Steps.of(graph))


# The transfers are hidden but for the last: larger buckets start later, and there are fewer latencies.
HIDDEN = Backward([[100 * US] * 4, [100 * US, 120 * US, 100 * US, 100 * US]], [40 * US, 40 * US, 40 * US, 20 * US])
# The device waits for one transfer after another.
EXPOSED = replace(HIDDEN, latency=150 * US)


# The next step waits for the first two buckets only.
EARLY = replace(EXPOSED, awaited=1)


@pytest.mark.parametrize("job", [HIDDEN, EXPOSED, EARLY])
@pytest.mark.parametrize("factor", [2, 3, 4])
def test_by_hand(job: Backward, factor: int) -> None:
    run = job.run()
    assert run.fidelity.error == pytest.approx(0, abs=1e-4)
    recorded, merged = run.mean_steps([[], [Buckets(factor)]])
    assert recorded == pytest.approx(job.step_ns(), abs=10)
    assert merged == pytest.approx(replace(job, merged=factor).step_ns(), abs=10)
    # Hidden transfers gain nothing from fewer latencies; exposed ones do.
    assert (merged < recorded) == (job is not HIDDEN)


def test_with_others() -> None:
    run = EXPOSED.run()
    fast, both, hidden = run.mean_steps([[Network(2)], [Buckets(2), Network(2)], [Buckets(2), Overlapped()]])
    assert fast == pytest.approx(
        replace(EXPOSED, latency=75 * US, size=[n // 2 for n in EXPOSED.size]).step_ns(), abs=10
    )
    halved = replace(EXPOSED, latency=75 * US, size=[n // 2 for n in EXPOSED.size], merged=2)
    assert both == pytest.approx(halved.step_ns(), abs=10)
    assert hidden < both


@pytest.mark.parametrize(
    ("job", "factor", "reason"),
    [
        (HIDDEN, 0.5, "when the parts of a bucket are ready"),
        (HIDDEN, 1.5, "when the parts of a bucket are ready"),
        (replace(HIDDEN, size=[40 * US] * 4), 2, "one size"),
        (replace(HIDDEN, size=[80 * US], device=[[100 * US]] * 2, awaited=0), 2, "follow each other without a wait"),
    ],
)
def test_what_a_run_cannot_tell(job: Backward, factor: float, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"--buckets {factor:g}x.*{reason}"):
        job.run().mean_steps([[Buckets(factor)]])


@pytest.mark.parametrize(("before", "factor"), [(1, 2), (1, 3), (2, 2)])
def test_simulated_jobs(tmp_path: Path, before: int, factor: int) -> None:
    """The same job with larger buckets, by the simulator, and by the replay of that with smaller ones."""
    job = Job(4, 6, layers=7, layers_per_bucket=before, jitter=0.0, network_scale=8.0, host_scale=0.2)
    larger = replace(job, layers_per_bucket=before * factor)
    recorded, true = (float(np.mean(simulate_timing(each, costs=False).step_ns[1:])) for each in (job, larger))
    simulate(tmp_path, job, costs=False)
    frame = rankscope.open(tmp_path, executor="serial").whatif(buckets=f"{factor}x")
    assert frame["gain_ns"][1] / recorded == pytest.approx((recorded - true) / recorded, abs=0.01)
