"""An analysis that fails, on one rank or on all, takes no other with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from tests.analyses.reference import write_reference

import rankscope
from rankscope.analyses import all_analyses, get_analysis
from rankscope.errors import AnalysisError
from rankscope.results import Inputs, Part, Tables
from rankscope.show.report.html_report import payload


def broken(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    raise ZeroDivisionError("in an analysis")


def broken_on_one(tables: Tables, inputs: Inputs) -> Part:
    if inputs.rank == 1:
        raise ZeroDivisionError("on rank 1")
    return get_analysis("kernels").per_rank(tables, replace(inputs, parameters={"by": "name"}))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    found = all_analyses()
    kernels = found["kernels"]
    monkeypatch.setitem(found, "broken", replace(kernels, name="broken", per_rank=broken))
    monkeypatch.setitem(found, "torn", replace(kernels, name="torn", per_rank=broken_on_one))
    return dict(found)


@pytest.mark.usefixtures("registry")
def test_one_that_fails_everywhere_is_an_error_alone_and_a_finding_among_others(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    with pytest.raises(AnalysisError, match=r"broken: .*in an analysis"):
        run.analyze("broken")
    assert set(run.attempt("device_time", "broken", "kernels")) == {"device_time", "kernels"}
    failures = [finding for finding in run.findings if finding.id == "not-diagnosed"]
    assert len(failures) == 1
    assert "broken" in failures[0].title


@pytest.mark.usefixtures("registry")
def test_one_that_fails_on_a_rank_loses_that_rank_alone(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    results = run.analyze("torn", "kernels")
    assert results["torn"].frame["rank"].unique().to_list() == [0]
    assert results["kernels"].frame["rank"].unique().sort().to_list() == [0, 1]
    assert [finding.id for finding in results["torn"].findings] == ["rank-not-analyzed"]
    assert not [finding for finding in results["kernels"].findings if finding.id == "rank-not-analyzed"]


@pytest.mark.usefixtures("registry")
def test_the_report_is_made_of_what_can_be_made(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    made = payload(run, ["kernels", "broken"])
    assert set(made["analyses"]) == {"kernels"}
    assert any("broken" in finding["title"] for finding in made["findings"])
