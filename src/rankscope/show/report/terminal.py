"""Results and findings in the terminal.

In: a result, or findings. Out: rich tables that fit the width without cutting a number.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rankscope.answers.diagnosis.verdict import Diagnosis
from rankscope.results import Column, Finding, Result
from rankscope.rundir.plurals import counted
from rankscope.show.report.formatting import cell, number_of, numbered, plain, saving_of

COLORS = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
_WIDTH = 80


def result_table(result: Result, limit: int | None = None, width: int = _WIDTH) -> RenderableType:
    """A result as a table, times and sizes in human units; it says how many rows beyond `limit` are left out.

    A truncated number would read as another number, so columns that do not fit continue below, in further blocks that
    start with the same key columns. Columns without any value are listed below the table.
    """
    frame = result.frame
    present = [column for column in result.analysis.columns if column.name in frame.columns]
    if frame.is_empty():
        return Text(f"no rows: these traces contain no data for {result.name}", style="dim")
    counts = frame.null_count().row(0, named=True)
    columns = [column for column in present if counts[column.name] < frame.height]
    shown = frame if limit is None else frame.head(limit)
    headings = _headings(columns)
    # Names leave room for the other columns.
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
            numeric = frame.schema[columns[place].name].is_numeric()
            table.add_column(headings[place], justify="right" if numeric else "left", overflow="fold")
        for row in range(shown.height):
            table.add_row(*(Text(cells[place][row]) for place in block))
        parts.append(table)
    left = frame.height - shown.height
    if left > 0:
        parts.append(Text(f"… {counted(left, 'more row')}: --limit 0 shows all", style="dim"))
    empty = [heading for heading, column in zip(_headings(present), present, strict=True) if column not in columns]
    if empty:
        parts.append(Text(f"columns without values: {', '.join(empty)}", style="dim"))
    return Group(*parts)


def _headings(columns: Sequence[Column]) -> list[str]:
    """Column names without their unit, which the cells show; with `_time` where another column has that name."""
    names = [column.name for column in columns]
    short = [name.removesuffix("_ns") for name in names]
    return [
        f"{one}_time" if one != name and short.count(one) > 1 else one for one, name in zip(short, names, strict=True)
    ]


def _cell(column: Column, value: object, longest: int) -> str:
    if isinstance(value, str):
        return plain(value, limit=longest)
    if column.instant and isinstance(value, int):
        # Instants are compared with each other: full precision, not `632235 s`.
        return f"{value / 1e6:,.3f} ms"
    return cell(value, column.unit)


def _blocks(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[list[int]]:
    """The columns of each block: as many as fit, after the key columns, which every block repeats."""
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
    """Findings with their symptoms and advice, and on request their evidence and how to replay the step without them.

    Args:
        steps: the run's; without any, savings are totals of the recorded window.
    """
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        line = _titled(finding)
        line.append(saving_of(finding, steps), style="bold")
        table.add_row(Text(finding.severity, style=COLORS[finding.severity]), line)
        for row in _evidence(finding) if with_evidence else ():
            table.add_row("", row)
        if finding.advice and (with_evidence or finding.severity != "info"):
            table.add_row("", Text(f"→ {plain(finding.advice, limit=400)}", style="dim"))
        if finding.scenarios and with_evidence:
            table.add_row(
                "", Text(f"the step without it: rankscope whatif RUN {' '.join(finding.scenarios)}", style="dim")
            )
        for symptom in finding.symptoms:
            table.add_row("", _indented(_symptom(symptom, with_evidence=with_evidence)))
    return table


def _titled(finding: Finding) -> Text:
    line = Text(plain(finding.title, limit=400))
    if finding.ranks:
        line.append(f" ({numbered('rank', finding.ranks, limit=60)})", style="dim")
    return line


def _evidence(finding: Finding) -> list[RenderableType]:
    """Indented below the title, lines that wrap too."""
    return [
        _indented(
            Text(
                f"{plain(each.name, limit=200)}: "
                + (plain(each.value, limit=200) if isinstance(each.value, str) else number_of(each.value, each.unit))
            )
        )
        for each in finding.evidence
    ]


def _indented(shown: RenderableType) -> RenderableType:
    return Padding(shown, (0, 0, 0, 2))


def _symptom(symptom: Finding, *, with_evidence: bool) -> RenderableType:
    """A symptom below its cause: why it is one, and what it costs."""
    line = Text("↳ ").append_text(_titled(symptom))
    amount = f"{number_of(symptom.saving_ns, 'ns')} of the same time, because " if symptom.saving_ns else ""
    line.append(f": {amount}{plain(symptom.because)}", style="dim")
    if not with_evidence:
        return line
    rows = _evidence(symptom)
    if symptom.advice:
        rows.append(_indented(Text(f"→ {plain(symptom.advice, limit=400)}", style="dim")))
    return Group(line, *map(_indented, rows))


def not_judged_list(diagnosis: Diagnosis) -> RenderableType:
    """What the traces cannot tell, why, and what to record; at least one."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in diagnosis.not_judged:
        line = Text(f"{plain(each.what)}: {plain(each.why)}.")
        if each.record:
            line.append(f" → {plain(each.record)}", style="dim")
        table.add_row(Text("unknown", style="dim"), line)
    return table
