"""kernels: by launch shape and by operator, by hand and in the TensorBoard plugin's cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run

US = 1000
SHAPE = {"grid": [16, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 1024}


def plugin(shared_traces: Path, name: str) -> Run:
    path = shared_traces / f"tensorboard-plugin/unit_tests/single/test_{name}__json_content.pt.trace.json"
    return rankscope.open(path, executor="serial")


def test_plugin_grouping(shared_traces: Path) -> None:
    run = plugin(shared_traces, "group_by_kernel_columns")
    shaped = {row["block"]: row for row in run.kernels(by="shape").to_dicts()}
    first, second = shaped["[16,16,16]"], shaped["[16,16,64]"]
    assert (first["calls"], first["total_ns"], first["launched_by"]) == (2, 25 * US, "op1")
    assert (second["calls"], second["total_ns"], second["launched_by"]) == (2, 30 * US, "op2")
    assert (first["grid"], first["registers"], first["shared_memory"]) == ("[16,1,1]", 18, 0)
    by_operator = {row["launched_by"]: row["total_ns"] for row in run.kernels(by="operator").to_dicts()}
    assert by_operator == {"op1": 38 * US, "op2": 17 * US}


def test_plugin_missing_columns_are_null_and_their_own_row(shared_traces: Path) -> None:
    rows = plugin(shared_traces, "group_by_kernel_columns_invalid_input").kernels(by="shape").to_dicts()
    keys = {(row["grid"], row["block"], row["registers"], row["shared_memory"]): row["total_ns"] for row in rows}
    grid, block = "[16,1,1]", "[16,16,16]"
    assert keys == {
        (None, block, 18, 0): 1 * US,
        (grid, None, 18, 0): 2 * US,
        (grid, block, None, 0): 3 * US,
        (grid, block, 18, None): 4 * US,
        (None, None, None, None): 5 * US,
    }


def test_plugin_one_launch_of_several_kernels(shared_traces: Path) -> None:
    row = plugin(shared_traces, "runtime_launch_multipe_kernels").kernels().row(0, named=True)
    assert (row["calls"], row["launched_by"]) == (2, "Broadcast")


def made(folder: Path, steps: str | None = None, **parameters: Any) -> list[dict[str, Any]]:
    events = [
        kineto.step(1, 0, 100), kineto.step(2, 100, 100),
        kineto.op("aten::mm", 5, 20, external=1), kineto.launch(8, 2, correlation=1, external=1),
        kineto.kernel("gemm", 20, 10, correlation=1, external=1, **SHAPE, **{"blocks per SM": 2.0}),
        kineto.op("aten::bmm", 105, 20), kineto.launch(108, 2, correlation=2),
        kineto.kernel("gemm", 120, 30, correlation=2, **SHAPE, **{"blocks per SM": 1.0}),
        kineto.kernel("relu", 160, 4),
    ]  # fmt: skip
    path = kineto.write(folder / "r.json", kineto.trace(events, rank=0))
    return rankscope.open(path, executor="serial", steps=steps).kernels(**parameters).to_dicts()


def test_by_hand(tmp_path: Path) -> None:
    gemm, relu = made(tmp_path)
    assert (gemm["launched_by"], gemm["grid"], gemm["registers"]) == ("aten::bmm", None, None)
    assert gemm["blocks_per_sm"] == pytest.approx((2 * 10 + 1 * 30) / 40)
    assert gemm["share"] == pytest.approx(40 / 44)
    assert (relu["launched_by"], relu["blocks_per_sm"]) == (None, None)
    assert [row["launched_by"] for row in made(tmp_path, by="operator")] == ["aten::bmm", "aten::mm", None]
    assert [row["launched_by"] for row in made(tmp_path, steps="1")] == ["aten::mm"]
    (matched,) = made(tmp_path, match="^RE")
    assert (matched["name"], matched["share"]) == ("relu", pytest.approx(4 / 44))


def test_the_longest_call_is_one_within_a_step(tmp_path: Path) -> None:
    """It is what a kernel's link opens: not the autotuning before the first step."""
    events = [
        kineto.step(1, 100, 100), kineto.step(2, 200, 100),
        kineto.launch(5, 2, correlation=1), kineto.kernel("gemm", 10, 50, correlation=1),
        kineto.launch(8, 2, correlation=2), kineto.kernel("tune", 70, 25, correlation=2),
        kineto.launch(110, 2, correlation=3), kineto.kernel("gemm", 120, 10, correlation=3),
        kineto.launch(195, 2, correlation=4), kineto.kernel("gemm", 210, 20, correlation=4),
    ]  # fmt: skip
    path = kineto.write(tmp_path / "r.json", kineto.trace(events, rank=0))
    gemm, tune = rankscope.open(path, executor="serial").kernels().sort("name").to_dicts()
    assert (gemm["max_ns"], gemm["longest_ns"]) == (50 * US, 20 * US)
    assert gemm["longest_start_ns"] - tune["longest_start_ns"] == (210 - 70) * US
    assert tune["longest_ns"] == 25 * US  # no step launches one
