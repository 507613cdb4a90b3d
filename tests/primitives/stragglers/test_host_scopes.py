"""What the loop's thread was in: events by hand, in µs, and the functions, modules and ranges that they make, in ns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import kineto

from rankscope.ingest.task import ingest_trace
from rankscope.primitives.steps import host_steps
from rankscope.primitives.stragglers.host_scopes import BETWEEN, NODE, functions, is_own_function, modules

WANTED = ("host_ops", "annotations", "python_frames")
OTHER_THREAD = 77
Scopes = dict[tuple[int, str], tuple[int, int]]


def scopes(folder: Path, events: list[kineto.Event]) -> tuple[Scopes, Scopes]:
    """Functions, and modules with ranges: (step, label) → (ns, depth)."""
    path = kineto.write(folder / "rank0.json", kineto.trace(events, rank=0))
    tables = ingest_trace(str(path))
    frames = {name: tables.scan(name).collect() for name in WANTED}
    steps = host_steps(frames["annotations"])
    both = functions(frames["python_frames"], steps), modules(frames, steps)
    of_function, of_module = (
        {(step, label): (ns, depth) for step, label, ns, depth in found.iter_rows()} for found in both
    )
    return of_function, of_module


def test_functions_are_counted_with_what_they_call(tmp_path: Path) -> None:
    found, others = scopes(
        tmp_path,
        [
            kineto.step(1, 0, 1000),
            kineto.frame("train.py(1): <module>", 0, 1000),
            kineto.frame("train.py(30): main", 0, 900),
            kineto.frame("train.py(7): tokenize", 200, 300),
            kineto.frame("train.py(7): tokenize", 250, 100),  # calls itself
            kineto.frame("<built-in function sleep>", 400, 50),
            kineto.frame("torch/nn/modules/linear.py(120): forward", 600, 100),
            kineto.frame("random.py(1): shuffle", 750, 100),
        ],
    )
    assert {label: ns for (_, label), (ns, _) in found.items()} == {
        "train.py(30): main": 900_000,
        "train.py(7): tokenize": 300_000,
        f"<built-in function sleep>{BETWEEN}train.py(7): tokenize": 50_000,
    }
    assert found[1, "train.py(7): tokenize"][1] > found[1, "train.py(30): main"][1]
    assert others == {}


def test_modules_and_ranges_enclose_each_other(tmp_path: Path) -> None:
    _, found = scopes(
        tmp_path,
        [
            kineto.step(1, 0, 1000),
            kineto.annotation("forward", 100, 500),
            kineto.frame("nn.Module: Net_0", 110, 480),
            kineto.frame("nn.Module: Linear_0", 120, 100),
            kineto.annotation("augment", 300, 200),
            kineto.annotation("Optimizer.step#SGD.step", 700, 100),  # of torch
            kineto.annotation("gc: generation 2", 800, 100),
            kineto.annotation("upload", 0, 1000, tid=OTHER_THREAD),
            kineto.frame("nn.Module: Net_0", 900, 50, tid=OTHER_THREAD),  # recomputed in the backward pass
            kineto.step(2, 1000, 1000),
            kineto.annotation("forward", 1100, 400),
        ],
    )
    assert found == {
        (1, "forward"): (500_000, 0),
        (1, "module Net_0"): (480_000, 1),
        (1, "module Linear_0"): (100_000, 2),
        (1, "augment"): (200_000, 2),
        (2, "forward"): (400_000, 0),
    }


@pytest.mark.parametrize("tid", [kineto.MAIN_THREAD, OTHER_THREAD])
def test_the_backward_pass_belongs_to_the_modules_of_the_forward(tmp_path: Path, tid: int) -> None:
    _, found = scopes(
        tmp_path,
        [
            kineto.step(1, 0, 1000),
            kineto.frame("nn.Module: Net_0", 100, 300),
            kineto.frame("nn.Module: Linear_0", 100, 100),
            kineto.op("aten::t", 110, 10, sequence=5),  # makes no node
            kineto.op("aten::linear", 120, 50, sequence=5),
            kineto.op("aten::relu", 300, 50, sequence=6),
            kineto.op("aten::mean", 450, 50, sequence=7),  # outside of the modules
            kineto.op(f"{NODE}MeanBackward0", 500, 10, sequence=7, forward_thread=1, tid=tid),
            kineto.op(f"{NODE}ReluBackward0", 510, 20, sequence=6, forward_thread=1, tid=tid),
            kineto.op("ReluBackward0", 512, 15, sequence=6, forward_thread=1, tid=tid),
            kineto.op(f"{NODE}AddmmBackward0", 540, 200, sequence=5, forward_thread=1, tid=tid),
        ],
    )
    assert found == {(1, "module Net_0"): (520_000, 0), (1, "module Linear_0"): (300_000, 1)}


def test_operators_name_modules_of_torchscript(tmp_path: Path) -> None:
    inner: dict[str, Any] = {"Module Hierarchy": "top(Net)::forward.fc(Linear)::forward"}
    outer: dict[str, Any] = {"Module Hierarchy": "top(Net)::forward"}
    _, found = scopes(
        tmp_path,
        [
            kineto.step(1, 0, 1000),
            kineto.op("aten::linear", 100, 100, **inner),
            kineto.op("aten::addmm", 120, 50, **inner),  # inside it
            kineto.op("aten::relu", 300, 20, **outer),
        ],
    )
    assert {label: ns for (_, label), (ns, _) in found.items()} == {
        "module top(Net)": 120_000,
        "module fc(Linear)": 100_000,
    }
    assert found[1, "module fc(Linear)"][1] > found[1, "module top(Net)"][1]


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
