"""A diff in the terminal: section by section, what changed most first."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rankscope.compare import Diff
from rankscope.compare.rows import SECTIONS
from rankscope.report.words import NOTHING, cell, number_of, plain, ranks_text

_MEASURES = ("steps", "phases", "memory")
_TITLES = {
    "steps": "Steps: per rank and step",
    "phases": "Phases: per rank and step",
    "collectives": "Collectives: per rank and step",
    "kernels": "Kernels: per rank and step",
    "operators": "Operators: self time on the host, per rank and step",
    "memory": "Memory: per rank",
}
_LEAST = 0.001
"""Share of a step below which a row that nobody asked for is not shown."""


def diff_tables(diff: Diff, limit: int | None, width: int) -> RenderableType:
    """What changed, by section; of kernels, operators and collectives the `limit` greatest changes (None for all)."""
    parts: list[RenderableType] = [_heading(diff), Text()]
    step = diff.section("steps").filter(pl.col("name") == "step_time")
    whole = max((value or 0.0 for value in step.select("a", "b").row(0)), default=0.0) if step.height else 0.0
    for section in SECTIONS:
        rows = diff.section(section)
        if rows.is_empty():
            continue
        shown = rows
        if section not in _MEASURES and limit is not None:
            shown = rows.filter(pl.col("change").abs() > _LEAST * whole).head(limit)
        parts += [Text(_TITLES[section], style="bold"), _table(shown, width)]
        left = rows.height - shown.height
        if left:
            parts.append(Text(f"… {left} more rows: --limit 0 shows all", style="dim"))
        parts.append(Text())
    parts.append(Text("* more than the spread over steps and ranks (Welch's test, 1 % false discoveries)", style="dim"))
    return Group(*parts)


def _heading(diff: Diff) -> Text:
    line = Text()
    for label, about in (("A", diff.a), ("B", diff.b)):
        line.append(f"{label}  ", style="bold")
        line.append(plain(about["path"], limit=400))
        devices = ", ".join(plain(name, limit=40) for name in about["devices"][:2])
        line.append(f"  rank {ranks_text(about['ranks'])}" + (f" · {devices}" if devices else ""), style="dim")
        line.append("\n" if label == "A" else "")
    return line


def _table(rows: pl.DataFrame, width: int) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for heading in ("A", "B", "change", "", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    with_calls = rows["section"][0] not in _MEASURES if rows.height else False
    if with_calls:
        table.add_column("calls", justify="right", no_wrap=True)
    room = max(24, width - (62 if with_calls else 48))
    for row in rows.iter_rows(named=True):
        cells = [_name(row, room), _value(row["a"], row["unit"]), _value(row["b"], row["unit"])]
        cells += [_signed(row), _share(row), Text("*" if row["significant"] else "")]
        if with_calls:
            cells.append(Text(f"{_count(row['a_calls'])} → {_count(row['b_calls'])}", style="dim"))
        table.add_row(*cells)
    return table


def _name(row: dict[str, Any], room: int) -> Text:
    text = Text(plain(row["name"], limit=max(16, room if row["partner"] is None else room // 2)))
    if row["partner"] is not None:
        text.append(" → ", style="bold")
        text.append(plain(row["partner"], limit=max(16, room // 2)))
    if row["shapes"] is not None and row["section"] in ("operators", "collectives"):
        text.append(f" {plain(row['shapes'], limit=40)}", style="dim")
    return text


def _value(value: float | None, unit: str) -> Text:
    return Text(NOTHING if value is None else cell(round(value), unit))


def _signed(row: dict[str, Any]) -> Text:
    change = round(row["change"])
    sign = "+" if change > 0 else ("−" if change < 0 else "")
    colour = "" if not row["significant"] else ("red" if change > 0 else "green")
    return Text(f"{sign}{number_of(abs(change), row['unit'])}", style=colour)


def _share(row: dict[str, Any]) -> Text:
    if row["a"] is None:
        return Text("only in B")
    if row["b"] is None:
        return Text("only in A")
    return Text(NOTHING if row["change_ratio"] is None else f"{100 * row['change_ratio']:+.1f} %")


def _count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"
