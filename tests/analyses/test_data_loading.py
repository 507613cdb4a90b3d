"""data_loading: loading by step, what of it is hidden, and the real pair with and without workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto

import rankscope


def test_by_hand(tmp_path: Path) -> None:
    events = [
        kineto.step(1, 0, 100), kineto.loading(0, 30), kineto.annotation("## load_batch ##", 20, 20),
        kineto.launch(60, 5, correlation=1), kineto.kernel("k", 70, 50, correlation=1),
        # The second batch is fetched while the first step's kernel runs to 120.
        kineto.step(2, 100, 100), kineto.loading(100, 45),
        kineto.launch(150, 5, correlation=2), kineto.kernel("k", 160, 10, correlation=2),
    ]  # fmt: skip
    path = kineto.write(tmp_path / "r.json", kineto.trace(events, rank=0))
    rows = rankscope.open(path, executor="serial").data_loading().to_dicts()
    names = ("step", "window_ns", "batches", "loading_ns", "exposed_ns", "longest_ns")
    assert [tuple(row[name] for name in names) for row in rows] == [
        # Windows [0, 120) and [120, 200): 20 of the second fetch are hidden in the first.
        (1, 120_000, 2, 60_000, 40_000, 30_000),
        (2, 80_000, 1, 25_000, 25_000, 45_000),
    ]
    assert rows[0]["loading_share"] == pytest.approx(60 / 120)
    assert rows[0]["exposed_share"] == pytest.approx(40 / 120)
    (second,) = rankscope.open(path, executor="serial", steps="2").data_loading().to_dicts()
    assert second == rows[1]


def test_no_loader_is_zero(tmp_path: Path) -> None:
    path = kineto.write(tmp_path / "r.json", kineto.trace([kineto.step(1, 0, 10)], rank=0))
    row = rankscope.open(path, executor="serial").data_loading().row(0, named=True)
    assert (row["batches"], row["loading_ns"], row["exposed_ns"], row["longest_ns"]) == (0, 0, 0, None)


def test_workers_take_the_loading_away(shared_traces: Path) -> None:
    folder = shared_traces / "tensorboard-plugin"
    without = rankscope.open(
        folder / "resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz", executor="serial"
    )
    workers = rankscope.open(folder / "resnet50_num_workers_4", executor="serial")
    before, after = without.data_loading()["exposed_ns"].mean(), workers.data_loading()["exposed_ns"].mean()
    assert isinstance(before, float)
    assert isinstance(after, float)
    assert before > 50e6
    assert after < 0.03 * before
