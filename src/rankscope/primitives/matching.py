"""Which rows of different ranks are the same collective.

Equal recorded sequence numbers first. Without them, each rank's timeline is placed on the clock of the group's most
complete rank (`rankscope.primitives.offset_estimation`: anchored by step numbers if known, else by votes on the
difference of ends) and its events are paired in order (`rankscope.primitives.event_pairing`). Events that this rank
lacks are found among the unpaired events of the others. Nothing here relies on a clock, a count or a position.

Kernels without a named group come last. All of a rank are one timeline, whatever their streams; streams whose kernels
end together on two ranks are a communicator (`rankscope.primitives.unnamed_communicators`). A rank whose kernels do not
run together with the reference's is not in its group: it is matched with the ranks that are left.

In: the collectives of all ranks, one row each. Out: which rows are one collective, and what is ambiguous (`Matching`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.communicators import UNNAMED, encode_communicators
from rankscope.primitives.end_matching import LEAST_BLUR, find_offset, match_by_ends
from rankscope.primitives.intervals import Int64
from rankscope.primitives.matching_state import METHODS, Doubt, MatchingState
from rankscope.primitives.offset_estimation import OffsetEstimate
from rankscope.primitives.unnamed_communicators import link_streams

__all__ = ["METHODS", "Doubt", "Matching", "match_collectives"]

ROUNDS = 32  # communicators without a name that are found one after another


@dataclass(frozen=True)
class Matching:
    """The result, by row.

    Attributes:
        match: one number for the same collective on all ranks, −1 for what has no partner.
        method: how it was found: an index into `METHODS`.
        group: a number for each communicator: group and ranks, or the two ends of a point-to-point channel; −1 none.
        doubts: what could as well be otherwise.
        doubtful: the numbers of the communicators that the doubts are about.
        disagreeing: rows with a recorded sequence number whose kind or size is another on most ranks.
        unplaced: by group, the ranks whose ends agree with no other rank's.
    """

    match: Int64
    method: Int64
    group: Int64
    doubts: tuple[Doubt, ...] = ()
    disagreeing: int = 0
    unplaced: tuple[tuple[str, tuple[int, ...]], ...] = ()
    doubtful: frozenset[int] = frozenset()


def match_collectives(rows: pl.DataFrame, hosts: Mapping[int, str] | None = None) -> Matching:
    """Match the collectives of all ranks.

    Args:
        rows: the columns that `communicators.COLUMNS` names, in any order; ``recorded`` is the `Seq` that the trace
            holds, null where it holds none; times are on the ranks' wall clocks.
        hosts: of the ranks whose wall clock is recorded, the host, if known: one host has one clock.
    """
    if not rows.height:
        none = np.empty(0, dtype=np.int64)
        return Matching(none, none, none)
    state = MatchingState(encode_communicators(rows), hosts or {})
    order = np.argsort(state.communicator, kind="stable")
    bounds = np.flatnonzero(np.diff(state.communicator[order])) + 1
    groups = [g for g in np.split(order, bounds) if state.communicator[g[0]] >= 0]
    # Those with the most ranks and events first: the offsets that they show serve the others.
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
    """One communicator's rows, in the order of their ends."""
    if (state.recorded[group] >= 0).any():
        _by_sequence(state, group)
    rest = group[state.match[group] < 0]
    have = rest if rest.size else group[:0]
    if np.unique(state.rank[have]).size < 2 and not (rest.size and rest.size < group.size):
        return
    match_by_ends(state, rest)


def _match_unnamed(state: MatchingState, pool: Int64) -> None:
    """Rows of communicators without a name, in the order of their ends: one communicator after another."""
    numbered = pool[state.recorded[pool] >= 0]
    keys = np.stack([state.rank[numbered], state.kind[numbered], state.recorded[numbered]])
    if numbered.size and np.unique(keys, axis=1).shape[1] == numbered.size:
        _by_sequence(state, numbered)
        pool = pool[state.match[pool] < 0]
    if not pool.size:
        return
    before = state.mark(pool)
    alone = _one_by_one(state, pool)
    hosts = [state.clocks.hosts.get(rank) for rank in state.ranks(pool)]
    astray = {rank for rank in alone if rank in state.clocks.hosts and hosts.count(state.clocks.hosts[rank]) > 1}
    if astray:
        # A rank that matches none on its host's clock may use another clock.
        state.reset(pool, before)
        state.clocks.astray |= astray
        alone = _one_by_one(state, pool)
    if alone and len(alone) < len(state.ranks(pool)):
        state.unplaced.append((UNNAMED, tuple(sorted(alone))))


def _one_by_one(state: MatchingState, pool: Int64) -> set[int]:
    """Each round finds the communicators of one rank. Returns the ranks without any match."""
    rest = pool
    for _ in range(ROUNDS):
        if len(state.ranks(rest)) < 2:
            break
        parts, over = _by_streams(state, rest)
        left = np.sort(np.concatenate([over, *(match_by_ends(state, part) for part in parts)]))
        if left.size == rest.size:
            break
        rest = left[np.argsort(state.end[left], kind="stable")]
    # In the order of events and then ranks, a row next to one of the same event and another rank is shared.
    rows = pool[state.match[pool] >= 0]
    rows = rows[np.lexsort((state.rank[rows], state.match[rows]))]
    both = (np.diff(state.match[rows]) == 0) & (np.diff(state.rank[rows]) != 0)
    shared = np.concatenate([both, [False]]) | np.concatenate([[False], both]) if rows.size else both
    return state.ranks(pool) - state.ranks(rows[shared])


def _by_streams(state: MatchingState, rows: Int64) -> tuple[list[Int64], Int64]:
    """The rows of each set of streams whose kernels end together, the largest first; and the rest."""
    lane = state.rank[rows] * (int(state.stream.max()) + 1) + state.stream[rows]
    ranks, counts = np.unique(state.rank[rows], return_counts=True)
    lanes = np.unique(lane)
    if lanes.size == ranks.size:
        return [rows], rows[:0]
    reference = int(ranks[np.argmax(counts)])
    mine = state.rank[rows] == reference
    line = state.timeline(rows[mine])
    root = {int(each): int(each) for each in lanes}

    def climb(each: int) -> int:
        while root[each] != each:
            each = root[each]
        return each

    for rank in ranks[ranks != reference]:
        theirs = state.rank[rows] == rank
        other = state.timeline(rows[theirs])
        found = find_offset(state, line, reference, int(rank), other, unnamed=True)
        if found is None and state.clocks.share_clock(int(rank), reference, 0):
            found = OffsetEstimate(np.zeros(len(other), dtype=np.int64), LEAST_BLUR, 0.0)
        if found is not None:
            for one, two in link_streams(line, lane[mine], other, lane[theirs], found.shift, found.blur):
                root[climb(one)] = climb(two)
    part = np.array([climb(int(each)) for each in lanes])[np.searchsorted(lanes, lane)]
    pieces = [rows[part == each] for each in np.unique(part)]
    shared = [piece for piece in pieces if np.unique(state.rank[piece]).size > 1]
    shared.sort(key=lambda piece: (-piece.size, int(piece[0])))
    if not shared:
        return [rows], rows[:0]
    return shared, rows[~np.isin(rows, np.concatenate(shared))]


def _by_sequence(state: MatchingState, group: Int64) -> None:
    """Equal sequence numbers of equal kind; of several with one number (a coalesced call) the nth with the nth."""
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
    # Sizes that differ are no partners: what most ranks say counts.
    full = state.full[rows]
    labelled = full >= 0
    agreed = np.full(int(event.max()) + 1, -1, dtype=np.int64)
    if labelled.any():
        pairs, counts = np.unique(np.stack([event[labelled], full[labelled]]), axis=1, return_counts=True)
        for_each = np.argsort(counts, kind="stable")
        agreed[pairs[0, for_each]] = pairs[1, for_each]
    fits = ~labelled | (full == agreed[event])
    state.disagreeing += int((~fits).sum())
    state.match[rows[fits]] = state.events + event[fits]
    state.method[rows[fits]] = METHODS.index("sequence")
    state.events += int(event.max()) + 1
