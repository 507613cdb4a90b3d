"""`rankscope diff`.

In: two runs, or two ranks of one. Out: a table, JSON, Markdown or JUnit XML; status 1 if a condition of ``--fail-on``
holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from rankscope.cli.analyze import TableOptions
from rankscope.cli.options import DEFAULTS, RunOptions, opened
from rankscope.cli.signature import with_options
from rankscope.cli.writing import Format, refuse_terminal, show, width_for, write
from rankscope.errors import ConfigError
from rankscope.experiments.compare import Diff, diff_runs
from rankscope.experiments.compare.gate import Judged, judge, parse_condition
from rankscope.rundir.ranges import parse_numbers
from rankscope.rundir.ranks import MAX_RANK
from rankscope.show.export.formats import FORMATS, as_json
from rankscope.show.export.junit import Check, to_junit
from rankscope.show.report.diff_markdown import diff_markdown
from rankscope.show.report.diff_table import breach_line, diff_tables
from rankscope.show.report.terminal import findings_list

FAILED = 1
"""Exit status if a condition of `--fail-on` holds; for an error it is 2."""


_TABLE = TableOptions(limit=12)


@dataclass(frozen=True)
class GateOptions:
    """Conditions on a diff, and how their outcome is written for CI."""

    fail_on: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Exit with status 1 if it holds: 'step_time > 5%'. Repeatable."),
    ] = None
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML, with one test case per --fail-on.")
    ] = None
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown, for a comment on a pull request.")
    ] = None


_GATE = GateOptions()


@with_options(without=("sort", "reverse"))
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The first run: a directory or a trace.")],
    b: Annotated[
        str | None, typer.Argument(metavar="[B]", help="The second run; leave out to compare two ranks of A.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Two ranks of A to compare, or the ranks of both to look at: 0,1.")
    ] = None,
    gate: GateOptions = _GATE,
    table: TableOptions = _TABLE,
    run_b: Annotated[str | None, typer.Option(help="Run id in B, if it has several runs.")] = None,
    options: RunOptions = DEFAULTS,
) -> None:
    """Compare two runs, or two ranks of one: what changed, and whether that is significant."""
    form, output = table.form, table.output
    refuse_terminal(form.value, output)
    conditions = [parse_condition(text) for text in gate.fail_on or []]
    if gate.junit is not None and not conditions:
        raise ConfigError("--junit writes the conditions of --fail-on, and there is none", hint="add --fail-on")
    rank_numbers = _parse_ranks(ranks)
    with opened([a], options) as first:
        if b is None:
            result = diff_runs(first, ranks=rank_numbers)
        else:
            with opened([b], replace(options, run=run_b)) as second:
                result = diff_runs(first, second, ranks=rank_numbers)
    judged = judge(conditions, result)
    if gate.junit is not None:
        write(to_junit("rankscope diff", list(map(_check, judged))), gate.junit)
    if gate.markdown is not None:
        write(diff_markdown(result, judged).encode("utf-8", "replace"), gate.markdown)
    # A condition on something that does not exist is an error, reported before the diff is written.
    for each in judged:
        if each.error is not None:
            raise each.error
    failed = [each.breach for each in judged if each.breach is not None]
    if form is Format.table:
        width = width_for(output) or Console().width
        show(_tables_and_findings(result, table.limit or None, width), output)
    elif form is Format.json:
        write(as_json(result.to_json()), output)
    else:
        write(FORMATS[form.value](result.result(), {}), output)
    for breach in failed:
        Console(stderr=True, highlight=False).print(Text(f"fails: {breach_line(breach)}", style="bold red"))
    if failed:
        raise typer.Exit(FAILED)


def _check(judged: Judged) -> Check:
    failure = "" if judged.breach is None else breach_line(judged.breach)
    return Check(judged.condition.text, failure, "" if judged.error is None else str(judged.error))


def _parse_ranks(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return parse_numbers(text, MAX_RANK)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a list of ranks: {error}", hint="write --ranks 0,1") from None


def _tables_and_findings(result: Diff, limit: int | None, width: int) -> RenderableType:
    parts: list[RenderableType] = [diff_tables(result, limit, width)]
    for title, findings, run in (
        ("Findings gained", result.gained, result.b),
        ("Findings lost", result.lost, result.a),
    ):
        if findings:
            parts += [Text(), Text(title, style="bold"), findings_list(findings, run["steps"])]
    return Group(*parts)
