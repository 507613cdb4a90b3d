"""DDP's buckets: a step worked out by hand, and Gloo traces once more in plain Python."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import kineto
from tests.analyses import plain_events
from tests.analyses.test_fsdp import overlap

import rankscope
from rankscope.engine.pipeline import Run

REAL = ["gloo-2ranks/ddp_gpt_straggler_rank1.rank0.json.gz"]
SLOW = [
    "gloo-2ranks/ddp_resnet_shapes_stack_mem_flops.rank0.json.gz",
    "gloo-2ranks/ddp_gpt_all_collectives_shapes.rank1.json.gz",
    "tensorboard-plugin/ddp_gloo_torch213_3ranks/host_2.1795170630725968914.pt.trace.json.gz",
]
ENGINE = "autograd::engine::evaluate_function: "
THREAD = kineto.BACKWARD_THREAD


def opened(folder: Path, events: list[kineto.Event]) -> Run:
    return rankscope.open(kineto.write(folder / "rank0.json", kineto.trace(events)), executor="serial")


def bucket(at: float, number: int, start: float, dur: float) -> list[kineto.Event]:
    return [
        kineto.op(f"{ENGINE}torch::autograd::AccumulateGrad", at, 8, tid=THREAD),
        kineto.op("c10d::allreduce_", at + 2, 4, dims=[[[1000], [24]], []], tid=THREAD),
        kineto.launch(at + 3, 1, correlation=number, tid=THREAD),
        kineto.collective(start, dur, elements=1024, dtype="BFloat16", correlation=number),
    ]


def test_a_step_by_hand(tmp_path: Path) -> None:
    events = [
        kineto.step(4, 0, 400),
        kineto.annotation("DistributedDataParallel.forward", 5, 30),
        kineto.op("aten::linear", 10, 10, sequence=1),
        # The backward computes from 50 to 150 on the device.
        kineto.op(f"{ENGINE}MmBackward0", 40, 20, sequence=1, forward_thread=1, tid=THREAD),
        kineto.launch(42, 1, correlation=10, tid=THREAD),
        kineto.kernel("gemm", 50, 40, correlation=10),
        *bucket(65, 1, 70, 30),
        kineto.op(f"{ENGINE}MmBackward0", 80, 10, sequence=0, forward_thread=1, tid=THREAD),
        kineto.launch(82, 1, correlation=11, tid=THREAD),
        kineto.kernel("gemm", 100, 50, correlation=11),
        *bucket(95, 2, 145, 25),
        # DDP's own copy waits for the all-reduce: no compute of the backward's.
        kineto.op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 110, 5, tid=THREAD),
        kineto.launch(111, 1, correlation=12, tid=THREAD),
        kineto.kernel("copy", 170, 5, correlation=12),
        # An all-reduce of the user's is no bucket.
        kineto.op("c10d::allreduce_", 300, 4, dims=[[[8]]]),
        kineto.launch(301, 1, correlation=5),
        kineto.collective(310, 5, correlation=5),
    ]
    rows = opened(tmp_path, events).ddp_buckets()
    columns = (
        "step",
        "bucket",
        "buckets",
        "elements",
        "bytes",
        "backward_ns",
        "start_share",
        "hidden_share",
        "tail_ns",
    )
    assert rows.select(columns).rows() == [
        (4, 0, 2, 1024, 2048, 100_000, 0.2, 20 / 30, 0),
        (4, 1, 2, 1024, 2048, 100_000, 0.95, 5 / 25, 20_000),
    ]
    assert rows["exposed_ns"].to_list() == [10_000, 20_000]


def test_two_backwards_in_a_step_and_steps_of_their_own(tmp_path: Path) -> None:
    events: list[kineto.Event] = []
    for step, at in ((1, 0), (2, 500)):
        events += [
            kineto.step(step, at, 400),
            # Accumulated without synchronizing, then once more, with it.
            kineto.op(f"{ENGINE}MmBackward0", at + 10, 30, forward_thread=1, sequence=1),
            kineto.op("aten::linear", at + 100, 10, sequence=2),
            kineto.op(f"{ENGINE}MmBackward0", at + 200, 30, forward_thread=1, sequence=2),
            kineto.op(f"{ENGINE}torch::autograd::AccumulateGrad", at + 230, 10),
            kineto.op("c10d::allreduce_", at + 232, 4, dims=[[[100]], []]),
            kineto.annotation("gloo:all_reduce", at + 235, 15, tid=900, **{"Input type": ["float"]}),
        ]
    rows = opened(tmp_path, events).ddp_buckets()
    columns = ("step", "bucket", "bytes", "backward_ns", "start_share", "tail_ns", "exposed_ns")
    assert rows.select(columns).rows() == [
        (1, 0, 400, 40_000, 35 / 40, 10_000, 10_000),
        (2, 0, 400, 40_000, 35 / 40, 10_000, 10_000),
    ]


def test_an_all_reduce_that_is_not_in_the_file(tmp_path: Path) -> None:
    events = [
        kineto.op(f"{ENGINE}torch::autograd::AccumulateGrad", 10, 10),
        kineto.op("c10d::allreduce_", 12, 4),
    ]
    row = opened(tmp_path, events).ddp_buckets().row(0, named=True)
    assert row["step"] is row["bytes"] is row["start_ns"] is row["exposed_ns"] is row["tail_ns"] is None
    assert row["issued_ns"] == 12_000


def plain_buckets(trace: dict[str, Any]) -> list[tuple[Any, ...]]:
    """step, bucket, elements, issued, start, duration, exposed."""
    events = plain_events.ranges(trace)
    named = [event for event in events if event.category == "user_annotation"]
    operators = [event for event in events if event.category == "cpu_op"]
    free = [event for event in named if event.name.startswith("gloo:")]
    # send and recv run on the caller's thread, which is not Gloo's for that.
    threads = {event.thread for event in free} - {e.thread for e in operators if e.name.startswith("c10d::")}
    waiting = [event for event in free if event.thread not in threads]
    computing = [
        event
        for event in operators
        if event.thread not in threads
        and not any(w.start <= event.start < w.end and w.thread == event.thread for w in waiting)
    ]
    count: dict[Any, int] = {}
    rows = []
    for call in [event for event in operators if event.name.startswith("c10d::")]:
        ran = next(event for event in free if event.start >= call.start)
        free.remove(ran)
        outer, chain = call.above, []
        while outer is not None:
            chain.append(outer.name)
            outer = outer.above
        if call.name != "c10d::allreduce_" or not any("AccumulateGrad" in name for name in chain):
            continue
        step = next((e.step for e in named if e.step is not None and e.start <= call.start < e.end), None)
        hidden = sum(b - a for a, b, _ in overlap(computing, ran.start, ran.end))
        size = sum(math.prod(shape) for shape in call.args["Input Dims"][0])
        spent = ran.end - ran.start
        rows.append((step, count.get(step, 0), size, call.start, ran.start, spent, spent - hidden))
        count[step] = count.get(step, 0) + 1
    return rows


@pytest.mark.parametrize("name", [*REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
@pytest.mark.usefixtures("shared_cache")
def test_real_traces(shared_traces: Path, name: str) -> None:
    rows = rankscope.open(shared_traces / name, executor="serial").ddp_buckets()
    columns = ("step", "bucket", "elements", "issued_ns", "start_ns", "duration_ns", "exposed_ns")
    assert rows.height > 0
    assert rows.select(columns).rows() == plain_buckets(plain_events.load(shared_traces / name))
    assert rows["bytes"].to_list() == [4 * count for count in rows["elements"]]


def test_buckets_of_the_mi300(shared_traces: Path) -> None:
    """The sizes are known from TraceLens's tests; the last bucket is all tail."""
    rows = rankscope.open(shared_traces / "tracelens/mi300/resnet_act_checkpoint.json.gz", executor="serial")
    buckets = rows.ddp_buckets()
    assert buckets["elements"].to_list() == [2873320, 8816192] * 3
    last = buckets.filter(pl.col("bucket") == 1)
    assert last["duration_ns"].sum() == 26_798_240
    assert buckets.filter(pl.col("bucket") == 0)["duration_ns"].sum() == 20_338_798
    assert (last["hidden_share"] == 0).all()
    assert (last["tail_ns"] > 8_000_000).all()
