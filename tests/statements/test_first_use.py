"""A step whose time is spent before the first kernel: the sentence about idle time is of the step, as its number is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto

import rankscope
from rankscope.show.report.formatting import sentence

MODULE = {"cat": "cuda_driver", "args": {"correlation": 900}}


def step(number: int, at: float, length: float, busy: float) -> list[kineto.Event]:
    """A step that ends with one kernel."""
    begin = at + length - busy
    return [
        kineto.step(number, at, length),
        kineto.op("aten::mm", begin - 60, 40, external=number),
        kineto.launch(begin - 50, 20, correlation=number, external=number),
        kineto.kernel("gemm", begin, busy, correlation=number, external=number),
    ]


@pytest.mark.parametrize(
    ("call", "doing"),
    [
        (kineto.event("cuModuleLoadData", 12_000, 80_000, **MODULE), "while the host is in a runtime call"),
        (kineto.op("aten::convolution", 12_000, 80_000), "while the host is in an operator"),
        (kineto.op("aten::add", 12_000, 10), "while nothing is recorded on the host"),
    ],
)
def test_idle_before_the_first_kernel_is_what_the_host_did(tmp_path: Path, call: kineto.Event, doing: str) -> None:
    events = [*step(1, 10_000, 100_000, 10_000), call, *step(2, 110_000, 10_000, 9_850)]
    path = kineto.write(tmp_path / "r.json", kineto.trace(events, rank=0, world_size=1))
    headline = sentence(rankscope.open(path, executor="serial").diagnosis().headline)
    assert doing in headline, headline


def test_a_step_that_the_file_cuts_is_not_blamed_on_the_loop(tmp_path: Path) -> None:
    whole = [
        event
        for n in range(1, 9)
        for event in (
            *step(n, 10_000 * n, 10_000, 5_000),
            *(kineto.op("aten::add", 10_000 * n + 100 * at, 50) for at in range(20)),
        )
    ]
    path = kineto.write(tmp_path / "r.json", kineto.trace(whole, rank=0, world_size=1))
    text = path.read_bytes()
    path.write_bytes(text[: text.index(b"ProfilerStep#6") + 200])
    findings = {each.id: each for each in rankscope.open(path, executor="serial").diagnose()}
    assert "ends too early" in findings["incomplete-step"].advice
    assert "prof.step()" not in findings["incomplete-step"].advice
