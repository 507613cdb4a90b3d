"""A diff as Markdown, for a comment on a pull request or the summary of a CI job.

Names from traces are put into code spans, in which neither Markdown nor HTML, mentions or references have a meaning.

In: a diff and its judged conditions. Out: Markdown of at most `MAX_CHARACTERS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from rankscope.experiments.compare import Diff
from rankscope.experiments.compare.gate import Judged
from rankscope.results import Finding
from rankscope.rundir.plurals import counted
from rankscope.show.report.diff_table import breach_line, row_texts, verdict_of
from rankscope.show.report.formatting import numbered, plain, saving_of

MARKER = "<!-- rankscope diff -->"
"""The first line, by which a later comment replaces this one."""
MAX_CHARACTERS = 60_000
"""A comment on GitHub may have 65,536."""
_SECTIONS = ("steps", "savings", "collectives", "kernels", "memory")
_ROWS = 8
_FINDINGS = 10


def diff_markdown(diff: Diff, judged: Sequence[Judged]) -> str:
    """The conditions, what changed most, and findings gained and lost.

    Args:
        diff: the diff.
        judged: its conditions; may be empty.
    """
    lines = [MARKER, f"### rankscope: {_headline(judged)}", ""]
    if verdict := verdict_of(diff):
        lines += [f"**{verdict.replace('<', '&lt;')}**", ""]
    if judged:
        lines += ["| | condition | |", "| --- | --- | --- |", *map(_condition, judged), ""]
    lines += _changes(diff)
    for title, findings, about in (("gained", diff.gained, diff.b), ("lost", diff.lost, diff.a)):
        if findings:
            lines += [f"**Findings {title}**", "", *_findings(findings, about["steps"]), ""]
    for label, about in (("A", diff.a), ("B", diff.b)):
        lines.append(f"{label}: {code(_described(about), 300)}<br>")
    lines.append("Means per rank and step; `*` marks significant changes, `?` those with too few steps to tell.")
    text = "\n".join(lines) + "\n"
    if len(text) <= MAX_CHARACTERS:
        return text
    return text[: text.rindex("\n", 0, MAX_CHARACTERS - 100)] + "\n\n… cut\n"


def code(text: object, limit: int = 120) -> str:
    """Text as a code span."""
    shown = plain(text, limit=limit) or " "
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    room = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{room}{shown}{room}{fence}"


def cell(text: object, limit: int = 120) -> str:
    """Text as a code span in a table, whose cells end at a bar even there."""
    return code(text, limit).replace("|", "\\|")


def _headline(judged: Sequence[Judged]) -> str:
    failed = sum(each.breach is not None for each in judged)
    unknown = sum(each.error is not None for each in judged)
    if not judged:
        return "comparison"
    if unknown:
        return f"{counted(unknown, 'condition')} cannot be judged"
    return f"{failed} of {counted(len(judged), 'condition')} failed" if failed else "all conditions hold"


def _condition(each: Judged) -> str:
    if each.error is not None:
        return f"| ❔ | {cell(each.condition.text)} | {cell(each.error.what, 300)} |"
    state = "✅" if each.breach is None else "❌"
    change = "" if each.breach is None else cell(breach_line(each.breach), 300)
    return f"| {state} | {cell(each.condition.text)} | {change} |"


def _changes(diff: Diff) -> list[str]:
    lines: list[str] = []
    for section in _SECTIONS:
        rows = diff.section(section).filter(pl.col("change") != 0)
        if section != "steps":
            rows = rows.filter(pl.col("significant").fill_null(False) | pl.col("a").is_null() | pl.col("b").is_null())
        rows = rows.sort(pl.col("change").abs(), descending=True, maintain_order=True)
        if rows.is_empty():
            continue
        lines += [f"| {section} | A | B | change | | |", "| --- | ---: | ---: | ---: | ---: | --- |"]
        for row in rows.head(_ROWS).iter_rows(named=True):
            name = row["name"] if row["partner"] is None else f"{row['name']} → {row['partner']}"
            lines.append(f"| {cell(name.split(chr(10))[0])} | {' | '.join(row_texts(row))} |")
        if rows.height > _ROWS:
            lines.append(f"| {counted(rows.height - _ROWS, 'more row')} | | | | | |")
        lines.append("")
    return lines


def _findings(findings: Sequence[Finding], steps: Sequence[int]) -> list[str]:
    lines = [f"- {each.severity}: {code(each.title, 300)}{saving_of(each, steps)}" for each in findings[:_FINDINGS]]
    return [*lines, f"- {counted(len(findings) - _FINDINGS, 'more')}"] if len(findings) > _FINDINGS else lines


def _described(about: Mapping[str, Any]) -> str:
    steps = numbered("step", about["steps"], limit=40) if about["steps"] else "no steps marked"
    return f"{about['name']}, {numbered('rank', about['ranks'], limit=60)}, {steps}"
