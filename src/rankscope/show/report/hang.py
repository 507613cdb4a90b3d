"""The verdict on a hang for the terminal.

In: a `HangVerdict`. Out: a Rich renderable; text from the dumps is shown inert.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rankscope.answers.hang.verdict import HangVerdict, HungCollective, RankVerdict
from rankscope.answers.hang.wording import collective_text, first_line, wait_text
from rankscope.rundir.hang_dump import Frame
from rankscope.rundir.plurals import counted
from rankscope.rundir.ranges import as_ranges, named_ranks
from rankscope.show.report.formatting import NOTHING, plain

_MAX_RANKS = 32
_MAX_STACKS = 4
_MAX_FRAMES = 12
_LINE = 400


def hang_report(verdict: HangVerdict, *, stacks: bool = False) -> RenderableType:
    """The verdict on one screen: what, where, who, why, and what to record.

    Args:
        verdict: what is shown.
        stacks: show the complete stacks of all ranks.
    """
    parts: list[RenderableType] = [Text(plain(verdict.summary, limit=2000), style="bold")]
    parts.append(_facts(verdict))
    if verdict.ranks:
        parts += [Text(), _rank_table(verdict)]
    parts += _stacks(verdict, everything=stacks)
    for title, lines in (
        ("To know more, record", verdict.advice),
        ("Notes", verdict.notes),
        ("Files that could not be read", verdict.problems),
    ):
        if lines:
            parts += [Text(), Text(title, style="bold"), *(Text(f"  {plain(line, limit=1000)}") for line in lines)]
    return Group(*parts)


def _facts(verdict: HangVerdict) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    if verdict.found:
        table.add_row("cause", Text(verdict.cause.value.replace("_", " ")))
        table.add_row("ranks", Text(as_ranges(verdict.culprits) or "not known"))
    if verdict.collective is not None:
        _add_collective(table, verdict.collective)
    for variant in verdict.variants:
        size = f", {variant.elements:,} elements of {variant.dtype}" if variant.elements and variant.dtype else ""
        at = f", called at {_frame(variant.called_at)}" if variant.called_at else ""
        what = f"{variant.operation}{size}"
        table.add_row(named_ranks(variant.ranks), Text(plain(what + at, limit=_LINE)))
    for wait in verdict.cycle:
        ranks, waits = wait_text(wait)
        table.add_row(ranks, Text(plain(waits, limit=_LINE)))
    dumps = f"{verdict.dumps} of {counted(verdict.world_size, 'rank')}"
    lacking = f"; none of {named_ranks(verdict.without_dump)}" if verdict.without_dump and verdict.dumps else ""
    table.add_row("dumps", Text(f"{dumps}{lacking}"))
    return table


def _add_collective(table: Table, collective: HungCollective) -> None:
    size = f", {collective.elements:,} elements" if collective.elements is not None else ""
    dtype = f" of {collective.dtype}" if collective.dtype and size else ""
    named = collective.description.replace("undefined", "")  # torch's word for a group without a description
    table.add_row("group", Text(plain(f"{collective.group} {named}".strip(), limit=_LINE)))
    table.add_row("its ranks", Text(as_ranges(collective.group_ranks)))
    table.add_row("operation", Text(plain(f"{collective.operation or NOTHING}{size}{dtype}", limit=_LINE)))
    table.add_row("sequence", Text(f"{collective.sequence:,}"))
    table.add_row("arrived", Text(as_ranges(collective.arrived) or "none"))
    if collective.missing:
        table.add_row("did not arrive", Text(as_ranges(collective.missing)))
    if collective.unknown:
        table.add_row("not known", Text(as_ranges(collective.unknown)))
    if collective.called_at is not None:
        table.add_row("called at", Text(_frame(collective.called_at)))


def _rank_table(verdict: HangVerdict) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("rank", "step", "what it does", "where", "waits in", "waits for"):
        table.add_column(name, overflow="fold", justify="right" if name in ("rank", "step") else "left")
    for rank in verdict.ranks[:_MAX_RANKS]:
        table.add_row(
            str(rank.rank),
            NOTHING if rank.step is None else str(rank.step),
            Text(plain(first_line(rank.evidence) or NOTHING, limit=_LINE)),
            Text(_frame(rank.place) if rank.place else NOTHING),
            Text(plain(collective_text(rank.waits_in), limit=_LINE) if rank.waits_in else NOTHING),
            Text(as_ranges(rank.waits_for) or NOTHING),
            style="bold" if rank.rank in verdict.culprits else "",
        )
    rest = len(verdict.ranks) - _MAX_RANKS
    return (
        Group(table, Text(f"and {counted(rest, 'more rank')}: --format json has all", style="dim"))
        if rest > 0
        else table
    )


def _stacks(verdict: HangVerdict, *, everything: bool) -> list[RenderableType]:
    """The stacks of the culprits, or of all ranks."""
    shown = [rank for rank in verdict.ranks if rank.stack and (everything or rank.rank in verdict.culprits)]
    parts: list[RenderableType] = []
    for rank in shown if everything else shown[:_MAX_STACKS]:
        parts += [Text(), Text(f"Stack of rank {rank.rank}, the innermost frame first", style="bold")]
        parts.append(Padding(_stack(rank, None if everything else _MAX_FRAMES), (0, 0, 0, 2)))
    return parts


def _stack(rank: RankVerdict, limit: int | None) -> RenderableType:
    lines = []
    for frame in rank.stack[:limit]:
        lines.append(Text(_frame(frame)))
        if frame.text:
            lines.append(Text(f"    {plain(frame.text, limit=_LINE)}", style="dim"))
    if limit is not None and len(rank.stack) > limit:
        lines.append(Text(f"and {counted(len(rank.stack) - limit, 'more frame')}: --stacks shows them", style="dim"))
    return Group(*lines)


def _frame(frame: Frame) -> str:
    return plain(frame, limit=_LINE)
