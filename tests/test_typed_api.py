"""A run's methods have signatures, docs and types, for people, notebooks and type checkers."""

from __future__ import annotations

import inspect
import os
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

import rankscope
from rankscope.analyses import listed_analyses
from rankscope.engine.pipeline import Run
from tests.analyses.reference import write_reference
from tests.test_docs import docs_build

SOURCE = Path(__file__).resolve().parent.parent / "src"
# Of rankscope its signatures, as of any package that is installed; of torch nothing, which would take a minute.
MYPY = """[mypy]
strict = true
[mypy-rankscope.*]
ignore_errors = true
[mypy-torch.*]
follow_imports = skip
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return rankscope.open(write_reference(tmp_path), executor="serial")


def test_every_analysis_has_a_signature_a_doc_and_completion(run: Run) -> None:
    for name, analysis in listed_analyses().items():
        method = getattr(run, name)
        assert [*inspect.signature(method).parameters] == [each.name for each in analysis.parameters]
        assert inspect.getdoc(method).startswith(analysis.doc.split(".\n", 1)[0])
        assert method.__name__ == name
        assert name in dir(run)


def test_signature_and_help_of_one(run: Run) -> None:
    by = inspect.signature(run.operators).parameters["by"]
    assert (by.default, by.kind) == ("name", inspect.Parameter.KEYWORD_ONLY)
    assert "shape" in by.annotation.__args__
    assert by.annotation == Literal[by.annotation.__args__]
    text = pydoc.plain(pydoc.render_doc(run.operators))
    assert "by: Literal['name', 'shape'" in text
    assert "host_self_ns (ns):" in text
    assert run.operators(by="shape").height


def test_the_class_lists_the_analyses_too() -> None:
    text = pydoc.plain(pydoc.render_doc(Run))
    for name, analysis in listed_analyses().items():
        assert name in dir(Run)
        assert analysis.doc.split(".\n", 1)[0] in " ".join(text.replace("|", " ").split())
        assert [*inspect.signature(getattr(Run, name)).parameters] == [
            "self",
            *(each.name for each in analysis.parameters),
        ]


def test_an_unknown_name_is_an_attribute_error(run: Run) -> None:
    for where in (run, Run):
        with pytest.raises(AttributeError, match="no analysis 'operator'"):
            _ = where.operator


def test_the_stub_is_what_make_docs_writes() -> None:
    build = docs_build()
    assert (build.SOURCE / build.STUB).read_text(encoding="utf-8") == build.stub(), "not current: make docs"


@pytest.mark.slow
def test_mypy_accepts_what_works_and_rejects_typos(tmp_path: Path) -> None:
    lines = [
        "import rankscope",
        'run = rankscope.open("run")',
        'run.operators(by="shape").height',
        "run.kernels().columns",
        'run.operators(by="shap")',
        'run.operators(bye="shape")',
        "run.operator()",
        "rankscope.nothing",
    ]
    (tmp_path / "mypy.ini").write_text(MYPY, encoding="utf-8")
    (tmp_path / "snippet.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "snippet.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    wrong = [int(line.split(":")[-3]) for line in done.stdout.splitlines() if ": error:" in line]
    assert wrong == [5, 6, 7, 8], done.stdout + done.stderr
