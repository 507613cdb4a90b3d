"""Which rows of different ranks are the same collective.

Equal recorded sequence numbers first. Without them, each rank's timeline is placed on the clock of the group's most
complete rank (`rankscope.primitives.offset_estimation`: anchored by step numbers if known, else by votes on the
difference of ends) and its events are paired in order (`rankscope.primitives.event_pairing`). Events that this rank
lacks are found among the unpaired events of the others. Nothing here relies on a clock, a count or a position.

Kernels without a named group come last. All of a rank are one timeline, whatever their streams; streams whose kernels
end together on two ranks are a communicator (`rankscope.primitives.unnamed_communicators`). A rank whose kernels do not
run together with the reference's is not in its group: it is matched with the ranks that are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from rankscope.primitives.communicators import UNNAMED, encode_communicators
from rankscope.primitives.event_pairing import pair_events
from rankscope.primitives.intervals import Int64
from rankscope.primitives.offset_estimation import OffsetEstimate, Timeline, estimate_offset
from rankscope.primitives.unnamed_communicators import link_streams, order_offset, runs_together

METHODS = ("none", "sequence", "step", "clock", "order", "votes")
LEFT_OVER = 8  # blurs within which events that the reference lacks are the same
LEAST_LEFT_OVER = 100_000  # ns
LEFT_OVER_FREE = 2_000_000  # ns: of those that ranks may end at different times
FEW = 8  # events, of which one that agrees well says little of how well all do
LEAST_BLUR = 32_000  # ns: ends agree to 31 µs with NCCL (median), and to 85 µs at worst
CONCURRENT = 0.005  # of events overlap the one before: then only events of one size keep their order
OVERLAP = 2_000  # ns: old traces round to microseconds
ONE_CLOCK = 1_000_000  # ns: traces of one host are no further apart (to 70 µs in all that we know)
ROUNDS = 32  # communicators without a name that are found one after another


@dataclass(frozen=True)
class Doubt:
    """Ranks with two equally likely positions in a group.

    Attributes:
        group: the group, as it is labelled.
        ranks: the ranks in doubt.
        apart_ns: by how much the two likeliest offsets differ, of the first of them.
        evidence: of the one that was taken, nats.
        rival: of the other.
        row: one of the group's rows.
    """

    group: str
    ranks: tuple[int, ...]
    apart_ns: int
    evidence: float
    rival: float
    row: int


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
    count = rows.height
    match, method = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64)
    if not count:
        return Matching(match, method, match.copy())
    state = _State(encode_communicators(rows), match, method, hosts or {})
    order = np.argsort(state.communicator, kind="stable")
    bounds = np.flatnonzero(np.diff(state.communicator[order])) + 1
    groups = [g for g in np.split(order, bounds) if state.communicator[g[0]] >= 0]
    # Those with the most ranks and events first: what they say of the clocks serves the others.
    groups = [g for g in groups if np.unique(state.rank[g]).size > 1]
    groups.sort(key=lambda g: (bool(state.unnamed[g[0]]), -np.unique(state.rank[g]).size, -g.size, int(g[0])))
    for group in groups:
        match_one = _match_unnamed if state.unnamed[group[0]] else _match_group
        match_one(state, group[np.argsort(state.end[group], kind="stable")])
    return Matching(
        _numbered(state),
        method,
        state.communicator,
        tuple(state.doubts),
        state.disagreeing,
        tuple(state.unplaced),
        frozenset(int(state.communicator[doubt.row]) for doubt in state.doubts),
    )


@dataclass
class _State:
    coded: pl.DataFrame
    match: Int64
    method: Int64
    hosts: Mapping[int, str]
    events: int = 0
    doubts: list[Doubt] = field(default_factory=list)
    disagreeing: int = 0
    unplaced: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    links: dict[int, dict[int, int]] = field(default_factory=dict)
    named: dict[int, dict[int, int]] = field(default_factory=dict)
    astray: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        column = {name: self.coded[name].to_numpy() for name in self.coded.columns if name != "label"}
        self.rank, self.start, self.end = column["rank"], column["start_ns"], column["end_ns"]
        self.communicator, self.kind, self.full = column["communicator"].copy(), column["kind"], column["full"]
        self.step, self.recorded, self.one_sided = column["step"], column["recorded"], column["one_sided"]
        self.uneven, self.p2p = column["uneven"], column["p2p"]
        self.stream, self.label = column["stream"], self.coded["label"]
        self.unnamed = column["unnamed"]

    def timeline(self, rows: Int64, shift: Int64 | None = None) -> Timeline:
        moved = np.zeros(rows.size, dtype=np.int64) if shift is None else shift
        return Timeline(
            self.end[rows] + moved,
            self.kind[rows],
            self.full[rows],
            self.step[rows],
            self.one_sided[rows],
            self.uneven[rows],
            self.start[rows] + moved,
        )

    def learn(self, reference: int, rank: int, offset: int, *, named: bool) -> None:
        """A rank's clock plus this is the reference's; `named`: by the collectives of a group that the trace names."""
        for links in (self.links, self.named) if named else (self.links,):
            links.setdefault(reference, {})[rank] = -offset
            links.setdefault(rank, {})[reference] = offset

    def sure_shift(self, rank: int, reference: int, found: OffsetEstimate) -> Int64:
        """The shift as far as it does not rest on communicators without a name: one host has one clock."""
        known = self.offset(rank, reference, self.named)
        if known is not None:
            return found.shift - found.offset + known
        return np.zeros_like(found.shift) if self.one_clock(rank, reference, found.offset) else found.shift

    def one_clock(self, rank: int, reference: int, offset: int) -> bool:
        """Whether two ranks are on one host, and an offset does not contradict that their clocks are one."""
        if {rank, reference} & self.astray or abs(offset) > ONE_CLOCK:
            return False
        return rank in self.hosts and self.hosts[rank] == self.hosts.get(reference)

    def mark(self, rows: Int64) -> tuple[Int64, int, int, dict[int, dict[int, int]]]:
        """What `reset` needs to undo the matches of rows."""
        links = {rank: dict(others) for rank, others in self.links.items()}
        return self.communicator[rows].copy(), len(self.doubts), len(self.unplaced), links

    def reset(self, rows: Int64, mark: tuple[Int64, int, int, dict[int, dict[int, int]]]) -> None:
        """Undo what was done to rows since `mark`."""
        self.match[rows], self.method[rows] = -1, 0
        self.communicator[rows], doubts, unplaced, self.links = mark
        del self.doubts[doubts:], self.unplaced[unplaced:]

    def offset(self, rank: int, reference: int, links: dict[int, dict[int, int]] | None = None) -> int | None:
        """What to add to a rank's clock to have the reference's, through whatever ranks link the two."""
        links = self.links if links is None else links
        reached, todo = {rank: 0}, [rank]
        while todo:
            here = todo.pop()
            if here == reference:
                return reached[here]
            for there, step in links.get(here, {}).items():
                if there not in reached:
                    reached[there] = reached[here] + step
                    todo.append(there)
        return None


def _numbered(state: _State) -> Int64:
    """Events on at least two ranks, numbered in the order of their first end."""
    matched = state.match >= 0
    first = np.full(state.events, np.iinfo(np.int64).max)
    np.minimum.at(first, state.match[matched], state.end[matched])
    partners = np.bincount(state.match[matched], minlength=state.events) > 1
    order = np.argsort(np.where(partners, first, np.iinfo(np.int64).max), kind="stable")
    number = np.empty(state.events, dtype=np.int64)
    number[order] = np.arange(state.events)
    kept = matched & partners[np.maximum(state.match, 0)] if state.events else matched
    state.method[~kept] = 0
    return np.where(kept, number[np.maximum(state.match, 0)] if state.events else -1, -1).astype(np.int64)


def _match_group(state: _State, group: Int64) -> None:
    """One communicator's rows, in the order of their ends."""
    if (state.recorded[group] >= 0).any():
        _by_sequence(state, group)
    rest = group[state.match[group] < 0]
    have = rest if rest.size else group[:0]
    if np.unique(state.rank[have]).size < 2 and not (rest.size and rest.size < group.size):
        return
    _by_ends(state, rest)


def _match_unnamed(state: _State, pool: Int64) -> None:
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
    hosts = [state.hosts.get(rank) for rank in _ranks(state, pool)]
    astray = {rank for rank in alone if rank in state.hosts and hosts.count(state.hosts[rank]) > 1}
    if astray:
        # A rank that matches none on its host's clock may use another clock.
        state.reset(pool, before)
        state.astray |= astray
        alone = _one_by_one(state, pool)
    if alone and len(alone) < len(_ranks(state, pool)):
        state.unplaced.append((UNNAMED, tuple(sorted(alone))))


def _ranks(state: _State, rows: Int64) -> set[int]:
    return set(np.unique(state.rank[rows]).tolist())


def _one_by_one(state: _State, pool: Int64) -> set[int]:
    """Each round finds the communicators of one rank. Returns the ranks without any match."""
    rest = pool
    for _ in range(ROUNDS):
        if len(_ranks(state, rest)) < 2:
            break
        parts, over = _by_streams(state, rest)
        left = np.sort(np.concatenate([over, *(_by_ends(state, part) for part in parts)]))
        if left.size == rest.size:
            break
        rest = left[np.argsort(state.end[left], kind="stable")]
    # In the order of events and then ranks, a row beside one of its event and of another rank is shared.
    rows = pool[state.match[pool] >= 0]
    rows = rows[np.lexsort((state.rank[rows], state.match[rows]))]
    both = (np.diff(state.match[rows]) == 0) & (np.diff(state.rank[rows]) != 0)
    shared = np.concatenate([both, [False]]) | np.concatenate([[False], both]) if rows.size else both
    return _ranks(state, pool) - _ranks(state, rows[shared])


def _by_streams(state: _State, rows: Int64) -> tuple[list[Int64], Int64]:
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
        found = _offset(state, line, reference, int(rank), other, unnamed=True)
        if found is None and state.one_clock(int(rank), reference, 0):
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


def _by_sequence(state: _State, group: Int64) -> None:
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


def _by_ends(state: _State, group: Int64) -> Int64:
    """Match by ends. Returns the rows of ranks that are not in the group of the others, if it has no name."""
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
            state.learn(reference, rank, placed[rank].offset, named=not state.unnamed[mine[0]])
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


def _place(state: _State, line: Timeline, reference: int, rank: int, rows: Int64) -> OffsetEstimate | None:
    found = _offset(state, line, reference, rank, state.timeline(rows), unnamed=bool(state.unnamed[rows[0]]))
    if found is not None and not found.ambiguous and found.anchored != "clock" and not state.unnamed[rows[0]]:
        state.learn(reference, rank, found.offset, named=True)
    return found


def _offset(
    state: _State, line: Timeline, reference: int, rank: int, other: Timeline, *, unnamed: bool
) -> OffsetEstimate | None:
    known = state.offset(rank, reference)
    if not unnamed:
        return estimate_offset(line, other, known or 0, trusted=known is not None)
    sure = state.offset(rank, reference, state.named)
    if sure is None and state.one_clock(rank, reference, 0):
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


def _settle(state: _State, reference: int, placed: dict[int, OffsetEstimate]) -> dict[int, OffsetEstimate]:
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
        if not state.one_clock(rank, reference, placed[rank].offset):
            doubtful[rank] = found
    return doubtful


def _record_doubt(state: _State, row: int, doubtful: dict[int, OffsetEstimate]) -> None:
    for first in list(doubtful.values())[:1]:
        rival = first.rival.evidence if first.rival is not None else 0.0
        apart = abs(first.offset - first.rival.offset) if first.rival is not None else 0
        state.doubts.append(Doubt(str(state.label[row]), tuple(doubtful), apart, first.evidence, rival, row))


def _leave_out(
    state: _State, reference: int, line: Timeline, by_rank: dict[int, Int64], placed: dict[int, OffsetEstimate]
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
            if runs_together(line, state.timeline(rows), partner, state.sure_shift(rank, reference, found)):
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
    state: _State, mine: Int64, line: Timeline, by_rank: dict[int, Int64], placed: dict[int, OffsetEstimate]
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


def _kinds_apart(state: _State, mine: Int64, lanes: list[Int64], *, apart: bool) -> Iterator[tuple[Int64, list[Int64]]]:
    """All events at once if collectives run one after another; else separately by kind and size."""
    if not apart:
        yield np.arange(mine.size), [np.arange(lane.size) for lane in lanes]
        return
    together = np.concatenate([mine, *lanes])
    code = state.full if (state.full[together] >= 0).all() else state.kind
    for value in np.unique(code[together]):
        yield np.flatnonzero(code[mine] == value), [np.flatnonzero(code[lane] == value) for lane in lanes]


def _concurrent(state: _State, rows: Int64) -> bool:
    if rows.size < 2:
        return False
    # The streams of a captured graph tell nothing; those of Gloo are threads.
    if np.unique(state.stream[rows]).size > 1 and not state.unnamed[rows[0]]:
        return True
    order = rows[np.argsort(state.start[rows], kind="stable")]
    return bool(np.mean(state.start[order][1:] < state.end[order][:-1] - OVERLAP) > CONCURRENT)


def _left_over(state: _State, by_rank: dict[int, Int64], placed: dict[int, OffsetEstimate]) -> None:
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
