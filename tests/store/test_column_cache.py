"""Columns in memory: the same numbers as from disk, no more than the bound, and nothing in a worker."""

from __future__ import annotations

import pickle
from pathlib import Path

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.store.cache import CachedTrace
from rankscope.store.column_cache import Columns

COLUMNS = ("start_ns", "end_ns", "name")


@pytest.fixture
def traces(tmp_path: Path) -> list[CachedTrace]:
    """A rank with two files of 3 and 2 kernels."""
    for first, count in ((0, 3), (10, 2)):
        begin = 1000.0 * first
        kernels = [kineto.kernel(f"k{n}", begin + 10.0 * n, 5) for n in range(count)]
        events = [kineto.step(first, begin, 100), *kernels]
        kineto.write(tmp_path / f"rank0_iter{first}_{first}.trace.json", kineto.trace(events, rank=0))
    run = rankscope.open(tmp_path, executor="serial")
    return list(run.loaded.ranks[0])


def test_what_is_kept_is_what_is_on_disk(traces: list[CachedTrace], monkeypatch: pytest.MonkeyPatch) -> None:
    columns = Columns()
    first = columns.load(traces, "device_events", COLUMNS)
    assert first["window"].to_list() == [0, 0, 0, 1, 1]
    assert first["name"].to_list() == ["k0", "k1", "k2", "k0", "k1"]
    monkeypatch.setattr(CachedTrace, "load_all", lambda *_: pytest.fail("read again"))
    again = columns.load(traces, "device_events", ("name", "end_ns"))
    assert again.equals(first.select("end_ns", "name", "window"))


def test_only_what_is_missing_is_read(traces: list[CachedTrace], monkeypatch: pytest.MonkeyPatch) -> None:
    columns, read = Columns(), []
    load = CachedTrace.load_all

    def counting(self: CachedTrace, tables: dict[str, list[str]]) -> dict[str, pl.DataFrame]:
        read.extend(tables.values())
        return load(self, tables)

    monkeypatch.setattr(CachedTrace, "load_all", counting)
    columns.load(traces, "device_events", ("name",))
    whole = columns.load(traces, "device_events", COLUMNS)
    assert read == [["name"]] * 2 + [["end_ns", "start_ns"]] * 2
    assert whole.columns == ["end_ns", "name", "start_ns", "window"]
    assert whole["start_ns"].to_list() == [0, 10_000, 20_000, 10_000_000, 10_010_000]


def test_the_bound_holds_and_the_longest_unwanted_goes_first(traces: list[CachedTrace]) -> None:
    # Five rows of eight bytes a column, and two bytes a row for the window.
    columns = Columns(limit=5 * (8 + 8 + 2))
    columns.load(traces, "device_events", ("start_ns",))
    columns.load(traces, "device_events", ("end_ns",))
    assert columns.bytes == 90
    columns.load(traces, "device_events", ("start_ns",))
    columns.load(traces, "device_events", ("device",))
    assert columns.bytes == 90
    kept = {key[2] for key in columns._kept}
    assert kept == {"start_ns", "device", "window"}
    # One that is larger than the bound is not kept, and drives out nothing.
    small = Columns(limit=8)
    small.load(traces, "device_events", COLUMNS)
    assert small.bytes == 0


def test_a_worker_gets_none(traces: list[CachedTrace]) -> None:
    columns = Columns()
    columns.load(traces, "device_events", COLUMNS)
    sent = pickle.loads(pickle.dumps(columns))
    assert sent.bytes == 0
    assert sent.load(traces, "device_events", COLUMNS).equals(columns.load(traces, "device_events", COLUMNS))
    assert sent.bytes == 0
