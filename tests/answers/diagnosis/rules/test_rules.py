"""Rules are found, each bears its file's name, and one that fails takes nothing else with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.analyses.reference import write_reference
from tests.kineto import kernel, launch, small_step, trace, write

import rankscope
import rankscope.analyses
import rankscope.answers.diagnosis.rules
from rankscope.analyses import all_analyses
from rankscope.answers.diagnosis.rules import all_rules
from rankscope.results import Finding, Inputs

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What a test discovers is forgotten after it."""
    all_rules.cache_clear()
    yield
    all_rules.cache_clear()


def test_every_rule_bears_its_files_name_and_has_a_test_of_its_own() -> None:
    folder = Path(rankscope.answers.diagnosis.rules.__file__).parent
    for name, rule in all_rules().items():
        assert (folder / f"{name}.py").exists()
        assert "\n" in inspect.cleandoc(rule.doc), f"{name} says what it is, but not when it fires"
        assert set(rule.requires) <= set(all_analyses())
        text = (HERE / f"test_{name}.py").read_text(encoding="utf-8")
        assert "def test_fires" in text, f"there is no test in which {name} holds"
        assert "def test_does_not_fire" in text, f"there is no test in which {name} does not hold"


def fails(inputs: Inputs) -> list[Finding]:
    raise ZeroDivisionError("in a rule")


broken = replace(next(iter(all_rules().values())), name="broken", find=fails)


def test_a_rule_that_fails_is_reported_and_the_others_fire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("broken", f"{__name__}:broken", "rankscope.rules")
    monkeypatch.setattr(rankscope.answers.diagnosis.rules, "entry_points", lambda group: [point])
    found = rankscope.open(write_reference(tmp_path)).diagnose()
    failures = [finding for finding in found if finding.id == "not-diagnosed"]
    assert len(failures) == 1
    assert "broken" in failures[0].title
    assert "in a rule" in str(failures[0].evidence[0].value)
    assert "data_loading" in {finding.id for finding in found}


def test_findings_are_weighed(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path))
    found = run.diagnose()
    assert found == run.findings
    savings = [finding.saving_ns or 0 for finding in found if finding.severity == "warning"]
    assert savings == sorted(savings, reverse=True)
    for finding in found:
        assert finding.evidence, f"{finding.id} without evidence"


def test_all_that_the_page_says_is_found_by_the_rules_too(tmp_path: Path) -> None:
    """The page has every analysis: no finding of one of them may be missing from `rankscope findings`."""
    folder = Path(rankscope.analyses.__file__).parent
    with_findings = {file.stem for file in folder.glob("*.py") if "Finding(" in file.read_text(encoding="utf-8")}
    assert with_findings == {name for name, each in all_analyses().items() if each.has_findings}
    for rank, at in ((0, 300), (1, 240)):  # The kernel of one begins before its launch has begun.
        events = [*small_step(), launch(250, 5, correlation=7), kernel("k", at, 20, correlation=7)]
        write(tmp_path / f"rank{rank}.json", trace(events, rank=rank, world_size=2))
    found = rankscope.open(tmp_path, executor="serial").diagnose()
    assert any("clocks of host and device disagree" in finding.title for finding in found)
    whole = rankscope.open(tmp_path, executor="serial")
    whole.attempt(*all_analyses())
    assert [finding.title for finding in whole.diagnose()] == [finding.title for finding in found]
