"""launches: latency, queue and launch-bound time by hand; graphs, drivers, skewed clocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run

US = 1000


def written(folder: Path, events: list[kineto.Event]) -> Run:
    return rankscope.open(kineto.write(folder / "r.json", kineto.trace(events, rank=0)), executor="serial")


def small() -> list[kineto.Event]:
    return [
        kineto.kernel("before", 0, 10),
        kineto.launch(20, 5, correlation=1), kineto.kernel("a", 30, 20, correlation=1),
        kineto.launch(32, 4, correlation=2, name="cuLaunchKernelEx", cat="cuda_driver"),
        kineto.kernel("b", 50, 10, correlation=2),
        kineto.launch(90, 6, correlation=3, name="hipGraphLaunch"),
        kineto.kernel("g1", 100, 5, correlation=3), kineto.kernel("g2", 110, 5, correlation=3),
        kineto.kernel("g3", 118, 5, stream=9, correlation=3),
    ]  # fmt: skip


def test_by_hand(tmp_path: Path) -> None:
    row = written(tmp_path, small()).launches().row(0, named=True)
    assert (row["events"], row["launchless"], row["launches"], row["call_ns"]) == (6, 1, 3, 15 * US)
    # 10, 18, 10, 20, 28
    assert (row["min_latency_ns"], row["median_latency_ns"], row["max_latency_ns"]) == (10 * US, 18 * US, 28 * US)
    assert row["mean_latency_ns"] == pytest.approx(17.2 * US)
    # `a` after `before`, `g1` after `b`, `g3` alone on its stream.
    assert (row["negative"], row["unqueued"], row["unqueued_latency_ns"]) == (0, 3, 10 * US)
    # depth: 1 in [20, 30), 1 in [32, 50), 3, 2 and 1 in [90, 100), [100, 110), [110, 118)
    assert row["max_queue"] == 3
    assert row["mean_queue"] == pytest.approx((10 + 18 + 30 + 20 + 8) / 98)
    # Nothing runs in [10, 30), [60, 100), [105, 110), [115, 118); three are queued from 90, two from 100.
    assert row["launch_bound_ns"] == (20 + 30 + 0 + 3) * US
    assert row["launch_bound_share"] == pytest.approx(53 / 123)
    assert row["launch_bound_longest_ns"] == 30 * US


def test_by_call_stream_and_kernel(tmp_path: Path) -> None:
    run = written(tmp_path, small())
    calls = {row["name"]: row for row in run.launches(by="call").to_dicts()}
    assert {name: (row["events"], row["launches"]) for name, row in calls.items()} == {
        None: (1, 0), "cudaLaunchKernel": (1, 1), "cuLaunchKernelEx": (1, 1), "hipGraphLaunch": (3, 1),
    }  # fmt: skip
    assert calls["hipGraphLaunch"]["call_ns"] == 6 * US
    assert calls["hipGraphLaunch"]["max_queue"] is None
    streams = {row["stream"]: row for row in run.launches(by="stream").to_dicts()}
    assert (streams[7]["max_queue"], streams[9]["max_queue"]) == (2, 1)
    assert set(run.launches(by="kernel")["name"]) == {"before", "a", "b", "g1", "g2", "g3"}


def test_a_device_before_its_launch_is_kept_and_told(tmp_path: Path) -> None:
    run = written(tmp_path, [kineto.launch(50, 5, correlation=1), kineto.kernel("early", 26, 10, correlation=1)])
    row = run.launches().row(0, named=True)
    assert (row["negative"], row["min_latency_ns"]) == (1, -24 * US)
    finding = next(finding for finding in run.findings if finding.id == "host-device-clock-skew")
    assert finding.evidence[0].value == 24 * US


def test_events_before_their_launch_are_counted_by_rank(tmp_path: Path) -> None:
    events = []
    for number, name in enumerate(("a", "b", "b"), 1):
        events += [
            kineto.launch(100 * number + 50, 5, correlation=number),
            kineto.kernel(name, 100 * number + 26, 10, correlation=number),
        ]
    run = written(tmp_path, events)
    result = run.analyze("launches", parameters={"launches": {"by": "kernel"}})["launches"]
    assert [each.value for each in result.findings[0].evidence] == [24 * US, 3]


def test_real_v100_clocks_are_skewed(shared_traces: Path) -> None:
    run = rankscope.open(shared_traces / "torchrec/ddp-resnet18-2ranks", executor="serial")
    assert run.launches().filter(run.launches()["negative"] > 0).height
    assert "host-device-clock-skew" in {finding.id for finding in run.findings}


def test_graphs_never_make_a_queue_negative(shared_traces: Path) -> None:
    path = shared_traces / "tracelens/inference/vllm_decode_full/graph_execution.json.gz"
    row = rankscope.open(path, executor="serial").launches().row(0, named=True)
    # 421 kernels of one graph: launched at once, they run out one by one.
    assert row["max_queue"] >= 421
    assert row["mean_queue"] > 0


def test_nothing_was_launched(tmp_path: Path) -> None:
    row = written(tmp_path, [kineto.op("aten::mm", 0, 10)]).launches().row(0, named=True)
    assert (row["rank"], row["events"], row["max_queue"], row["median_latency_ns"]) == (0, 0, None, None)
