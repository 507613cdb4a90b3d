"""Results and findings in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rankscope.report.words import cell, number_of, plain, ranks_text
from rankscope.results import Column, Finding, Result

COLOURS = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
_WIDTH = 80
_INSTANTS = ("start_ns", "end_ns", "launch_ns")


def result_table(result: Result, limit: int | None = None, width: int = _WIDTH) -> RenderableType:
    """A result as a table, times and sizes in human units; above `limit` rows it says how many are left out.

    A number that is cut reads as another number: columns that find no room go below, in further blocks that begin
    with the same key columns.
    """
    columns = [column for column in result.analysis.columns if column.name in result.frame.columns]
    shown = result.frame if limit is None else result.frame.head(limit)
    # Names leave room for what is said of them.
    longest = min(72, max(16, width // 3))
    cells = [[_cell(column, value, longest) for value in shown[column.name].to_list()] for column in columns]
    widths = [
        max([cell_len(_heading(column)), *(cell_len(text) for text in texts)])
        for column, texts in zip(columns, cells, strict=True)
    ]
    parts: list[RenderableType] = []
    for block in _blocks(columns, widths, width):
        if parts:
            parts.append(Text())
        table = Table(header_style="bold", box=None, pad_edge=False)
        for place in block:
            numeric = result.frame.schema[columns[place].name].is_numeric()
            table.add_column(_heading(columns[place]), justify="right" if numeric else "left", overflow="fold")
        for row in range(shown.height):
            table.add_row(*(Text(cells[place][row]) for place in block))
        parts.append(table)
    left = result.frame.height - shown.height
    if left > 0:
        parts.append(Text(f"… {left} more rows: --limit 0 shows all", style="dim"))
    return Group(*parts)


def _heading(column: Column) -> str:
    return column.name.removesuffix("_ns")


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


def findings_list(findings: Sequence[Finding], *, with_evidence: bool = False) -> RenderableType:
    """Findings with their advice, and the numbers that they rest on if wanted."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        line = Text(plain(finding.title, limit=400))
        if finding.ranks:
            which = "rank" if len(finding.ranks) == 1 else "ranks"
            line.append(f"  ({which} {plain(ranks_text(finding.ranks), limit=60)})", style="dim")
        if finding.saving_ns:
            line.append(f"  (at most {number_of(finding.saving_ns, 'ns')} a step)", style="bold")
        table.add_row(Text(finding.severity, style=COLOURS[finding.severity]), line)
        for each in finding.evidence if with_evidence else ():
            value = plain(each.value, limit=200) if isinstance(each.value, str) else number_of(each.value, each.unit)
            table.add_row("", Text(f"  {plain(each.name, limit=200)}: {value}"))
        if finding.advice and (with_evidence or finding.severity != "info"):
            table.add_row("", Text(f"→ {plain(finding.advice, limit=400)}", style="dim"))
    return table
