"""Pair the events of two timelines on one clock: in order, by their ends.

The collectives of a communicator are launched in the same order on all of its ranks. So pairs may not cross, and
dynamic programming finds the cheapest set of pairs without a crossing: the cost of a pair grows with the difference of
its ends, and an event without a partner has a fixed cost. All timelines of a group are processed together, one column
each, within a band around the position that the clock predicts.

In: ends of events by timeline, ns. Out: the index of each event's partner in the reference, −1 for none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.primitives.offset_estimation import Timeline, compatible

BAND = 12  # candidate partners on either side
SKIP = 5.0  # cost of an event without a partner
KNEE = 5.0  # blurs: a pair costs |residual| / blur up to this; the excess costs half, or its logarithm if loose
APART = 2.0  # additional cost of a pair whose times do not overlap
WORST = 8.0  # blurs: the largest difference of ends if nothing is missing
FAR = 20  # blurs: ends of a synchronizing collective that differ by more are not a pair
FAR_LOOSE = 160
FAR_ONE_SIDED = 400
LEAST_FAR = 300_000  # ns
AT_WORST = 100_000  # ns: ends of a synchronizing collective differed by at most 85 µs (NCCL), however well others agree
MOST_CELLS = 1 << 21

NOT = np.float32(1e9)


def pair_events(
    reference: Timeline, others: Sequence[Timeline], blurs: Sequence[int], *, by_step: bool, loose: bool = False
) -> list[Int64]:
    """For each timeline the index of each event's partner in the reference, −1 for none.

    Args:
        reference: the reference's events.
        others: timelines on the reference's clock.
        blurs: the typical difference of each one's ends from the reference's, ns.
        by_step: pair only events of the same step.
        loose: allow a few pairs with ends far apart, as on a busy host, and take the order of launches in a step for
            better evidence than ends.
    """
    by_order = _by_order_in_steps if loose else _by_equal_steps
    found: list[Int64 | None] = [by_order(reference, other) if by_step else None for other in others]
    for index, other in enumerate(others):
        if found[index] is None:
            found[index] = _by_lag(reference, other, blurs[index], by_step=by_step)
    todo = [index for index, partners in enumerate(found) if partners is None]
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
    return [partners if partners is not None else np.empty(0, dtype=np.int64) for partners in found]


def _filled(reference: Timeline, other: Timeline, partner: Int64, by_step: bool, loose: bool) -> Int64:
    """Pair unpaired events in order if there are equally many on both sides between the same two pairs."""
    matched = partner >= 0
    is_paired = np.zeros(len(reference), dtype=np.bool_)
    is_paired[partner[matched]] = True
    unpaired, others = np.flatnonzero(~is_paired), np.flatnonzero(~matched)
    between_ours, between_others = np.cumsum(is_paired)[unpaired], np.cumsum(matched)[others]
    stretches = int(matched.sum()) + 1
    equal_counts = np.bincount(between_ours, minlength=stretches) == np.bincount(between_others, minlength=stretches)
    if not by_step:
        # Before the first pair and after the last, equal counts prove nothing.
        equal_counts[[0, -1]] = False
    unpaired, others = unpaired[equal_counts[between_ours]], others[equal_counts[between_others]]
    fits = compatible(reference.full[unpaired], other.full[others]) & (reference.kind[unpaired] == other.kind[others])
    difference = np.abs(reference.end[unpaired] - other.end[others])
    if not loose:
        fits &= other.one_sided[others] | other.uneven[others] | (difference <= AT_WORST)
    if by_step:
        fits &= (reference.step[unpaired] == other.step[others]) & (other.step[others] >= 0)
    else:
        # Only close ends show that nothing is missing on both sides: they must be closer than neighboring events.
        spacing = np.diff(reference.end, prepend=reference.end[:1], append=reference.end[-1:])
        nearest = np.minimum(spacing[unpaired], spacing[unpaired + 1])
        fits &= 2 * difference < nearest
    filled: Int64 = partner.copy()
    filled[others[fits]] = unpaired[fits]
    return filled


def _by_equal_steps(reference: Timeline, other: Timeline) -> Int64 | None:
    """The pairs, if both have the same collectives in the same order in every step: then nothing is missing.

    Ends alone are ambiguous if many similar collectives follow each other closely. In a step that the recording cuts,
    which has fewer collectives than the others, order is no evidence.
    """
    if len(reference) != len(other) or not len(other) or min(reference.step.min(), other.step.min()) < 0:
        return None
    ours, others = (np.argsort(line.step, kind="stable") for line in (reference, other))
    if (reference.step[ours] != other.step[others]).any() or (reference.kind[ours] != other.kind[others]).any():
        return None
    if not compatible(reference.full[ours], other.full[others]).all():
        return None
    _, counts = np.unique(other.step, return_counts=True)
    if min(counts[0], counts[-1]) < np.median(counts):
        return None
    partner = np.empty(len(other), dtype=np.int64)
    partner[others] = ours
    return partner


def _by_order_in_steps(reference: Timeline, other: Timeline) -> Int64 | None:
    """The pairs, if both have the same collectives in the same order in every step but those that a recording cuts:
    there the last ones of the first step are pairs, and the first ones of the last step."""
    if not len(reference) or not len(other) or min(reference.step.min(), other.step.min()) < 0:
        return None
    first = max(reference.step.min(), other.step.min())
    last = min(reference.step.max(), other.step.max())
    ours, others = [], []
    for step in np.intersect1d(reference.step, other.step):
        rows, rows_of_other = np.flatnonzero(reference.step == step), np.flatnonzero(other.step == step)
        count = min(rows.size, rows_of_other.size)
        if rows.size != rows_of_other.size and (first == last or step not in (first, last)):
            return None
        part = slice(-count, None) if step == first else slice(count)
        ours.append(rows[part])
        others.append(rows_of_other[part])
    if not ours:
        return None
    reference_rows, other_rows = np.concatenate(ours), np.concatenate(others)
    if (reference.kind[reference_rows] != other.kind[other_rows]).any():
        return None
    if not compatible(reference.full[reference_rows], other.full[other_rows]).all():
        return None
    partner = np.full(len(other), -1, dtype=np.int64)
    partner[other_rows] = reference_rows
    return partner


def _by_lag(reference: Timeline, other: Timeline, blur: int, *, by_step: bool) -> Int64 | None:
    """The pairs, if nothing is missing on either side while both recorded: then all pairs have the same lag."""
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
        ours, others = partner[inside], rows[inside]
        if ours.size < max(3, size // 2):
            continue
        if not compatible(reference.full[ours], other.full[others]).all():
            continue
        if (reference.kind[ours] != other.kind[others]).any():
            continue
        if by_step and not compatible(reference.step[ours], other.step[others]).all():
            continue
        residual = np.abs(reference.end[ours] - other.end[others])
        far = residual > WORST * blur
        if far[~other.one_sided[others]].any():
            continue
        # Ends that need not agree may be far apart, unless another event would agree: then one is missing.
        if far.any() and _better_elsewhere(reference, other, others[far], blur):
            continue
        # Events without a partner must be outside in time as well, else something is missing at an edge.
        outside = other.end[~inside]
        if ((outside > reference.end[0]) & (outside < reference.end[-1])).any():
            continue
        cost = float(residual.mean())
        if best is None or cost < best[0]:
            best = (cost, np.where(inside, partner, -1))
    return None if best is None else best[1]


def _better_elsewhere(reference: Timeline, other: Timeline, rows: Int64, blur: int) -> bool:
    """Whether another event of the reference ends close to any of these rows."""
    at = np.searchsorted(reference.end, other.end[rows])
    for step in (-1, 0):
        neighbor = at + step
        inside = (neighbor >= 0) & (neighbor < len(reference))
        near, row = neighbor[inside], rows[inside]
        fits = (reference.kind[near] == other.kind[row]) & compatible(reference.full[near], other.full[row])
        if (fits & (np.abs(reference.end[near] - other.end[row]) <= WORST * blur)).any():
            return True
    return False


def _in_order(
    reference: Timeline, lanes: Sequence[Timeline], blurs: Sequence[int], by_step: bool, loose: bool
) -> list[Int64]:
    """The cheapest pairs without a crossing, for all lanes at once."""
    count, rows = len(lanes), len(reference)
    lengths = np.array([len(lane) for lane in lanes])
    width = 2 * BAND
    # Padding on the right: columns that are read but cannot be paired.
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

    # cost[lane, k]: the cost after the first begin + k events of the lane.
    cost = SKIP * (begin[0][:, None] + offset)
    cost[offset > (lengths - begin[0])[:, None]] = NOT
    paired = np.zeros((rows, count, width + 1), dtype=np.bool_)
    skipped = np.zeros((rows, count, width + 1), dtype=np.int16)
    for row in range(rows):
        at = begin[row][:, None] + offset  # the state; a pair would use the event before it
        if row and (moved := begin[row] - begin[row - 1]).any():
            source = offset + moved[:, None]
            cost = np.where(source <= width, np.take_along_axis(cost, np.minimum(source, width), axis=1), NOT)
        event = np.maximum(at - 1, 0)
        difference = np.abs(end[lane_of, event] - reference.end[row])
        fits = (kind[lane_of, event] == reference.kind[row]) & (at > 0) & (at <= lengths[:, None])
        if reference.full[row] >= 0:
            other_code = full[lane_of, event]
            fits &= (other_code == reference.full[row]) | (other_code < 0)
        if by_step and reference.step[row] >= 0:
            other_code = step[lane_of, event]
            fits &= (other_code == reference.step[row]) | (other_code < 0)
        one_sided = bool(reference.one_sided[row])
        fits &= difference <= np.maximum((FAR_ONE_SIDED if one_sided else far) * blur, LEAST_FAR)
        blurs_apart = difference / blur
        beyond = np.maximum(blurs_apart / KNEE, 1.0)
        tail = KNEE * (1 + np.log2(beyond) / KNEE if loose else (1 + beyond) / 2)
        price = np.where(blurs_apart > KNEE, tail, blurs_apart) * (0.25 if one_sided else 1.0)
        # The last rank to arrive does not wait, so its time is within that of all others: the shorter in the longer.
        other_start, other_end = start[lane_of, event], end[lane_of, event]
        both = np.minimum(other_end, reference.end[row]) - np.maximum(other_start, reference.start[row])
        shorter = np.minimum(other_end - other_start, reference.end[row] - reference.start[row])
        price += APART * (1 - np.minimum(np.maximum((both + blur) / np.maximum(shorter, 1), 0), 1))
        before = np.empty_like(cost)
        before[:, 1:] = cost[:, :-1]
        before[:, 0] = NOT
        through = np.where(fits, before + price, NOT)
        skip = cost + SKIP
        pair = through < skip
        best = np.where(pair, through, skip)
        # Lane events without a partner: a running minimum along the band.
        level = best - skips
        lowest = np.minimum.accumulate(level, axis=1)
        from_ = np.maximum.accumulate(np.where(level <= lowest, offset, 0), axis=1)
        paired[row], skipped[row] = pair, offset - from_
        cost = lowest + skips
    final = cost + SKIP * np.maximum(lengths[:, None] - (begin[-1][:, None] + offset), 0)
    final[begin[-1][:, None] + offset > lengths[:, None]] = NOT
    state = begin[-1] + np.argmin(final, axis=1)
    partner = np.full((count, size), -1, dtype=np.int64)
    lane_index = np.arange(count)
    for row in range(rows - 1, -1, -1):
        k = np.clip(state - begin[row], 0, width)
        state = state - skipped[row, lane_index, k]
        k = np.clip(state - begin[row], 0, width)
        taken = paired[row, lane_index, k]
        partner[lane_index[taken], state[taken] - 1] = row
        state = state - taken
    return [partner[index, : lengths[index]].copy() for index in range(count)]
