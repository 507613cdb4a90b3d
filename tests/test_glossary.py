"""What a user reads keeps to the field's terms: none of the phrases on the left of the glossary is left.

A phrase is looked for in everything that is shown to a person: README and docs, the string literals of the Python code
(messages, help texts, findings, headlines, column docs), the docstrings that serve as help (analyses, rules, commands),
and the string literals and template texts of the page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "rankscope"

GLOSSARY = {
    r"mend(s|ed|ing)?": "fix, fixed",
    r"(is|are|was|were|be) told|tells? so|told apart": "reported, notified, distinguished",
    r"says so|say so|nobody says|that is said|speaks? (of|for|against)": "not recorded, is reported, indicates",
    r"accus(e|es|ed|ing|ation)s?": "identified as the straggler",
    r"(who|which|what) is to blame|blam(e|es|ed|ing)": "cause, responsible",
    r"(holds?|held|holding) (the |every |all )?(others?|one|rank \d+|ranks|it|them)? ?up": "delays the other ranks",
    r"held against|hold against": "compared with",
    r"nothing hides|does not hide|do not hide|compute hides": "exposed, overlapped",
    r"would gain at most|mending it saves": "potential saving per step",
    r"every rank in its place|the same as a table": "Ranks by mesh position, Show as table",
    r"number \d+ in its group|all of this name": "sequence 1, all events with this name",
    r"the \S+ greatest of": "top 15 of 156",
    r"device time of its own|with all it calls": "device self time, device total time",
    r"give every rank as much": "balance the work across ranks",
    r"(than|beyond|be|is|but) chance": "not significant, significant",
    r"is no list of|cannot be meant|can be meant": "is not valid",
    r"(?<!there )is no (number|range|directory|file|rank|step|trace|run|name|option|path|pattern)": "is not a",
    r"appears? by themselves|take along": "picked up automatically, download",
    r"(?<!-)beside(?![-.])": "next to, with, in addition to",
    r"nobody|no one|somebody": "name who: no rank, no other process",
    r"own affair": "has no meaning elsewhere, private",
    r"(tells?|says?) nothing|(tells?|says?) little of": "does not show, is no evidence",
    r"stands? (for|beside|aside)|lies? (in|within|above|below|beyond)": "is, represents; is in, exceeds",
    r"goes on|went on": "continues",
    r"(is|are) had|laggards?": "exists; stragglers, outliers",
    r"(?:ms|µs|ns|MB|GB|seconds?|\d) a (step|rank)": "per step, per rank",
    r"rank \d+, whole": "rank 4 (summary lane)",
    r"in (\d+|\{\w+\}) pieces": "7 graphs (6 graph breaks)",
    r"(is|are|was|were|as|it) asked for": "requested",
    r"(is|are|was|were) (said|wanted)": "reported, requested",
    r"all the same(?! \w)|piped? on|what (is|was) left of": "nevertheless; use a pipe; the rest of",
    r"(?-i:Mfu|Tflops per s|Blocks per sm)": "MFU, TFLOP/s, Blocks per SM",
    r"\w*(colour|behaviour|neighbour|favour|honour)\w*|grey|per cent": "color, neighbor, gray, percent",
    r"centre[ds]?|metres?|(?<!aria-)labell(ed|ing)|modell(ed|ing)|cancelling|travell(ed|ing)": "center, labeled",
    r"(ana|cata)lys(e|ed|ing)|catalogue|licence|artefacts?|programme|whilst|towards": "analyze, toward",
    # `synchronisation` is a value in the results of `idle` and `synchronised` a check of the doctor: names stay.
    r"\w*(nal|initial|organ|optim|random|regular|summar|util|recogn|minim|maxim|serial|parallel|visual|categor)is"
    r"(e|es|ed|er|ing|ation)|synchronis(e|es|ing)": "-ize, -ized, -izing, -ization",
}
"""The left column, as regular expressions over whole words, and what to write instead."""

PATTERN = re.compile(
    # Groups inside a pattern do not count: the number of the outer one says which line of the glossary matched.
    "|".join(rf"(\b(?:{re.sub(r'[(](?![?])', '(?:', pattern)})\b)" for pattern in GLOSSARY),
    re.IGNORECASE,
)

HELP = ("analyses", "answers/diagnosis/rules", "cli")
"""Packages whose docstrings users read."""

HISTORY = {"CHANGELOG.md"}
"""What was written before the glossary stays as it was."""


def texts() -> Iterator[tuple[str, int, str]]:
    """File, line and text of everything that a user may read."""
    for file in sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]):
        if file.name not in HISTORY:
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                yield str(file.relative_to(ROOT)), number, line
    for file in sorted(SOURCE.rglob("*.py")):
        name = str(file.relative_to(SOURCE))
        if "node_modules" not in name:
            yield from _literals(file, shown=name.startswith(HELP))
    for file in sorted((SOURCE / "show" / "web" / "ui" / "src").rglob("*.ts")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for literal in re.findall(r"\"[^\"]*\"|'[^']*'|`[^`]*`?", re.sub(r"(^|\s)//.*", "", line)):
                yield str(file.relative_to(ROOT)), number, literal


def _literals(file: Path, *, shown: bool) -> Iterator[tuple[str, int, str]]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0]) for node in ast.walk(tree) if isinstance(node, documented) and node.body}
    # A string as a statement is a docstring, or documents the assignment above it, which only the code's readers see.
    unread = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and not (shown and id(node) in docstrings)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unread:
            for offset, line in enumerate(node.value.splitlines()):
                yield str(file.relative_to(ROOT)), node.lineno + offset, line


def test_no_phrase_of_the_left_column_is_left() -> None:
    instead = list(GLOSSARY.values())
    found = [
        f"{file}:{line}: {match[0]!r} in {text.strip()[:100]!r}: write {instead[match.lastindex - 1]}"
        for file, line, text in texts()
        for match in PATTERN.finditer(text)
        if match.lastindex
    ]
    assert not found, "\n".join(found)
