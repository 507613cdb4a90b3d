"""What a host did by name: events by hand, in µs, and the items that they make, in ns."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from tests import kineto

from rankscope.ingest.task import ingest_trace
from rankscope.primitives.stragglers.host_items import (
    COLLECTION,
    GAP,
    OPERATOR,
    OPERATORS,
    host_items,
)
from rankscope.primitives.stragglers.host_scopes import BETWEEN

WANTED = ("host_ops", "runtime_calls", "annotations", "python_frames")


def items(folder: Path, events: list[kineto.Event]) -> dict[tuple[int, str, str], tuple[int, int]]:
    path = kineto.write(folder / "rank0.json", kineto.trace(events, rank=0))
    tables = ingest_trace(str(path))
    frames = {name: tables.scan(name).collect() for name in WANTED}
    return {(step, kind, label): (ns, count) for step, kind, label, ns, count in host_items(frames).iter_rows()}


def test_each_nanosecond_of_the_host_counts_once(tmp_path: Path) -> None:
    found = items(
        tmp_path,
        [
            kineto.step(1, 0, 1000),
            kineto.op("aten::linear", 100, 200),
            kineto.op("aten::mm", 120, 50),  # inside it
            kineto.annotation("Optimizer.step#SGD.step", 600, 100),
            kineto.op("aten::add_", 620, 30),
            kineto.step(2, 1000, 1000),
            kineto.op("aten::linear", 1200, 300),
        ],
    )
    # The gap between two steps is one place; what is before the first event and after the last, too.
    between = f"Optimizer.step#SGD.step{BETWEEN}aten::linear"
    assert found == {
        (1, OPERATOR, "aten::linear"): (200_000, 1),
        (1, OPERATOR, "aten::add_"): (30_000, 1),
        (1, OPERATORS, ""): (230_000, 2),
        (1, GAP, f"aten::linear{BETWEEN}Optimizer.step#SGD.step"): (300_000, 1),
        (1, GAP, f"Optimizer.step#SGD.step{BETWEEN}aten::add_"): (20_000, 1),
        (1, GAP, f"aten::add_{BETWEEN}Optimizer.step#SGD.step"): (50_000, 1),
        (1, GAP, between): (100_000 + 300_000, 2),
        (2, OPERATOR, "aten::linear"): (300_000, 1),
        (2, OPERATORS, ""): (300_000, 1),
        (2, GAP, between): (200_000, 1),
        (2, GAP, f"aten::linear{BETWEEN}Optimizer.step#SGD.step"): (500_000, 1),  # as it usually goes on
    }


def test_another_thread_fills_what_the_loop_leaves(tmp_path: Path) -> None:
    """The backward pass of a device runs on a thread of its own, while the loop's waits for it."""
    found = items(
        tmp_path,
        [
            kineto.step(1, 0, 1000),
            kineto.op("aten::linear", 0, 400),
            kineto.op("autograd::engine::evaluate_function: AddmmBackward0", 300, 500, tid=77),
            kineto.op("aten::add_", 900, 100),
        ],
    )
    assert found[1, OPERATOR, "aten::linear"] == (400_000, 1)
    assert found[1, OPERATOR, "AddmmBackward0"] == (400_000, 1)  # beside the first, it adds nothing
    assert found[1, GAP, f"AddmmBackward0{BETWEEN}aten::add_"] == (100_000, 1)


def test_collections_of_garbage(tmp_path: Path) -> None:
    found = items(tmp_path, [kineto.step(1, 0, 1000), kineto.annotation("gc: generation 2", 100, 50)])
    assert found[1, COLLECTION, ""] == (50_000, 1)


def test_short_items_are_left_out_and_without_steps_there_are_none(tmp_path: Path) -> None:
    found = items(tmp_path, [kineto.step(1, 0, 100_000), kineto.op("a", 0, 199), kineto.op("b", 1000, 201)])
    assert (1, OPERATOR, "a") not in found
    assert (1, OPERATOR, "b") in found
    assert found[1, OPERATORS, ""] == (400_000, 2)
    assert items(tmp_path, [kineto.op("a", 0, 199)]) == {}


def test_the_frame_has_its_columns(tmp_path: Path) -> None:
    path = kineto.write(tmp_path / "rank0.json", kineto.trace([kineto.step(1, 0, 10)], rank=0))
    tables = ingest_trace(str(path))
    found = host_items({name: tables.scan(name).collect() for name in WANTED})
    assert found.schema == pl.Schema(
        {"step": pl.Int64, "kind": pl.String, "label": pl.String, "ns": pl.Int64, "count": pl.Int64}
    )
