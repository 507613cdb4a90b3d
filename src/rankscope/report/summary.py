"""A run's verdict on one screen: how long a step takes, where that goes, who holds it up, what to do first.

No more than 24 lines of no more than 100 columns, whatever the run holds: a line that finds no room ends in `…`. What
stands here is a figure of an analysis; `rankscope findings` and `rankscope analyze NAME` say more.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from rankscope.pipeline import Run
from rankscope.report.terminal import COLOURS
from rankscope.report.words import cell, number_of, plain, ranks_text
from rankscope.results import Finding, Result

LINES, COLUMNS = 24, 100
ANALYSES = ("overview", "step_time", "stragglers", "memory")

# Each with a shade of its own: a pipe, a log and some eyes have no colours.
PARTS = (
    (("compute_ns",), "compute", "green", "█"),
    (("exposed_communication_ns",), "exposed communication", "red", "▒"),
    (("exposed_memcpy_ns", "exposed_memset_ns"), "copies", "magenta", "▓"),
    (("data_loading_ns",), "waiting for data", "yellow", "▚"),
    (("runtime_ns", "host_op_ns", "other_ns"), "idle otherwise", "bright_black", "·"),
)
_LABEL = 12
_BAR = 30
# Ranks whose own work differs by less than this share of a step are even.
_EVEN = 0.05
_SHOWN = 3
_LOST = 2


def summary(run: Run, width: int = 80) -> RenderableType:
    """What a person wants to know first.

    Args:
        run: the run.
        width: columns that there are.
    """
    width = max(20, min(width, COLUMNS))
    results = run.attempt(*ANALYSES)
    findings = [finding for finding in run.diagnose() if finding not in run.loaded.findings]
    lines = [*_head(run.about(), width), Text()]
    if "overview" in results and "step_time" in results:
        lines += _step(results["overview"].frame.row(0, named=True), results["step_time"].frame)
    lines += [slowest(results), memory(results.get("memory")), *_lost(run, width)]
    lines += [Text(), *_findings(findings, LINES - 1 - len(lines), width)]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines[:LINES])


def _head(about: Mapping[str, Any], width: int) -> list[Text]:
    """What the run is."""
    ranks, size, steps = about["ranks"], about["world_size"], about["steps"]
    told = [
        f"rank{'' if len(ranks) == 1 else 's'} {plain(ranks_text(ranks), limit=40)}" + (f" of {size}" if size else "")
    ]
    if steps:
        told.append(f"step{'' if len(steps) == 1 else 's'} {plain(ranks_text(steps), limit=24)}")
    for key in ("devices", "hosts"):
        values = about[key]
        more = f" and {len(values) - 2} more" if len(values) > 2 else ""
        if values:
            told.append(", ".join(plain(value, limit=30) for value in values[:2]) + more)
    name, path = plain(about["name"] or about["path"], limit=60), plain(about["path"], limit=4096)
    line = Text(name, style="bold")
    # The end of a path tells more than its beginning.
    room = width - cell_len(name) - 2
    if path != name and room > 8:
        line.append("  " + (path if len(path) <= room else "…" + path[1 - room :]), style="dim")
    return [line, Text(" · ".join(told))]


def _line(label: str, *said: tuple[str, str] | str) -> Text:
    line = Text(f"{label:<{_LABEL}}", style="bold")
    for each in said:
        text, style = each if isinstance(each, tuple) else (each, "")
        line.append(text, style=style or "not bold")
    return line


def _step(overview: Mapping[str, Any], steps: pl.DataFrame) -> list[Text]:
    """How long a step takes, and where that goes: of all ranks' and steps' time together."""
    count = overview["steps"]
    how = "of the slowest rank" if overview["ranks"] > 1 else ""
    over = f"median over {count} step{'' if count == 1 else 's'}" if count else "the whole file: no ProfilerStep# in it"
    lines = [_line("step", (cell(overview["step_ns"], "ns"), "bold"), "  " + ", ".join(filter(None, (how, over))))]
    whole = int(steps["window_ns"].sum() or 0)
    if not whole:
        return lines
    if overview["ranks"] > 1:
        lines.append(Text("  mean over all ranks and steps:", style="dim"))
    first = len(lines)
    for columns, label, colour, shade in PARTS:
        time = sum(int(steps[name].sum() or 0) for name in columns)
        bar = shade * round(_BAR * time / whole)
        line = Text(f"  {label:<22}")
        line.append(f"{cell(time / whole, 'ratio'):>7}  {cell(round(time / steps.height), 'ns'):>8}  ", style="bold")
        line.append(bar, style=colour)
        lines.append(line)
    if overview["overlap_ratio"] is not None:
        lines[first + 1].append(f" overlap {cell(overview['overlap_ratio'], 'ratio')}", style="dim")
    return lines


def slowest(results: Mapping[str, Result]) -> Text:
    """Which ranks hold the others up, and why; else whether they are even."""
    overview = results["overview"].frame.row(0, named=True) if "overview" in results else {}
    if overview.get("ranks") == 1:
        return _line("stragglers", ("one rank: nothing to compare it with", "dim"))
    if "stragglers" in results:
        found = results["stragglers"].frame.filter(pl.col("cause").is_not_null())
        found = found.sort(pl.col("saving_ns").fill_null(-1), descending=True)
        if found.height:
            row = found.row(0, named=True)
            saving = f", costs up to {number_of(row['saving_ns'], 'ns')} a step" if row["saving_ns"] else ""
            others = [rank for rank in found["rank"].to_list() if rank != row["rank"]]
            more = (
                f"; also rank{'' if len(others) == 1 else 's'} {plain(ranks_text(others), limit=40)}" if others else ""
            )
            return _line(
                "stragglers",
                (f"rank {row['rank']}", "bold red"),
                f": {plain(row['cause'], limit=60).replace('_', ' ')}{saving}{more}",
            )
    rank, margin, whole = (overview.get(name) for name in ("slowest_rank", "slowest_margin_ns", "step_ns"))
    if isinstance(rank, int) and isinstance(margin, int) and isinstance(whole, int):
        if margin > _EVEN * whole:
            return _line(
                "stragglers", (f"rank {rank}", "bold"), f" works {cell(margin, 'ns')} a step more than the others"
            )
        return _line("stragglers", f"none: rank {rank} works most, by {cell(margin, 'ns')} a step")
    return _line("stragglers", ("not compared", "dim"))


def memory(result: Result | None) -> Text:
    """The rank whose device is fullest."""
    if result is None or not result.frame.height:
        return _line("memory", ("not recorded (profile_memory=True records it)", "dim"))
    known = result.frame.filter(pl.col("peak_allocated").is_not_null())
    device = known.filter(pl.col("device") != "cpu")
    known = device if device.height else known
    if not known.height:
        row = result.frame.sort("change_peak", descending=True).row(0, named=True)
        return _line(
            "memory",
            (f"+{cell(row['change_peak'], 'bytes')}", "bold"),
            f" at most on rank {row['rank']}, {plain(row['device'])}",
        )
    row = known.sort("peak_allocated", descending=True).row(0, named=True)
    said = f" allocated at most, on rank {row['rank']} ({plain(row['device'], limit=12)})"
    if row["total_memory"]:
        said += (
            f", {cell(row['peak_allocated'] / row['total_memory'], 'ratio')} of {cell(row['total_memory'], 'bytes')}"
        )
    growing = known.filter((pl.col("growth") > 0) & (pl.col("growing_steps") > 1))
    if growing.height:
        worst = growing.sort("growth", descending=True).row(0, named=True)
        said += f"; rank {worst['rank']} grows by {cell(worst['growth'], 'bytes')} a step"
    return _line("memory", (cell(row["peak_allocated"], "bytes"), "bold"), said)


def _lost(run: Run, width: int) -> list[Text]:
    """What of the traces could not be used."""
    lost = [finding for finding in run.loaded.findings if finding.severity != "info"]
    if not lost:
        return [_line("lost", ("nothing of these traces", "dim"))]
    lines: list[Text] = []
    for finding in lost[:_LOST]:
        # The directory is named above; what counts is the file's name, which a long path would push off the line.
        title = plain(finding.title.replace(f"{run.path}{os.sep}", ""), limit=4 * COLUMNS)
        own = _wrapped(" " * _LABEL, title, width, 2)
        for line in own:
            line.stylize(COLOURS[finding.severity])
        lines += own
    lines[0] = Text(f"{'lost':<{_LABEL}}", style="bold").append_text(lines[0][_LABEL:])
    if len(lost) > _LOST:
        lines[-1].append(f"; {len(lost) - _LOST} more", style="dim")
    return lines


def _findings(findings: Sequence[Finding], room: int, width: int) -> list[Text]:
    """The worst finding with its advice, the next by title, as far as there is room."""
    if not findings:
        return [Text("Nothing stands out: no rule speaks.")]
    lines: list[Text] = []
    shown = 0
    for finding in findings[:_SHOWN]:
        saving = f" (saves up to {number_of(finding.saving_ns, 'ns')} a step)" if finding.saving_ns else ""
        lines_for = 1 if shown else 2
        # What is cut is the title, never the number behind it.
        title = plain(finding.title, limit=max(8, lines_for * (width - 8) - len(saving) - 8 * (lines_for - 1)))
        own = _wrapped(f"{finding.severity:<8}", title + saving, width, lines_for)
        own[0].stylize(COLOURS[finding.severity], 0, len(finding.severity))
        if not shown and finding.advice:
            own += _wrapped("      → ", plain(finding.advice, limit=1000), width, 3)
        if len(lines) + len(own) >= room:
            break
        lines += own
        shown += 1
    left = len(findings) - shown
    lines.append(Text((f"… {left} more" if left else "What they rest on") + ": rankscope findings", style="dim"))
    return lines


def _wrapped(head: str, text: str, width: int, most: int) -> list[Text]:
    """A text after a head, in no more than some lines."""
    parts = textwrap.wrap(text, max(8, width - len(head)), max_lines=most, placeholder=" …")
    return [Text((head if place == 0 else " " * len(head)) + part) for place, part in enumerate(parts or [""])]
