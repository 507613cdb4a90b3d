"""Match collectives of one communicator by their ends, if no sequence number is recorded.

Each rank's timeline is placed on the clock of the most complete rank, the reference
(`rankscope.primitives.offset_estimation`), and its events are paired in the order in which they were launched
(`rankscope.primitives.event_pairing`).
Events that the reference lacks are matched among the unpaired events of the others.

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

LEFT_OVER = 8  # blurs: events that the reference lacks are the same if they are closer than this
LEAST_LEFT_OVER = 100_000  # ns
LEFT_OVER_FREE = 2_000_000  # ns: the same for events that ranks may end at different times
FEW = 8  # events: with fewer, the agreement of the best pair does not show that of all
LEAST_BLUR = 32_000  # ns: ends agree to 31 µs with NCCL (median), and to 85 µs at worst
CONCURRENT = 0.005  # of the events: if more overlap the one before, only events of one size keep their order
OVERLAP = 2_000  # ns: old traces round to microseconds


def match_by_ends(state: MatchingState, group: Int64) -> Int64:
    """Match the rows of one communicator by their ends.

    Args:
        state: gets the matches.
        group: the rows, sorted by end.

    Returns:
        rows of ranks that do not belong to the others' group, if it has no name.
    """
    ranks, counts = np.unique(state.rank[group], return_counts=True)
    if ranks.size < 2:
        return group[:0]
    ordered = group[np.argsort(state.rank[group], kind="stable")]
    parts = np.split(ordered, np.cumsum(counts)[:-1])
    by_rank = {int(rank): state.in_launch_order(rows) for rank, rows in zip(ranks, parts, strict=True)}
    reference = int(ranks[np.argmax(counts)])
    reference_rows = by_rank.pop(reference)
    line = state.timeline(reference_rows)
    placed: dict[int, OffsetEstimate] = {}
    for rank, rows in by_rank.items():
        estimate = _place(state, line, reference, rank, rows)
        if estimate is not None:
            placed[rank] = estimate
    doubtful = _settle(state, reference, placed)
    state.match[reference_rows] = state.events + np.arange(reference_rows.size)
    state.events += reference_rows.size
    _partners(state, reference_rows, line, by_rank, placed)
    outside = (
        _leave_out(state, reference, line, by_rank, placed) if state.unnamed[reference_rows[0]] else reference_rows[:0]
    )
    for rank in sorted(placed.keys() - doubtful.keys()):
        if placed[rank].anchored != "clock":
            state.clocks.learn(reference, rank, placed[rank].offset, named=not state.unnamed[reference_rows[0]])
    _record_doubt(state, int(reference_rows[0]), {r: doubt for r, doubt in doubtful.items() if r in placed})
    _left_over(state, by_rank, placed)
    missing = tuple(rank for rank in by_rank if rank not in placed)
    if missing and not state.unnamed[reference_rows[0]]:
        state.unplaced.append((state.group(int(reference_rows[0])), missing))
    codes = [METHODS.index(estimate.anchored) for estimate in placed.values()]
    if codes:
        # The reference's rows are as sure as the least sure of its partners.
        state.method[reference_rows] = max(codes)
    for rank, estimate in placed.items():
        state.method[by_rank[rank]] = METHODS.index(estimate.anchored)
    return outside


def _place(state: MatchingState, line: Timeline, reference: int, rank: int, rows: Int64) -> OffsetEstimate | None:
    estimate = find_offset(state, line, reference, rank, state.timeline(rows), unnamed=bool(state.unnamed[rows[0]]))
    if estimate is not None and not estimate.ambiguous and estimate.anchored != "clock" and not state.unnamed[rows[0]]:
        state.clocks.learn(reference, rank, estimate.offset, named=True)
    return estimate


def find_offset(
    state: MatchingState, line: Timeline, reference: int, rank: int, other: Timeline, *, unnamed: bool
) -> OffsetEstimate | None:
    """The offset of a rank from the reference's clock, None if their ends do not show one.

    Args:
        state: has the known offsets.
        line: the reference's events.
        reference: the rank whose clock is used.
        rank: the other rank.
        other: its events.
        unnamed: whether the events may belong to several communicators.
    """
    known = state.clocks.offset(rank, reference)
    if not unnamed:
        return estimate_offset(line, other, known or 0, trusted=known is not None)
    known_named = state.clocks.offset(rank, reference, named=True)
    if known_named is None and state.clocks.share_clock(rank, reference, 0):
        known = known_named = 0
    by_votes = estimate_offset(line, other, known or 0, trusted=known is not None)
    if known_named is not None and by_votes is not None and by_votes.anchored != "clock":
        by_votes = None
    # Layers repeat, so ends alone may be ambiguous. Equal counts of each kernel on agreeing clocks are not.
    order = order_offset(line, other)
    if order is None:
        return by_votes
    if by_votes is not None and not by_votes.ambiguous:
        if abs(by_votes.offset - order.offset) <= max(by_votes.blur, order.blur):
            # Both agree on the pairs, so all ends count, and some agree less well than others.
            return replace(by_votes, blur=max(by_votes.blur, order.blur))
        if by_votes.clearer_than(order):
            return by_votes
    if abs(order.offset - (known or 0)) <= ONE_CLOCK:
        return order
    if by_votes is None or not by_votes.ambiguous or by_votes.rival is None:
        return by_votes
    if min(abs(by_votes.offset), abs(by_votes.rival.offset)) <= ONE_CLOCK:
        return by_votes
    agrees = abs(by_votes.offset - order.offset) <= max(by_votes.blur, order.blur)
    return replace(order, rival=by_votes.rival if agrees else replace(by_votes, rival=None))


def _settle(state: MatchingState, reference: int, placed: dict[int, OffsetEstimate]) -> dict[int, OffsetEstimate]:
    """Of two offsets with similar evidence choose the one nearer to the wall clocks.

    Returns:
        the ambiguous estimates, by rank. Between ranks of one host the shared clock decides.
    """
    doubtful = {}
    for rank, estimate in placed.items():
        if estimate.anchored == "order" and estimate.rival is not None:
            doubtful[rank] = estimate
            continue
        if not estimate.ambiguous or estimate.rival is None:
            continue
        if abs(estimate.rival.offset) < abs(estimate.offset):
            placed[rank] = estimate.rival
        if not state.clocks.share_clock(rank, reference, placed[rank].offset):
            doubtful[rank] = estimate
    return doubtful


def _record_doubt(state: MatchingState, row: int, doubtful: dict[int, OffsetEstimate]) -> None:
    for estimate in list(doubtful.values())[:1]:
        rival = estimate.rival.evidence if estimate.rival is not None else 0.0
        difference = abs(estimate.offset - estimate.rival.offset) if estimate.rival is not None else 0
        state.doubts.append(Doubt(state.group(row), tuple(doubtful), difference, estimate.evidence, rival, row))


def _leave_out(
    state: MatchingState, reference: int, line: Timeline, by_rank: dict[int, Int64], placed: dict[int, OffsetEstimate]
) -> Int64:
    """Undo the matches of ranks whose kernels do not run together with the reference's; the others are its group.

    Args:
        reference: the reference rank.
        line: its kernels, which have the last numbers.
        by_rank: the rows of each other rank.
        placed: the ranks with an offset; those that do not belong are removed.

    Returns:
        the rows of ranks outside the group.
    """
    outside, first = [], state.events - len(line)
    for rank, rows in by_rank.items():
        estimate = placed.get(rank)
        if estimate is not None:
            partner = np.where(state.match[rows] >= 0, state.match[rows] - first, -1)
            if runs_together(line, state.timeline(rows), partner, state.clocks.named_shift(rank, reference, estimate)):
                continue
            del placed[rank]
            state.match[rows] = -1
        outside.append(rows)
    group = [rows for rank, rows in by_rank.items() if rank in placed]
    if group:
        reference_rows = np.flatnonzero((state.match >= first) & (state.match < first + len(line)))
        state.communicator[np.concatenate([reference_rows, *group])] = state.communicator.max() + 1
    return np.concatenate(outside) if outside else np.empty(0, dtype=np.int64)


def _partners(
    state: MatchingState,
    reference_rows: Int64,
    line: Timeline,
    by_rank: dict[int, Int64],
    placed: dict[int, OffsetEstimate],
) -> None:
    ranks = list(placed)
    by_step = [placed[rank].anchored == "step" for rank in ranks]
    for strict in (True, False):
        chosen = [rank for rank, stepwise in zip(ranks, by_step, strict=True) if stepwise == strict]
        if not chosen:
            continue
        concurrent = any(_concurrent(state, rows) for rows in (reference_rows, *(by_rank[rank] for rank in chosen)))
        rows_of_ranks = [by_rank[rank] for rank in chosen]
        for reference_part, lanes in _by_kind(state, reference_rows, rows_of_ranks, separate=concurrent):
            others = [
                state.timeline(by_rank[rank], placed[rank].shift).take(part)
                for rank, part in zip(chosen, lanes, strict=True)
            ]
            loose = bool(state.unnamed[reference_rows[0]] and state.uneven[reference_rows].any())
            least = [LEAST_BLUR if loose or len(by_rank[rank]) < FEW else 0 for rank in chosen]
            blurs = [max(placed[rank].blur, minimum) for rank, minimum in zip(chosen, least, strict=True)]
            partners = pair_events(line.take(reference_part), others, blurs, by_step=strict, loose=concurrent)
            for rank, part, partner in zip(chosen, lanes, partners, strict=True):
                rows = by_rank[rank][part]
                has = partner >= 0
                state.match[rows[has]] = state.match[reference_rows[reference_part[partner[has]]]]


def _by_kind(
    state: MatchingState, reference_rows: Int64, lanes: list[Int64], *, separate: bool
) -> Iterator[tuple[Int64, list[Int64]]]:
    """All events at once if collectives run one after another; else separately by kind and size."""
    if not separate:
        yield np.arange(reference_rows.size), [np.arange(lane.size) for lane in lanes]
        return
    together = np.concatenate([reference_rows, *lanes])
    code = state.full if (state.full[together] >= 0).all() else state.kind
    for value in np.unique(code[together]):
        yield np.flatnonzero(code[reference_rows] == value), [np.flatnonzero(code[lane] == value) for lane in lanes]


def _concurrent(state: MatchingState, rows: Int64) -> bool:
    if rows.size < 2:
        return False
    # Stream numbers of a captured graph have no meaning; those of Gloo are threads.
    if np.unique(state.stream[rows]).size > 1 and not state.unnamed[rows[0]]:
        return True
    order = rows[np.argsort(state.start[rows], kind="stable")]
    return bool(np.mean(state.start[order][1:] < state.end[order][:-1] - OVERLAP) > CONCURRENT)


def _left_over(state: MatchingState, by_rank: dict[int, Int64], placed: dict[int, OffsetEstimate]) -> None:
    """Match events that the reference lacks: those of several ranks at nearly the same time are one."""
    rows_of, times, starts = [], [], []
    for rank, estimate in placed.items():
        unmatched = np.flatnonzero(state.match[by_rank[rank]] < 0)
        rows_of.append(by_rank[rank][unmatched])
        times.append(state.end[rows_of[-1]] + estimate.shift[unmatched])
        starts.append(state.start[rows_of[-1]] + estimate.shift[unmatched])
    if not rows_of:
        return
    rows, time, start = np.concatenate(rows_of), np.concatenate(times), np.concatenate(starts)
    if not rows.size:
        return
    blur = int(np.median([estimate.blur for estimate in placed.values()]))
    # An event of unknown size may be the same as one of known size: divide by kind first, then by size.
    full = np.where(state.full[rows] >= 0, state.full[rows], -1)
    order = np.lexsort((time, full, state.kind[rows]))
    rows, time, full, start = rows[order], time[order], full[order], start[order]
    kind, owner = state.kind[rows], state.rank[rows]
    free = state.one_sided[rows] | state.uneven[rows]
    close = max(LEFT_OVER * blur, LEAST_LEFT_OVER)
    separate = np.diff(time) > np.where(free, LEFT_OVER_FREE, close)[1:]
    # A receive that ended before the send began belongs to another send.
    separate |= state.p2p[rows][1:] & (start[1:] > time[:-1] + close)
    new = np.concatenate([[True], separate | (np.diff(kind) != 0) | (np.diff(full) != 0)])
    cluster = np.cumsum(new) - 1
    # A rank has each collective once: its second event in a cluster starts another collective.
    second = np.lexsort((time, owner, cluster))
    fresh = np.concatenate([[True], (np.diff(cluster[second]) != 0) | (np.diff(owner[second]) != 0)])
    begin = np.maximum.accumulate(np.where(fresh, np.arange(rows.size), 0))
    occurrence = np.empty(rows.size, dtype=np.int64)
    occurrence[second] = np.arange(rows.size) - begin
    _, event = np.unique(np.stack([cluster, occurrence]), axis=1, return_inverse=True)
    event = event.reshape(-1)
    state.match[rows] = state.events + event
    state.events += int(event.max()) + 1
