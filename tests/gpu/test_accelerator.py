"""Windows, parity with torch's own figures, clocks, graphs, compilation, NCCL and memory history, on a real device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
import torch
from tests.capture.conftest import clean_environ, read_trace, steps_in, traces

import rankscope

from .conftest import Training

pytestmark = pytest.mark.gpu
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def recorded(folder: Path, training: Training, *, steps: int = 9, **options: object) -> rankscope.Run:
    settings = {"wait": 2, "warmup": 1, "active": 3, "repeat": 2} | options
    with rankscope.Profiler(folder, **settings) as profiler:  # type: ignore[arg-type]
        for _ in range(steps + 4):
            training.step()
            profiler.wait_for_exports()
            profiler.step()
    return rankscope.open(folder, executor="serial")


def events(path: Path) -> list[dict]:
    return [event for event in read_trace(path)["traceEvents"] if event.get("ph") == "X"]


def test_every_window_has_all_its_steps_and_their_work(tmp_path: Path, training: Training, device) -> None:
    recorded(tmp_path, training)
    written = traces(tmp_path)
    assert len(written) == 2
    for name, steps in zip(written, ([3, 4, 5], [9, 10, 11]), strict=True):
        assert steps_in(read_trace(tmp_path / name)) == steps
    if device.type == "cpu":
        return
    # A flush that loses events at the end of a window leaves its last step with fewer kernels.
    for name in written:
        found = events(tmp_path / name)
        launched = {e["args"]["correlation"] for e in found if e.get("cat") in ("cuda_runtime", "cuda_driver")}
        on_device = [e for e in found if e.get("cat") == "kernel"]
        counts = Counter(e["name"] for e in on_device)
        assert on_device
        assert {number % 3 for number in counts.values()} == {0}, counts
        assert all(e["args"]["correlation"] in launched for e in on_device)


def test_losses_are_the_same_with_capture(tmp_path: Path, device) -> None:
    alone, captured = Training(device), Training(device)
    recorded(tmp_path, captured)
    for _ in captured.losses:
        alone.step()
    assert alone.losses == captured.losses


def test_operators_equal_torchs_key_averages(tmp_path: Path, training: Training, device) -> None:
    activities = list(torch.profiler.supported_activities())
    training.step()
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        for _ in range(3):
            training.step()
        training.synchronize()
    path = tmp_path / "rank0.json"
    profiler.export_chrome_trace(str(path))
    rows = rankscope.open(path, executor="serial").operators(include="torch").to_dicts()
    ours = {row["name"]: row for row in rows}
    # Inside the first operator that launches a kernel CUPTI requests a buffer, for about 2 ms: `include="torch"`
    # subtracts it as torch does. A flush is on CUPTI's thread: where it crosses ranges torch subtracts too much by it.
    flushed_us = sum(row["host_total_ns"] for row in rows if row["name"] == "Buffer Flush") / 1000
    compared = 0
    for event in profiler.key_averages():
        if not event.key.startswith("aten::"):
            continue
        row = ours[event.key]
        # Torch adds calls inside calls of the same name.
        wanted = pytest.approx(event.self_cpu_time_total, rel=0.01, abs=3 + flushed_us)
        assert row["host_self_ns"] / 1000 == wanted, event.key
        if device.type != "cpu":
            assert row["device_self_ns"] / 1000 == pytest.approx(event.self_device_time_total, rel=0.01, abs=3)
        compared += 1
    assert compared > 5


def test_host_and_device_share_a_clock(tmp_path: Path, device, training: Training) -> None:
    """No kernel starts before its launch, and none ends after the host has waited for the device."""
    if device.type == "cpu":
        pytest.skip("no accelerator")
    run = recorded(tmp_path, training)
    row = run.launches().row(0, named=True)
    assert row["negative"] == 0, row["min_latency_ns"]
    for name in traces(tmp_path):
        found = events(tmp_path / name)
        waits = [e for e in found if "Synchronize" in e["name"] and e.get("cat") in ("cuda_runtime", "cuda_driver")]
        kernels = [e for e in found if e.get("cat") in ON_DEVICE]
        last = max(waits, key=lambda e: e["ts"])
        before = [e for e in kernels if e["ts"] < last["ts"]]
        assert all(e["ts"] + e["dur"] <= last["ts"] + last["dur"] + 5 for e in before)


def test_a_cuda_graph_inside_a_window(tmp_path: Path, cuda) -> None:
    weight, inputs = torch.randn(256, 256, device=cuda), torch.randn(256, 256, device=cuda)
    for _ in range(3):
        torch.mm(weight, inputs).relu_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.mm(weight, inputs).relu_()
    with rankscope.Profiler(tmp_path, wait=1, warmup=1, active=2, repeat=1) as profiler:
        for _ in range(5):
            graph.replay()
            torch.cuda.synchronize()
            profiler.step()
    assert torch.equal(result, torch.mm(weight, inputs).relu_())
    run = rankscope.open(tmp_path, executor="serial")
    calls = run.launches(by="call").to_dicts()
    assert [row for row in calls if "GraphLaunch" in row["name"]], calls
    assert run.kernels()["calls"].sum() >= 2 * 2


def test_a_graph_captured_inside_a_window_is_not_disturbed(tmp_path: Path, cuda) -> None:
    inputs = torch.randn(64, 64, device=cuda)
    with rankscope.Profiler(tmp_path, wait=0, warmup=1, active=3, repeat=1) as profiler:
        for step in range(5):
            if step == 2:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    result = inputs * 2
            if step > 2:
                graph.replay()
            torch.cuda.synchronize()
            profiler.step()
    assert torch.equal(result, inputs * 2)
    assert len(traces(tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch.compile imports what torch deprecates
@pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning")
def test_compiled_regions(tmp_path: Path, device) -> None:
    run = recorded(tmp_path, Training(device, compiled=True), wait=3)
    assert traces(tmp_path)
    rows = run.compile().to_dicts()
    assert rows
    if device.type != "cpu":
        assert any(row["name"].startswith("triton_") for row in run.kernels().to_dicts())


_NCCL = """
import os, sys, torch, torch.distributed as dist, rankscope
from tests.gpu.sharing import share_device
rank = int(os.environ["RANK"])
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
share_device(rank)
dist.init_process_group("nccl", device_id=device)
values = torch.full((1 << 20,), float(rank + 1), device=device)
with rankscope.Profiler(sys.argv[1], wait=1, warmup=1, active=3, repeat=1) as profiler:
    for _ in range(7):
        sums = values.clone()
        dist.all_reduce(sums)
        torch.cuda.synchronize()
        profiler.step()
assert sums[0].item() == 3.0
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_nccl_of_two_ranks(tmp_path: Path, cuda) -> None:
    """With one device both ranks use it."""
    script, folder = tmp_path / "job.py", tmp_path / "run"
    script.write_text(_NCCL)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environ = clean_environ()
    environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], str(Path(__file__).parents[2])])
    done = subprocess.run(
        [*command, str(script), str(folder)], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = rankscope.open(folder, executor="serial")
    rows = run.collectives().filter(pl.col("collective") == "all_reduce")
    assert rows.height == 2 * 3
    assert rows["bytes"].unique().to_list() == [4 << 20]
    assert rows["matched_ranks"].unique().to_list() == [2]


def test_memory_history_equals_the_allocators_own_figures(tmp_path: Path, cuda) -> None:
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    try:
        torch.cuda.reset_peak_memory_stats()
        kept = [torch.empty(1 << 20, device=cuda) for _ in range(4)]
        del kept[1:3]
        allocated = torch.cuda.memory_allocated()
        path = tmp_path / "rank0.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    run = rankscope.open(path, executor="serial")
    assert run.memory_snapshot()["allocated"].sum() == allocated


def test_peak_memory_equals_the_allocators_own(tmp_path: Path, cuda) -> None:
    training = Training(cuda)
    with rankscope.Profiler(tmp_path, wait=0, warmup=1, active=2, repeat=1, profile_memory=True) as profiler:
        for step in range(4):
            if step == 1:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            training.step()
            if step == 2:
                peak = torch.cuda.max_memory_allocated()
            profiler.step()
    rows = rankscope.open(tmp_path, executor="serial").memory().filter(pl.col("device") != "cpu")
    assert rows["peak_allocated"].max() == peak


def test_the_run_knows_its_device(tmp_path: Path, device, training: Training) -> None:
    if device.type == "cpu":
        pytest.skip("no accelerator")
    run = recorded(tmp_path, training)
    assert run.devices()["name"].to_list() == [getattr(torch, device.type).get_device_name()]


@pytest.mark.slow
def test_doctor_finds_the_device(cuda) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "doctor", "--json"],
        env=clean_environ() | {"HOME": os.environ.get("HOME", "/")}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert torch.cuda.get_device_name() in done.stdout
    assert json.loads(done.stdout)
