"""`rankscope findings`.

In: a run. Out: its findings as text or JSON.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened
from rankscope.cli.signature import with_options
from rankscope.cli.writing import TextFormat, show, write
from rankscope.engine.pipeline.clock import clock_of
from rankscope.results import RESULT_SCHEMA_VERSION
from rankscope.show.export.formats import as_json
from rankscope.show.report.formatting import sentence
from rankscope.show.report.terminal import findings_list, not_judged_list

FOUND = 1
"""Exit status of `--fail-on` if there is such a finding; for an error it is 2."""
_WEIGHT = ("error", "warning", "info")


class Severity(str, Enum):
    """The severity of a finding."""

    error = "error"
    warning = "warning"
    info = "info"


@with_options()
def findings(
    source: Source,
    form: Annotated[TextFormat, typer.Option("--format", "-f", help="Output format.")] = TextFormat.table,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    fail_on: Annotated[
        Severity | None, typer.Option(help="Exit with status 1 if there is a finding of this severity or worse.")
    ] = None,
    options: RunOptions = DEFAULTS,
) -> None:
    """Show what is wrong with a run and what to do about it, most severe first, with the evidence.

    Findings about the same time are merged into one: the cause, with its symptoms below it. Savings add up to at most
    a step.
    """
    with opened(source, options) as opened_run:
        found = list(map(clock_of(opened_run).finding, opened_run.diagnose()))
        diagnosis = opened_run.diagnosis()
        about = opened_run.about()
    if form is TextFormat.json:
        content = {
            "schema_version": RESULT_SCHEMA_VERSION,
            "run": about,
            "diagnosis": diagnosis.to_json(),
            "findings": [finding.to_json() for finding in found],
        }
        write(as_json(content), output)
    else:
        parts: list[RenderableType] = [Text(sentence(diagnosis.headline), style="bold")]
        if found:
            parts += [Text(), findings_list(found, about["steps"], with_evidence=True)]
        if diagnosis.not_judged:
            parts += [Text(), not_judged_list(diagnosis)]
        show(Group(*parts), output)
    worst = min((_WEIGHT.index(finding.severity) for finding in found), default=len(_WEIGHT))
    if fail_on is not None and worst <= _WEIGHT.index(fail_on.value):
        Console(stderr=True).print(Text(f"fails: there are findings of severity {_WEIGHT[worst]}", style="bold red"))
        raise typer.Exit(FOUND)
