"""What a host did by name: events by hand, in µs, and the items that they make, in ns."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests import kineto

from rankscope.ingest.task import ingest_trace
from rankscope.primitives.stragglers.host_items import (
    BETWEEN,
    COLLECTION,
    FUNCTION,
    GAP,
    OPERATOR,
    OPERATORS,
    host_items,
    is_own_function,
)

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


def test_collections_and_functions_are_counted_with_what_they_contain(tmp_path: Path) -> None:
    found = items(
        tmp_path,
        [
            kineto.step(1, 0, 1000),
            kineto.annotation("gc: generation 2", 100, 50),
            kineto.frame("train.py(1): <module>", 0, 1000),
            kineto.frame("train.py(30): main", 0, 900),
            kineto.frame("train.py(7): tokenize", 200, 300),
            kineto.frame("train.py(7): tokenize", 250, 100),  # calls itself
            kineto.frame("<built-in function sleep>", 400, 50),
            kineto.frame("torch/nn/modules/linear.py(120): forward", 600, 100),
            kineto.frame("random.py(1): shuffle", 750, 100),
        ],
    )
    assert found[1, COLLECTION, ""] == (50_000, 1)
    functions = {label: ns for (_, kind, label), (ns, _) in found.items() if kind == FUNCTION}
    assert functions == {
        "train.py(30): main": 900_000,
        "train.py(7): tokenize": 300_000,
        f"<built-in function sleep>{BETWEEN}train.py(7): tokenize": 50_000,
    }
    depths = {label: depth for (_, kind, label), (_, depth) in found.items() if kind == FUNCTION}
    assert depths["train.py(7): tokenize"] > depths["train.py(30): main"]


def test_short_items_are_left_out_and_without_steps_there_are_none(tmp_path: Path) -> None:
    found = items(tmp_path, [kineto.step(1, 0, 100_000), kineto.op("a", 0, 199), kineto.op("b", 1000, 201)])
    assert (1, OPERATOR, "a") not in found
    assert (1, OPERATOR, "b") in found
    assert found[1, OPERATORS, ""] == (400_000, 2)
    assert items(tmp_path, [kineto.op("a", 0, 199)]) == {}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("train.py(7): tokenize", True),
        ("/home/me/models/net.py(7): forward", True),
        ("train.py(1): <module>", False),
        ("train.py(7): <listcomp>", False),
        ("torch/optim/sgd.py(7): step", False),
        ("/usr/lib/python3.11/random.py(7): shuffle", False),
        ("random.py(7): shuffle", False),
        ("numpy/core/fromnumeric.py(7): sum", False),
        ("<built-in function sleep>", False),
        ("nn.Module: Linear_0", False),
    ],
)
def test_the_jobs_own_functions(name: str, own: bool) -> None:
    assert is_own_function(name) is own


def test_the_frame_has_its_columns(tmp_path: Path) -> None:
    path = kineto.write(tmp_path / "rank0.json", kineto.trace([kineto.step(1, 0, 10)], rank=0))
    tables = ingest_trace(str(path))
    found = host_items({name: tables.scan(name).collect() for name in WANTED})
    assert found.schema == pl.Schema(
        {"step": pl.Int64, "kind": pl.String, "label": pl.String, "ns": pl.Int64, "count": pl.Int64}
    )
