"""A diff in the terminal.

In: a `Diff`. Out: one table per section, the largest changes first, and a sentence on the step time.
"""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rankscope.experiments.compare import Diff
from rankscope.experiments.compare.gate import Breach
from rankscope.experiments.compare.rows import SECTIONS, TOTALS
from rankscope.experiments.compare.samples import MODULES
from rankscope.experiments.compare.savings import SAVINGS
from rankscope.primitives.statistics import WELCH
from rankscope.rundir.plurals import counted
from rankscope.show.report.formatting import NOTHING, cell, number_of, numbered, plain
from rankscope.whatif.run import LEAST_SHARE

_MEASURES = ("steps", "savings", "phases", "memory", "snapshots")
_TITLES = {
    "steps": "Steps: time breakdown",
    "savings": "Savings: what each change of the replay saves after those before it, and what remains of the step",
    "phases": "Phases: host time (wall), and device time of what each launched (…_device)",
    "collectives": "Collectives",
    "kernels": "Kernels, by the operator that launches them",
    "operators": "Operators: host self time",
    "modules_device": "Modules: device time of what their operators launch, forward and backward",
    "modules_host": "Modules: host self time of their operators, forward and backward",
    "memory": "Memory, per rank",
    "snapshots": "Memory snapshots, per rank",
    "stacks": "Memory snapshots, by allocating stack: per rank, at the peak if the history records it",
}
_MARKS = {True: "*", False: "", None: "?"}
_PARTS = 3
"""Most parts of a step in the first line."""
_FACTOR = 99
"""Larger relative changes are shown as a factor."""
_LEAST = 0.001
"""Rows below this share of a step are left out of a limited table."""


def diff_tables(diff: Diff, limit: int | None, width: int) -> RenderableType:
    """The changes by section; of kernels, operators and collectives the `limit` largest (None for all)."""
    parts: list[RenderableType] = [_heading(diff), Text()]
    step = diff.section("steps").filter(pl.col("name") == "step_time")
    longest = max((value or 0.0 for value in step.select("a", "b").row(0)), default=0.0) if step.height else 0.0
    if step.height:
        parts += [_verdict(diff, step.row(0, named=True)), Text()]
    for section in SECTIONS:
        rows = diff.section(section)
        if rows.is_empty():
            continue
        # Zero on both sides is not a difference.
        rows = rows.filter((pl.col("a").fill_null(0) != 0) | (pl.col("b").fill_null(0) != 0))
        if section in MODULES:
            rows = rows.filter(pl.col("operator").is_null())  # operators have a table of their own
        shown = rows
        if section not in _MEASURES and limit is not None:
            least = _LEAST * (longest if section != "stacks" else float(rows["b"].sum() or 0))
            shown = rows.filter(pl.col("change").abs() > least).head(limit)
        parts.append(Text(_TITLES[section], style="bold"))
        if shown.height:
            parts.append(_table(shown, width))
        left = rows.height - shown.height
        if left:
            parts.append(Text(f"… {counted(left, 'more row')}: --limit 0 shows all", style="dim"))
        parts.append(Text())
    if diff.frame.height:
        of = "rank and step" if _marked(diff) else "rank over the recorded span (no steps are marked)"
        note = (
            f"All values are means per {of}; change is B − A. * marks significant changes ({WELCH}, 1 % false "
            "discovery rate), ? those for which there are too few steps to tell. Calls are A → B."
        )
        parts.append(Text(note, style="dim"))
    else:
        parts.append(Text("Nothing to compare."))
    return Group(*parts)


def verdict_of(diff: Diff) -> str:
    """How much longer or shorter a step is, in one line; empty if the runs have no steps in common."""
    step = diff.section("steps").filter(pl.col("name") == "step_time")
    return _verdict(diff, step.row(0, named=True)).plain if step.height else ""


def row_texts(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """A row's values in both runs, its change with and without the unit's share, and the mark of its significance."""
    mark = _MARKS[row["significant"]] if row["verdict"] else ""
    return (
        _value(row["a"], row["unit"]).plain,
        _value(row["b"], row["unit"]).plain,
        _signed(row).plain,
        _share(row).plain,
        mark,
    )


def breach_line(breach: Breach) -> str:
    """A change beyond a limit, its size, and whether it is significant."""
    if breach.name == "findings":
        return f"{counted(round(breach.change), 'finding')} gained"
    share = "" if breach.ratio is None else f" ({_percent(breach.ratio)})"
    return (
        f"{plain(breach.name, limit=200)} changed by {_with_sign(breach.change, breach.unit)}{share}: "
        f"{breach.verdict or 'not tested'}"
    )


def _marked(diff: Diff) -> bool:
    """Whether the runs mark steps."""
    return bool(diff.a["steps"] or diff.b["steps"])


def _verdict(diff: Diff, step: dict[str, Any]) -> Text:
    """How much longer or shorter a step is, and which parts changed most."""
    a, b, change = step["a"] or 0.0, step["b"] or 0.0, step["change"]
    what = "B's mean step" if _marked(diff) else "B's window"
    line = Text(f"{what} takes {number_of(round(b), 'ns')}", style="bold")
    if change:
        line.append(f", {number_of(abs(round(change)), 'ns')} {'more' if change > 0 else 'less'} than {_of(a)}")
        line.append(f" ({_percent(step['change_ratio'])})" if step["change_ratio"] is not None else "")
        line.append(f": {step['verdict']}." if step["verdict"] else ".")
    else:
        line.append(f", the same as {_of(a)}.")
    parts = diff.section("steps").filter(
        ~pl.col("name").is_in([*TOTALS, "gap_before"]) & (pl.col("change").abs() >= _LEAST * max(a, b))
    )
    if parts.height:
        changes = ", ".join(f"{row['name']} {_signed(row).plain}" for row in parts.head(_PARTS).iter_rows(named=True))
        line.append(Text(f" {'Mostly' if change else 'Changes'}: {changes}.", style="not bold"))
    saved = diff.section(SAVINGS).filter(pl.col("change").abs() >= LEAST_SHARE * max(a, b)).head(_PARTS)
    if saved.height:
        causes = "; ".join(
            f"{_signed(row).plain} {plain(row['name'], limit=100)}" for row in saved.iter_rows(named=True)
        )
        line.append(Text(f" By the replay: {causes}.", style="not bold"))
    elif diff.not_judged:
        line.append(Text(f" By cause it is not judged: {plain(diff.not_judged, limit=200)}.", style="not bold"))
    return line


def _of(a: float) -> str:
    return f"A's {number_of(round(a), 'ns')}"


def _heading(diff: Diff) -> Text:
    line = Text()
    for label, about in (("A", diff.a), ("B", diff.b)):
        line.append(f"{label}  {plain(about['name'] or about['path'], limit=100)}", style="bold")
        facts = [f"run {plain(about['id'], limit=60)}"] if about["id"] else []
        facts += [numbered("rank", about["ranks"], limit=60)]
        facts += [numbered("step", about["steps"], limit=40)] if about["steps"] else ["no steps marked"]
        facts += [", ".join(plain(name, limit=40) for name in about["devices"][:2])] if about["devices"] else []
        line.append(f"\n   {' · '.join(facts)}", style="dim")
        if about["path"] != about["name"]:
            line.append(f"\n   {plain(about['path'], limit=400)}", style="dim")
        line.append("\n" if label == "A" else "")
    return line


def _table(rows: pl.DataFrame, width: int) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("", overflow="fold", min_width=28)
    for heading in ("A", "B", "change", "", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    with_calls = rows["section"][0] not in _MEASURES if rows.height else False
    if with_calls:
        table.add_column("calls", justify="right", no_wrap=True)
    room = max(24, width - (62 if with_calls else 48))
    for row in rows.iter_rows(named=True):
        cells = [_name(row, room), _value(row["a"], row["unit"]), _value(row["b"], row["unit"])]
        cells += [_signed(row), _share(row), Text(_MARKS[row["significant"]] if row["verdict"] else "")]
        if with_calls:
            cells.append(Text(f"{_count(row['a_calls'])} → {_count(row['b_calls'])}", style="dim"))
        table.add_row(*cells)
    return table


def _name(row: dict[str, Any], room: int) -> Text:
    text = Text()
    if row["section"] == "kernels" and row["operator"] is not None:
        text.append(f"{plain(row['operator'], limit=max(16, room // 3))}  ", style="bold")
        room -= min(len(row["operator"]), max(16, room // 3)) + 2
    text.append(plain(row["name"].split("\n")[0], limit=max(16, room if row["partner"] is None else room // 2)))
    if row["partner"] is not None:
        text.append(" → ", style="bold")
        text.append(plain(row["partner"], limit=max(16, room // 2)))
    if row["shapes"] is not None and row["section"] in ("operators", "collectives"):
        text.append(f" {plain(row['shapes'], limit=40)}", style="dim")
    return text


def _value(value: float | None, unit: str) -> Text:
    return Text(NOTHING if value is None else cell(round(value), unit))


def _signed(row: dict[str, Any]) -> Text:
    color = "" if not row["significant"] else ("red" if row["change"] > 0 else "green")
    return Text(_with_sign(row["change"], row["unit"]), style=color)


def _with_sign(change: float, unit: str) -> str:
    shown = number_of(round(change), unit)
    return f"+{shown}" if round(change) > 0 else shown


def _share(row: dict[str, Any]) -> Text:
    if row["a"] is None:
        return Text("only in B")
    if row["b"] is None:
        return Text("only in A")
    return Text(NOTHING if row["change_ratio"] is None else _percent(row["change_ratio"]))


def _percent(ratio: float) -> str:
    """A signed percentage; beyond a hundredfold a factor."""
    if ratio >= _FACTOR:
        return f"× {1 + ratio:,.0f}"
    shown = f"{abs(100 * ratio):.1f}"
    sign = "" if float(shown) == 0 else ("+" if ratio > 0 else "−")
    return f"{sign}{shown} %"


def _count(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
