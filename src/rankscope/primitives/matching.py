"""Match collectives across ranks: which rows of different ranks are the same collective.

Equal recorded sequence numbers come first. Without them, each rank's timeline is placed on the clock of the group's
most complete rank (`rankscope.primitives.offset_estimation`: anchored by step numbers if known, else by votes on the
difference of ends), and its events are paired in order (`rankscope.primitives.event_pairing`). Events that this rank
lacks are matched among the unpaired events of the others. The wall clocks, the number of events and their positions
need not agree.

Kernels without a named group come last. All of a rank's kernels form one timeline, whatever their streams; streams
whose kernels end together on two ranks are a communicator (`rankscope.primitives.unnamed_communicators`). A rank whose
kernels do not run together with the reference's is not in its group, and is matched with the remaining ranks.

In: the collectives of all ranks, one row each. Out: which rows are one collective, and what is ambiguous (`Matching`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.communicators import COLUMNS, UNNAMED, encode_communicators
from rankscope.primitives.end_matching import LEAST_BLUR, find_offset, match_by_ends
from rankscope.primitives.intervals import Int64
from rankscope.primitives.matching_state import METHODS, Doubt, MatchingState
from rankscope.primitives.offset_estimation import OffsetEstimate
from rankscope.primitives.unnamed_communicators import link_streams

__all__ = ["METHODS", "Doubt", "Matching", "match_collectives", "match_rows", "match_with_calls"]

ROUNDS = 32  # the largest number of unnamed communicators that are found one after another


@dataclass(frozen=True)
class Matching:
    """The result, by row.

    Attributes:
        match: the number of the collective, the same on all ranks; −1 without a partner.
        method: how it was found: an index into `METHODS`.
        group: a number for each communicator: group and ranks, or the two ends of a point-to-point channel; −1 none.
        doubts: ambiguous matches.
        doubtful: the numbers of the communicators with doubts.
        disagreeing: rows with a recorded sequence number whose kind or size differs from that on most ranks.
        unplaced: by group, the ranks whose ends agree with no other rank's.
    """

    match: Int64
    method: npt.NDArray[np.int8]
    group: npt.NDArray[np.integer]
    doubts: tuple[Doubt, ...] = ()
    disagreeing: int = 0
    unplaced: tuple[tuple[str, tuple[int, ...]], ...] = ()
    doubtful: frozenset[int] = frozenset()


def match_collectives(rows: pl.DataFrame, hosts: Mapping[int, str] | None = None) -> Matching:
    """Match the collectives of all ranks.

    Args:
        rows: the columns `communicators.COLUMNS`, in any order; ``recorded`` is the recorded `Seq`, null if there is
            none; times are on the ranks' wall clocks.
        hosts: the hosts of ranks whose wall clock is recorded, if known: one host has one clock.
    """
    if not rows.height:
        none = np.empty(0, dtype=np.int64)
        return Matching(none, none.astype(np.int8), none)
    encoded = encode_communicators(rows)
    columns = {name: encoded[name].to_numpy() for name in encoded.columns if name != "label"}
    return match_rows(MatchingState(columns, lambda row: str(encoded["label"][row]), hosts or {}))


def match_with_calls(rows: pl.DataFrame, hosts: Mapping[int, str]) -> Matching:
    """Match kernels and Gloo's ranges by all evidence, calls without a kernel by their recorded number only."""
    wall = rows.with_columns(pl.col("start_ns") + pl.col("base_ns"), pl.col("end_ns") + pl.col("base_ns"))
    called = (rows["source"] == "launch").to_numpy()
    if not called.any():
        return match_collectives(wall.select(COLUMNS), hosts)
    by_evidence = match_collectives(wall.filter(~pl.Series(called)).select(COLUMNS), hosts)
    # Call times do not show when collectives ran, so they are not evidence of clocks or ends.
    numbered = called & rows["recorded"].is_not_null().to_numpy()
    by_number = match_collectives(wall.filter(pl.Series(numbered)).select(COLUMNS))
    by_sequence = by_number.method == METHODS.index("sequence")
    match, method = np.full(rows.height, -1, dtype=np.int64), np.zeros(rows.height, dtype=np.int8)
    group = match.copy()
    match[~called], method[~called], group[~called] = by_evidence.match, by_evidence.method, by_evidence.group
    offset = int(by_evidence.match.max(initial=-1)) + 1
    match[numbered] = np.where(by_sequence, by_number.match + offset, -1)
    method[numbered] = np.where(by_sequence, by_number.method, 0)
    return replace(
        by_evidence,
        match=match,
        method=method,
        group=group,
        disagreeing=by_evidence.disagreeing + by_number.disagreeing,
    )


def match_rows(state: MatchingState) -> Matching:
    """Match the rows of a state that has no matches yet."""
    order = np.argsort(state.communicator, kind="stable")
    bounds = np.flatnonzero(np.diff(state.communicator[order])) + 1
    groups = [g for g in np.split(order, bounds) if state.communicator[g[0]] >= 0]
    # Groups with the most ranks and events first: the others use the offsets that they give.
    groups = [g for g in groups if np.unique(state.rank[g]).size > 1]
    groups.sort(key=lambda g: (bool(state.unnamed[g[0]]), -np.unique(state.rank[g]).size, -g.size, int(g[0])))
    for group in groups:
        match_one = _match_unnamed if state.unnamed[group[0]] else _match_group
        match_one(state, group[np.argsort(state.end[group], kind="stable")])
    return Matching(
        state.numbered(),
        state.method,
        state.communicator,
        tuple(state.doubts),
        state.disagreeing,
        tuple(state.unplaced),
        frozenset(int(state.communicator[doubt.row]) for doubt in state.doubts),
    )


def _match_group(state: MatchingState, group: Int64) -> None:
    """Match one communicator's rows, sorted by end."""
    if (state.recorded[group] >= 0).any():
        _by_sequence(state, group)
    rest = group[state.match[group] < 0]
    have = rest if rest.size else group[:0]
    if np.unique(state.rank[have]).size < 2 and not (rest.size and rest.size < group.size):
        return
    match_by_ends(state, rest)


def _match_unnamed(state: MatchingState, pool: Int64) -> None:
    """Match rows of unnamed communicators, sorted by end, one communicator after another."""
    numbered = pool[state.recorded[pool] >= 0]
    keys = np.stack([state.rank[numbered], state.kind[numbered], state.recorded[numbered]])
    if numbered.size and np.unique(keys, axis=1).shape[1] == numbered.size:
        _by_sequence(state, numbered)
        pool = pool[state.match[pool] < 0]
    if not pool.size:
        return
    mark = state.mark(pool)
    unmatched = _one_by_one(state, pool)
    hosts = [state.clocks.hosts.get(rank) for rank in state.ranks(pool)]
    astray = {rank for rank in unmatched if rank in state.clocks.hosts and hosts.count(state.clocks.hosts[rank]) > 1}
    if astray:
        # A rank without matches may not use its host's clock.
        state.reset(pool, mark)
        state.clocks.astray |= astray
        unmatched = _one_by_one(state, pool)
    if unmatched and len(unmatched) < len(state.ranks(pool)):
        state.unplaced.append((UNNAMED, tuple(sorted(unmatched))))


def _one_by_one(state: MatchingState, pool: Int64) -> set[int]:
    """Find the communicators of one rank per round. Returns the ranks without any match."""
    rest = pool
    for _ in range(ROUNDS):
        if len(state.ranks(rest)) < 2:
            break
        parts, unassigned = _by_streams(state, rest)
        remaining = np.sort(np.concatenate([unassigned, *(match_by_ends(state, part) for part in parts)]))
        if remaining.size == rest.size:
            break
        rest = remaining[np.argsort(state.end[remaining], kind="stable")]
    # Sorted by event and rank, a row is matched if it is next to one of the same event and another rank.
    rows = pool[state.match[pool] >= 0]
    rows = rows[np.lexsort((state.rank[rows], state.match[rows]))]
    both = (np.diff(state.match[rows]) == 0) & (np.diff(state.rank[rows]) != 0)
    shared = np.concatenate([both, [False]]) | np.concatenate([[False], both]) if rows.size else both
    return state.ranks(pool) - state.ranks(rows[shared])


def _by_streams(state: MatchingState, rows: Int64) -> tuple[list[Int64], Int64]:
    """The rows of each set of streams whose kernels end together, the largest first; and the rest."""
    lane = state.rank[rows].astype(np.int64) * (int(state.stream.max()) + 1) + state.stream[rows]
    ranks, counts = np.unique(state.rank[rows], return_counts=True)
    lanes = np.unique(lane)
    if lanes.size == ranks.size:
        return [rows], rows[:0]
    reference = int(ranks[np.argmax(counts)])
    of_reference = state.rank[rows] == reference
    line = state.timeline(rows[of_reference])
    root = {int(number): int(number) for number in lanes}

    def find_root(number: int) -> int:
        while root[number] != number:
            number = root[number]
        return number

    for rank in ranks[ranks != reference]:
        of_rank = state.rank[rows] == rank
        other = state.timeline(rows[of_rank])
        estimate = find_offset(state, line, reference, int(rank), other, unnamed=True)
        if estimate is None and state.clocks.share_clock(int(rank), reference, 0):
            estimate = OffsetEstimate(np.zeros(len(other), dtype=np.int64), LEAST_BLUR, 0.0)
        if estimate is not None:
            for one, two in link_streams(line, lane[of_reference], other, lane[of_rank], estimate.shift, estimate.blur):
                root[find_root(one)] = find_root(two)
    part = np.array([find_root(int(number)) for number in lanes])[np.searchsorted(lanes, lane)]
    pieces = [rows[part == number] for number in np.unique(part)]
    shared = [piece for piece in pieces if np.unique(state.rank[piece]).size > 1]
    shared.sort(key=lambda piece: (-piece.size, int(piece[0])))
    if not shared:
        return [rows], rows[:0]
    return shared, rows[~np.isin(rows, np.concatenate(shared))]


def _by_sequence(state: MatchingState, group: Int64) -> None:
    """Match equal sequence numbers of equal kind; several with one number (a coalesced call) are matched in order."""
    rows = group[state.recorded[group] >= 0]
    rank, kind, number = state.rank[rows], state.kind[rows], state.recorded[rows]
    order = np.lexsort((state.end[rows], kind, number, rank))
    key = np.stack([rank[order], number[order], kind[order]])
    new = np.concatenate([[True], (np.diff(key, axis=1) != 0).any(axis=0)])
    start = np.maximum.accumulate(np.where(new, np.arange(order.size), 0))
    occurrence = np.empty(order.size, dtype=np.int64)
    occurrence[order] = np.arange(order.size) - start
    _, event = np.unique(np.stack([number, kind, occurrence]), axis=1, return_inverse=True)
    event = event.reshape(-1)
    # Rows with different sizes are not partners: the size on most ranks counts.
    full = state.full[rows]
    labeled = full >= 0
    agreed = np.full(int(event.max()) + 1, -1, dtype=np.int64)
    if labeled.any():
        pairs, counts = np.unique(np.stack([event[labeled], full[labeled]]), axis=1, return_counts=True)
        for_each = np.argsort(counts, kind="stable")
        agreed[pairs[0, for_each]] = pairs[1, for_each]
    fits = ~labeled | (full == agreed[event])
    state.disagreeing += int((~fits).sum())
    state.match[rows[fits]] = state.events + event[fits]
    state.method[rows[fits]] = METHODS.index("sequence")
    state.events += int(event.max()) + 1
