"""`rankscope diff` for CI: JUnit XML with one test case per condition, and Markdown that names cannot break."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.test_diff import Capture, Patch, called
from tests.experiments.compare.test_diff import job

from rankscope.show.export.junit import Check, to_junit
from rankscope.show.report.diff_markdown import MARKER, MAX_CHARACTERS, cell, code, diff_markdown

EVIL = "gemm` | @team #1 <img src=x onerror=alert(1)> [a](http://x) \x1b[31m\u202e\n::error::x **"
ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testcase": {"classname", "name", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
}
"""Of each element, those that we write: a part of what the schema of Jenkins' xUnit plugin allows."""


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return job(tmp_path / "a", gemm=100), job(tmp_path / "b", gemm=150, name=EVIL)


def test_one_test_case_per_condition(
    runs: tuple[Path, Path], tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch
) -> None:
    conditions = ["compute > 20%", "step_time > 5%", "nothing_like_it > 1ms"]
    files = tmp_path / "gates.xml", tmp_path / "diff.md"
    options = [part for each in conditions for part in ("--fail-on", each)]
    outputs = ("--junit", files[0], "--markdown", files[1], "--executor", "serial")
    status, out, err = called(capfdbinary, monkeypatch, "diff", *runs, *options, *outputs)
    # A condition that cannot be judged is an error; what the others are is written nevertheless.
    assert (status, out) == (2, "")
    assert "nothing_like_it" in err
    root = ElementTree.fromstring(files[0].read_bytes())
    for element in root.iter():
        assert set(element.attrib) == ATTRIBUTES[element.tag]
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    outcomes = {case.get("name"): [child.tag for child in case] for case in suite}
    assert outcomes == {conditions[0]: ["failure"], conditions[1]: [], conditions[2]: ["error"]}
    text = files[1].read_text(encoding="utf-8")
    assert "1 condition cannot be judged" in text
    assert "| ❌ | `compute > 20%` | `compute changed by +50.0 µs" in text
    assert "| ✅ | `step_time > 5%` |" in text


def test_another_tool_reads_the_same() -> None:
    junitparser = pytest.importorskip("junitparser", reason="pip install --group tools")
    checks = [Check("good"), Check("bad & <worse>", "it is 5 % more"), Check("odd", error="no such row")]
    suites = junitparser.JUnitXml.fromstring(to_junit("rankscope diff", checks))
    (suite,) = suites
    assert (suite.tests, suite.failures, suite.errors) == (3, 1, 1)
    assert [case.name for case in suite] == [check.name for check in checks]
    assert [case.is_passed for case in suite] == [True, False, False]
    assert next(iter(suite)).classname == "rankscope diff"


def test_any_text_gives_valid_xml() -> None:
    text = "".join(map(chr, [*range(0x300), 0xFFFE, 0xFFFF, 0x1F600, 0xD800])) + EVIL
    root = ElementTree.fromstring(to_junit(text, [Check(text, failure=text)]))
    name = root[0][0].get("name")
    assert name is not None
    assert not set(name) & {"\x00", "\x1b", "\u202e"}


def test_junit_without_a_condition_is_an_error(
    runs: tuple[Path, Path], tmp_path: Path, capfdbinary: Capture, monkeypatch: Patch
) -> None:
    status, _, err = called(capfdbinary, monkeypatch, "diff", *runs, "--junit", tmp_path / "x.xml")
    assert status == 2
    assert "--fail-on" in err
    assert not (tmp_path / "x.xml").exists()


def test_markdown_keeps_names_in_code(runs: tuple[Path, Path], capfdbinary: Capture, monkeypatch: Patch) -> None:
    import rankscope

    text = diff_markdown(rankscope.diff(*runs), [])
    assert text.startswith(f"{MARKER}\n### rankscope: comparison\n")
    assert len(text) < MAX_CHARACTERS
    assert "onerror" in text
    # What is left without its code spans has nothing of the name.
    rest = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)
    assert not [each for each in ("onerror", "@team", "#1", "http", "::error", "\x1b", "\u202e") if each in rest]
    # Every row of a table has as many cells as its head.
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    assert set(cells) <= {4, 7}


@pytest.mark.parametrize("name", ["plain", "`", "a`b", "``", "`a", "a``b`", "", " ", "a|b", "\n"])
def test_a_code_span_ends_where_it_should(name: str) -> None:
    """As CommonMark has it: it ends at the first run of as many backticks as it begins with."""
    shown = code(name)
    fence = re.match("`+", shown)
    assert fence is not None
    assert re.search(rf"(?<!`){fence[0]}(?!`)", shown[len(fence[0]) :]).end() == len(shown) - len(fence[0])  # type: ignore[union-attr]
    assert "|" not in cell(name).replace("\\|", "")
