"""Recompute: a checkpointed step worked out by hand, and real ones once more in plain Python."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.analyses import plain_events
from tests.analyses.test_modules import union

import rankscope
from rankscope.engine.pipeline import Run

ENGINE = "autograd::engine::evaluate_function: "
THREAD = kineto.BACKWARD_THREAD
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def opened(folder: Path, events: list[kineto.Event], **options: Any) -> Run:
    return rankscope.open(kineto.write(folder / "rank0.json", kineto.trace(events)), executor="serial", **options)


def a_step(at: float, number: int) -> list[kineto.Event]:
    ids = 10 * number
    back = {"tid": THREAD}
    return [
        kineto.step(number, at, 200),
        kineto.op("aten::linear", at + 5, 10, sequence=1, forward_thread=0),
        kineto.op("aten::relu", at + 16, 4, sequence=2, forward_thread=0),
        kineto.op(f"{ENGINE}MmBackward0", at + 50, 60, sequence=1, forward_thread=1, **back),
        # What hooks do around the node is not run again, nor is what FSDP does inside it.
        kineto.op("aten::mul", at + 51, 2, sequence=7, forward_thread=0, **back),
        kineto.op("MmBackward0", at + 55, 50, sequence=1, forward_thread=1, **back),
        kineto.op("aten::linear", at + 60, 12, sequence=8, forward_thread=0, **back),
        kineto.op("aten::addmm", at + 62, 8, sequence=8, forward_thread=0, **back),
        kineto.launch(at + 63, 1, correlation=ids + 1, **back),
        kineto.kernel("gemm", at + 70, 20, correlation=ids + 1),
        kineto.op("aten::mm", at + 80, 10, **back),
        kineto.launch(at + 81, 1, correlation=ids + 2, **back),
        kineto.kernel("gemm_back", at + 90, 30, correlation=ids + 2),
        kineto.annotation("FSDP::pre_backward (x)", at + 92, 5, **back),
        kineto.op("aten::view", at + 93, 1, sequence=9, forward_thread=0, **back),
    ]


def test_a_step_by_hand(tmp_path: Path) -> None:
    rows = opened(tmp_path, [*a_step(0, 1), *a_step(200, 2)]).recompute().to_dicts()
    assert rows == [
        {
            "rank": 0, "name": "aten::linear", "calls": 2, "forward_calls": 2, "host_ns": 24_000,
            "host_share": 24 / 120, "device_ns": 40_000, "device_share": 40 / 100, "kernels": 2,
        }
    ]  # fmt: skip


def test_only_the_chosen_steps(tmp_path: Path) -> None:
    row = opened(tmp_path, [*a_step(0, 1), *a_step(200, 2)], steps="2").recompute().row(0, named=True)
    assert (row["calls"], row["host_ns"], row["device_ns"], row["host_share"]) == (1, 12_000, 20_000, 12 / 60)


def test_a_function_that_is_its_own_gradient_is_not_run_again(tmp_path: Path) -> None:
    events = [
        kineto.op("_AlltoAll", 5, 10, sequence=1, forward_thread=0),
        kineto.op("_AlltoAllBackward", 50, 40, sequence=1, forward_thread=1, tid=THREAD),
        kineto.op("_AlltoAll", 60, 10, sequence=4, forward_thread=0, tid=THREAD),
    ]
    assert opened(tmp_path, events).recompute().height == 0


def test_nothing_run_again(tmp_path: Path) -> None:
    assert opened(tmp_path, kineto.small_step()).recompute().height == 0


@pytest.mark.parametrize(
    "name",
    [
        "tracelens/mi300/resnet_act_checkpoint.json.gz",
        pytest.param("gloo-2ranks/fsdp2_gpt_shapes.rank0.json.gz", marks=pytest.mark.slow),
        pytest.param(
            "torchrec/all-to-all-4ranks/host_29220.1698955894936168439.pt.trace.json.gz", marks=pytest.mark.slow
        ),
        pytest.param("hta/timeline_analysis/sampled_rank-0.json.gz", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("shared_cache")
def test_real_traces(shared_traces: Path, name: str) -> None:
    events = plain_events.ranges(plain_events.load(shared_traces / name))
    hooks = [
        e for e in events
        if e.category == "user_annotation" and e.name.startswith(("FSDP::", "FullyShardedDataParallel._"))
    ]  # fmt: skip
    launches = {e.args.get("correlation"): e for e in reversed(events) if e.category.endswith(("_runtime", "_driver"))}
    calls: dict[str, int] = defaultdict(int)
    host: dict[str, int] = defaultdict(int)
    kernels: dict[str, list[tuple[int, int]]] = defaultdict(list)
    again = []
    for event in events:
        if event.category != "cpu_op" or not numbered(event):
            continue
        chain, outer = [], event.above
        while outer is not None:
            chain.append(outer)
            outer = outer.above
        nodes = [e for e in chain if e.args.get("Fwd thread id", 0) > 0 and not e.name.startswith("autograd::")]
        hooked = any(h.thread == event.thread and h.start <= event.start < h.end for h in hooks)
        hooked = hooked or any(node.name == event.name + "Backward" for node in nodes)
        if nodes and not hooked and not any(numbered(e) for e in chain[: chain.index(nodes[0])]):
            again.append(event)
            calls[event.name] += 1
            host[event.name] += event.end - event.start
    for kernel in events:
        launch = launches.get(kernel.args.get("correlation")) if kernel.category in DEVICE else None
        for event in again:
            if launch is not None and event.thread == launch.thread and event.start <= launch.start < event.end:
                kernels[event.name].append((kernel.start, kernel.end))
    rows = {row["name"]: row for row in rankscope.open(shared_traces / name, executor="serial").recompute().to_dicts()}
    assert {key: row["calls"] for key, row in rows.items()} == calls
    assert {key: row["host_ns"] for key, row in rows.items()} == host
    if launches:
        assert {key: row["device_ns"] for key, row in rows.items()} == {key: union(kernels[key]) for key in rows}
    if "checkpoint" in name:
        # ResNet-18 has 20 convolutions; all but the first are in the four checkpointed layers, in three steps.
        assert calls["aten::conv2d"] == 3 * 19


def numbered(event: plain_events.Range) -> bool:
    return "Sequence number" in event.args and not event.args.get("Fwd thread id")
