"""recording: what the ranks' manifests say of their capture."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto

import rankscope
from rankscope.rundir.manifest import LostWindow, RankManifest, WrittenTrace, to_json


def test_a_row_for_each_manifest(tmp_path: Path) -> None:
    metadata = {"schema_version": 1, "run_id": "r"}
    for rank in (0, 1):
        kineto.write(
            tmp_path / f"rank{rank}.json",
            kineto.trace(kineto.small_step(), rank=rank, world_size=2, rankscope=metadata),
        )
    written = (
        WrittenTrace("rank0.json", 1, 1, bytes=100, json_bytes=900, stall_ns=5_000, off_loop_ns=7_000),
        WrittenTrace("rank0b.json", 2, 2, bytes=50, json_bytes=None, stall_ns=1_000),
    )
    manifest = RankManifest(
        run_id="r", rank=0, host="node0", state="finished", steps=40, written=written, rotated=3,
        failed=(LostWindow(3, 4, "disk full"), LostWindow(5, 6, "disk full")), skipped=(LostWindow(7, 8, "busy"),),
        step_median_ns={"wait": 1_000_000, "active": 1_250_000}, warnings=("slow",),
    )  # fmt: skip
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank0.json").write_bytes(to_json(manifest))
    result = rankscope.open(tmp_path, executor="serial").analyze("recording")["recording"]
    (row,) = result.frame.to_dicts()
    assert (row["rank"], row["host"], row["traces"], row["bytes"], row["json_bytes"]) == (0, "node0", 2, 150, 900)
    assert (row["stall_ns"], row["off_loop_ns"], row["removed"]) == (6_000, 7_000, 3)
    assert (row["plain_step_ns"], row["recorded_step_ns"], row["step_cost_ns"]) == (1_000_000, 1_250_000, 250_000)
    assert row["step_cost"] == pytest.approx(0.25)
    assert (row["failed"], row["skipped"], row["reasons"], row["warnings"]) == (2, 1, "busy; disk full", "slow")
    assert result.headline is not None
    assert {each.name: each.value for each in result.headline.values} == {
        "traces": 2, "lost": 3, "cost": pytest.approx(0.25),
    }  # fmt: skip


def test_without_manifests_there_is_nothing_to_say(tmp_path: Path) -> None:
    kineto.write(tmp_path / "rank0.json", kineto.trace(kineto.small_step(), rank=0))
    result = rankscope.open(tmp_path, executor="serial").analyze("recording")["recording"]
    assert result.frame.is_empty()
    assert result.headline is None
