"""Results in the terminal: a table, and a verdict on one screen."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rankscope.pipeline import Run
from rankscope.report.words import cell, number_of, plain, ranks_text
from rankscope.results import Finding, Result

_COLOURS = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
_BAR = (
    # Each with a shade of its own: a pipe, a log and some eyes have no colours.
    ("compute_ns", "compute", "green", "█"),
    ("exposed_communication_ns", "exposed communication", "red", "▒"),
    ("exposed_memory_ns", "copies", "magenta", "▓"),
    ("idle_ns", "idle", "bright_black", "·"),
)
_BAR_WIDTH = 28
SUMMARY = ("overview", "device_time", "step_time", "collective_summary", "kernels")


def result_table(result: Result, limit: int | None = None) -> RenderableType:
    """A result as a table, times and sizes in human units; above `limit` rows it says how many are left out."""
    table = Table(header_style="bold", box=None, pad_edge=False, title_justify="left")
    columns = [column for column in result.analysis.columns if column.name in result.frame.columns]
    for column in columns:
        numeric = result.frame.schema[column.name].is_numeric()
        table.add_column(
            column.name.removesuffix("_ns"), justify="right" if numeric else "left", overflow="fold", no_wrap=numeric
        )
    shown = result.frame if limit is None else result.frame.head(limit)
    for row in shown.iter_rows(named=True):
        table.add_row(*(Text(cell(row[column.name], column.unit)) for column in columns))
    left = result.frame.height - shown.height
    return Group(table, Text(f"… {left} more rows: --limit 0 shows all", style="dim")) if left > 0 else table


def findings_list(findings: Sequence[Finding]) -> RenderableType:
    """Findings with their evidence and advice."""
    lines: list[RenderableType] = []
    for finding in findings:
        line = Text()
        line.append(f"{finding.severity:<8}", style=_COLOURS[finding.severity])
        line.append(plain(finding.title, limit=400))
        if finding.saving_ns:
            line.append(f"  (at most {number_of(finding.saving_ns, 'ns')} a step)", style="bold")
        lines.append(line)
        if finding.advice and finding.severity != "info":
            lines.append(Text(f"        → {plain(finding.advice, limit=400)}", style="dim"))
    return Group(*lines)


def summary(run: Run) -> RenderableType:
    """What a person wants to know first, on one screen."""
    results = run.analyze(*SUMMARY)
    about, overview = run.about(), results["overview"].frame.row(0, named=True)
    parts: list[RenderableType] = [_headline(about), Text()]
    parts.append(_figures(overview))
    parts += [Text(), _device_bars(results["device_time"])]
    collectives, kernels = results["collective_summary"], results["kernels"]
    if collectives.frame.height:
        shown = collectives.frame.head(5).select("collective", "dtype", "bytes", "count", "mean_ns", "min_ns", "max_ns")
        parts += [Text(), Text("Collectives, by time over all ranks", style="bold")]
        parts.append(result_table(Result(collectives.analysis, shown)))
    if kernels.frame.height:
        top = kernels.frame.sort("total_ns", descending=True).group_by("name", maintain_order=True).first().head(5)
        parts += [Text(), Text("Kernels, each on the rank where it takes longest", style="bold")]
        parts.append(_kernels(top))
    if run.findings:
        parts += [Text(), Text("Findings", style="bold"), findings_list(run.findings)]
    return Group(*parts)


def _kernels(top: pl.DataFrame) -> RenderableType:
    table = Table(header_style="bold", box=None, pad_edge=False)
    for heading, width in (("rank", 4), ("calls", 6), ("total", 8), ("share", 6)):
        table.add_column(heading, justify="right", min_width=width)
    table.add_column("kernel", no_wrap=True, overflow="ellipsis")
    for row in top.iter_rows(named=True):
        cells = (str(row["rank"]), str(row["calls"]), cell(row["total_ns"], "ns"), cell(row["share"], "ratio"))
        table.add_row(*cells, Text(plain(row["name"], limit=48)))
    return table


def _headline(about: dict[str, object]) -> Text:
    ranks, size = about["ranks"], about["world_size"]
    line = Text()
    line.append(plain(about["path"]), style="bold")
    listed = ranks if isinstance(ranks, list) else []
    line.append(f"\nranks {ranks_text(listed)}" + (f" of {size}" if size else ""))
    steps = about["steps"]
    if isinstance(steps, list) and steps:
        line.append(f" · steps {steps[0]}–{steps[1]}")
    for key in ("devices", "hosts"):
        values = about[key]
        if isinstance(values, list) and values:
            line.append(" · " + ", ".join(plain(value, limit=40) for value in values[:3]))
    return line


def _figures(overview: dict[str, object]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim")
    step = "median over steps of the slowest rank" if overview["steps"] else "the whole file: it has no ProfilerStep#"
    table.add_row("step time", cell(overview["step_ns"], "ns"), step)
    table.add_row("overlap", cell(overview["overlap_ratio"], "ratio"), "of communication is hidden by compute")
    share = cell(overview["exposed_share"], "ratio")
    exposed = cell(overview["exposed_communication_ns"], "ns")
    table.add_row("exposed communication", exposed, f"per rank and step, {share} of the step")
    table.add_row(
        "data loading", cell(overview["data_loading_ns"], "ns"), "per rank and step with nothing else running"
    )
    if overview["slowest_rank"] is not None:
        margin = cell(overview["slowest_margin_ns"], "ns")
        told = f"works {margin} a step longer than the median of the others"
        table.add_row("slowest rank", cell(overview["slowest_rank"], ""), told)
    return table


def _device_bars(result: Result) -> RenderableType:
    """One bar a rank: how its device's span divides."""
    frame = result.frame
    legend = Text("Device by rank  ", style="bold")
    for _, label, colour, shade in _BAR:
        legend.append(f"{shade} ", style=colour)
        legend.append(f"{label}  ")
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(min_width=_BAR_WIDTH, no_wrap=True, overflow="crop")
    longest = int(frame["span_ns"].to_numpy().max()) if frame.height else 0
    rows = frame if frame.height <= 16 else frame.sort("exposed_communication_ns").head(8)
    for row in rows.sort("rank").iter_rows(named=True):
        bar = Text()
        for name, _, colour, shade in _BAR:
            bar.append(shade * (round(_BAR_WIDTH * row[name] / longest) if longest else 0), style=colour)
        span, exposed = cell(row["span_ns"], "ns"), cell(row["exposed_communication_ns"], "ns")
        told = f"{span}, exposed {exposed}, overlap {cell(row['overlap_ratio'], 'ratio')}"
        table.add_row(Text(f"rank {row['rank']}"), bar, Text(told, style="dim"))
    parts: list[RenderableType] = [legend, table]
    if frame.height > rows.height:
        parts.append(Text(f"… the {rows.height} ranks that wait least, of {frame.height}", style="dim"))
    return Group(*parts)
