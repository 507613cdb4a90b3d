"""Ranges around Python's garbage collections, only while a window is recorded."""

from __future__ import annotations

import gc
from pathlib import Path

import polars as pl

import rankscope
from rankscope.capture import recording


def test_collections_of_recorded_steps_are_in_the_trace(tmp_path: Path) -> None:
    before = list(gc.callbacks)
    with rankscope.Profiler(tmp_path, wait=2, warmup=1, active=2, repeat=1) as profiler:
        for _ in range(8):
            gc.collect()
            profiler.step()
    assert gc.callbacks == before
    frame = rankscope.open(tmp_path, executor="serial").annotations(by="step")
    full = frame.filter(pl.col("name") == f"{recording.GC_RANGE_NAME}2")
    assert sorted(full["step"].to_list()) == [3, 4]
    assert full["calls"].min() >= 1
    assert set(full["origin"]) == {"torch"}


def test_young_generations_are_left_out() -> None:
    ranges = recording.GcRanges()
    ranges.begin()
    ranges.begin()
    try:
        assert sum(getattr(each, "__self__", None) is ranges for each in gc.callbacks) == 1
        ranges._mark("start", {"generation": 0})
        assert ranges._range is None
        ranges._mark("stop", {"generation": 0})
    finally:
        ranges.end()
        ranges.end()
    assert all(getattr(each, "__self__", None) is not ranges for each in gc.callbacks)


def test_errors_stay_inside(monkeypatch) -> None:
    monkeypatch.setattr(recording.torch.profiler, "record_function", None)
    recording.GcRanges()._mark("start", {"generation": 2})
