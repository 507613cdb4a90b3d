"""Work of modules: a forward and its backward worked out by hand, and a real trace once more in plain Python."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run


def opened(folder: Path, events: list[kineto.Event]) -> Run:
    return rankscope.open(kineto.write(folder / "rank0.json", kineto.trace(events)), executor="serial")


def a_step(number: int, at: float) -> list[kineto.Event]:
    """A net with a linear inside, the linear's backward on autograd's thread, and an operator outside all modules."""
    ids, sequence = 10 * number, 7 + number
    return [
        kineto.step(number, at, 200),
        kineto.frame("nn.Module: Net_0", at + 5, 60),
        kineto.frame("nn.Module: Linear_0", at + 10, 30),
        kineto.op("aten::linear", at + 12, 20, external=ids + 1, sequence=sequence),
        kineto.op("aten::mm", at + 15, 8, external=ids + 2),
        kineto.launch(at + 16, 2, correlation=ids + 1, external=ids + 2),
        kineto.kernel("gemm", at + 40, 30, correlation=ids + 1, external=ids + 2),
        kineto.op("aten::add", at + 50, 10, external=ids + 3),
        kineto.op("AddmmBackward0", at + 100, 25, external=ids + 4, tid=2, sequence=sequence, forward_thread=1),
        kineto.op("aten::mm", at + 105, 15, external=ids + 5, tid=2),
        kineto.launch(at + 106, 2, correlation=ids + 2, external=ids + 5, tid=2),
        kineto.kernel("gemm", at + 120, 50, correlation=ids + 2, external=ids + 5),
        kineto.op("aten::item", at + 180, 4, external=ids + 6),
    ]


@pytest.mark.parametrize("identified", [True, False])
def test_forward_and_backward_by_hand(tmp_path: Path, identified: bool) -> None:
    """Kernels belong to operators by External id; without one, to the operator that is open at their launch."""
    events = [*a_step(1, 0), *a_step(2, 200)]
    for event in events if not identified else ():
        event.get("args", {}).pop("External id", None)
    frame = opened(tmp_path, events).work(by="module")
    linear = "Net_0/Linear_0"
    wanted = {
        ("Net_0", "aten::add"): (1, 10_000, 0),
        (linear, "AddmmBackward0"): (1, 10_000, 0),
        (linear, "aten::linear"): (1, 12_000, 0),
        # One of the forward, 8 µs, and one of the backward, 15 µs; their kernels take 30 and 50 µs.
        (linear, "aten::mm"): (2, 23_000, 80_000),
        (None, "aten::item"): (1, 4_000, 0),
    }
    for step in (1, 2):
        rows = frame.filter(step=step).select("module", "operator", "calls", "host_self_ns", "device_ns").rows()
        assert {row[:2]: row[2:] for row in rows} == wanted


def test_without_modules_there_is_nothing(tmp_path: Path) -> None:
    events = [event for event in a_step(1, 0) if not str(event["name"]).startswith("nn.Module")]
    assert opened(tmp_path, events).work(by="module").is_empty()


def test_without_a_device_its_time_is_unknown(tmp_path: Path) -> None:
    events = [event for event in a_step(1, 0) if event["name"] not in ("gemm", "cudaLaunchKernel")]
    frame = opened(tmp_path, events).work(by="module")
    assert frame.height and frame["device_ns"].is_null().all()


def test_a_real_step_adds_up_to_its_operators(shared_traces: Path) -> None:
    run = rankscope.open(shared_traces / "gloo-2ranks" / "fsdp2_gpt_shapes_stack_mem.rank0.json.gz", executor="serial")
    work = run.work().filter(pl.col("kind") == "operator").group_by("step").agg(pl.col("total_ns", "calls").sum())
    modules = run.work(by="module")
    each = modules.group_by("step").agg(pl.col("host_self_ns", "calls").sum())
    assert each.sort("step").rows() == work.sort("step").rows()
    assert modules["module"].drop_nulls().str.starts_with("FSDPTinyGPT_0").all()
