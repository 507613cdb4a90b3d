"""Modules: a tree worked out by hand, and real ones once more in plain Python."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.analyses import plain_events

import rankscope
from rankscope.engine.pipeline import Run

REAL = [
    "gloo-2ranks/ddp_resnet_shapes_stack_mem_flops.rank1.json.gz",
    "tensorboard-plugin/unit_tests/single/test_build_module_hierarchy__json_content.pt.trace.json",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tracelens/inference/vllm_decode_full/graph_execution.json.gz",
]
SLOW = [
    "tracelens/mi300/resnet_act_checkpoint.json.gz",
    "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz",
    "tracelens/inference/sglang_decode/capture_traces/bs_32_rank0.json.gz",
    "gloo-2ranks/fsdp2_gpt_shapes_stack_mem.rank0.json.gz",
]


def opened(folder: Path, events: list[kineto.Event], **options: Any) -> Run:
    return rankscope.open(kineto.write(folder / "rank0.json", kineto.trace(events)), executor="serial", **options)


def a_network(at: float, number: int) -> list[kineto.Event]:
    """One forward: Net calls a block that calls the same Linear twice; and kernels of each."""
    ids = 10 * number
    return [
        kineto.step(number, at, 100),
        kineto.frame("nn.Module: Net_0", at + 10, 60),
        kineto.frame("net.py(3): forward", at + 11, 58),
        kineto.frame("nn.Module: Block_4", at + 12, 40),
        kineto.frame("nn.Module: Linear_1", at + 14, 10),
        kineto.launch(at + 15, 1, correlation=ids + 1),
        kineto.kernel("gemm", at + 30, 20, correlation=ids + 1),
        kineto.frame("nn.Module: Linear_1", at + 30, 5),
        kineto.launch(at + 31, 1, correlation=ids + 2),
        # On another stream, half of it beside the first.
        kineto.kernel("gemm", at + 40, 20, correlation=ids + 2, stream=9),
        kineto.launch(at + 45, 1, correlation=ids + 3),
        kineto.kernel("add", at + 70, 4, correlation=ids + 3),
        kineto.launch(at + 80, 1, correlation=ids + 4),
        kineto.kernel("outside", at + 85, 4, correlation=ids + 4),
    ]


def test_a_tree_by_hand(tmp_path: Path) -> None:
    rows = opened(tmp_path, [*a_network(0, 1), *a_network(100, 2)]).modules().drop("rank").rows()
    assert rows == [
        ("Net_0", "Net_0", 0, 2, 120_000, 40_000, 68_000, 0, 6),
        ("Net_0/Block_4", "Block_4", 1, 2, 80_000, 50_000, 68_000, 8_000, 6),
        ("Net_0/Block_4/Linear_1", "Linear_1", 2, 4, 30_000, 30_000, 60_000, 60_000, 4),
    ]


def test_only_the_chosen_steps(tmp_path: Path) -> None:
    run = opened(tmp_path, [*a_network(0, 1), *a_network(100, 2)], steps="2")
    assert run.modules()["calls"].to_list() == [1, 1, 2]
    assert run.modules()["device_total_ns"].to_list() == [34_000, 34_000, 30_000]


def test_no_device_is_not_no_kernel(tmp_path: Path) -> None:
    host = [kineto.frame("nn.Module: Net_0", 10, 60)]
    row = opened(tmp_path / "host", host).modules().row(0, named=True)
    assert row["device_total_ns"] is row["kernels"] is None
    row = opened(tmp_path / "device", [*host, kineto.kernel("late", 0, 5)]).modules().row(0, named=True)
    assert (row["device_total_ns"], row["kernels"]) == (0, 0)


def test_hierarchies_stand_in_for_frames(tmp_path: Path) -> None:
    inner = {"Module Hierarchy": "top(Net)::forward.fc(Linear)::forward"}
    events = [
        kineto.op("aten::linear", 10, 20, **inner),
        kineto.op("aten::addmm", 12, 10, external=5, **inner),
        kineto.op("aten::relu", 40, 7, **{"Module Hierarchy": "top(Net)::forward"}),
        kineto.kernel("gemm", 60, 9, external=5),
        kineto.step(0, 0, 100),
    ]
    rows = opened(tmp_path, events).modules().drop("rank").rows()
    assert rows == [
        ("top(Net)", "top(Net)", 0, None, 27_000, 7_000, 9_000, 0, 1),
        ("top(Net)/fc(Linear)", "fc(Linear)", 1, None, 20_000, 20_000, 9_000, 9_000, 1),
    ]


def test_a_hierarchys_kernel_without_external_id(tmp_path: Path) -> None:
    events = [
        kineto.op("aten::relu", 40, 7, **{"Module Hierarchy": "top(Net)::forward"}),
        kineto.launch(42, 2, correlation=1),
        kineto.kernel("relu", 60, 9, correlation=1),
    ]
    assert opened(tmp_path, events).modules().select("path", "device_self_ns").rows() == [("top(Net)", 9_000)]


def plain_modules(trace: dict[str, Any]) -> dict[str, dict[str, Any]]:
    events = plain_events.ranges(trace)
    calls = [e for e in events if e.category == "python_function" and e.name.startswith("nn.Module: ")]
    launches: dict[Any, Any] = {}
    for event in events:
        if re.fullmatch(r"(cuda|hip)_(runtime|driver)|runtime", event.category) and event.args.get("correlation"):
            launches.setdefault(event.args["correlation"], event)
    kernels = [e for e in events if e.category in ("kernel", "gpu_memcpy", "gpu_memset")]
    made: dict[str, dict[str, Any]] = {}
    inside: dict[str, list[tuple[int, int]]] = defaultdict(list)
    own: dict[str, list[tuple[int, int]]] = defaultdict(list)
    paths: dict[int, str] = {}
    for call, stack in zip(
        calls, plain_events.stacks(calls, [(call.start, call.thread) for call in calls]), strict=True
    ):
        outer = [one for one in stack if one is not call and (one.start, -one.end) <= (call.start, -call.end)]
        name = call.name.removeprefix("nn.Module: ")
        if not re.search(r"_\d+$", name):
            name += f"_{call.args['Python module id']}"
        path = paths[id(call)] = "/".join([*([paths[id(outer[-1])]] if outer else []), name])
        row = made.setdefault(path, {"calls": 0, "host_total_ns": 0, "host_self_ns": 0})
        row["calls"] += 1
        row["host_total_ns"] += call.end - call.start
        row["host_self_ns"] += call.end - call.start
        if outer:
            made[paths[id(outer[-1])]]["host_self_ns"] -= call.end - call.start
    launched = sorted(
        ((launches[k.args["correlation"]], k) for k in kernels if k.args.get("correlation") in launches),
        key=lambda pair: pair[0].start,
    )
    around = plain_events.stacks(calls, [(launch.start, launch.thread) for launch, _ in launched])
    for (_, kernel), stack in zip(launched, around, strict=True):
        for path in {paths[id(call)] for call in stack}:
            inside[path].append((kernel.start, kernel.end))
        if stack:
            own[paths[id(stack[-1])]].append((kernel.start, kernel.end))
    for path, row in made.items():
        row["device_total_ns"] = union(inside[path]) if kernels else None
        row["device_self_ns"] = union(own[path]) if kernels else None
    return made


def union(spans: list[tuple[int, int]]) -> int:
    total, reach = 0, -(1 << 62)
    for start, end in sorted(spans):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total


@pytest.mark.parametrize("name", [*REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
@pytest.mark.usefixtures("shared_cache")
def test_real_traces(shared_traces: Path, name: str) -> None:
    rows = {row["path"]: row for row in rankscope.open(shared_traces / name, executor="serial").modules().to_dicts()}
    expected = plain_modules(plain_events.load(shared_traces / name))
    assert set(rows) == set(expected)
    for path, wanted in expected.items():
        assert {key: rows[path][key] for key in wanted} == wanted, path
