"""Results in the terminal: a table, and a verdict on one screen."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rankscope.pipeline import Run
from rankscope.report.words import cell, number_of, plain, ranks_text
from rankscope.results import Column, Finding, Result

_COLOURS = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
_BAR = (
    # Each with a shade of its own: a pipe, a log and some eyes have no colours.
    ("compute_ns", "compute", "green", "█"),
    ("exposed_communication_ns", "exposed communication", "red", "▒"),
    ("exposed_memory_ns", "copies", "magenta", "▓"),
    ("idle_ns", "idle", "bright_black", "·"),
)
_WIDTH, _BAR_WIDTH = 80, 28
_INSTANTS = (
    "start_ns", "end_ns", "launch_ns", "issued_ns", "used_ns", "peak_at_ns", "allocated_ns", "released_ns", "time_ns",
)  # fmt: skip
# Ranks whose own work differs by less than this share of a step are even.
_EVEN = 0.05
# One screen; the rest is `rankscope findings`.
_FINDINGS_SHOWN = 3
SUMMARY = ("overview", "device_time", "step_time", "collective_summary", "kernels", "stragglers")


def result_table(result: Result, limit: int | None = None, width: int = _WIDTH) -> RenderableType:
    """A result as a table, times and sizes in human units; above `limit` rows it says how many are left out.

    A number that is cut reads as another number: columns that find no room go below, in further blocks that begin
    with the same key columns. Columns that hold nothing in any row are named below the table.
    """
    present = [column for column in result.analysis.columns if column.name in result.frame.columns]
    if result.frame.is_empty():
        return Text(f"nothing: these traces hold nothing that {result.name} would show", style="dim")
    counts = result.frame.null_count().row(0, named=True)
    columns = [column for column in present if counts[column.name] < result.frame.height]
    shown = result.frame if limit is None else result.frame.head(limit)
    headings = _headings(columns)
    # Names leave room for what is said of them.
    longest = min(72, max(16, width // 3))
    cells = [[_cell(column, value, longest) for value in shown[column.name].to_list()] for column in columns]
    widths = [
        max([cell_len(heading), *(cell_len(text) for text in texts)])
        for heading, texts in zip(headings, cells, strict=True)
    ]
    parts: list[RenderableType] = []
    for block in _blocks(columns, widths, width):
        if parts:
            parts.append(Text())
        table = Table(header_style="bold", box=None, pad_edge=False)
        for place in block:
            numeric = result.frame.schema[columns[place].name].is_numeric()
            table.add_column(headings[place], justify="right" if numeric else "left", overflow="fold")
        for row in range(shown.height):
            table.add_row(*(Text(cells[place][row]) for place in block))
        parts.append(table)
    left = result.frame.height - shown.height
    if left > 0:
        parts.append(Text(f"… {left} more rows: --limit 0 shows all", style="dim"))
    silent = [heading for heading, column in zip(_headings(present), present, strict=True) if column not in columns]
    if silent:
        parts.append(Text(f"no value in any row: {', '.join(silent)}", style="dim"))
    return Group(*parts)


def _headings(columns: Sequence[Column]) -> list[str]:
    """Names without the unit that the cells show, unless another column is called so."""
    names = [column.name for column in columns]
    short = [name.removesuffix("_ns") for name in names]
    return [
        f"{one}_time" if one != name and short.count(one) > 1 else one for one, name in zip(short, names, strict=True)
    ]


def _cell(column: Column, value: object, longest: int) -> str:
    if isinstance(value, str):
        return plain(value, limit=longest)
    if column.name in _INSTANTS and isinstance(value, int):
        # Instants are read by their difference: what `632235 s` would hide.
        return f"{value / 1e6:,.3f} ms"
    return cell(value, column.unit)


def _blocks(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[list[int]]:
    """Which columns stand side by side: as many as fit, after the keys, which each block repeats."""
    keys: list[int] = []
    for place, column in enumerate(columns):
        if column.unit or sum(widths[key] + 2 for key in [*keys, place]) > width // 2:
            break
        keys.append(place)
    blocks, block, taken = [], list(keys), sum(widths[key] + 2 for key in keys)
    for place in range(len(keys), len(columns)):
        if len(block) > len(keys) and taken + widths[place] > width:
            blocks.append(block)
            block, taken = list(keys), sum(widths[key] + 2 for key in keys)
        block.append(place)
        taken += widths[place] + 2
    return [*blocks, block]


def findings_list(findings: Sequence[Finding], steps: Sequence[int], *, with_evidence: bool = False) -> RenderableType:
    """Findings with their advice, and the numbers that they rest on if wanted.

    Args:
        steps: the run's; without any, savings are of the window.
    """
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        line = Text(plain(finding.title, limit=400))
        if finding.ranks:
            which = "rank" if len(finding.ranks) == 1 else "ranks"
            line.append(f"  ({which} {plain(ranks_text(finding.ranks), limit=60)})", style="dim")
        if finding.saving_ns:
            of = "a step" if steps else "of the window"
            line.append(f"  (at most {number_of(finding.saving_ns, 'ns')} {of})", style="bold")
        table.add_row(Text(finding.severity, style=_COLOURS[finding.severity]), line)
        for each in finding.evidence if with_evidence else ():
            value = plain(each.value, limit=200) if isinstance(each.value, str) else number_of(each.value, each.unit)
            table.add_row("", Text(f"  {plain(each.name, limit=200)}: {value}"))
        if finding.advice and (with_evidence or finding.severity != "info"):
            table.add_row("", Text(f"→ {plain(finding.advice, limit=400)}", style="dim"))
    return table


def summary(run: Run, width: int = _WIDTH) -> RenderableType:
    """What a person wants to know first, on one screen."""
    results = run.analyze(*SUMMARY)
    about, overview = run.about(), results["overview"].frame.row(0, named=True)
    parts: list[RenderableType] = [_headline(about), Text()]
    parts.append(_figures(overview))
    what = "Host" if about["devices"] == ["CPU"] else "Device"
    parts += [Text(), _device_bars(results["device_time"], what, width)]
    collectives, kernels = results["collective_summary"], results["kernels"]
    if collectives.frame.height:
        columns = ("collective", "dtype", "bytes", "count", "mean_ns", "min_ns", "max_ns")
        group = ("group",) if collectives.frame["group"].n_unique() > 1 else ()
        shown = collectives.frame.head(5).select(*columns[:3], *group, *columns[3:])
        parts += [Text(), Text("Collectives, by time over all ranks", style="bold")]
        parts.append(result_table(Result(collectives.analysis, shown), width=width))
    if kernels.frame.height:
        top = kernels.frame.sort("total_ns", descending=True).group_by("name", maintain_order=True).first().head(5)
        parts += [Text(), Text("Kernels, each on the rank where it takes longest", style="bold")]
        parts.append(_kernels(top))
    findings = run.diagnose()
    if findings:
        # What is wrong with the data itself saves nothing, and is to be known all the same.
        told = [
            finding
            for place, finding in enumerate(findings)
            if place < _FINDINGS_SHOWN or (finding.severity != "info" and finding.saving_ns is None)
        ]
        parts += [Text(), Text("Findings", style="bold"), findings_list(told, about["steps"])]
        left = len(findings) - len(told)
        if left:
            parts.append(Text(f"… {left} more, and what they rest on: rankscope findings", style="dim"))
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
    line.append(f"\nrank{'' if len(listed) == 1 else 's'} {ranks_text(listed)}" + (f" of {size}" if size else ""))
    steps = about["steps"]
    if isinstance(steps, list) and steps:
        line.append(f" · step{'' if len(steps) == 1 else 's'} {ranks_text(steps)}")
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
    alone = overview["ranks"] == 1
    each = "per step" if alone else "per rank and step"
    step = "median over steps" if alone else "of the slowest rank, median over steps"
    table.add_row(
        "step time",
        cell(overview["step_ns"], "ns"),
        step if overview["steps"] else "the whole file: no ProfilerStep# in it",
    )
    if overview["overlap_ratio"] is None:
        table.add_row("communication", "none", "in these traces")
    else:
        table.add_row("overlap", cell(overview["overlap_ratio"], "ratio"), "of communication is hidden by compute")
        share = cell(overview["exposed_share"], "ratio")
        exposed = cell(overview["exposed_communication_ns"], "ns")
        table.add_row("exposed communication", exposed, f"{each}, {share} of the step")
    table.add_row("data loading", cell(overview["data_loading_ns"], "ns"), f"{each}, nothing else running")
    rank, margin, whole = (overview[name] for name in ("slowest_rank", "slowest_margin_ns", "step_ns"))
    if isinstance(rank, int) and isinstance(margin, int) and isinstance(whole, int):
        if margin > _EVEN * whole:
            table.add_row("slowest rank", str(rank), f"works {cell(margin, 'ns')} a step more than the others")
        else:
            table.add_row("slowest rank", "none", f"they are even: rank {rank} by {cell(margin, 'ns')} a step")
    return table


def _device_bars(result: Result, what: str, width: int) -> RenderableType:
    """One bar a rank: how its device's span divides."""
    frame = result.frame
    room = max(8, min(_BAR_WIDTH, width - 52))
    legend = Text(f"{what} by rank  ", style="bold")
    for _, label, colour, shade in _BAR:
        legend.append(f"{shade} ", style=colour)
        legend.append(f"{label}  ")
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(min_width=room, max_width=room, no_wrap=True, overflow="crop")
    longest = int(frame["span_ns"].to_numpy().max()) if frame.height else 0
    rows = frame if frame.height <= 16 else frame.sort("exposed_communication_ns").head(8)
    for row in rows.sort("rank").iter_rows(named=True):
        bar = Text()
        for name, _, colour, shade in _BAR:
            bar.append(shade * (round(room * row[name] / longest) if longest else 0), style=colour)
        span, exposed = cell(row["span_ns"], "ns"), cell(row["exposed_communication_ns"], "ns")
        told = f"{span}, exposed {exposed}, overlap {cell(row['overlap_ratio'], 'ratio')}"
        table.add_row(Text(f"rank {row['rank']}"), bar, Text(told, style="dim"))
    parts: list[RenderableType] = [legend, table]
    if frame.height > rows.height:
        parts.append(Text(f"… the {rows.height} ranks that wait least, of {frame.height}", style="dim"))
    return Group(*parts)
