"""Kernels so short that launching them takes longer than running them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work

from rankscope.answers.diagnosis.rules.small_kernels import rule
from rankscope.results import Inputs, Options
from rankscope.rundir.manifest import RankManifest


def many(at: float, every: float, dur: float) -> list[kineto.Event]:
    return [event for n in range(40) for event in work(at + 10 + every * n, dur, "elementwise")]


def test_fires_where_the_device_idles_before_them(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: many(at, 20, 3))["small_kernels"]
    assert finding.severity == "warning"
    assert [each.value for each in finding.evidence[:3]] == [40, 40, 120_000]
    # 40 kernels of 3 µs every 20 µs: 39 gaps of 17 µs a step. Before the first of a step the host is silent for 200 µs,
    # but for its launch of 3 µs, in three of four steps.
    assert finding.saving_ns == 39 * 17_000 + 3_000


def test_fires_for_operators_where_there_is_no_device(tmp_path: Path) -> None:
    def make(_: int, at: float) -> list[kineto.Event]:
        return [kineto.op("aten::add", at + 10 + 10 * n, 6) for n in range(90)]

    finding = diagnosed(tmp_path, make)["small_kernels"]
    # 90 operators of 6 µs and 89 gaps of 4 µs between them; 108 µs without a record are none.
    assert finding.saving_ns == 90 * 6_000 + 89 * 4_000
    assert "operators" in finding.title


def test_does_not_fire_where_they_follow_one_another(tmp_path: Path) -> None:
    assert "small_kernels" not in diagnosed(tmp_path, lambda _, at: [*many(at - 8, 3, 3), *work(at + 122, 876)])


def test_does_not_fire_where_kernels_are_long(tmp_path: Path) -> None:
    assert "small_kernels" not in diagnosed(tmp_path, lambda _, at: many(at, 24, 20))


def test_does_not_fire_where_the_device_idles_elsewhere(tmp_path: Path) -> None:
    """Short kernels in a row, and then a gap of 400 µs before a long one: their being short is not what it costs."""
    found = diagnosed(tmp_path, lambda _, at: [*many(at - 8, 3, 3), *work(at + 520, 470)])
    assert "small_kernels" not in found


def test_fires_where_recording_takes_longer_than_the_operators_themselves() -> None:
    """30 ms a step recorded, 14.6 ms not: what is left of the operators is all of a step that is not recorded."""
    capture = [RankManifest(rank=0, step_median_ns={"wait": 14_600_000})]
    times = {"rank": 0, "window": 0, "window_ns": 30_000_000}
    gaps = {"rank": 0, "on_device": False, "pieces": 4000, "short": 4000, "late_ns": 0, "late_short_ns": 5_000_000}
    results = {
        "step_time": pl.DataFrame([{**times, "step": step} for step in range(6)]),
        "idle_by_step": pl.DataFrame([{**gaps, "short_ns": 24_500_000} for _ in range(6)]),
    }
    (finding,) = rule.find(Inputs(Options(), (), results, capture=capture))
    assert (finding.severity, finding.saving_ns) == ("warning", 29_500_000 - (30_000_000 - 14_600_000))
