"""`rankscope analyze`.

In: a run, an analysis and its options. Out: the result as a table, CSV, JSON, Parquet or Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text
from typer.core import TyperCommand
from typer.main import get_command

from rankscope.analyses import all_analyses, get_analysis
from rankscope.answers.diagnosis.verdict import JUDGED
from rankscope.cli.analyses import analyses
from rankscope.cli.options import DEFAULTS, RunOptions, Source, analysis_options, opened
from rankscope.cli.signature import with_options
from rankscope.cli.writing import Format, refuse_terminal, show, width_for, write
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import clock_of, in_run_time
from rankscope.errors import ConfigError
from rankscope.results import Analysis, Parameters, Result, by_severity
from rankscope.show.export.formats import FORMATS
from rankscope.show.report.formatting import plain, sentence
from rankscope.show.report.key_averages import key_averages
from rankscope.show.report.terminal import findings_list, result_table

# The options of an analysis (`--match`, `--by`) are known only once its name is.
CONTEXT_SETTINGS = {"ignore_unknown_options": True}
_ANALYSIS_OPTIONS = "rankscope.analysis"
_SORT = "sort_by"


class COMMAND(TyperCommand):
    """`rankscope analyze NAME --help` also lists the options of the analysis."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """With `--help`, look for the name of an analysis."""
        named = (
            [name for word in args if (name := word.replace("-", "_")) in all_analyses()] if "--help" in args else []
        )
        if named:
            analysis = get_analysis(named[0])
            ctx.meta[_ANALYSIS_OPTIONS] = _help_options(analysis)
            about = f"`rankscope analyze {analysis.page}` explains the result and its columns."
            self.help = f"{analysis.title}\n\n{about}"
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's parameters, then those of the analysis."""
        return [*super().get_params(ctx), *ctx.meta.get(_ANALYSIS_OPTIONS, ())]


def _help_options(analysis: Analysis) -> list[Any]:
    """The options of an analysis as typer shows them in the help; `analysis_options` parses them."""
    options = []
    for parameter in analysis.parameters:
        if parameter.name == _SORT:
            continue  # as for all analyses
        option, _, metavar = parameter.usage.partition(" ")
        shown = typer.Option(
            option,
            help=f"{parameter.doc[:1].upper()}{parameter.doc[1:]}.",
            metavar=metavar or None,
            rich_help_panel=f"Options of {analysis.name}",
        )
        is_flag = parameter.kind == "flag"
        kind: Any = bool if is_flag else str | None
        kind = Annotated[kind, shown]
        default = parameter.default if is_flag or parameter.default is None else str(parameter.default)
        options.append(Parameter(f"own_{parameter.name}", Parameter.KEYWORD_ONLY, default=default, annotation=kind))

    def command(**_values: object) -> None:
        """Has these options."""

    command.__signature__ = Signature(options)  # type: ignore[attr-defined]  # as PEP 362
    command.__annotations__ = {option.name: option.annotation for option in options}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return [param for param in get_command(app).params if str(param.name).startswith("own_")]


@dataclass(frozen=True)
class TableOptions:
    """How and where a result is written."""

    form: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.table
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None
    limit: Annotated[int, typer.Option("--limit", help="Rows to show per table; 0 for all.", min=0)] = 50
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            "--sort-by",
            metavar="COLUMN",
            help="Sort the rows by this column: numbers descending, text ascending; -COLUMN: both descending. "
            "Operators also by torch's names: self_cpu, cpu, self_device, device, count, memory.",
        ),
    ] = None
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order of --sort.")] = False


TABLE = TableOptions()


@with_options()
def analyze(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which analysis. Without one, they are listed.")
    ] = None,
    source: Source = (),  # type: ignore[assignment]  # typer makes a list of it
    table: TableOptions = TABLE,
    options: RunOptions = DEFAULTS,
) -> None:
    """Run one analysis and write its result; without a run, list the analyses, or explain one.

    Some analyses have options of their own, such as `--by` and `--match`: `rankscope analyze NAME --help` lists them.
    """
    if name is None or not source:
        analyses(name)
        return
    analysis = get_analysis(name)
    source, parameters = analysis_options(analysis, source)
    own = next((each for each in analysis.parameters if each.name == _SORT), None)
    if own is not None and table.sort in own.choices:
        parameters, table = {**parameters, _SORT: table.sort}, replace(table, sort=None)
    write_result(analysis.name, source, parameters, table, options)


def write_result(
    name: str,
    source: list[str],
    parameters: Parameters,
    table: TableOptions,
    options: RunOptions,
    check: Callable[[Run, Result], None] = lambda run, result: None,
    change: Callable[[Result], Result] = lambda result: result,
) -> None:
    """Run an analysis with its parameters, and write its result as the options say.

    Args:
        check: called with the result before it is written; may raise an error.
        change: returns what is written instead of the result.
    """
    refuse_terminal(table.form.value, table.output)
    with opened(source, options) as opened_run:
        result = opened_run.analyze(name, parameters={name: parameters})[name]
        check(opened_run, result)
        if result.name in JUDGED:
            result = opened_run.diagnosis().answered(result)
        result = _sorted(in_run_time(change(result), clock_of(opened_run)), table)
        about = opened_run.about()
        findings = tuple(by_severity([*opened_run.loaded.findings, *result.findings]))
    if table.form is Format.table:
        _write_table(result, parameters, table, _device_name(about["devices"]))
    else:
        write(FORMATS[table.form.value](Result(result.analysis, result.frame, findings), about), table.output)
    serious = [finding for finding in findings if finding.severity != "info"]
    # JSON contains the findings; other formats have only rows.
    if serious and table.form is not Format.json:
        Console(stderr=True, highlight=False).print(findings_list(serious, about["steps"]))


def _sorted(result: Result, options: TableOptions) -> Result:
    """The rows sorted by the column of `--sort`: numbers descending, text ascending (descending if -COLUMN), null last.

    Raises:
        ConfigError: there is no such column.
    """
    if options.sort is None:
        if options.reverse:
            raise ConfigError("--reverse goes with --sort", hint="name the column: --sort COLUMN")
        return result
    names = result.frame.columns
    wanted = options.sort.removeprefix("-")
    shown_as = (wanted, f"{wanted}_ns", f"{wanted.removesuffix('_time')}_ns")  # headings have no unit
    column = next((name for name in shown_as if name in names), None)
    if column is None:
        raise ConfigError(f"{result.name} has no column {wanted!r}", hint=f"columns: {', '.join(names)}")
    descending = (options.sort != wanted or result.frame.schema[column].is_numeric()) != options.reverse
    return replace(result, rows=result.frame.sort(column, descending=descending, nulls_last=True, maintain_order=True))


def _device_name(devices: list[str]) -> str:
    """The device type's name in torch's tables, which call ROCm CUDA."""
    return "XPU" if any("intel" in name.lower() for name in devices) else "CUDA"


def _write_table(result: Result, parameters: Parameters, options: TableOptions, device: str) -> None:
    output, limit = options.output, options.limit
    pattern, sort_by = parameters.get("match"), parameters.get("sort_by")
    if result.frame.is_empty() and (pattern or result.name == "operators"):
        condition = f" with --match {plain(str(pattern))}" if pattern else ""
        show(Text(f"no rows: these traces contain no data for {result.name}{condition}", style="dim"), output)
        return
    if result.name == "operators":
        # This is torch's table, which people also pipe: do not wrap its lines.
        text = key_averages(result, limit or None, device, sort_by if isinstance(sort_by, str) else None)
        write(text.encode("utf-8", "replace"), output)
        return
    table = result_table(result, limit or None, width_for(output) or Console().width)
    headline = result.headline
    shown: RenderableType = Group(Text(sentence(headline)), Text(), table) if headline is not None else table
    show(shown, output)
