"""What `rankscope measure` left, served and summed up: its result first, its jobs by names that people give them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.experiments.measure.written import write_study
from tests.show.web.asking import serving

from rankscope.cli import main


@pytest.fixture
def study(tmp_path: Path, private_cache: Path) -> Path:
    return write_study(tmp_path / "study")


def test_it_is_served_as_a_study_with_jobs_by_name(study: Path) -> None:
    server = serving(study)
    listed = server.ask("/api/runs").json()
    assert (listed["place"], listed["study"]) == ("study", True)
    assert [(run["name"], run["folder"], run["ranks"]) for run in listed["runs"]] == [
        ("plain process", "jobs/plain-0", 1),
        ("2 ranks", "jobs/2-0", 2),
    ]
    first = listed["runs"][0]["key"]
    assert server.ask(f"/api/state?run={first}").status == 200
    assert server.runs.get(first).loaded.wait(300)
    # Whichever job is looked at, the result of all is beside it.
    for key in (first, listed["shown"]):
        table = server.ask(f"/api/table/measured_scaling?run={key}").json()["data"]
        assert table["run"] == ["jobs/plain-0", None, "jobs/2-0"]
        assert table["efficiency_low"] == [None, 0.9, 0.85]
    law = server.ask("/api/table/measured_projection").json()
    assert law["data"] == {
        "ranks": [4], "speed_up": [3.2], "speed_up_low": [3.0], "speed_up_high": [3.4],
        "efficiency": [0.8], "efficiency_low": [0.75], "efficiency_high": [0.85], "step_ns": [31],
    }  # fmt: skip
    assert "not a measurement" in law["doc"]
    assert "S(n) = n, sigma = 0.1, kappa = 0.002" in law["doc"]


def test_a_job_that_was_chosen_is_no_study(study: Path) -> None:
    listed = serving(study, run_id="jobs/plain-0").ask("/api/runs").json()
    assert not listed["study"]
    assert next(run["name"] for run in listed["runs"] if run["key"] == listed["shown"]) == "plain process"
    assert serving(study / "jobs" / "2-0").ask("/api/runs").json()["study"] is False


def test_a_run_with_a_result_beside_it_is_no_study(study: Path) -> None:
    (study / "run.json").write_text("{}")
    assert serving(study).ask("/api/runs").json()["study"] is False


def test_without_traces_it_says_where_the_result_is(
    study: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for trace in study.rglob("*.trace.json"):
        trace.unlink()
    monkeypatch.setattr("sys.argv", ["rankscope", "serve", str(study), "--no-open"])
    with pytest.raises(SystemExit):
        main()
    assert f"rankscope summary {study}" in capfd.readouterr().err


def test_its_summary_is_its_result_and_where_its_jobs_are(
    study: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "500")

    def call(*words: str) -> tuple[Any, str]:
        monkeypatch.setattr("sys.argv", ["rankscope", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        sys.stdout.flush()
        return ended.value.code, capfd.readouterr().out

    status, out = call("summary", str(study))
    assert status in (0, None)
    assert "Strong scaling" in out
    assert "baseline T1: the plain process" in out
    assert "Projection, not measured" in out
    assert [" ".join(line.split()) for line in out.splitlines()[-3:]] == [
        f"plain process rankscope summary {study / 'jobs/plain-0'}",
        f"2 ranks rankscope summary {study / 'jobs/2-0'}",
        f"all rankscope serve {study}",
    ]
    status, out = call("summary", str(study), "--run", "2-0", "--executor", "serial")
    assert status in (0, None)
    assert "Strong scaling" not in out
    assert "study: jobs/2-0" in out
