"""Rules of the source that no linter has: what a module says first, how many parameters, reasons for exceptions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "rankscope"
EXEMPT = ("analyses/", "answers/diagnosis/rules/", "store/schema.py")
"""Docstrings of analyses, rules and the schema are pages of the docs, and what goes in and out is the same for all."""
MOST_PARAMETERS = 7
PUBLIC_OPTIONS = {
    "capture/profiler.py: __init__",
    "cli/measure/scaling.py: scaling",
    "cli/serve.py: serve",
    "cli/whatif.py: whatif",
    "jobs/run.py: launch",
}
"""Each parameter is an option that users give by name."""
REASONLESS = re.compile(r"#\s*(type: ignore(\[[^]]*\])?|noqa(: [A-Z0-9, ]+)?)\s*$")


def modules() -> Iterator[tuple[str, str]]:
    """Name and text of every module."""
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if not name.startswith("show/web/ui/"):
            yield name, file.read_text(encoding="utf-8")


def says_in_and_out(text: str) -> bool:
    """Whether a docstring says what goes in and what comes out."""
    into = re.search(r"\bIn: |\bIn (?:come|go)|\b(?:goes|go|comes|come) in\b", text)
    out = re.search(r"\bOut: |\b[Oo]ut (?:come|go)|\b(?:comes|come|goes|go) out\b", text)
    return bool(into and out)


def test_every_module_says_what_goes_in_and_what_comes_out() -> None:
    silent = [
        name
        for name, text in modules()
        if not name.startswith(EXEMPT) and name != "__init__.py"
        if not says_in_and_out(ast.get_docstring(ast.parse(text)) or "")
    ]
    assert not silent, "the docstring of a module ends in `In: …. Out: ….`"


def test_no_function_has_many_parameters() -> None:
    found = set()
    for name, text in modules():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args
                names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                if len([each for each in names if each not in ("self", "cls")]) > MOST_PARAMETERS:
                    found.add(f"{name}: {node.name}")
    assert found <= PUBLIC_OPTIONS


def test_every_exception_from_a_check_has_its_reason() -> None:
    assert not [
        f"{name}:{number}"
        for name, text in modules()
        for number, line in enumerate(text.splitlines(), 1)
        if REASONLESS.search(line)
    ]


@pytest.mark.parametrize(
    ("line", "reasonless"),
    [
        ("x = f()  # type: ignore[no-untyped-call]", True),
        ("x = f()  # noqa", True),
        ("x = f()  # type: ignore[no-untyped-call]  # torch has no types here", False),
    ],
)
def test_a_missing_reason_is_found(line: str, reasonless: bool) -> None:
    assert bool(REASONLESS.search(line)) is reasonless
