"""`rankscope analyze`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text
from typer.core import TyperCommand
from typer.main import get_command

from rankscope.analyses import all_analyses, get_analysis
from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened, own_options
from rankscope.cli.signature import with_options
from rankscope.cli.writing import refuse_terminal, show, width_for, write
from rankscope.diagnosis.verdict import JUDGED
from rankscope.errors import ConfigError
from rankscope.export.formats import FORMATS
from rankscope.pipeline import Run
from rankscope.report.formatting import plain, sentence
from rankscope.report.key_averages import key_averages
from rankscope.report.terminal import findings_list, result_table
from rankscope.results import Analysis, Parameters, Result, by_severity

# The options of one analysis (`--match`, `--by`) are not known before its name is.
CONTEXT_SETTINGS = {"ignore_unknown_options": True}
_OWN = "rankscope.analysis"


class COMMAND(TyperCommand):
    """Its help with an analysis's name lists the options of that analysis, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look for the name, where help is asked for."""
        named = (
            [name for word in args if (name := word.replace("-", "_")) in all_analyses()] if "--help" in args else []
        )
        if named:
            analysis = get_analysis(named[0])
            ctx.meta[_OWN] = _documented_options(analysis)
            about = f"`rankscope analyses {analysis.name}` explains the result and its columns."
            self.help = f"{analysis.title}\n\n{about}"
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's, then those of the analysis that the help is about."""
        return [*super().get_params(ctx), *ctx.meta.get(_OWN, ())]


def _documented_options(analysis: Analysis) -> list[Any]:
    """The options of an analysis as typer has them, for help alone: `own_options` reads them."""
    found = []
    for each in analysis.parameters:
        option, _, takes = each.usage.partition(" ")
        shown = typer.Option(
            option,
            help=f"{each.doc[:1].upper()}{each.doc[1:]}.",
            metavar=takes or None,
            rich_help_panel=f"Options of {analysis.name}",
        )
        is_flag = each.kind == "flag"
        kind: Any = bool if is_flag else str | None
        kind = Annotated[kind, shown]
        default = each.default if is_flag or each.default is None else str(each.default)
        found.append(Parameter(f"own_{each.name}", Parameter.KEYWORD_ONLY, default=default, annotation=kind))

    def command(**_given: object) -> None:
        """Has these options."""

    command.__signature__ = Signature(found)  # type: ignore[attr-defined]  # as PEP 362
    command.__annotations__ = {each.name: each.annotation for each in found}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return [each for each in get_command(app).params if str(each.name).startswith("own_")]


class Format(str, Enum):
    """How a result is written."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


@dataclass(frozen=True)
class TableOptions:
    """How and where a result is written."""

    form: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.table
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None
    limit: Annotated[int, typer.Option("--limit", help="Rows of a table to show; 0 for all.", min=0)] = 50
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="COLUMN", help="Sort the rows by this column: numbers from the largest down."),
    ] = None
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order of --sort.")] = False


TABLE = TableOptions()


@with_options()
def analyze(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which analysis: `rankscope analyses` lists them.")],
    source: Source,
    table: TableOptions = TABLE,
    options: RunOptions = DEFAULTS,
) -> None:
    """Run one analysis and write its result.

    Some analyses have options of their own, such as `--by` and `--match`: `rankscope analyze NAME --help` lists them.
    """
    source, own = own_options(get_analysis(name), source)
    write_result(name, source, own, table, options)


def write_result(
    name: str,
    source: list[str],
    own: Parameters,
    table: TableOptions,
    options: RunOptions,
    check: Callable[[Run, Result], None] = lambda run, result: None,
    change: Callable[[Result], Result] = lambda result: result,
) -> None:
    """Run an analysis with its own parameters, and write its result as it was asked for.

    Args:
        check: looks at the result before it is written; an error that it raises is reported instead.
        change: what is written instead of the result.
    """
    wanted = get_analysis(name).name
    refuse_terminal(table.form.value, table.output)
    with opened(source, options) as opened_run:
        result = opened_run.analyze(wanted, parameters={wanted: own})[wanted]
        check(opened_run, result)
        if result.name in JUDGED:
            result = opened_run.diagnosis().answered(result)
        result = _sorted(change(result), table)
        about = opened_run.about()
        findings = tuple(by_severity([*opened_run.loaded.findings, *result.findings]))
    if table.form is Format.table:
        _write_table(result, own, table, _device_word(about["devices"]))
    else:
        write(FORMATS[table.form.value](Result(result.analysis, result.frame, findings), about), table.output)
    worth = [finding for finding in findings if finding.severity != "info"]
    # JSON carries them itself; rows alone would look complete.
    if worth and table.form is not Format.json:
        Console(stderr=True, highlight=False).print(findings_list(worth, about["steps"]))


def _sorted(result: Result, options: TableOptions) -> Result:
    """The rows by the column that was asked for: numbers from the largest down, text from A on, null last.

    Raises:
        ConfigError: there is no such column.
    """
    if options.sort is None:
        if options.reverse:
            raise ConfigError("--reverse goes with --sort", hint="name the column: --sort COLUMN")
        return result
    names = result.frame.columns
    shown_as = (options.sort, f"{options.sort}_ns", f"{options.sort.removesuffix('_time')}_ns")  # headings have no unit
    column = next((name for name in shown_as if name in names), None)
    if column is None:
        raise ConfigError(f"{result.name} has no column {options.sort!r}", hint=f"its columns: {', '.join(names)}")
    descending = result.frame.schema[column].is_numeric() != options.reverse
    return replace(result, frame=result.frame.sort(column, descending=descending, nulls_last=True, maintain_order=True))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _device_word(devices: list[str]) -> str:
    """What torch calls the device: ROCm is CUDA to it."""
    return "XPU" if any("intel" in name.lower() for name in devices) else "CUDA"


def _write_table(result: Result, own: Parameters, options: TableOptions, device: str) -> None:
    output, limit = options.output, options.limit
    pattern = own.get("match")
    if result.frame.is_empty() and (pattern or result.name == "operators"):
        asked = f" with --match {plain(str(pattern))}" if pattern else ""
        show(Text(f"no rows: these traces contain no data for {result.name}{asked}", style="dim"), output)
        return
    if result.name == "operators":
        # People know this table from torch, and pipe it on: its lines are as long as they are.
        write(key_averages(result, limit or None, device, _text(own.get("sort_by"))).encode("utf-8", "replace"), output)
        return
    table = result_table(result, limit or None, width_for(output) or Console().width)
    headline = result.headline
    answered: RenderableType = Group(Text(sentence(headline)), Text(), table) if headline is not None else table
    show(answered, output)
