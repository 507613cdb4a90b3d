"""utilization: the TensorBoard plugin's cases, and what its tests do not look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import kineto

import rankscope


def only(path: Path, steps: str | None = None) -> dict[str, Any]:
    return rankscope.open(path, executor="serial", steps=steps).utilization().row(0, named=True)


def plugin(shared_traces: Path, name: str) -> dict[str, Any]:
    return only(shared_traces / f"tensorboard-plugin/unit_tests/single/test_{name}__json_content.pt.trace.json")


def test_plugin_figures(shared_traces: Path) -> None:
    row = plugin(shared_traces, "gpu_utilization")
    # The plugin divides by the host's span, 120 µs; the device's is 90.
    assert row["utilization"] == 60 / 90
    assert row["sm_efficiency"] == pytest.approx(41.0 / 90, rel=1e-6)
    assert row["occupancy"] == pytest.approx((0.6 * 10 + 0.1 * 15 + 1.0 * 25 + 0.3 * 20) / 70, rel=1e-6)


def test_plugin_kernels_outside_of_the_steps(shared_traces: Path) -> None:
    row = plugin(shared_traces, "gpu_utilization_kernel_out_of_step")
    assert (row["utilization"], row["sm_efficiency"], row["occupancy"]) == (0, 0, None)


def test_communication_copies_steps_and_devices(tmp_path: Path) -> None:
    blocks = {"blocks per SM": 0.75, "est. achieved occupancy %": 50}
    events = [
        kineto.step(1, 0, 100), kineto.step(2, 100, 100),
        kineto.launch(5, 1, correlation=1), kineto.kernel("gemm", 10, 40, correlation=1, **blocks),
        kineto.launch(6, 1, correlation=2), kineto.collective(30, 40, correlation=2, **{"blocks per SM": 0.5}),
        kineto.launch(7, 1, correlation=3), kineto.memcpy(80, 10, correlation=3),
        kineto.launch(105, 1, correlation=4), kineto.kernel("gemm", 150, 100, correlation=4),
        kineto.launch(106, 1, correlation=5), kineto.kernel("other", 110, 10, device=1, correlation=5),
    ]  # fmt: skip
    path = kineto.write(tmp_path / "rank0.json", kineto.trace(events, rank=0))
    rows = rankscope.open(path, executor="serial").utilization().to_dicts()
    first, second = rows
    # The last window ends with its last kernel: the span is [0, 250).
    assert [row["device"] for row in rows] == [0, 1]
    assert first["span_ns"] == second["span_ns"] == 250_000
    assert first["kernel_ns"] == 160_000
    assert first["compute_utilization"] == pytest.approx((40 + 100) / 250)
    # [10, 30) 0.75, [30, 50) 1.25 → 1, [50, 70) 0.5
    assert first["sm_efficiency"] == pytest.approx((15 + 20 + 10) / 250)
    assert first["occupancy"] == 50
    assert second["utilization"] == pytest.approx(10 / 250)
    assert second["sm_efficiency"] is None
    assert only(path, "1")["span_ns"] == 100_000
    assert only(path, "1")["kernel_ns"] == 60_000


def test_a_trace_of_the_host_alone_says_nothing(tmp_path: Path) -> None:
    row = only(kineto.write(tmp_path / "rank0.json", kineto.trace([kineto.op("a", 0, 10)], rank=0)))
    assert row == {**dict.fromkeys(row), "rank": 0, "span_ns": 10_000}
