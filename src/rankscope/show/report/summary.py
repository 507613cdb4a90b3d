"""A run's summary on one screen: step time, its breakdown, the straggler, peak memory and the top findings.

In: a run. Out: at most 24 lines of at most 100 columns, whatever the run holds; longer lines end in `…`. Every number
is an analysis's; `rankscope findings` and `rankscope analyze NAME` show more.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from rankscope.answers.diagnosis.effects import STRAGGLER
from rankscope.answers.diagnosis.verdict import Diagnosis
from rankscope.engine.pipeline import Run
from rankscope.ingest.event_types import DEVICE_KINDS
from rankscope.ingest.findings import NOT_A_TRACE
from rankscope.primitives.steps import UNUSUAL
from rankscope.results import Finding, Result
from rankscope.rundir.plurals import counted, in_sentence
from rankscope.show.report.formatting import cell, number_of, numbered, per_step, percent, plain, saving_of, sentence
from rankscope.show.report.terminal import COLORS
from rankscope.store.account import Account
from rankscope.store.trace_info import TraceInfo

LINES, COLUMNS = 24, 100
ANALYSES = ("overview", "memory")
SNAPSHOT_ANALYSES = ("memory_snapshot",)

# Of the mean step. Each has its own shade, for pipes, logs and readers without color.
PARTS = (
    ("compute_ns", "compute", "green", "█"),
    ("exposed_communication_ns", "exposed communication", "red", "▒"),
    ("exposed_copies_ns", "copies", "magenta", "▓"),
    ("data_loading_ns", "waiting for data", "yellow", "▚"),
    ("otherwise_idle_ns", "otherwise idle", "bright_black", "·"),
)
_UNITS = "(?:%|ns|µs|ms|s|B|kB|MB|GB|TB|GB/s)"
_TOGETHER = "\N{NO-BREAK SPACE}"
LABEL = 12
"""The width of a line's label."""
_BAR = 30
_SHOWN = 3
_TITLE = 3
"""Most lines of a finding's title, and of the advice on the first."""
_LOST = 2
_END = 4


def summary(run: Run, width: int = 80, end: tuple[str, str] | None = None) -> RenderableType:
    """The summary of a run.

    Args:
        run: the run.
        width: of the terminal, in columns.
        end: why the job hangs or has failed, and the command that shows more.
    """
    width = max(20, min(width, COLUMNS))
    only_snapshots = all(info.is_snapshot for info in run.traces)
    results = run.attempt(*(SNAPSHOT_ANALYSES if only_snapshots else ANALYSES))
    diagnosis = run.diagnosis()
    findings = [finding for finding in run.findings if finding not in run.loaded.findings]
    about = run.about()
    steps = about["steps"]
    lines = [*_head(about, windows_numbered_alike(run.traces), width), Text()]
    if "overview" in results:
        lines += _folded(_step(results["overview"].frame.row(0, named=True), _without_work(run.traces)), width)
    if only_snapshots:
        lines += _folded(_snapshots(results.get("memory_snapshot")), width)
    else:
        lines += _folded([slowest(diagnosis, steps), memory(results.get("memory"))], width)
    lines += [*_lost(run, width), Text()]
    if end is not None:
        why = _wrapped("error   ", plain(end[0], limit=400), width, _END)
        why[0].stylize(COLORS["error"], 0, len("error"))
        lines += [*why, *_wrapped("      → ", plain(end[1]), width, 1)]
    if findings:
        lines += _findings(findings, steps, LINES - len(lines), width)
    else:
        lines += _wrapped("", sentence(diagnosis.headline), width, _TITLE)
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines[:LINES])


def windows_numbered_alike(traces: Iterable[TraceInfo]) -> int:
    """How many windows a rank has, where several of them begin with the same step number; else 1."""
    begins = [(info.rank, info.first_step) for info in traces if info.first_step is not None]
    if len(set(begins)) == len(begins):
        return 1
    return max(Counter(rank for rank, _ in begins).values())


def _head(about: Mapping[str, Any], windows: int, width: int) -> list[Text]:
    """Name, path, ranks, steps, devices and hosts of the run; `windows` as `windows_numbered_alike` gives it."""
    ranks, size, steps = about["ranks"], about["world_size"], about["steps"]
    facts = [numbered("rank", ranks, limit=40) + (f" of {size}" if size else "")]
    if steps:
        facts.append(numbered("step", steps, limit=24) + (f" in each of {windows} windows" if windows > 1 else ""))
    for key in ("devices", "hosts"):
        values = about[key]
        more = f" and {len(values) - 2} more" if len(values) > 2 else ""
        if values:
            facts.append(", ".join(plain(value, limit=30) for value in values[:2]) + more)
    name, path = plain(about["name"] or about["path"], limit=60), plain(about["path"], limit=4096)
    line = Text(name, style="bold")
    # The end of a path is more specific than its beginning.
    room = width - cell_len(name) - 2
    if path != name and room > 8:
        line.append("  " + (path if len(path) <= room else "…" + path[1 - room :]), style="dim")
    return [line, Text(" · ".join(facts))]


def _line(label: str, *parts: tuple[str, str] | str) -> Text:
    line = Text(f"{label:<{LABEL}}", style="bold")
    for each in parts:
        text, style = each if isinstance(each, tuple) else (each, "")
        line.append(text, style=style or "not bold")
    return line


def step_basis(overview: Mapping[str, Any]) -> str:
    """What the step time was taken over: `of the slowest rank, median over 4 steps`, and a step that stands out."""
    count = overview["steps"]
    rank = "of the slowest rank" if overview["ranks"] > 1 else ""
    over = "the recorded span: no steps are marked"
    if count:
        over = f"median over {counted(count, 'step')}" if count > 1 else "the only step"
        if overview["longest_step_ns"] > UNUSUAL * overview["step_ns"]:
            over += f"; step {overview['longest_step']}: {cell(overview['longest_step_ns'], 'ns')}"
            cold = count - overview["averaged_steps"]
            over += f", and {counted(cold - 1, 'other cold step')}" if cold > 1 else ""
    return ", ".join(filter(None, (rank, over)))


def mean_basis(overview: Mapping[str, Any]) -> str:
    """What the breakdown was taken over: `mean over ranks and steps`; empty for one step of one rank."""
    over = ["ranks"] if overview["ranks"] > 1 else []
    cold = overview["averaged_steps"] < overview["steps"]
    over += ["usual steps" if cold else "steps"] if overview["steps"] > 1 else []
    return f"mean over {' and '.join(over)}" if over else ""


def _without_work(traces: Sequence[TraceInfo]) -> str:
    """Why what a step did is not recorded; empty if it is. A log of spans has no operator or device event."""
    whole = [info for info in traces if not info.account.hides_work]
    kinds = {kind.partition(" ")[2].lower() for info in whole for kind in info.counts}
    if not kinds.isdisjoint((*DEVICE_KINDS, "cpu_op", "operator")):
        return ""
    device = Account.of(info.account for info in traces if info not in whole).device_events
    return "too many events are missing" if device else "no device events"


def _step(overview: Mapping[str, Any], without_work: str) -> list[Text]:
    """The step time and its breakdown, if what the steps did is recorded; else why not, as `_without_work` gives it."""
    lines = [_line("step", (cell(overview["step_ns"], "ns"), "bold"), f"  {step_basis(overview)}")]
    if without_work:
        return [*lines, Text(f"  what it was spent on is not recorded: {without_work}", style="dim")]
    mean = overview["mean_step_ns"]
    if not mean:
        return lines
    basis = mean_basis(overview)
    # Findings have it without the waiting: a reader must not take one for the other.
    waiting = "; communication includes waiting" if overview["ranks"] > 1 else ""
    lines.append(Text(f"  {basis}, {cell(mean, 'ns')}{waiting}:" if basis else "  of which:", style="dim"))
    for column, label, color, shade in PARTS:
        share = overview[column] / mean
        line = Text(f"  {label:<22}")
        line.append(f"{percent(share):>8}  {cell(overview[column], 'ns'):>8}  ", style="bold")
        line.append(shade * round(_BAR * share), style=color)
        line.rstrip()
        lines.append(line)
    if overview["overlap_ratio"] is not None:
        hidden = overview["overlap_ratio"]
        share = [(percent(hidden), "bold"), " of communication overlaps"] if hidden else ["no communication overlaps"]
        lines.append(_line("overlap", *share, " with compute"))
    return lines


def slowest(diagnosis: Diagnosis, steps: Sequence[int]) -> Text:
    """The stragglers and their cause; without one, the verdict and which rank works longest.

    Args:
        diagnosis: the run's.
        steps: the run's; without any, amounts are totals of the recorded span.
    """
    verdict = diagnosis.stragglers
    if verdict.state == "straggler":
        first = next(finding for finding in diagnosis.findings if finding.id == STRAGGLER)
        saving = f", costs up to {number_of(first.saving_ns, 'ns')} {per_step(steps)}" if first.saving_ns else ""
        others = [rank for rank in verdict.ranks if rank not in first.ranks]
        more = f"; also {numbered('rank', others, limit=40)}" if others else ""
        cause = plain(first.title.partition(": ")[2], limit=120)
        who = numbered("rank", first.ranks, limit=40)
        return _line("stragglers", (who, "bold red"), f": {cause}{saving}{more}")
    if verdict.longest is None or verdict.state == "none":
        return _line("stragglers", (verdict.label, "dim"))
    return _line("stragglers", f"{verdict.label}: {sentence(verdict.longest)}")


def memory(result: Result | None) -> Text:
    """The highest peak of allocated memory."""
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
            f" peak increase, on rank {row['rank']} ({plain(row['device'])})",
        )
    row = known.sort("peak_allocated", descending=True).row(0, named=True)
    since = " since the recording began" if row["device"] == "cpu" else ""
    where = f" peak allocated{since}, on rank {row['rank']} ({plain(row['device'], limit=12)})"
    if row["total_memory"]:
        where += (
            f", {cell(row['peak_allocated'] / row['total_memory'], 'ratio')} of {cell(row['total_memory'], 'bytes')}"
        )
    growing = known.filter((pl.col("growth") > 0) & (pl.col("growing_steps") > 1))
    if growing.height:
        worst = growing.sort("growth", descending=True).row(0, named=True)
        where += f"; rank {worst['rank']} grows by {cell(worst['growth'], 'bytes')} per step"
    return _line("memory", (cell(row["peak_allocated"], "bytes"), "bold"), where)


def _snapshots(result: Result | None) -> list[Text]:
    """What memory snapshots without traces show, and the commands for more."""
    answer = None if result is None else result.headline
    lines = [_line("memory", sentence(answer) if answer is not None else "the snapshots hold no segment")]
    commands = ("memory_snapshot", "memory_snapshot --by stack", "memory_blocks")
    return [*lines, *(_line("" if place else "more", f"rankscope analyze {c} …") for place, c in enumerate(commands))]


def _lost(run: Run, width: int) -> list[Text]:
    """Problems with the traces."""
    lost = [finding for finding in run.loaded.findings if finding.severity != "info"]
    if not lost:
        account = Account.of(info.account for info in run.traces)
        found = f"no problems found in {account.read}" if account.events else "no problems found"
        others = [plain(each.title.partition(":")[0]) for each in run.loaded.findings if each.id == NOT_A_TRACE]
        return _folded([_line("traces", ("; ".join([found, *map(in_sentence, others)]), "dim"))], width)
    lines: list[Text] = []
    for finding in lost[:_LOST]:
        # The directory is named above: without it the file's name fits on the line.
        title = plain(finding.title.replace(f"{run.path}{os.sep}", ""), limit=4 * COLUMNS)
        own = _wrapped(" " * LABEL, title, width, 2)
        for line in own:
            line.stylize(COLORS[finding.severity])
        lines += own
    lines[0] = Text(f"{'traces':<{LABEL}}", style="bold").append_text(lines[0][LABEL:])
    if len(lost) > _LOST:
        lines[-1].append(f"; {len(lost) - _LOST} more", style="dim")
    return lines


def _findings(findings: Sequence[Finding], steps: Sequence[int], room: int, width: int) -> list[Text]:
    """The top finding with its advice, then the titles of the next: as many as fit."""
    lines: list[Text] = []
    shown = 0
    for finding in findings[:_SHOWN]:
        saving = saving_of(finding, steps)
        # A long title loses its end, never the saving behind it.
        title = plain(finding.title, limit=max(8, _TITLE * (width - 16) - len(saving)))
        own = _wrapped(f"{finding.severity:<8}", title + saving, width, _TITLE)
        own[0].stylize(COLORS[finding.severity], 0, len(finding.severity))
        left = room - 1 - len(lines) - len(own)
        if left < 0 and shown:
            break
        if not shown and finding.advice and left > 0:
            own += _wrapped("      → ", plain(finding.advice, limit=1000), width, min(_TITLE, left))
        left = room - 1 - len(lines) - len(own)
        if not shown and finding.symptoms and left > 0:
            titles = "; ".join(in_sentence(plain(each.title, limit=200)) for each in finding.symptoms)
            own += _wrapped("      ↳ ", f"same cause: {titles}", width, min(2, left))
        lines += own
        shown += 1
    left = len(findings) - shown
    lines.append(Text((f"… {left} more" if left else "Evidence") + ": rankscope findings", style="dim"))
    return lines


def _folded(lines: Sequence[Text], width: int) -> list[Text]:
    """Lines that are too long continue on the next, indented."""
    folded = []
    for line in lines:
        cut = line.plain.rfind(" ", LABEL + 8, width + 1) if cell_len(line.plain) > width else -1
        if cut < 0:
            folded.append(line)
            continue
        head, rest = line.divide([cut + 1])
        head.rstrip()
        folded += [head, Text(" " * LABEL).append_text(rest)]
    return folded


def _wrapped(head: str, text: str, width: int, most: int) -> list[Text]:
    """A text after a head, in at most `most` lines."""
    # Keep a number and its unit on one line.
    together = re.sub(rf"(?<=\d) (?={_UNITS}(?!\w))", _TOGETHER, text)
    parts = textwrap.wrap(together, max(8, width - len(head)), max_lines=most, placeholder=" …")
    return [
        Text((head if place == 0 else " " * len(head)) + part.replace(_TOGETHER, " "))
        for place, part in enumerate(parts or [""])
    ]
