"""The findings of a run are the same whatever was requested before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests import kineto

import rankscope
from rankscope.analyses import all_analyses
from rankscope.engine.pipeline import Run
from rankscope.results import Inputs, Part, Tables

LOST = ("copies", "annotations", "matrix_work")


def opened(folder: Path) -> Run:
    """Two ranks; a kernel of each starts before its launch, and 300 µs of a step wait for data."""
    by_rank = {
        rank: [
            event
            for number in range(4)
            for event in (
                kineto.step(number, 1000 * number, 1000),
                kineto.loading(1000 * number + 1, 300),
                kineto.op("aten::mm", 1000 * number + 310, 20, external=10 * number + 1, dims=[[8, 8], [8, 8]]),
                kineto.launch(1000 * number + 315, 5, correlation=10 * number + 1, external=10 * number + 1),
                kineto.kernel("gemm", 1000 * number + 312 - rank, 400, correlation=10 * number + 1, stream=7),
                kineto.launch(1000 * number + 500, 5, correlation=10 * number + 2),
                kineto.kernel("copy", 1000 * number + 490, 100, correlation=10 * number + 2, stream=8),
            )
        ]
        for rank in range(2)
    }
    return rankscope.open(kineto.write_ranks(folder, by_rank), executor="serial")


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some analyses lose rank 1."""
    found = all_analyses()

    def without_rank_1(tables: Tables, inputs: Inputs) -> Part:
        raise ZeroDivisionError("on every rank")

    for name in LOST:
        per_rank = found[name].per_rank

        def lose(tables: Tables, inputs: Inputs, per_rank=per_rank) -> Part:  # type: ignore[no-untyped-def]
            if inputs.rank == 1:
                return without_rank_1(tables, inputs)
            return per_rank(tables, inputs)

        monkeypatch.setitem(found, name, replace(found[name], per_rank=lose))


def request_everything(run: Run) -> None:
    """Every analysis with each value of each of its choices."""
    for name, analysis in all_analyses().items():
        run.attempt(name)
        for parameter in analysis.parameters:
            for choice in parameter.choices:
                run.attempt(name, parameters={name: {parameter.name: choice}})


@pytest.mark.usefixtures("lossy")
@pytest.mark.slow
def test_findings_do_not_depend_on_what_was_requested_before(tmp_path: Path) -> None:
    expected = opened(tmp_path).diagnose()
    ids = [finding.id for finding in expected]
    assert {"host-device-clock-skew", "data_loading"} <= set(ids)
    assert len(set(expected)) == len(expected)
    (lost,) = [finding for finding in expected if finding.id == "rank-not-analyzed"]
    assert lost.title == "Rank 1 is missing from annotations, copies, matrix_work: ZeroDivisionError: on every rank"

    before = opened(tmp_path)
    before.analyze("launches", parameters={"launches": {"by": "stream"}})
    before.analyze("launches", parameters={"launches": {"by": "kernel"}})
    assert [finding.id for finding in before.findings].count("host-device-clock-skew") <= 1
    assert before.diagnose() == expected
    assert before.diagnose() == expected

    some = opened(tmp_path)
    some.analyze("copies")
    some.attempt("matrix_work", "launches")
    assert some.diagnose() == expected

    after = opened(tmp_path)
    request_everything(after)
    assert after.diagnose() == expected
    request_everything(after)
    assert after.diagnose() == expected
    assert len(set(after.findings)) == len(after.findings)
