"""Pairs the events of two timelines that are on one clock: in order, by their ends.

The collectives of a communicator run in the same order on all of its ranks. So pairs may not cross, and the cheapest
set of pairs without a crossing is found by dynamic programming: a pair costs by how badly its ends agree, an event
without partner costs a fixed amount. All timelines of a group are processed together, one column each, within a band
around the position that the clock predicts.

In: ends of events by timeline, ns. Out: the index of each event's partner in the reference, −1 for none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.primitives.offset_estimation import Timeline, compatible

BAND = 12  # partners looked at on either side
SKIP = 5.0  # what an event without partner costs
KNEE = 5.0  # blurs: a pair costs |residual| / blur as far as this, beyond it less: half, or its logarithm if loose
APART = 2.0  # what a pair costs more whose times do not meet at all
WORST = 8.0  # blurs by which ends may be apart where nothing is missing
FAR = 20  # blurs: further apart two ends of a synchronising collective are no pair
FAR_LOOSE = 160
FAR_ONE_SIDED = 400
LEAST_FAR = 300_000  # ns
AT_WORST = 100_000  # ns: ends of a synchronising collective were 85 µs apart at most (NCCL), however well others agree
MOST_CELLS = 1 << 21

NOT = np.float32(1e9)


def pair_events(
    reference: Timeline, others: Sequence[Timeline], blurs: Sequence[int], *, by_step: bool, loose: bool = False
) -> list[Int64]:
    """For each timeline the index of each event's partner in the reference, −1 for none.

    Args:
        reference: the events to be found.
        others: timelines on the reference's clock.
        blurs: how well the ends of each agree with the reference's, ns.
        by_step: events of different steps are no pair.
        loose: ends of a few pairs may be far apart, as they are on a busy host.
    """
    found: list[Int64 | None] = [_by_equal_steps(reference, other) if by_step else None for other in others]
    for index, other in enumerate(others):
        if found[index] is None:
            found[index] = _by_lag(reference, other, blurs[index], by_step=by_step)
    todo = [index for index, each in enumerate(found) if each is None]
    todo.sort(key=lambda index: len(others[index]))
    while todo:
        batch = [todo.pop()]
        width = len(others[batch[0]]) + 2 * BAND
        while todo and (len(batch) + 1) * width < MOST_CELLS and 2 * len(others[todo[-1]]) >= len(others[batch[0]]):
            batch.append(todo.pop())
        lanes = [others[index] for index in batch]
        pairs = _in_order(reference, lanes, [blurs[i] for i in batch], by_step, loose)
        for index, found_pairs in zip(batch, pairs, strict=True):
            found[index] = _filled(reference, others[index], found_pairs, by_step, loose)
    return [each if each is not None else np.empty(0, dtype=np.int64) for each in found]


def _filled(reference: Timeline, other: Timeline, partner: Int64, by_step: bool, loose: bool) -> Int64:
    """As many events without partner on either side, between the same two pairs: pair them in order."""
    matched = partner >= 0
    taken = np.zeros(len(reference), dtype=np.bool_)
    taken[partner[matched]] = True
    mine, theirs = np.flatnonzero(~taken), np.flatnonzero(~matched)
    between_mine, between_theirs = np.cumsum(taken)[mine], np.cumsum(matched)[theirs]
    stretches = int(matched.sum()) + 1
    alike = np.bincount(between_mine, minlength=stretches) == np.bincount(between_theirs, minlength=stretches)
    if not by_step:
        # Before the first pair and after the last there is no telling.
        alike[[0, -1]] = False
    mine, theirs = mine[alike[between_mine]], theirs[alike[between_theirs]]
    fits = compatible(reference.full[mine], other.full[theirs]) & (reference.kind[mine] == other.kind[theirs])
    apart = np.abs(reference.end[mine] - other.end[theirs])
    if not loose:
        fits &= other.one_sided[theirs] | other.uneven[theirs] | (apart <= AT_WORST)
    if by_step:
        fits &= (reference.step[mine] == other.step[theirs]) & (other.step[theirs] >= 0)
    else:
        # Only the ends show that nothing is missing on both sides: they must be closer than neighbours are.
        spacing = np.diff(reference.end, prepend=reference.end[:1], append=reference.end[-1:])
        nearest = np.minimum(spacing[mine], spacing[mine + 1])
        fits &= 2 * apart < nearest
    filled: Int64 = partner.copy()
    filled[theirs[fits]] = mine[fits]
    return filled


def _by_equal_steps(reference: Timeline, other: Timeline) -> Int64 | None:
    """The pairs, if both have the same collectives in the same order in every step: then nothing is missing.

    Ends alone may not tell a collective from the next where many alike follow each other closely. A step that the
    recording cuts has fewer than the others: in such a step, order is no evidence.
    """
    if len(reference) != len(other) or not len(other) or min(reference.step.min(), other.step.min()) < 0:
        return None
    mine, theirs = (np.argsort(line.step, kind="stable") for line in (reference, other))
    if (reference.step[mine] != other.step[theirs]).any() or (reference.kind[mine] != other.kind[theirs]).any():
        return None
    if not compatible(reference.full[mine], other.full[theirs]).all():
        return None
    _, counts = np.unique(other.step, return_counts=True)
    if min(counts[0], counts[-1]) < np.median(counts):
        return None
    partner = np.empty(len(other), dtype=np.int64)
    partner[theirs] = mine
    return partner


def _by_lag(reference: Timeline, other: Timeline, blur: int, *, by_step: bool) -> Int64 | None:
    """The pairs, if nothing is missing on either side where both recorded: then all pairs have the same lag."""
    size = len(other)
    if not size or not len(reference):
        return np.full(size, -1, dtype=np.int64)
    near = np.searchsorted(reference.end, other.end)
    rows = np.arange(size)
    middle = int(np.median(near - rows))
    best: tuple[float, Int64] | None = None
    for lag in range(middle - 2, middle + 3):
        partner = rows + lag
        inside = (partner >= 0) & (partner < len(reference))
        mine, theirs = partner[inside], rows[inside]
        if mine.size < max(3, size // 2):
            continue
        if not compatible(reference.full[mine], other.full[theirs]).all():
            continue
        if (reference.kind[mine] != other.kind[theirs]).any():
            continue
        if by_step and not compatible(reference.step[mine], other.step[theirs]).all():
            continue
        residual = np.abs(reference.end[mine] - other.end[theirs])
        apart = residual > WORST * blur
        if apart[~other.one_sided[theirs]].any():
            continue
        # Ends that need not agree may be far apart, unless another one's would agree: then one is missing.
        if apart.any() and _better_elsewhere(reference, other, theirs[apart], blur):
            continue
        # What is outside in order must be outside in time as well, else something is missing at an edge.
        outside = other.end[~inside]
        if ((outside > reference.end[0]) & (outside < reference.end[-1])).any():
            continue
        cost = float(residual.mean())
        if best is None or cost < best[0]:
            best = (cost, np.where(inside, partner, -1))
    return None if best is None else best[1]


def _better_elsewhere(reference: Timeline, other: Timeline, rows: Int64, blur: int) -> bool:
    """Whether any event of the reference ends as some of the other's rows do, whose partners do not."""
    at = np.searchsorted(reference.end, other.end[rows])
    for step in (-1, 0):
        beside = at + step
        inside = (beside >= 0) & (beside < len(reference))
        near, mine = beside[inside], rows[inside]
        fits = (reference.kind[near] == other.kind[mine]) & compatible(reference.full[near], other.full[mine])
        if (fits & (np.abs(reference.end[near] - other.end[mine]) <= WORST * blur)).any():
            return True
    return False


def _in_order(
    reference: Timeline, lanes: Sequence[Timeline], blurs: Sequence[int], by_step: bool, loose: bool
) -> list[Int64]:
    """The cheapest pairs without a crossing, for all lanes at once."""
    count, rows = len(lanes), len(reference)
    lengths = np.array([len(lane) for lane in lanes])
    width = 2 * BAND
    # Padding on the right: a column that is read but can pair with nothing.
    size = int(lengths.max()) + width + 1
    end = np.full((count, size), np.iinfo(np.int64).max // 4, dtype=np.int64)
    start = end.copy()
    kind = np.full((count, size), -2, dtype=np.int64)
    full, step = np.full_like(kind, -1), np.full_like(kind, -1)
    for index, lane in enumerate(lanes):
        columns = ((end, lane.end), (start, lane.start), (kind, lane.kind), (full, lane.full), (step, lane.step))
        for table, values in columns:
            table[index, : len(lane)] = values
    begin = np.stack([np.searchsorted(lane.end, reference.end) for lane in lanes], axis=1) - BAND
    begin = np.clip(begin, 0, np.maximum(lengths - width, 0))  # (rows, lanes): the first state of the band
    blur = np.asarray(blurs, dtype=np.float64)[:, None]
    lane_of, offset = np.arange(count)[:, None], np.arange(width + 1)
    far = FAR_LOOSE if loose else FAR
    skips = (SKIP * offset).astype(np.float64)

    # cost[lane, k]: of having used up the first begin + k events of the lane.
    cost = SKIP * (begin[0][:, None] + offset)
    cost[offset > (lengths - begin[0])[:, None]] = NOT
    paired = np.zeros((rows, count, width + 1), dtype=np.bool_)
    skipped = np.zeros((rows, count, width + 1), dtype=np.int16)
    for row in range(rows):
        at = begin[row][:, None] + offset  # the state; the event that a pair would use up is the one before it
        if row and (moved := begin[row] - begin[row - 1]).any():
            source = offset + moved[:, None]
            cost = np.where(source <= width, np.take_along_axis(cost, np.minimum(source, width), axis=1), NOT)
        event = np.maximum(at - 1, 0)
        apart = np.abs(end[lane_of, event] - reference.end[row])
        fits = (kind[lane_of, event] == reference.kind[row]) & (at > 0) & (at <= lengths[:, None])
        if reference.full[row] >= 0:
            theirs = full[lane_of, event]
            fits &= (theirs == reference.full[row]) | (theirs < 0)
        if by_step and reference.step[row] >= 0:
            theirs = step[lane_of, event]
            fits &= (theirs == reference.step[row]) | (theirs < 0)
        one_sided = bool(reference.one_sided[row])
        fits &= apart <= np.maximum((FAR_ONE_SIDED if one_sided else far) * blur, LEAST_FAR)
        blurs_apart = apart / blur
        beyond = np.maximum(blurs_apart / KNEE, 1.0)
        tail = KNEE * (1 + np.log2(beyond) / KNEE if loose else (1 + beyond) / 2)
        price = np.where(blurs_apart > KNEE, tail, blurs_apart) * (0.25 if one_sided else 1.0)
        # The last to come has nothing to wait for: its time is within all others'. So the shorter is in the longer.
        theirs_start, theirs_end = start[lane_of, event], end[lane_of, event]
        both = np.minimum(theirs_end, reference.end[row]) - np.maximum(theirs_start, reference.start[row])
        shorter = np.minimum(theirs_end - theirs_start, reference.end[row] - reference.start[row])
        price += APART * (1 - np.minimum(np.maximum((both + blur) / np.maximum(shorter, 1), 0), 1))
        before = np.empty_like(cost)
        before[:, 1:] = cost[:, :-1]
        before[:, 0] = NOT
        through = np.where(fits, before + price, NOT)
        skip = cost + SKIP
        pair = through < skip
        best = np.where(pair, through, skip)
        # Lane events without partner: a running minimum along the band.
        level = best - skips
        lowest = np.minimum.accumulate(level, axis=1)
        from_ = np.maximum.accumulate(np.where(level <= lowest, offset, 0), axis=1)
        paired[row], skipped[row] = pair, offset - from_
        cost = lowest + skips
    final = cost + SKIP * np.maximum(lengths[:, None] - (begin[-1][:, None] + offset), 0)
    final[begin[-1][:, None] + offset > lengths[:, None]] = NOT
    state = begin[-1] + np.argmin(final, axis=1)
    partner = np.full((count, size), -1, dtype=np.int64)
    each = np.arange(count)
    for row in range(rows - 1, -1, -1):
        k = np.clip(state - begin[row], 0, width)
        state = state - skipped[row, each, k]
        k = np.clip(state - begin[row], 0, width)
        taken = paired[row, each, k]
        partner[each[taken], state[taken] - 1] = row
        state = state - taken
    return [partner[index, : lengths[index]].copy() for index in range(count)]
