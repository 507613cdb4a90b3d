"""slices: one name over ranks and steps, its distribution by hand."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run


def written(folder: Path) -> Run:
    ranks: dict[int, list[kineto.Event]] = {}
    for rank in (0, 1):
        events = [kineto.step(1, 0, 100), kineto.step(2, 100, 100), kineto.op("aten::mm", 250, 7)]
        for at, lasts in ((10, 4), (30, 6), (60, 20), (110, 5 + rank)):
            events.append(kineto.op("aten::mm", at, lasts))
        events += [
            kineto.launch(90, 2, correlation=1),
            kineto.kernel("aten_mm_kernel", 150, 3, correlation=1, stream=9),
        ]
        events += [kineto.annotation("aten::mm", 12, 1), kineto.frame("aten::mm", 14, 1), kineto.loading(20, 1)]
        ranks[rank] = events
    return rankscope.open(kineto.write_ranks(folder, ranks), executor="serial")


def test_by_step(tmp_path: Path) -> None:
    rows = written(tmp_path).slices(name="aten::mm").to_dicts()
    operators = [row for row in rows if row["rank"] == 0 and row["kind"] == "operator"]
    assert [(row["step"], row["calls"], row["total_ns"]) for row in operators] == [
        (1, 3, 30_000), (2, 1, 5_000), (None, 1, 7_000),
    ]  # fmt: skip
    first = operators[0]
    assert (first["min_ns"], first["p25_ns"], first["median_ns"], first["p75_ns"]) == (4_000, 5_000, 6_000, 13_000)
    assert (first["p95_ns"], first["max_ns"], first["mean_ns"]) == (pytest.approx(18_600), 20_000, 10_000)
    assert first["std_ns"] == pytest.approx(statistics.stdev([4_000, 6_000, 20_000]))
    assert {row["kind"] for row in rows} == {"operator", "range", "python"}
    assert all(row["start_ns"] is row["track"] is None for row in rows)


def test_match_by_rank_by_name_by_event(tmp_path: Path) -> None:
    run = written(tmp_path)
    kernel = run.slices(match="MM_KERNEL").row(0, named=True)
    # It runs in the second step and was launched in the first.
    assert (kernel["kind"], kernel["step"], kernel["calls"]) == ("kernel", 1, 1)
    by_rank = run.slices(name="aten::mm", by="rank").filter(kind="operator").select("rank", "calls", "total_ns").rows()
    assert by_rank == [(0, 5, 42_000), (1, 5, 43_000)]
    (whole,) = run.slices(match="^aten::mm$", by="name").filter(kind="operator").to_dicts()
    assert (whole["rank"], whole["calls"], whole["median_ns"]) == (None, 10, 6_000)
    events = run.slices(name="aten::mm", by="event").filter(kind="operator", rank=1)
    assert events["start_ns"].to_list() == [10_000, 30_000, 60_000, 110_000, 250_000]
    assert set(events["track"]) == {kineto.MAIN_THREAD}
    assert events["std_ns"].null_count() == 5


def test_steps_are_chosen(tmp_path: Path) -> None:
    written(tmp_path)
    run = rankscope.open(tmp_path, executor="serial", steps="2")
    assert run.slices(name="aten::mm").select("rank", "step", "calls").rows() == [(0, 2, 1), (1, 2, 1)]


def test_a_name_that_is_nowhere(tmp_path: Path) -> None:
    found: Any = written(tmp_path).slices(name="nothing of the kind")
    assert found.height == 0
    assert found.columns == [column.name for column in __import__("rankscope.analyses", fromlist=["get_analysis"])
                             .get_analysis("slices").columns]  # fmt: skip


def test_real_attention_over_eight_ranks(shared_traces: Path) -> None:
    found = rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial").slices(
        match="nccl.*AllGather"
    )
    assert set(found["rank"]) == set(range(8))
    assert set(found["kind"]) == {"kernel"}
    assert (found["min_ns"] <= found["median_ns"]).all()
    assert (found["p95_ns"] <= found["max_ns"]).all()
