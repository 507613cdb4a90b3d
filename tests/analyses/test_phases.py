"""Phases: a step worked out by hand, and real traces once more by a sweep in plain Python."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.analyses import plain_events
from tests.analyses.plain_events import Range

import rankscope
from rankscope.engine.pipeline import Run

REAL = [
    "gloo-2ranks/ddp_gpt_straggler_rank1.rank1.json.gz",
    "tensorboard-plugin/ddp_gloo_torch213_3ranks/host_1.1795170630725969375.pt.trace.json.gz",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "hta/timeline_analysis/sampled_rank-0.json.gz",
    "modded-nanogpt-h100-8ranks/Baseline_-_12-11_-_6bd4b-rank1-chrome-trace.json.gz",
]
SLOW = [
    "gloo-2ranks/fsdp2_gpt_shapes.rank0.json.gz",
    "tracelens/mi300/resnet_act_checkpoint.json.gz",
    "hta/nccl_parser_config/nccl_data.json.gz",
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "tensorboard-plugin/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
    "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz",
    "torchrec/ddp-resnet18-2ranks/host_85866.1698107929560561434.pt.trace.json.gz",
]
HOST = ("forward", "backward", "optimizer", "in_loader", "sync", "no_phase")
DEVICE = ("forward", "backward", "optimizer", "data_loading", "communication", "other")


def opened(folder: Path, events: list[kineto.Event]) -> Run:
    return rankscope.open(kineto.write(folder / "rank0.json", kineto.trace(events)), executor="serial")


def host(row: dict[str, Any]) -> dict[str, float]:
    return {name: row[f"{name}_ns"] / 1000 for name in HOST}


def device(row: dict[str, Any]) -> dict[str, float]:
    return {name: row[f"{name}_device_ns"] / 1000 for name in DEVICE}


def a_step() -> list[kineto.Event]:
    return [
        kineto.step(3, 0, 100),
        kineto.loading(2, 8),
        kineto.op("aten::stack", 3, 4, sequence=1),
        # Two operators of the forward, and what is between them; then one after zero_grad, by itself.
        kineto.op("aten::linear", 12, 8, sequence=2),
        kineto.op("aten::relu", 25, 5, sequence=3),
        kineto.annotation("Optimizer.zero_grad#SGD.zero_grad", 31, 2),
        kineto.op("aten::mse_loss", 35, 3, sequence=4),
        # The backward on its own thread, a forward operator run again inside it.
        kineto.op(
            "autograd::engine::evaluate_function: AddmmBackward0", 40, 20, sequence=2, forward_thread=1,
            tid=kineto.BACKWARD_THREAD,
        ),
        kineto.op("aten::linear", 45, 5, sequence=9, tid=kineto.BACKWARD_THREAD),
        kineto.op("torch::autograd::AccumulateGrad", 64, 6, tid=kineto.BACKWARD_THREAD),
        kineto.annotation("Optimizer.step#SGD.step", 80, 10),
        kineto.op("aten::add_", 82, 1),
        kineto.launch(84, 4, name="cudaDeviceSynchronize"),
        kineto.launch(95, 1, name="cudaLaunchKernel"),
    ]  # fmt: skip


def test_a_step_by_hand(tmp_path: Path) -> None:
    # One kernel that overlaps the copy, so that there is a device; nothing is hidden behind nothing.
    events = [*a_step(), kineto.launch(13, 1, correlation=1), kineto.kernel("gemm", 30, 20, correlation=1)]
    row = opened(tmp_path, events).phases().row(0, named=True)
    assert row["wall_ns"] == 100_000
    assert host(row) == {
        "in_loader": 8, "forward": 18 + 3, "backward": 30, "optimizer": 6, "sync": 4, "no_phase": 31,
    }  # fmt: skip


def test_the_device_by_hand(tmp_path: Path) -> None:
    events = a_step()
    for number, (at, start, spent) in enumerate(((5, 10, 5), (14, 20, 20), (46, 35, 15), (83, 85, 10), (92, 95, 5)), 1):
        events += [kineto.launch(at, 1, correlation=number), kineto.kernel("k", start, spent, correlation=number)]
    events += [
        # Communication of the backward: 45 to 60, of which the backward's own kernel hides 5.
        kineto.launch(65, 1, correlation=9),
        kineto.collective(45, 15, correlation=9),
        # Nobody's: launched before the step, and launchless.
        kineto.kernel("late", 70, 5),
    ]
    row = opened(tmp_path, events).phases().row(0, named=True)
    # forward 20–40 and backward 35–50 overlap for 5: these are the backward's, which stands before it.
    assert device(row) == {
        "data_loading": 5, "forward": 15, "backward": 15, "optimizer": 10, "communication": 10, "other": 5,
    }  # fmt: skip
    assert row["device_ns"] == 60_000


def test_gloo_waits_are_sync(tmp_path: Path) -> None:
    events = [event for event in a_step() if event["cat"] != "cuda_runtime"]
    # The collective runs on a thread of its own from 66 to 78: 4 under AccumulateGrad, 8 with nothing else.
    events.append(kineto.annotation("gloo:all_reduce", 66, 12, tid=500))
    row = opened(tmp_path, events).phases().row(0, named=True)
    assert host(row)["sync"] == 8
    assert host(row)["backward"] == 30
    assert host(row)["optimizer"] == 10
    assert row["device_ns"] is row["forward_device_ns"] is None


def test_a_loader_on_a_thread_of_its_own_holds_nothing_up(tmp_path: Path) -> None:
    events = [kineto.step(0, 0, 50), kineto.annotation("load_batch", 0, 50, tid=900)]
    row = opened(tmp_path, [*events, kineto.op("aten::mm", 10, 20, sequence=1)]).phases().row(0, named=True)
    assert host(row) == {"in_loader": 0, "forward": 20, "backward": 0, "optimizer": 0, "sync": 0, "no_phase": 30}


def test_without_steps_and_without_anything(tmp_path: Path) -> None:
    events = [kineto.op("aten::mm", 10, 20, sequence=1), kineto.frame("nn.Module: Linear_0", 5, 30)]
    row = opened(tmp_path, events).phases().row(0, named=True)
    assert (row["step"], row["wall_ns"], row["forward_ns"]) == (None, 30_000, 30_000)
    assert opened(tmp_path / "empty", [kineto.kernel("k", 0, 5)]).phases().height == 0


# -- once more, in plain Python -------------------------------------------------------------------------------------

ENGINE = re.compile(r"autograd::engine::evaluate_function|torch::autograd::|torch\.distributed\.ddp\.reducer::")
BACK = re.compile(
    r"FSDP::(pre_backward|post_backward|root_post_backward|backward_prefetch)"
    r"|FullyShardedDataParallel\._(pre|post)_backward"
)
AHEAD = re.compile(
    r"(DistributedDataParallel|FullyShardedDataParallel)\.forward|FSDP::(root_)?(pre|post)_forward"
    r"|FSDP::forward_prefetch|Torch-Compiled Region"
)
WAITS = re.compile(
    r".*synchroni[sz]e$|(cuda|hip)Memcpy$|hipMemcpyWithStream$|urQueueFinish$|urEventWait$|zeEventHostSynchronize", re.I
)
LOADS = re.compile(r"enumerate\(Data(Loader|Pipe)\)|data_?load|load_?(data|batch)", re.I)
COMMUNICATES = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv", re.I)
ORDER = ("optimizer", "backward", "data_loading", "forward")


def plain_phases(trace: dict[str, Any]) -> list[dict[str, Any]]:
    events = plain_events.ranges(trace)
    old = any(event.category == "operator" for event in events)
    named = [e for e in events if e.category == "user_annotation" or (old and plain_events.named_2020(e.name))]
    known = {id(e) for e in named}
    operators = [e for e in events if e.category in ("cpu_op", "operator") and id(e) not in known]
    kernels = [e for e in events if e.category in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")]
    calls = [e for e in events if re.fullmatch(r"(cuda|hip|xpu)_(runtime|driver)|runtime", e.category)]
    frames = [e for e in events if e.category == "python_function"]
    steps = sorted((e for e in named if e.step is not None), key=lambda e: e.start)
    pieces: dict[str, list[Range]] = {name: [] for name in ORDER}
    for event in named:
        if event.name.startswith("Optimizer.step#"):
            pieces["optimizer"].append(event)
        if BACK.match(event.name):
            pieces["backward"].append(event)
        if AHEAD.match(event.name):
            pieces["forward"].append(event)
        if LOADS.search(event.name) and event.thread in {step.thread for step in steps or [event]}:
            pieces["data_loading"].append(event)
    own = {id(e) for e in operators if ENGINE.match(e.name) or e.args.get("Fwd thread id", 0) > 0}
    top_forward = {
        e.thread
        for e in operators
        if e.above is None and "Sequence number" in e.args and not e.args.get("Fwd thread id") and id(e) not in own
    }
    autograd = {e.thread for e in operators if id(e) in own} - top_forward
    for event in operators:
        if id(event) in own or event.thread in autograd:
            pieces["backward"].append(event)
        numbered = event.args.get("Sequence number") is not None and not event.args.get("Fwd thread id")
        if numbered or event.args.get("Module Hierarchy") or AHEAD.match(event.name):
            pieces["forward"].append(event)
    pieces["forward"] += [event for event in frames if event.name.startswith("nn.Module: ")]
    timeline = labeled([(name, pieces[name]) for name in ORDER])
    breaks = sorted(
        [e.start for e in named if e.name.startswith("Optimizer.zero_grad#")]
        + [e.start for e in steps]
        + [e.end for e in steps]
    )
    timeline = bridged(timeline, breaks)
    waits = [event for event in calls if WAITS.match(event.name)]
    if not kernels:
        gloo = [e for e in named if e.name.startswith("gloo:")]
        threads = {e.thread for e in gloo}
        computing = [e for e in operators if e.thread not in threads]
        exposed = labeled([("compute", computing), ("sync", gloo)])
        waits += [Range(a, b, "", "", ("", ""), {}) for a, b, label in exposed if label == "sync"]
    rows = []
    whole = [*operators, *named, *calls, *frames]
    bounds = [(e.step, e.start, e.end) for e in steps]
    if not steps and whole:
        bounds = [(None, min(e.start for e in whole), max(e.end for e in whole))]
    as_ranges = {
        name: [Range(a, b, "", "", ("", ""), {}) for a, b, label in timeline if label == name] for name in ORDER
    }
    cut = labeled([("sync", waits), *as_ranges.items()])
    first: dict[Any, int] = {}
    for call in calls:
        if call.args.get("correlation"):
            first.setdefault(call.args["correlation"], call.start)
    for step, start, end in bounds:
        row: dict[str, Any] = {f"{name}_ns": 0 for name in HOST}
        for a, b, label in cut:
            row[f"{'in_loader' if label == 'data_loading' else label}_ns"] += max(min(b, end) - max(a, start), 0)
        row |= {"step": step, "wall_ns": end - start, "no_phase_ns": end - start - sum(row.values())}
        if kernels:
            row |= plain_device(kernels, first, timeline, start, end)
        rows.append(row)
    return rows


def plain_device(
    kernels: list[Range], first: dict[Any, int], timeline: list[tuple[int, int, str]], start: int, end: int
) -> dict[str, int]:
    owned: dict[str, list[Range]] = defaultdict(list)
    for kernel in kernels:
        launch = first.get(kernel.args.get("correlation"))
        if launch is None or not start <= launch < end:
            continue
        phase = next((label for a, b, label in timeline if a <= launch < b), "other")
        if kernel.category == "kernel" and ("Collective name" in kernel.args or COMMUNICATES.search(kernel.name)):
            phase = "communication"
        owned[phase].append(kernel)
    names = [*ORDER, "other", "communication"]
    found = dict.fromkeys([f"{name}_device_ns" for name in names], 0)
    for a, b, label in labeled([(name, owned[name]) for name in names]):
        found[f"{label}_device_ns"] += b - a
    return found | {"device_ns": sum(found.values())}


def labeled(sets: list[tuple[str, list[Range]]]) -> list[tuple[int, int, str]]:
    """A sweep: each stretch between two boundaries with the first of the names that has a range open."""
    changes: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for name, events in sets:
        for event in events:
            if event.end > event.start:
                changes[event.start].append((name, 1))
                changes[event.end].append((name, -1))
    open_ = dict.fromkeys([name for name, _ in sets], 0)
    found: list[tuple[int, int, str]] = []
    times = sorted(changes)
    for time, after in itertools.pairwise(times):
        for name, change in changes[time]:
            open_[name] += change
        label = next((name for name, _ in sets if open_[name]), None)
        if label is None:
            continue
        if found and found[-1][1] == time and found[-1][2] == label:
            found[-1] = (found[-1][0], after, label)
        else:
            found.append((time, after, label))
    return found


def bridged(timeline: list[tuple[int, int, str]], breaks: list[int]) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for start, end, label in timeline:
        if found and found[-1][2] == label and label in ("forward", "backward"):
            a, b, _ = found[-1]
            if not any(b <= each <= start for each in breaks):
                found[-1] = (a, end, label)
                continue
        found.append((start, end, label))
    return found


@pytest.mark.parametrize("name", [*REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
@pytest.mark.usefixtures("shared_cache")
def test_real_traces(shared_traces: Path, name: str) -> None:
    rows = rankscope.open(shared_traces / name, executor="serial").phases().to_dicts()
    expected = plain_phases(plain_events.load(shared_traces / name))
    assert len(rows) == len(expected)
    for got, wanted in zip(rows, expected, strict=True):
        assert {key: got[key] for key in wanted} == wanted
        assert got["wall_ns"] == sum(got[f"{name}_ns"] for name in HOST)
        if got["device_ns"] is not None:
            assert got["device_ns"] == sum(got[f"{name}_device_ns"] for name in DEVICE)


def test_known_phases(shared_traces: Path) -> None:
    """Rank 1 sleeps 20 ms a step in Python; the others wait for it in their collectives."""
    rows = rankscope.open(shared_traces / "tensorboard-plugin/ddp_gloo_torch213_3ranks", executor="serial").phases()
    by_rank = rows.group_by("rank").mean().sort("rank")
    sync, other = by_rank["sync_ns"].to_list(), by_rank["no_phase_ns"].to_list()
    assert 20e6 < other[1] < 21e6
    assert max(other[0], other[2]) < 1e6
    assert min(sync[0], sync[2]) > 20e6
