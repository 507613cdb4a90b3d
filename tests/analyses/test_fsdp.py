"""FSDP: a device's step worked out by hand, and Gloo traces once more in plain Python."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.analyses import plain_events
from tests.analyses.test_phases import labeled

import rankscope
from rankscope.engine.pipeline import Run

REAL = ["gloo-2ranks/fsdp2_gpt_straggler_rank1.rank0.json.gz"]
SLOW = ["gloo-2ranks/fsdp2_gpt_shapes_stack_mem.rank1.json.gz", "gloo-2ranks/fsdp2_gpt_shapes.rank0.json.gz"]


def opened(folder: Path, events: list[kineto.Event]) -> Run:
    return rankscope.open(kineto.write(folder / "rank0.json", kineto.trace(events)), executor="serial")


def gather(at: float, module: str, number: int, start: float, dur: float) -> list[kineto.Event]:
    """An all-gather of 2 ranks × 500 bf16, called at `at` inside FSDP's range."""
    return [
        kineto.annotation(f"FSDP::all_gather ({module})", at - 1, 6),
        kineto.op("fsdp::all_gather_copy_in", at - 0.5, 0.4),
        kineto.launch(at - 0.4, 0.1, correlation=100 + number),
        kineto.kernel("split_with_sizes_copy", start - 2, 1, correlation=100 + number),
        kineto.op("c10d::_allgather_base_", at, 4, dims=[[1000], [500], []]),
        kineto.launch(at + 2, 1, correlation=number),
        kineto.collective(
            start, dur, kind="_allgather_base", elements=500, out_elements=1000, dtype="BFloat16", correlation=number
        ),
    ]


def copy_out(at: float, module: str, number: int, start: float) -> list[kineto.Event]:
    return [
        kineto.annotation(f"FSDP::all_gather_copy_out ({module})", at, 3),
        kineto.launch(at + 1, 1, correlation=200 + number),
        kineto.kernel("split_with_sizes_copy", start, 2, correlation=200 + number),
    ]


def test_a_device_by_hand(tmp_path: Path) -> None:
    events = [
        kineto.step(7, 0, 300),
        # layers.0 is fetched when it is reached: nothing runs until its copy-out at 40.
        kineto.annotation("FSDP::pre_forward (layers.0)", 8, 14),
        *gather(10, "layers.0", 1, 20, 15),
        *copy_out(17, "layers.0", 1, 40),
        # Its compute, 45 to 95, and meanwhile layers.1 is fetched: issued at 30, used at 100.
        kineto.launch(25, 1, correlation=301),
        kineto.kernel("gemm", 45, 50, correlation=301),
        kineto.annotation("FSDP::pre_forward (layers.1)", 28, 14),
        *gather(30, "layers.1", 2, 85, 14),
        *copy_out(37, "layers.1", 2, 100),
        # The backward asks for layers.0 early.
        kineto.annotation("FSDP::pre_backward (layers.1)", 60, 20),
        kineto.annotation("FSDP::backward_prefetch for layers.0", 61, 18),
        *gather(65, "layers.0", 3, 120, 10),
        # And reduces, half of it beside a kernel.
        kineto.annotation("FSDP::post_backward_reduce (layers.1)", 130, 20),
        kineto.op("c10d::_reduce_scatter_base_", 135, 4, dims=[[500], [1000], []]),
        kineto.launch(136, 1, correlation=4),
        kineto.collective(
            150, 20, kind="_reduce_scatter_base", elements=1000, out_elements=500, dtype="Float", correlation=4
        ),
        kineto.launch(140, 1, correlation=302),
        kineto.kernel("gemm", 160, 30, correlation=302),
        # No collective of FSDP's.
        kineto.op("c10d::allreduce_", 200, 4, dims=[[[8]]]),
        kineto.launch(201, 1, correlation=5),
        kineto.collective(210, 5, correlation=5),
    ]
    columns = ("module", "phase", "collective", "order", "bytes", "exposed_ns", "hidden_ns", "asked", "prefetched")
    rows = opened(tmp_path, events).fsdp()
    assert rows.select(columns).rows() == [
        ("layers.0", "forward", "all_gather", 0, 2000, 15_000, 0, False, False),
        ("layers.1", "forward", "all_gather", 1, 2000, 4_000, 10_000, False, True),
        ("layers.0", "backward", "all_gather", 0, 2000, 10_000, 0, True, True),
        ("layers.1", "backward", "reduce_scatter", 0, 4000, 10_000, 10_000, False, None),
    ]
    assert rows["used_ns"].to_list() == [40_000, 100_000, None, None]
    assert rows["issued_ns"].to_list() == [10_000, 30_000, 65_000, 135_000]
    assert rows["step"].to_list() == [7] * 4


def test_version_1_by_hand(tmp_path: Path) -> None:
    def call(name: str, at: float, outer: str) -> list[kineto.Event]:
        return [
            kineto.annotation(f"FullyShardedDataParallel.{outer}", at - 2, 12),
            kineto.op(f"c10d::{name}", at, 4, dims=[[64], [32]], **{"Input type": ["float", "float"]}),
            kineto.annotation(f"gloo:{name}", at + 3, 5, tid=900),
        ]

    events = [
        kineto.step(1, 0, 200),
        *call("_allgather_base_", 10, "_pre_forward"),
        *call("_allgather_base_", 40, "_pre_backward_prefetch"),
        *call("_reduce_scatter_base_", 80, "_post_backward_hook"),
        kineto.op("aten::mm", 44, 2),
    ]
    rows = opened(tmp_path, events).fsdp()
    columns = ("version", "module", "phase", "collective", "bytes", "duration_ns", "exposed_ns", "asked", "prefetched")
    assert rows.select(columns).rows() == [
        (1, None, "forward", "all_gather", 256, 5_000, 4_000, False, None),
        (1, None, "backward", "all_gather", 256, 5_000, 2_000, True, True),
        (1, None, "backward", "reduce_scatter", 128, 5_000, 4_000, False, None),
    ]


def test_no_fsdp(tmp_path: Path) -> None:
    assert opened(tmp_path, kineto.small_step()).fsdp().height == 0


def plain_fsdp(trace: dict[str, Any]) -> list[tuple[Any, ...]]:
    """step, module, phase, collective, bytes, issued, start, duration, exposed, asked."""
    events = plain_events.ranges(trace)
    named = [event for event in events if event.category == "user_annotation"]
    operators = [event for event in events if event.category == "cpu_op"]
    gloo = [event for event in named if event.name.startswith("gloo:")]
    calls = [event for event in operators if event.name.startswith("c10d::")]
    threads = {event.thread for event in gloo}
    computing = [event for event in operators if event.thread not in threads]
    free = list(gloo)
    rows = []
    for call, stack in zip(
        calls, plain_events.stacks(named, [(call.start, call.thread) for call in calls]), strict=True
    ):
        ran = next(event for event in free if event.start >= call.start)
        free.remove(ran)
        outer = [event for event in stack if event.name.startswith("FSDP::")]
        if not outer:
            continue
        name = outer[-1].name
        module = name[name.index("(") + 1 : -1] if "(" in name else "(root)"
        shape = call.args["Input Dims"][1 if "reduce" in call.name else 0]
        hidden = sum(b - a for a, b, label in overlap(computing, ran.start, ran.end) if label == "compute")
        rows.append(
            (
                next((e.step for e in named if e.step is not None and e.start <= call.start < e.end), None),
                module,
                "backward" if any(re.search("backward", event.name) for event in outer) else "forward",
                "all_gather" if "allgather" in call.name else "reduce_scatter",
                math.prod(shape) * 4,
                call.start,
                ran.start,
                ran.end - ran.start,
                ran.end - ran.start - hidden,
                any("_prefetch" in event.name for event in outer),
            )
        )
    return rows


def overlap(computing: list[Any], start: int, end: int) -> list[tuple[int, int, str]]:
    cut = [
        plain_events.Range(max(e.start, start), min(e.end, end), "", "", ("", ""), {})
        for e in computing
        if e.start < end and e.end > start
    ]
    return labeled([("compute", cut)])


@pytest.mark.parametrize("name", [*REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
@pytest.mark.usefixtures("shared_cache")
def test_real_traces(shared_traces: Path, name: str) -> None:
    rows = rankscope.open(shared_traces / name, executor="serial").fsdp()
    columns = (
        "step", "module", "phase", "collective", "bytes", "issued_ns", "start_ns", "duration_ns", "exposed_ns", "asked",
    )  # fmt: skip
    assert rows.select(columns).rows() == plain_fsdp(plain_events.load(shared_traces / name))
    gathers = rows.filter(rows["collective"] == "all_gather")
    # On the CPU nothing of the forward can be fetched early, and the backward's is, by FSDP's own prefetch.
    assert gathers["prefetched"].to_list() == [phase == "backward" for phase in gathers["phase"]]
