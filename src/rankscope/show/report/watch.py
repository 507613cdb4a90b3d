"""The state of a watched job in the terminal.

In: a `WatchStatus`. Out: what rich prints; no row per rank where there are many.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rankscope.answers.watch.state import LastArrival, LongStep, RankState, StepTime, WatchStatus
from rankscope.answers.watch.status import significance_of
from rankscope.primitives.statistics import Significance
from rankscope.primitives.stragglers.step_log import LateRank
from rankscope.primitives.stragglers.with_log import logged_cause
from rankscope.rundir.plurals import counted
from rankscope.show.report.formatting import number_of, percent, plain, ranks_text

_MOST_RANKS = 16
_MOST_GROUPS = 8


def watch_view(status: WatchStatus, hang: str = "") -> RenderableType:
    """The state on one screen.

    Args:
        hang: the verdict on the hang that the job is in or has ended in; empty if there is none.
    """
    parts: list[RenderableType] = [_head(status), Text()]
    if hang:
        parts += [
            Text(f"{'Hangs' if status.running else 'Ended'}: {plain(hang, limit=600)}", style="bold red"),
            Text("Evidence: rankscope hang"),
            Text(),
        ]
    parts += _verdict(status)
    if status.last_arrivals:
        parts += [Text(), _arrivals(status.last_arrivals)]
    if status.long_steps:
        parts += [Text(), _long_steps(status.long_steps)]
    if len(status.ranks) <= _MOST_RANKS:
        parts += [Text(), _ranks(status.ranks)]
    for title, lines in (("Events", status.notes), ("Limits", status.warnings)):
        if lines:
            parts += [Text(), Text(title, style="bold"), *(Text(f"  {plain(line, limit=300)}") for line in lines)]
    return Group(*parts)


def straggler_sentence(late: LateRank) -> str:
    """Who delays the others, by how much, where, and since when."""
    found = late.found
    cause = logged_cause(late)
    why = f": {cause.named}" if cause.named and cause.cause != "unclear" else ""  # else it is the phase
    # Means over the compared steps; a stall has all of it in one.
    times = found.compared if found.once else 1
    part = "all" if late.phase_ns >= found.excess_ns else number_of(late.phase_ns * times, "ns")
    where = f", {part} of it in {late.phase}" if late.phase else ""
    if found.once:
        stall = number_of(found.excess_ns * times, "ns")
        steps = counted(found.compared, "step")
        return f"Rank {late.rank} stalled once in {steps}: for {stall} in step {late.since_step}{where}{why}"
    when = "" if found.lasting else f" in {len(found.steps)} of {found.compared} steps"
    since = f", since step {late.since_step}" if late.since_step is not None and found.lasting else ""
    excess = number_of(found.excess_ns, "ns")
    return f"Rank {late.rank} delays the other ranks{when}: {excess} per step{where}{since}{why}"


def no_straggler_sentence(status: WatchStatus) -> str:
    """Why no rank is named: there is no straggler, or it is not known."""
    steps = counted(max((verdict.n[0] for verdict in status.verdicts.values() if verdict.n), default=0), "step")
    significance = significance_of(status)
    if status.least_delay_ns is None or status.step_time is None:
        return f"Straggler: {significance.value} ({steps})"
    delay = number_of(status.least_delay_ns, "ns")
    share = percent(status.least_delay_ns / max(status.step_time.median_ns, 1))
    if significance is Significance.NOT_SIGNIFICANT:
        return f"No rank delays the others by more than {delay} per step ({share}; {steps})"
    vary = f"the times vary so much that in {steps} only a delay above {delay} per step ({share}) would stand out"
    return f"Straggler: unknown; {vary}"


def step_time_sentence(step_time: StepTime | None) -> str:
    """How long steps take, and whether that has changed."""
    if step_time is None:
        return "No step that all ranks have is in the logs yet"
    steps = counted(step_time.steps, "step")
    text = f"{number_of(step_time.median_ns, 'ns')} per step (median of {steps}, at most "
    text += f"{number_of(step_time.most_ns, 'ns')})"
    change = step_time.change
    if change is None or not change.verdict.significant:
        return text
    before, after = number_of(change.before, "ns"), number_of(change.after, "ns")
    return f"{text}; since step {step_time.changed_at} {after} instead of {before}"


def _head(status: WatchStatus) -> Text:
    steps = [each.last_step for each in status.ranks if each.last_step is not None]
    at = f"step {max(steps)}" if steps else "no step yet"
    size = f" of {status.world_size}" if status.world_size else ""
    attempt = f" · attempt {status.attempts}" if status.attempts > 1 else ""
    text = Text(f"{plain(status.run_id or 'unknown run')}", style="bold")
    text.append(f" · {status.state} · {at} · {len(status.ranks)}{size} ranks{attempt}", style="default")
    return text


def _verdict(status: WatchStatus) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(step_time_sentence(status.step_time))]
    if status.unknown:
        return [*lines, Text(f"Straggler: unknown. {status.unknown}", style="yellow")]
    for late in status.late_ranks:
        lines.append(Text(f"{straggler_sentence(late)}.", style="bold yellow"))
        lines.append(Text(f"  {late.found.verdict}", style="dim"))
    if all(late.found.once for late in status.late_ranks):
        lines.append(Text(f"{no_straggler_sentence(status)}."))
    return lines


def _arrivals(arrivals: Sequence[LastArrival]) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False, title="Last to arrive", title_justify="left")
    for name, justify in (("group", "left"), ("ranks", "left"), ("last", "right"), ("share", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]  # rich's literal
    table.add_column("after the first", justify="right")
    table.add_column("collectives", justify="right")
    largest = sorted(arrivals, key=lambda each: -each.late_ns * each.share)[:_MOST_GROUPS]
    for each in largest:
        table.add_row(
            Text(plain(each.group, limit=24)),
            ranks_text(each.ranks),
            f"rank {each.rank}",
            percent(each.share),
            number_of(each.late_ns, "ns"),
            f"{each.collectives:,}",
        )
    return table


def _long_steps(steps: Sequence[LongStep]) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False, title="Longest steps", title_justify="left")
    for name in ("step", "duration", "rank", "longer than the others"):
        table.add_column(name, justify="right")
    for each in steps:
        nobody = "none alone" if each.known else "not known"
        rank = nobody if each.rank is None else f"rank {each.rank}"
        excess = number_of(each.excess_ns, "ns") if each.rank is not None else ""
        table.add_row(str(each.step), number_of(each.ns, "ns"), rank, excess)
    return table


def _ranks(ranks: Sequence[RankState]) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False, title="Ranks", title_justify="left")
    for name in ("rank", "last step", "state"):
        table.add_column(name, justify="left" if name == "state" else "right")
    for each in ranks:
        step = "" if each.last_step is None else str(each.last_step)
        silent = f" ({each.silent_s:.0f} s without a line)" if each.state == "silent" else ""
        table.add_row(str(each.rank), step, plain(each.state) + silent)
    return table
