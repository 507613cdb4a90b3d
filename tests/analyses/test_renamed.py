"""Names of earlier versions: their rows and columns come from the analysis that has them now, with a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.analyses.reference import write_reference
from tests.cli.test_cli import called

import rankscope
from rankscope.analyses import RENAMED, all_analyses, get_analysis
from rankscope.engine.pipeline import Run
from rankscope.errors import AnalysisError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reference(tmp_path_factory.mktemp("reference"))


@pytest.fixture
def run(folder: Path) -> Run:
    return rankscope.open(folder, executor="serial")


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_an_old_name_gives_the_rows_of_the_new_one(run: Run, old: str) -> None:
    analysis, by = RENAMED[old]
    now = run.analyze(analysis, parameters={analysis: {"by": by}})[analysis]
    assert now.name == f"{analysis}_by_{by}"
    assert getattr(run, analysis)(by=by).equals(now.frame)
    with pytest.warns(FutureWarning, match=f"{old} is now {analysis} by {by}; .* until the next release"):
        assert run.analyze(old)[old].frame.equals(now.frame)
    with pytest.warns(FutureWarning, match=old) as warned:
        assert getattr(run, old)().equals(now.frame)
    assert warned[0].filename == __file__


def test_a_misspelled_old_name_is_known() -> None:
    with pytest.raises(AnalysisError) as raised:
        get_analysis("launch_gap")
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("near names: launch_gaps")


def test_old_names_are_not_listed_and_not_taken(run: Run) -> None:
    assert not RENAMED.keys() & all_analyses().keys()
    assert not RENAMED.keys() & set(dir(run))


def test_in_sql(run: Run) -> None:
    wanted = run.sql("SELECT rank, step, growth FROM result_memory_by_step ORDER BY ALL")
    with pytest.warns(FutureWarning, match="memory_steps is now memory by step"):
        assert run.sql("SELECT rank, step, growth FROM result_memory_steps ORDER BY ALL").equals(wanted)
    with pytest.warns(FutureWarning):
        both = run.sql("SELECT count(*) AS n FROM result_memory_steps JOIN result_memory_by_step USING (rank, step)")
    assert both["n"][0] >= wanted.height


@pytest.mark.filterwarnings("default")
def test_on_the_command_line(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = called(capfdbinary, monkeypatch, "analyze", "memory", folder, "--by", "step", "--format", "json")
    monkeypatch.setattr("sys.argv", ["rankscope", "analyze", "memory-steps", str(folder), "--format", "json"])
    from rankscope.cli import main

    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfdbinary.readouterr()
    assert not ended.value.code
    assert json.loads(out) == json.loads(now)
    assert json.loads(out)["analysis"] == "memory_by_step"
    assert err.decode().count("warning: memory_steps is now memory by step") == 1


def test_an_unknown_view_is_refused(run: Run) -> None:
    with pytest.raises(rankscope.RankscopeError, match="by cannot be 'steps'"):
        run.memory(by="steps")
    assert get_analysis("memory").view({"by": "device"})[0].name == "memory"
