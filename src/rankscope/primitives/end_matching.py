"""Collectives of one communicator matched by their ends: where no sequence number is recorded.

Each rank's timeline is placed on the clock of the most complete rank (`rankscope.primitives.offset_estimation`), and
its events are paired in order (`rankscope.primitives.event_pairing`). Events that this rank lacks are found among the
unpaired events of the others.

In: a `MatchingState` and rows of it. Out: their matches, methods, doubts and offsets, written into the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rankscope.primitives.clock_links import ONE_CLOCK
from rankscope.primitives.event_pairing import pair_events
from rankscope.primitives.intervals import Int64
from rankscope.primitives.matching_state import METHODS, Doubt, MatchingState
from rankscope.primitives.offset_estimation import OffsetEstimate, Timeline, estimate_offset
from rankscope.primitives.unnamed_communicators import order_offset, runs_together

LEFT_OVER = 8  # blurs within which events that the reference lacks are the same
LEAST_LEFT_OVER = 100_000  # ns
LEFT_OVER_FREE = 2_000_000  # ns: of those that ranks may end at different times
FEW = 8  # events: with fewer, how well the best one agrees does not show how well all do
LEAST_BLUR = 32_000  # ns: ends agree to 31 µs with NCCL (median), and to 85 µs at worst
CONCURRENT = 0.005  # of events overlap the one before: then only events of one size keep their order
OVERLAP = 2_000  # ns: old traces round to microseconds


def match_by_ends(state: MatchingState, group: Int64) -> Int64:
    """Match the rows of one communicator by their ends.

    Args:
        state: into which the matches are written.
        group: the rows, in the order of their ends.

    Returns:
        the rows of ranks that are not in the group of the others, if it has no name.
    """
    ranks, counts = np.unique(state.rank[group], return_counts=True)
    if ranks.size < 2:
        return group[:0]
    ordered = group[np.argsort(state.rank[group], kind="stable")]
    parts = np.split(ordered, np.cumsum(counts)[:-1])
    by_rank = {int(rank): rows for rank, rows in zip(ranks, parts, strict=True)}
    reference = int(ranks[np.argmax(counts)])
    mine = by_rank.pop(reference)
    line = state.timeline(mine)
    placed: dict[int, OffsetEstimate] = {}
    for rank, rows in by_rank.items():
        found = _place(state, line, reference, rank, rows)
        if found is not None:
            placed[rank] = found
    doubtful = _settle(state, reference, placed)
    state.match[mine] = state.events + np.arange(mine.size)
    state.events += mine.size
    _partners(state, mine, line, by_rank, placed)
    outside = _leave_out(state, reference, line, by_rank, placed) if state.unnamed[mine[0]] else mine[:0]
    for rank in sorted(placed.keys() - doubtful.keys()):
        if placed[rank].anchored != "clock":
            state.clocks.learn(reference, rank, placed[rank].offset, named=not state.unnamed[mine[0]])
    _record_doubt(state, int(mine[0]), {r: each for r, each in doubtful.items() if r in placed})
    _left_over(state, by_rank, placed)
    missing = tuple(rank for rank in by_rank if rank not in placed)
    if missing and not state.unnamed[mine[0]]:
        state.unplaced.append((str(state.label[int(mine[0])]), missing))
    codes = [METHODS.index(found.anchored) for found in placed.values()]
    if codes:
        # The reference's rows are as sure as the least sure of its partners.
        state.method[mine] = max(codes)
    for rank, found in placed.items():
        state.method[by_rank[rank]] = METHODS.index(found.anchored)
    return outside


def _place(state: MatchingState, line: Timeline, reference: int, rank: int, rows: Int64) -> OffsetEstimate | None:
    found = find_offset(state, line, reference, rank, state.timeline(rows), unnamed=bool(state.unnamed[rows[0]]))
    if found is not None and not found.ambiguous and found.anchored != "clock" and not state.unnamed[rows[0]]:
        state.clocks.learn(reference, rank, found.offset, named=True)
    return found


def find_offset(
    state: MatchingState, line: Timeline, reference: int, rank: int, other: Timeline, *, unnamed: bool
) -> OffsetEstimate | None:
    """The offset of a rank from the reference's clock, None if their ends do not show one.

    Args:
        state: what is known about the clocks.
        line: the reference's events.
        reference: the rank whose clock counts.
        rank: the other.
        other: its events.
        unnamed: whether the events may belong to several communicators.
    """
    known = state.clocks.offset(rank, reference)
    if not unnamed:
        return estimate_offset(line, other, known or 0, trusted=known is not None)
    sure = state.clocks.offset(rank, reference, named=True)
    if sure is None and state.clocks.share_clock(rank, reference, 0):
        known = sure = 0
    found = estimate_offset(line, other, known or 0, trusted=known is not None)
    if sure is not None and found is not None and found.anchored != "clock":
        found = None
    # Layers repeat: ends alone may not tell one from the next. As many of each kernel on clocks that agree can.
    order = order_offset(line, other)
    if order is None:
        return found
    if found is not None and not found.ambiguous:
        if abs(found.offset - order.offset) <= max(found.blur, order.blur):
            # Some ends agree better than others: the pairs are known, so all of them count.
            return replace(found, blur=max(found.blur, order.blur))
        if found.clearer_than(order):
            return found
    if abs(order.offset - (known or 0)) <= ONE_CLOCK:
        return order
    if found is None or not found.ambiguous or found.rival is None:
        return found
    if min(abs(found.offset), abs(found.rival.offset)) <= ONE_CLOCK:
        return found
    agrees = abs(found.offset - order.offset) <= max(found.blur, order.blur)
    return replace(order, rival=found.rival if agrees else replace(found, rival=None))


def _settle(state: MatchingState, reference: int, placed: dict[int, OffsetEstimate]) -> dict[int, OffsetEstimate]:
    """Of two offsets with similar evidence choose the one nearer to the wall clocks.

    Returns:
        what was found, by rank, where that is open to doubt: ranks of one host have one clock.
    """
    doubtful = {}
    for rank, found in placed.items():
        if found.anchored == "order" and found.rival is not None:
            doubtful[rank] = found
            continue
        if not found.ambiguous or found.rival is None:
            continue
        if abs(found.rival.offset) < abs(found.offset):
            placed[rank] = found.rival
        if not state.clocks.share_clock(rank, reference, placed[rank].offset):
            doubtful[rank] = found
    return doubtful


def _record_doubt(state: MatchingState, row: int, doubtful: dict[int, OffsetEstimate]) -> None:
    for first in list(doubtful.values())[:1]:
        rival = first.rival.evidence if first.rival is not None else 0.0
        apart = abs(first.offset - first.rival.offset) if first.rival is not None else 0
        state.doubts.append(Doubt(str(state.label[row]), tuple(doubtful), apart, first.evidence, rival, row))


def _leave_out(
    state: MatchingState, reference: int, line: Timeline, by_rank: dict[int, Int64], placed: dict[int, OffsetEstimate]
) -> Int64:
    """Undo the matches of ranks whose kernels do not run together with the reference's; the others are its group.

    Args:
        reference: the rank.
        line: its kernels, which were given the last numbers.
        by_rank: the rows of each other rank.
        placed: those with an offset; what does not belong is taken out.

    Returns:
        the rows left out.
    """
    outside, first = [], state.events - len(line)
    for rank, rows in by_rank.items():
        found = placed.get(rank)
        if found is not None:
            partner = np.where(state.match[rows] >= 0, state.match[rows] - first, -1)
            if runs_together(line, state.timeline(rows), partner, state.clocks.named_shift(rank, reference, found)):
                continue
            del placed[rank]
            state.match[rows] = -1
        outside.append(rows)
    group = [rows for rank, rows in by_rank.items() if rank in placed]
    if group:
        mine = np.flatnonzero((state.match >= first) & (state.match < first + len(line)))
        state.communicator[np.concatenate([mine, *group])] = state.communicator.max() + 1
    return np.concatenate(outside) if outside else np.empty(0, dtype=np.int64)


def _partners(
    state: MatchingState, mine: Int64, line: Timeline, by_rank: dict[int, Int64], placed: dict[int, OffsetEstimate]
) -> None:
    ranks = list(placed)
    by_step = [placed[rank].anchored == "step" for rank in ranks]
    for strict in (True, False):
        chosen = [rank for rank, each in zip(ranks, by_step, strict=True) if each == strict]
        if not chosen:
            continue
        concurrent = any(_concurrent(state, rows) for rows in (mine, *(by_rank[rank] for rank in chosen)))
        for mine_part, lanes in _kinds_apart(state, mine, [by_rank[rank] for rank in chosen], apart=concurrent):
            others = [
                state.timeline(by_rank[rank][part], placed[rank].shift[part])
                for rank, part in zip(chosen, lanes, strict=True)
            ]
            loose = bool(state.unnamed[mine[0]] and state.uneven[mine].any())
            least = [LEAST_BLUR if loose or len(by_rank[rank]) < FEW else 0 for rank in chosen]
            blurs = [max(placed[rank].blur, each) for rank, each in zip(chosen, least, strict=True)]
            found = pair_events(line.take(mine_part), others, blurs, by_step=strict, loose=concurrent)
            for rank, part, partner in zip(chosen, lanes, found, strict=True):
                rows = by_rank[rank][part]
                has = partner >= 0
                state.match[rows[has]] = state.match[mine[mine_part[partner[has]]]]


def _kinds_apart(
    state: MatchingState, mine: Int64, lanes: list[Int64], *, apart: bool
) -> Iterator[tuple[Int64, list[Int64]]]:
    """All events at once if collectives run one after another; else separately by kind and size."""
    if not apart:
        yield np.arange(mine.size), [np.arange(lane.size) for lane in lanes]
        return
    together = np.concatenate([mine, *lanes])
    code = state.full if (state.full[together] >= 0).all() else state.kind
    for value in np.unique(code[together]):
        yield np.flatnonzero(code[mine] == value), [np.flatnonzero(code[lane] == value) for lane in lanes]


def _concurrent(state: MatchingState, rows: Int64) -> bool:
    if rows.size < 2:
        return False
    # The streams of a captured graph have no meaning; those of Gloo are threads.
    if np.unique(state.stream[rows]).size > 1 and not state.unnamed[rows[0]]:
        return True
    order = rows[np.argsort(state.start[rows], kind="stable")]
    return bool(np.mean(state.start[order][1:] < state.end[order][:-1] - OVERLAP) > CONCURRENT)


def _left_over(state: MatchingState, by_rank: dict[int, Int64], placed: dict[int, OffsetEstimate]) -> None:
    """Events that the reference lacks: those of several ranks at nearly one time are one."""
    rows_of, times, starts = [], [], []
    for rank, found in placed.items():
        over = np.flatnonzero(state.match[by_rank[rank]] < 0)
        rows_of.append(by_rank[rank][over])
        times.append(state.end[rows_of[-1]] + found.shift[over])
        starts.append(state.start[rows_of[-1]] + found.shift[over])
    if not rows_of:
        return
    rows, time, start = np.concatenate(rows_of), np.concatenate(times), np.concatenate(starts)
    if not rows.size:
        return
    blur = int(np.median([found.blur for found in placed.values()]))
    # What is known of one and not of the other may still be the same: cut by kind first, then by size.
    full = np.where(state.full[rows] >= 0, state.full[rows], -1)
    order = np.lexsort((time, full, state.kind[rows]))
    rows, time, full, start = rows[order], time[order], full[order], start[order]
    kind, owner = state.kind[rows], state.rank[rows]
    free = state.one_sided[rows] | state.uneven[rows]
    close = max(LEFT_OVER * blur, LEAST_LEFT_OVER)
    apart = np.diff(time) > np.where(free, LEFT_OVER_FREE, close)[1:]
    # A receive that is over before the send begins is another's.
    apart |= state.p2p[rows][1:] & (start[1:] > time[:-1] + close)
    new = np.concatenate([[True], apart | (np.diff(kind) != 0) | (np.diff(full) != 0)])
    cluster = np.cumsum(new) - 1
    # A rank has each collective once: its second in a cluster begins another.
    second = np.lexsort((time, owner, cluster))
    fresh = np.concatenate([[True], (np.diff(cluster[second]) != 0) | (np.diff(owner[second]) != 0)])
    begin = np.maximum.accumulate(np.where(fresh, np.arange(rows.size), 0))
    occurrence = np.empty(rows.size, dtype=np.int64)
    occurrence[second] = np.arange(rows.size) - begin
    _, event = np.unique(np.stack([cluster, occurrence]), axis=1, return_inverse=True)
    event = event.reshape(-1)
    state.match[rows] = state.events + event
    state.events += int(event.max()) + 1
