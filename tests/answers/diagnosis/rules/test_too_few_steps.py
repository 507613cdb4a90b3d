"""Too few steps were recorded to judge by."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work

import rankscope


def test_fires_with_two(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: work(at + 10, 900), steps=2)["too_few_steps"]
    assert finding.severity == "info"
    assert finding.title.startswith("Only 2 steps")


def test_fires_without_any(tmp_path: Path) -> None:
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: work(10, 100)}))
    assert "No steps are marked" in {f.id: f for f in run.diagnosis().stated}["too_few_steps"].title


def test_does_not_fire_with_three(tmp_path: Path) -> None:
    assert "too_few_steps" not in diagnosed(tmp_path, lambda _, at: work(at + 10, 900), steps=3)
