"""Memory by category, over time, by module and by call site: a step worked out by hand, and torch's own categories."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.primitives.memory_categories import CATEGORIES

GRADIENT = "autograd::engine::evaluate_function: LinearBackward0"
REAL = [
    "gloo-2ranks/ddp_resnet_shapes_stack_mem_flops.rank1.json.gz",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
]


def opened(folder: Path, events: list[kineto.Event]) -> Run:
    return rankscope.open(kineto.write(folder / "rank0.json", kineto.trace(events)), executor="serial")


def a_job() -> list[kineto.Event]:
    """A model of 400 bytes, made while recording on a device that holds 1000 bytes already, and two steps."""
    moves: list[tuple[float, int, int]] = [(20, 400, 1), (22, 60, 99), (24, -60, 99)]
    events = [
        kineto.frame("train.py(3): main", 5, 900),
        kineto.frame("torch/nn/modules/linear.py(96): __init__", 10, 30),
        kineto.frame("torch/nn/modules/module.py(482): __init__", 11, 5),
    ]
    for number, at in ((1, 100), (2, 400)):
        events += [
            kineto.step(number, at, 290),
            kineto.loading(at + 5, 10),
            kineto.frame("nn.Module: Net_0", at + 30, 60),
            kineto.frame("model.py(9): forward", at + 31, 58),
            kineto.frame("nn.Module: Linear_0", at + 32, 20),
            kineto.op("aten::linear", at + 34, 15, sequence=number),
            kineto.op(GRADIENT, at + 100, 40, sequence=number, forward_thread=1, tid=77),
            kineto.op("aten::mm", at + 105, 20, tid=77),
            kineto.annotation("Optimizer.step#Adam.step", at + 200, 50),
            kineto.op("aten::sqrt", at + 205, 10),
        ]
        moves += [
            (at + 8, 50, 2),  # the batch
            (at + 36, 80, 3),  # what the backward needs
            (at + 38, 30, 4),  # workspace of the linear
            (at + 45, -30, 4),
            (at + 110, 400, 5),  # the gradient
            (at + 112, 25, 6),
            (at + 130, -25, 6),
            (at + 135, -80, 3),
            (at + 208, 90, 7),
            (at + 212, -90, 7),
            (at + 260, 7, 8),  # nobody says what for
            (at + 270, -50, 2),
            (at + 280, -400, 5),
        ]
        if number == 1:
            moves.append((at + 220, 800, 9))  # the moments
        else:
            moves.append((at + 285, -100, 55))  # from before the recording
    held = 1000
    for at, size, address in sorted(moves):
        held += size
        tid = 77 if address in (5, 6) and size > 0 else kineto.MAIN_THREAD
        event = kineto.memory(at, size, allocated=held, reserved=4096, address=address)
        events.append({**event, "tid": tid})
    return events


def test_categories_by_hand(tmp_path: Path) -> None:
    run = opened(tmp_path, a_job())
    rows = run.memory(by="category").drop("rank", "window", "device").rows()
    # The peak is in the second step's backward: 1000 + 400 + 400 + 800 + 80 + 25 + 50 + 7.
    peak = 2762
    assert rows == [
        ("parameters", 400, 400 / peak, 400, 400, 1, 400),
        ("gradients", 400, 400 / peak, 400, 0, 2, 800),
        ("optimizer_state", 800, 800 / peak, 800, 800, 1, 800),
        ("activations", 80, 80 / peak, 80, 0, 2, 160),
        ("temporary", 25, 25 / peak, 90, 0, 7, 2 * (30 + 25 + 90) + 60),
        ("inputs", 50, 50 / peak, 50, 0, 2, 100),
        ("earlier", 1000, 1000 / peak, 1000, 900, 0, 0),
        ("unknown", 7, 7 / peak, 14, 14, 2, 14),
    ]
    assert run.memory()["peak_allocated"].to_list() == [peak]
    headline = run.analyze("memory_by_category")["memory_by_category"].headline
    assert headline is not None and "allocated before the recording" in str(headline)


def test_modules_and_call_sites_by_hand(tmp_path: Path) -> None:
    run = opened(tmp_path, a_job())
    columns = ["peak_bytes", "gradients", "temporary", "allocations", "allocated_bytes"]
    # The gradient belongs to the module whose forward has its number, also on a thread without Python frames.
    assert run.memory(by="module").select("module", *columns).rows() == [
        (None, 400 + 800 + 50 + 7, 0, 0, 9, 400 + 60 + 2 * 50 + 2 * 90 + 800 + 14),
        ("Net_0/Linear_0", 400 + 80 + 25, 400, 25, 8, 2 * (80 + 30 + 400 + 25)),
    ]
    assert run.memory(by="site").select("call_site", *columns).rows() == [
        ("train.py(3): main", 400 + 800 + 50 + 7, 0, 0, 9, 400 + 60 + 2 * 50 + 2 * 90 + 800 + 14),
        ("model.py(9): forward", 400 + 80 + 25, 400, 25, 8, 2 * (80 + 30 + 400 + 25)),
    ]


def test_the_composition_keeps_the_peak(tmp_path: Path) -> None:
    run = opened(tmp_path, a_job())
    pieces = run.memory_curve(by="category")
    assert pieces.select(pl.sum_horizontal(*CATEGORIES)).to_series().to_list() == pieces["total"].to_list()
    highest = pieces.sort("total", descending=True).row(0, named=True)
    assert (highest["total"], highest["step"], highest["earlier"], highest["optimizer_state"]) == (2762, 2, 1000, 800)


def test_without_memory_there_are_no_rows(tmp_path: Path) -> None:
    run = opened(tmp_path, kineto.small_step())
    for name in ("memory_by_category", "memory_curve_by_category", "memory_by_module", "memory_by_site"):
        assert run.analyze(name)[name].frame.height == 0


def test_without_addresses_the_purpose_is_unknown(tmp_path: Path) -> None:
    events = [
        kineto.step(1, 0, 100),
        kineto.op("aten::linear", 10, 20, sequence=1),
        kineto.memory(15, 64, allocated=1064, reserved=2048, address=None),
        kineto.memory(60, -64, allocated=1000, reserved=2048, address=None),
    ]
    found = opened(tmp_path, events).memory(by="category")
    assert found.select("category", "peak_bytes", "last_bytes").rows() == [("earlier", 1000, 1000), ("unknown", 64, 0)]


@pytest.mark.parametrize("name", REAL)
def test_real_peaks_are_the_sum_of_their_categories(name: str, shared_traces: Path) -> None:
    run = rankscope.open(shared_traces / name, executor="serial")
    sums = run.memory(by="category").group_by("device").agg(pl.col("peak_bytes").sum()).sort("device")
    peaks = run.memory().select("device", pl.col("peak_allocated").alias("peak_bytes")).sort("device")
    assert sums.equals(peaks)
    recorded = run.memory(by="category").filter(pl.col("category") != "earlier")
    by_device = recorded.group_by("device").agg(pl.col("peak_bytes").sum()).sort("device")
    for found in (run.memory(by="module"), run.memory(by="site")):
        assert found.group_by("device").agg(pl.col("peak_bytes").sum()).sort("device").equals(by_device)
        each = found.select(pl.sum_horizontal(name for name in CATEGORIES if name != "earlier")).to_series()
        assert each.to_list() == found["peak_bytes"].to_list()


TORCH_JOB = """
import json, sys
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.profiler._memory_profiler import _CATEGORY_TO_INDEX, MemoryProfileTimeline

torch.manual_seed(0)
torch.set_num_threads(1)
batch = int(sys.argv[2])
with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as prof:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        with torch.profiler.record_function(f"ProfilerStep#{step}"):
            x, y = torch.randn(batch, 256), torch.randint(10, (batch,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
prof.export_chrome_trace(sys.argv[1])
_, sizes = MemoryProfileTimeline(prof._memory_profile())._coalesce_timeline("cpu")
peak = max(sizes, key=sum)
named = {str(category).rpartition(".")[2].lower(): index + 1 for category, index in _CATEGORY_TO_INDEX.items()}
most = {name: max(row[index] for row in sizes) for name, index in named.items()}
print(json.dumps({"peak": {name: peak[index] for name, index in named.items()}, "total": sum(peak), "most": most,
                  "parameters": sum(each.numel() * 4 for each in model.parameters())}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("batch", [64, 4096])
def test_torchs_own_memory_profile_agrees(tmp_path: Path, batch: int) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "job.py"
    script.write_text(TORCH_JOB)
    trace = tmp_path / "rank0.json"
    command = [sys.executable, str(script), str(trace), str(batch)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    theirs: dict[str, Any] = json.loads(out.splitlines()[-1])
    run = rankscope.open(trace, executor="serial")
    ours = {row["category"]: row for row in run.memory(by="category").iter_rows(named=True)}
    # Torch follows tensors through the graph of data, here they are told apart by phase and lifetime.
    assert sum(row["peak_bytes"] for row in ours.values()) == theirs["total"]
    assert ours["parameters"]["most_bytes"] == theirs["parameters"] == theirs["most"]["parameter"]
    assert ours["gradients"]["most_bytes"] == theirs["most"]["gradient"] == theirs["parameters"]
    assert ours["optimizer_state"]["most_bytes"] == theirs["most"]["optimizer_state"] == theirs["parameters"]
    assert ours["inputs"]["peak_bytes"] == pytest.approx(theirs["peak"]["input"], abs=16)
    # What a forward makes is torch's activations, short-lived results among them; a backward's are `autograd_detail`.
    rest = ("activation", "temporary", "autograd_detail", "none")
    mine = ("activations", "temporary", "unknown")
    assert sum(ours[name]["peak_bytes"] for name in mine if name in ours) == pytest.approx(
        sum(theirs["peak"][name] for name in rest), abs=16
    )
