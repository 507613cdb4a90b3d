"""Rows that were put aside on disk come back as if they had never left memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.kineto import collective, event, frame, kernel, launch, memcpy, memory, op, step, trace, write

from rankscope.ingest.kineto import KinetoTrace, read_kineto
from rankscope.ingest.task import ingest_trace
from rankscope.store import spool as spool_module
from rankscope.store.schema import TABLES
from rankscope.store.spool import Spool


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So little memory that almost every chunk is put aside, and slices of a few rows."""
    monkeypatch.setattr(spool_module, "PENDING_BYTES", 4000)
    monkeypatch.setattr(spool_module, "SLICE_ROWS", 37)
    yield


def mixed(count: int, seed: int) -> list[dict[str, object]]:
    """Events of every table, in no order, with equal starts among them, and everything linked."""
    source = random.Random(seed)
    made: list[dict[str, object]] = []
    for number in range(count):
        at = source.randrange(count // 3) * 10.0
        made += [
            op(f"aten::op{number % 9}", at, source.choice([0, 5, 50]), external=number, tid=number % 3),
            launch(at + 1, 1, correlation=number, external=number),
            kernel(f"k{number % 5}", at + 2, source.randrange(20), correlation=number, external=number),
            frame(f"f{number % 4}.py(1): f", at, source.choice([5, 500]), python_id=number),
            memory(at, 512, allocated=number, reserved=number),
            event("c", at, ph="C", args={"v": number}),
            event("f", at, ph="s", id=number, cat="ac2g"),
        ]
        if number % 7 == 0:
            made += [
                collective(at + 3, 2, correlation=number, external=number, sequence=number),
                memcpy(at + 4, 1, correlation=number, size=number),
                op("record_param_comms", at, 2, external=number, **{"Collective name": "x", "Seq": number}),
                step(number, at, 30),
                event("sync", at, 1, cat="cuda_sync"),
                event("thread_name", None, ph="M", args={"name": str(number)}),
            ]
    source.shuffle(made)
    return made


def read_aside(file: Path, aside: Path) -> dict[str, pl.DataFrame]:
    parts: dict[str, list[pl.DataFrame]] = {name: [table.empty()] for name, table in TABLES.items()}
    aside.mkdir()
    read_kineto(
        str(file), chunk_bytes=20_000, spool_folder=lambda: aside, sink=lambda name, rows: parts[name].append(rows)
    )
    assert list(aside.glob(".*.fragment")), "nothing was put aside"
    return {name: pl.concat(frames) for name, frames in parts.items()}


@pytest.mark.parametrize("seed", range(3))
def test_put_aside_equals_kept_in_memory(tmp_path: Path, narrow: None, seed: int) -> None:
    file = write(tmp_path / "t.json", trace(mixed(300, seed)))
    kept: KinetoTrace = read_kineto(str(file), chunk_bytes=20_000)
    aside = read_aside(file, tmp_path / "aside")
    for name, table in kept.tables.items():
        assert aside[name].schema == table.schema
        assert aside[name].height == table.height
        times = [column for column in ("start_ns", "end_ns", "time_ns") if column in table.columns]
        assert_frame_equal(aside[name].select(times), table.select(times))
        # Rows of equal start and end may stand in another order; what they point at is then the same all the same.
        assert_frame_equal(resolved(name, aside), resolved(name, kept.tables), check_row_order=False)


def resolved(name: str, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """A table with its row numbers replaced by what identifies the row pointed at."""
    made = tables[name]
    if name == "device_events":
        calls, ops = tables["runtime_calls"]["correlation"], tables["host_ops"]["external_id"]
        return made.with_columns(calls.gather(made["launch_row"]), ops.gather(made["op_row"]).alias("op_row")).drop(
            "launch_row"
        )
    if name == "collectives":
        device = made.filter(source="device_events")
        host = made.filter(source="host_ops")
        return pl.concat(
            [
                device.with_columns(tables["device_events"]["external_id"].gather(device["row"]).alias("row")),
                host.with_columns(tables["host_ops"]["external_id"].gather(host["row"]).alias("row")),
            ]
        )
    # Among ranges of one thread with the same times, which is the parent of which is a matter of their order.
    return made.drop("parent_row", "depth", "self_ns", strict=False)


def test_the_cache_of_a_great_trace_is_read_as_one_table(tmp_path: Path, narrow: None) -> None:
    made = mixed(300, 5)
    found = ingest_trace(str(write(tmp_path / "t.json", trace(made))))
    assert len(list(found.folder.glob("device_events.*.parquet"))) > 5
    assert not list(found.folder.glob(".*"))
    device = found.load("device_events", ["start_ns", "launch_ns", "op_row"])
    assert device.height == sum(each.get("cat") in ("kernel", "gpu_memcpy") for each in made)
    assert device["start_ns"].is_sorted()
    # Correlation 0 ties nothing: a kernel, a collective and a copy.
    assert device["launch_ns"].null_count() == 3


def test_an_empty_pile() -> None:
    spool = Spool()
    spool.finish()
    for name, table in TABLES.items():
        assert list(spool.slices(name)) == []
        assert spool.columns(name, list(table.schema)[:1]).height == 0
