"""Analyses are found: this package's files, then other packages' entry points."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import rankscope.analyses
from rankscope.analyses import all_analyses, get_analysis, listed_analyses
from rankscope.errors import AnalysisError
from rankscope.results import Bars, Parameter


def forget() -> None:
    all_analyses.cache_clear()
    listed_analyses.cache_clear()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What a test discovers is forgotten after it."""
    forget()
    yield
    forget()


def test_every_file_with_an_analysis_bears_its_name() -> None:
    folder = Path(rankscope.analyses.__file__).parent
    for name, analysis in all_analyses().items():
        assert (folder / f"{analysis.page}.py").exists()
        assert analysis.name == name
        assert analysis.title
        assert "\n" in inspect.cleandoc(analysis.doc), f"{name} says what it is, but not what its numbers mean"


def test_every_column_has_a_meaning() -> None:
    for analysis in all_analyses().values():
        assert all(column.doc for column in analysis.columns)
        assert len({column.name for column in analysis.columns}) == len(analysis.columns)
        assert all(column.unit == "ns" for column in analysis.columns if column.name.endswith("_ns"))


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(AnalysisError, match="near names: device_time"):
        get_analysis("device_tme")
    with pytest.raises(AnalysisError, match="rankscope analyze lists them"):
        get_analysis("nonsense")


def plugged(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    monkeypatch.setattr(rankscope.analyses, "entry_points", lambda group: list(points))


theirs = replace(get_analysis("device_time"), name="theirs")
usurper = replace(get_analysis("kernels"), name="device_time")


def point(name: str) -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{name}", "rankscope.analyses")


def test_another_package_adds_an_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda self: {"theirs": theirs, "usurper": usurper}[self.name])
    plugged(monkeypatch, point("theirs"), point("usurper"))
    with pytest.warns(UserWarning, match="usurper of .* there already is one with the name 'device_time'"):
        assert get_analysis("theirs") is theirs
    assert get_analysis("device_time") is not usurper


def test_an_entry_point_without_an_analysis_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    plugged(monkeypatch, EntryPoint("empty", "json", "rankscope.analyses"))
    with pytest.warns(UserWarning, match="empty of json is left out: it has no `analysis`"):
        assert "device_time" in all_analyses()


def test_a_chart_of_an_undeclared_column_is_refused() -> None:
    with pytest.raises(ValueError, match="a chart of the analysis kernels names the column 'nothing'"):
        replace(get_analysis("kernels"), charts=(Bars("name", "nothing", "Nothing"),))


def test_a_view_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="a view of the analysis kernels has the name memory_by_step"):
        replace(get_analysis("kernels"), views=(get_analysis("memory_by_step"),))


def test_each_view_is_a_choice_of_by() -> None:
    for analysis in listed_analyses().values():
        for view in analysis.views:
            (by,) = [each for each in analysis.parameters if each.name == "by"]
            assert {view.name for view in analysis.views} <= {f"{analysis.name}_by_{each}" for each in by.choices}
            assert analysis.view({"by": view.usage.rpartition(" ")[2]}) == (view, {})
            assert view.title != analysis.title


def test_a_parameter_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="one of text, regex, number, instant, flag, not 'choice'"):
        Parameter("by", "what", kind="choice")  # type: ignore[arg-type]


def test_a_broken_package_does_not_take_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plugged(monkeypatch, EntryPoint("broken", "no_such_module_anywhere:analysis", "rankscope.analyses"))
    with pytest.warns(UserWarning, match="broken of no_such_module_anywhere"):
        assert "device_time" in all_analyses()
