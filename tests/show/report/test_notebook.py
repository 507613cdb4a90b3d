"""A run in a notebook: its overview in HTML, nothing in it that a browser runs, and the examples of the docs."""

from __future__ import annotations

import ast
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.analyses.reference import write_reference
from tests.show.report.test_html_report import HOSTILE, hostile_run

import rankscope

DOCS = Path(__file__).resolve().parents[3] / "docs"
ALLOWED = {"div", "p", "b", "br", "table", "tbody", "thead", "tr", "td", "th", "ul", "li", "code", "style", "small"}


class Seen(HTMLParser):
    """The elements, attributes and text of some HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def displayed(value: Any) -> str:
    """What a notebook shows: IPython asks for `_repr_html_`, else takes the text."""
    own = getattr(value, "_repr_html_", None)
    return str(own()) if own is not None else repr(value)


def test_a_run_shows_its_overview(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    seen = Seen(displayed(run))
    overview = run.overview().row(0, named=True)
    assert f"{100 * overview['exposed_share']:.1f} %" in seen.text
    assert "ranks 0–1 of 2 · steps 10–11" in seen.text
    assert tmp_path.name in seen.text
    assert all(finding.title in seen.text for finding in run.diagnose()[:5])


def test_names_are_text(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    for value in (run, run.analyze("kernels")["kernels"], run.kernels(), run.collectives()):
        seen = Seen(displayed(value))
        assert seen.elements <= ALLOWED, seen.elements
        assert seen.attributes <= {"style", "class", "border"}
    shown = displayed(run)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]", shown)
    assert HOSTILE[0] not in shown


def test_a_run_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("{<b>")
    seen = Seen(displayed(rankscope.open(tmp_path, executor="serial")))
    assert seen.elements <= ALLOWED
    assert "rank0.json" in seen.text
    assert "not JSON" in seen.text


def test_a_result_has_a_title_and_its_units(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    result = run.analyze("device_time")["device_time"]
    seen = Seen(displayed(result))
    assert result.analysis.title in seen.text
    assert "overlap_ratio in ratio" not in seen.text
    assert str(result.frame["span_ns"][0]) in seen.text


def test_the_notebook_asks_for_nothing_else(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    for name in ("_repr_mimebundle_", "_ipython_display_", "_repr_png_", "_ipython_canary_method_should_not_exist_"):
        assert not hasattr(run, name)


def test_the_examples_of_the_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell as a notebook does: the last expression is displayed."""
    monkeypatch.chdir(tmp_path)
    write_reference(tmp_path / "run")
    cells = re.findall(r"```python\n(.*?)```", (DOCS / "notebook.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(cells) > 6
    names: dict[str, Any] = {}
    shown = []
    for cell in cells:
        tree = ast.parse(cell)
        last = tree.body[-1]
        value = ast.Expression(tree.body.pop().value) if isinstance(last, ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        if value is not None:
            shown.append(displayed(eval(compile(value, "cell", "eval"), names)))
    assert "Step" in shown[0]
    assert all(shown)
