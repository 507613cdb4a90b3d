"""Compiled code: worked out by hand, and real traces once more in plain Python."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.analyses import plain_events
from tests.analyses.test_modules import union

import rankscope
from rankscope.engine.pipeline import Run


def opened(folder: Path, events: list[kineto.Event], **options: Any) -> Run:
    return rankscope.open(kineto.write(folder / "rank0.json", kineto.trace(events)), executor="serial", **options)


def a_call(at: float, number: int, spent: float) -> list[kineto.Event]:
    """A step with a region that calls a graph that launches a Triton kernel, and a library's beside it."""
    ids = 10 * number
    return [
        kineto.step(number, at, 200),
        kineto.op("TorchDynamo Cache Lookup", at + 1, 4),
        kineto.op("Torch-Compiled Region: 2/1", at + 10, spent),
        kineto.annotation("## Call CompiledFxGraph fabc ##", at + 12, spent - 5),
        kineto.op(
            "triton_poi_fused_add_0", at + 14, 6,
            kernel_backend="triton", kernel_file="/x/y.py", kernel_hash="h",
        ),
        kineto.launch(at + 15, 1, correlation=ids + 1, name="cuLaunchKernel", cat="cuda_driver"),
        kineto.kernel("triton_poi_fused_add_0", at + 30, 10, correlation=ids + 1),
        kineto.launch(at + 21, 1, correlation=ids + 2),
        kineto.kernel("gemm", at + 35, 10, correlation=ids + 2, stream=9),
        # A kernel of which the host wrote no operator.
        kineto.launch(at + 100, 1, correlation=ids + 3),
        kineto.kernel("triton_red_fused_sum_1", at + 110, 7, correlation=ids + 3),
        kineto.frame("train.py(7): torch_dynamo_resume_in_forward_at_42", at + 90, 5),
    ]  # fmt: skip


def test_by_hand(tmp_path: Path) -> None:
    run = opened(tmp_path, [*a_call(0, 1, 60), *a_call(200, 2, 20), *a_call(400, 3, 30)])
    rows = {(row["kind"], row["name"]): row for row in run.compile().to_dicts()}
    assert set(rows) == {
        ("region", "Torch-Compiled Region: 2/1"), ("graph", "fabc"), ("kernel", "triton_poi_fused_add_0"),
        ("kernel", "triton_red_fused_sum_1"), ("overhead", "TorchDynamo Cache Lookup"), ("break", "forward line 42"),
        ("step", "ProfilerStep"),
    }  # fmt: skip
    region = rows["region", "Torch-Compiled Region: 2/1"]
    assert (region["frame"], region["version"], region["calls"]) == (2, 1, 3)
    assert (region["host_ns"], region["median_ns"], region["first_extra_ns"]) == (110_000, 30_000, 35_000)
    assert (region["device_ns"], region["kernels"]) == (45_000, 6)
    # [10, 30) and [45, 70) of the first, [10, 30) of the others.
    assert region["device_idle_ns"] == 85_000
    kernel = rows["kernel", "triton_poi_fused_add_0"]
    assert (kernel["device_ns"], kernel["kernels"], kernel["source"]) == (30_000, 3, "/x/y.py")
    silent = rows["kernel", "triton_red_fused_sum_1"]
    assert (silent["calls"], silent["device_ns"], silent["host_ns"], silent["median_ns"]) == (3, 21_000, None, None)
    assert rows["break", "forward line 42"]["calls"] == 3
    assert rows["graph", "fabc"]["first_extra_ns"] == 35_000


def test_the_first_step_compiles(tmp_path: Path) -> None:
    events = [
        kineto.step(0, 0, 5000),
        kineto.op("entire_frame_compile", 10, 4000),
        kineto.op("compile_inner (dynamo_timed)", 20, 3900),
        *(kineto.step(number, 6000 + 200 * number, spent) for number, spent in ((1, 90), (2, 110))),
    ]
    rows = {(row["kind"], row["name"]): row for row in opened(tmp_path, events).compile().to_dicts()}
    assert rows["compiling", "entire_frame_compile"]["host_ns"] == 4_000_000
    assert rows["compiling", "compile_inner"]["host_ns"] == 3_900_000
    assert rows["step", "ProfilerStep"]["first_extra_ns"] == 4_900_000


def test_only_the_chosen_steps(tmp_path: Path) -> None:
    run = opened(tmp_path, [*a_call(0, 1, 60), *a_call(200, 2, 20)], steps="2")
    rows = run.compile()
    assert set(rows["calls"]) == {1}
    assert rows["first_extra_ns"].null_count() == rows.height


def test_nothing_compiled(tmp_path: Path) -> None:
    assert opened(tmp_path, kineto.small_step()).compile().height == 0


@pytest.mark.parametrize(
    "name",
    [
        "tracelens/torch_compile_triton/trace.json.gz",
        "hta/triton_example/triton_example.json.gz",
        pytest.param(
            "modded-nanogpt-h100-8ranks/Baseline_-_12-11_-_e049e-rank0-chrome-trace.json.gz", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.usefixtures("shared_cache")
def test_real_traces(shared_traces: Path, name: str) -> None:
    events = plain_events.ranges(plain_events.load(shared_traces / name))
    launches: dict[Any, Any] = {}
    for event in events:
        if event.category.endswith(("_runtime", "_driver")) and event.args.get("correlation"):
            launches.setdefault(event.args["correlation"], event)
    kernels = [
        (launches[e.args["correlation"]], e)
        for e in events
        if e.category in ("kernel", "gpu_memcpy", "gpu_memset") and e.args.get("correlation") in launches
    ]
    calls: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for event in events:
        if event.category == "cpu_op" and re.match(r"Torch-Compiled Region: \d+/\d+", event.name):
            calls["region", event.name].append(event)
        elif event.category == "cpu_op" and event.args.get("kernel_file"):
            calls["kernel", event.name].append(event)
        elif event.category == "user_annotation" and event.name.startswith("## Call CompiledFxGraph "):
            calls["graph", event.name.split()[3]].append(event)
    rows = {
        (row["kind"], row["name"]): row
        for row in rankscope.open(shared_traces / name, executor="serial").compile().to_dicts()
        if row["kind"] in ("region", "kernel", "graph")
    }
    assert set(rows) == set(calls)
    by_kind: dict[str, list[Any]] = defaultdict(list)
    for (kind, _), mine in calls.items():
        by_kind[kind] += mine
    for kind, mine in by_kind.items():
        mine.sort(key=lambda event: (event.start, -event.end))
        spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        ordered = sorted(kernels, key=lambda pair: pair[0].start)
        stacks = plain_events.stacks(mine, [(launch.start, launch.thread) for launch, _ in ordered])
        for (_, kernel), stack in zip(ordered, stacks, strict=True):
            if stack:
                shown = stack[-1].name.split()[3] if kind == "graph" else stack[-1].name
                spans[shown].append((kernel.start, kernel.end))
        for (other, shown), called in calls.items():
            if other == kind:
                row = rows[kind, shown]
                assert row["calls"] == len(called)
                assert row["host_ns"] == sum(event.end - event.start for event in called)
                assert (row["device_ns"], row["kernels"]) == (union(spans[shown]), len(spans[shown])), shown
