"""Calls that wait for the device: worked out by hand."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.ingest.kineto import read_kineto
from rankscope.primitives.activity import covered_time
from rankscope.primitives.synchronization import host_waits, without_profilers_wait


def run_of(tmp_path: Path, events: list[kineto.Event]) -> list[dict[str, object]]:
    return rankscope.open(kineto.write_ranks(tmp_path, {0: events})).synchronization().to_dicts()


def sync(ts: float, dur: float, name: str = "cudaStreamSynchronize", **args: object) -> kineto.Event:
    return kineto.launch(ts, dur, name=name, **args)  # type: ignore[arg-type]


def test_idle_after_a_call_is_its_own(tmp_path: Path) -> None:
    events = [
        kineto.step(1, 0, 1000),
        kineto.annotation("train", 50, 800),
        kineto.kernel("k", 100, 200),
        # The device runs dry at 300, the host goes on at 320 and its next kernel starts at 400: 100 µs.
        kineto.op("aten::item", 140, 185),
        kineto.op("aten::_local_scalar_dense", 145, 178),
        sync(150, 170),
        kineto.kernel("k", 400, 300),
        # The device is still busy when the call ends: nothing lost.
        sync(500, 100),
        # After the profiler's window: not of a step.
        sync(1500, 100, "cudaDeviceSynchronize"),
        # Makes a stream wait, and not the host.
        sync(700, 5, "cudaStreamWaitEvent"),
        kineto.kernel("k", 1200, 10),
    ]
    rows = run_of(tmp_path, events)
    assert [(r["call"], r["operator"], r["range"], r["calls"], r["idle_ns"]) for r in rows] == [
        ("cudaStreamSynchronize", "aten::_local_scalar_dense", "train", 1, 100_000),
        ("cudaStreamSynchronize", None, "train", 1, 0),
    ]
    assert rows[0]["per_step_ns"] == 100_000
    assert rows[0]["total_ns"] == 170_000
    assert rows[0]["steps"] == 1


def test_idle_before_the_call_is_not_its_fault(tmp_path: Path) -> None:
    # The device has been idle since 10; the call from 100 to 110 sees it idle, the next kernel comes at 150.
    events = [kineto.step(1, 0, 1000), kineto.kernel("k", 0, 10), sync(100, 10), kineto.kernel("k", 150, 10)]
    # Without the call the host would have been 10 µs earlier.
    assert run_of(tmp_path, events)[0]["idle_ns"] == 10_000


def test_two_calls_in_one_gap_share_it(tmp_path: Path) -> None:
    events = [
        kineto.step(1, 0, 1000),
        kineto.kernel("k", 0, 100),
        sync(50, 60),
        sync(120, 10, "cudaDeviceSynchronize"),
        kineto.kernel("k", 200, 10),
    ]
    rows = {row["call"]: row["idle_ns"] for row in run_of(tmp_path, events)}
    # Dry at 100. The first ends at 110; of the gap from 120 to 200 the second took 10 µs.
    assert rows == {"cudaStreamSynchronize": 10_000, "cudaDeviceSynchronize": 10_000}


def test_a_call_on_another_thread_is_in_no_operator_of_this_one(tmp_path: Path) -> None:
    events = [
        kineto.step(1, 0, 1000),
        kineto.op("aten::mm", 0, 500),
        sync(10, 10, tid=kineto.BACKWARD_THREAD),
        kineto.kernel("k", 0, 15),
        kineto.kernel("k", 30, 15),
    ]
    assert [(row["operator"], row["idle_ns"]) for row in run_of(tmp_path, events)] == [(None, 10_000)]


def test_the_profilers_own_wait_is_left_out(tmp_path: Path) -> None:
    """To stop, torch.profiler waits for the device, which has been idle since 100; the user's wait before it stays."""
    events = [
        kineto.op("aten::mm", 0, 10),
        kineto.launch(5, 5, correlation=1),
        kineto.kernel("k", 50, 50, correlation=1),
        sync(60, 50, "cudaDeviceSynchronize"),
        kineto.launch(120, 5, correlation=2),
        kineto.kernel("k", 130, 50, correlation=2),
        sync(300, 500, "cudaDeviceSynchronize"),
        # NCCL's watchdog goes on.
        sync(900, 1, "cudaEventQuery", tid=kineto.BACKWARD_THREAD),
    ]
    rows = run_of(tmp_path, events)
    assert [(row["calls"], row["total_ns"], row["idle_ns"]) for row in rows] == [(1, 50_000, 30_000)]


def test_the_last_wait_of_a_program_that_goes_on_is_its_own(tmp_path: Path) -> None:
    kernels = [kineto.kernel("k", 0, 100), kineto.kernel("k", 400, 10, correlation=1)]
    wait = sync(110, 50, "hipDeviceSynchronize")
    for number, later in enumerate([kineto.op("aten::mm", 200, 10), kineto.launch(200, 10, correlation=1)]):
        assert run_of(tmp_path / f"goes{number}", [*kernels, wait, later])[0]["idle_ns"] == 50_000
    inside = kineto.op("aten::item", 105, 60)
    assert run_of(tmp_path / "inside", [*kernels[:1], wait, inside])[0]["calls"] == 1


def test_a_wait_after_the_last_device_event_delays_nothing(tmp_path: Path) -> None:
    events = [kineto.kernel("k", 0, 100), sync(50, 200), kineto.op("aten::mm", 400, 10)]
    assert [(row["total_ns"], row["idle_ns"]) for row in run_of(tmp_path, events)] == [(200_000, 0)]


@pytest.mark.parametrize(
    ("name", "own", "all_of_them"),
    [
        ("tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 1, 2),
        ("tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 1, 2),
        ("tracelens/inference/sglang_decode/capture_traces/bs_32_rank0.json.gz", 1, 2),
        ("tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz", 1, 1),
    ],
)
def test_it_is_the_profilers_by_its_python_stack(shared_traces: Path, name: str, own: int, all_of_them: int) -> None:
    """What is left out of real traces is the call inside of `torch/autograd/profiler.py … __exit__`, and no other."""
    tables = read_kineto(str(shared_traces / name)).tables
    waits = host_waits(tables["runtime_calls"])
    kept = without_profilers_wait(waits, tables["host_ops"], tables["device_events"])
    frames = tables["python_frames"].filter(
        pl.col("name").str.contains(r"torch/autograd/profiler\.py\(\d+\): __exit__")
    )
    exits = covered_time(frames)
    whole = waits.filter(pl.col("name").str.contains("DeviceSynchronize"))
    inside = exits.before(whole["start_ns"].to_numpy() + 1) > exits.before(whole["start_ns"].to_numpy())
    left_out = ~whole["start_ns"].is_in(kept["start_ns"].implode())
    assert whole.height == all_of_them
    assert int(inside.sum()) == own
    assert left_out.to_list() == inside.tolist()


def test_names_of_other_vendors(tmp_path: Path) -> None:
    calls = ["hipStreamSynchronize", "hipEventSynchronize", "zeEventHostSynchronize", "urQueueFinish", "urEventWait"]
    others = ["hipStreamWaitEvent", "urEnqueueEventsWait", "cudaLaunchKernel"]
    events = [kineto.step(1, 0, 1000), kineto.kernel("k", 0, 5)]
    events += [sync(10 + 20 * n, 5, name) for n, name in enumerate(calls + others)]
    assert {row["call"] for row in run_of(tmp_path, events)} == set(calls)


def test_without_any(tmp_path: Path) -> None:
    assert run_of(tmp_path, [kineto.step(1, 0, 10), kineto.op("aten::mm", 1, 2)]) == []
