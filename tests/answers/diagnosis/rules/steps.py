"""Small runs for rules: a number of steps on one rank or more, each made by a function of the step's begin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests import kineto
from tests.claims.check import false_claims

import rankscope
from rankscope.results import Finding

STEP = 1000.0
"""Microseconds."""

Step = Callable[[int, float], list[kineto.Event]]


def diagnosed(folder: Path, make: Step, *, steps: int = 4, ranks: int = 1) -> dict[str, Finding]:
    """The findings of a run by id, as each rule states them; all are recomputed from the trace (`tests.claims`).

    Args:
        make: the events of a step, from the rank and the microsecond at which the step begins.
    """
    by_rank = {
        rank: [
            event
            for number in range(steps)
            for event in (kineto.step(number, STEP * number, STEP), *make(rank, STEP * number))
        ]
        for rank in range(ranks)
    }
    run = rankscope.open(kineto.write_ranks(folder, by_rank), executor="serial")
    findings = {finding.id: finding for finding in run.diagnosis().stated}
    wrong = false_claims(run)
    assert not wrong, "\n".join(wrong)
    return findings


def work(at: float, dur: float, name: str = "gemm", *, stream: int = 7, **args: object) -> list[kineto.Event]:
    """A kernel with its launch, five microseconds before it."""
    identity = round(at * 16) + 1 + stream
    return [
        kineto.launch(at - 5, 3, correlation=identity),
        kineto.kernel(name, at, dur, correlation=identity, stream=stream, **args),  # type: ignore[arg-type]
    ]
