"""DDP's buckets are too large to overlap, or too small to be worth a call."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import STEP, diagnosed

import rankscope

MIB = 1 << 20
ACCUMULATE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def step(at: float, buckets: list[tuple[float, float, int]]) -> list[kineto.Event]:
    """A backward of 600 µs on the device, and buckets: when called, how long, how many bytes."""
    base = round(at) * 100
    events = [
        kineto.op("autograd::engine::evaluate_function: MmBackward0", at + 10, 20, forward_thread=1, tid=101),
        kineto.launch(at + 15, 3, correlation=base + 1, tid=101),
        kineto.kernel("gemm", at + 20, 600, correlation=base + 1),
    ]
    for number, (when, dur, size) in enumerate(buckets):
        identity = base + 10 + number
        events += [
            kineto.op(ACCUMULATE, at + when, 8, tid=101),
            kineto.op("c10d::allreduce_", at + when + 1, 6, tid=101, external=identity),
            kineto.launch(at + when + 2, 3, correlation=identity, tid=101, external=identity),
            kineto.collective(
                at + when + 6, dur, correlation=identity, external=identity, elements=size // 4, ranks=(0, 1)
            ),
        ]
    return events


def test_fires_where_one_bucket_takes_all(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: step(at, [(614, 300, 100 * MIB)]), ranks=2)["bucket_size"]
    assert finding.severity == "warning"
    # It goes on from 620 to 920 µs, of which a bucket of 25 MiB would leave a quarter.
    assert finding.saving_ns == 225_000
    assert "bucket_cap_mb" in finding.advice
    assert "too late" in finding.title


def test_waiting_for_a_later_rank_is_not_the_buckets_matter(tmp_path: Path) -> None:
    def late(rank: int, at: float) -> list[kineto.Event]:
        return step(at, [(814, 100, 100 * MIB) if rank else (614, 300, 100 * MIB)])

    finding = diagnosed(tmp_path, late, ranks=2)["bucket_size"]
    # Both go on for 300 µs after the backward; rank 0 waits for the first 200 of them.
    assert finding.saving_ns == 75_000
    tail = next(each.value for each in finding.evidence if each.name.startswith("time after the backward"))
    assert tail == 100_000


def test_fires_where_there_are_many(tmp_path: Path) -> None:
    buckets = [(614.0 + 15 * n, 10.0, 40_000) for n in range(20)]
    finding = diagnosed(tmp_path, lambda _, at: step(at, buckets), ranks=2)["bucket_size"]
    # 20 of 10 µs, exposed; four would do.
    assert finding.saving_ns == 20 * 10_000 * (1 - 4 / 20)
    assert "20 buckets" in finding.title


def test_does_not_fire_where_they_are_hidden(tmp_path: Path) -> None:
    buckets = [(100.0 + 100 * n, 80.0, 25 * MIB) for n in range(5)]
    assert "bucket_size" not in diagnosed(tmp_path, lambda _, at: step(at, buckets), ranks=2)


def test_does_not_fire_where_the_last_is_of_the_usual_size(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: step(at, [(100, 80, 25 * MIB), (614, 80, 25 * MIB)]), ranks=2)
    assert "bucket_size" not in found


def test_the_trace_is_as_meant(tmp_path: Path) -> None:
    events = [kineto.step(0, 0, STEP), *step(0, [(614, 300, 100 * MIB)])]
    frame = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial").ddp_buckets()
    assert frame.select("tail_ns", "bytes", "backward_ns").row(0) == (300_000, 100 * MIB, 600_000)
