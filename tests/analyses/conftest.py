"""Every result that an analysis gives in these tests has the columns and types that it declares."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rankscope.engine.pipeline import graph
from rankscope.results import Analysis, Finding, Result, StoredFrame, schema_of


def checked(analysis: Analysis, frame: StoredFrame, findings: Sequence[Finding]) -> Result:
    assert frame.schema == schema_of(analysis.columns), f"{analysis.name} gives other columns than it declares"
    return Result(analysis, frame, tuple(findings))


@pytest.fixture(autouse=True)
def declared_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "Result", checked)
