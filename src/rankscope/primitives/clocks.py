"""One clock for all ranks, from the ends of the collectives that they ran together.

A synchronizing collective ends on all its ranks at nearly the same time. So a rank's end is that time plus the rank's
offset plus noise; offsets and times are estimated alternately, each as the median of what the other leaves, which is
robust against outliers. The start is a spanning tree of the pairs of ranks with the most collectives in common, so
offsets of hours are no harder than of microseconds. Ranks that no chain of collectives links cannot be compared.

In: the ends of matched collectives by rank, ns. Out: each rank's offset, drift and residual (`Clocks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.store.trace_info import TraceInfo

ROUNDS = 6
MADS = 5.0  # beyond so many, an end of SendRecv or all_to_all is no synchronisation
PER_MAD = 1.4826
LEAST_MAD = 1_000  # ns
DRIFT_TIMES = 4.0  # a drift counts if it moves an end over the span by so many residuals
DRIFT_ANCHORS = 8
SHARE = 90.0  # per cent of deviations within the residual
FEW = 4  # anchors: deviations of fewer tell how well they fit one another, not how well they fit the clocks


@dataclass(frozen=True)
class Clocks:
    """The clocks of ranks, in the order of `ranks`.

    A rank's clock plus ``offset + drift · (clock − at)`` is the clock of the first rank of its component.

    Attributes:
        ranks: the ranks.
        offset: ns.
        drift: ns per ns; 0 if not distinguishable from noise.
        at: the rank's own time at which the offset holds, ns.
        residual: the 90th percentile of the deviations from the others' ends, ns; of fewer than `FEW` anchors a bound
            on the offset's error; −1 without anchors.
        anchors: collectives that the offset rests on.
        component: ranks with one number are linked by collectives.
    """

    ranks: Int64
    offset: Int64
    drift: np.ndarray
    at: Int64
    residual: Int64
    anchors: Int64
    component: Int64

    def corrected(self, rank: Int64, time: Int64) -> Int64:
        """Times of ranks on the common clock.

        Args:
            rank: whose clock each is on.
            time: ns.
        """
        place = np.searchsorted(self.ranks, rank)
        lean = np.rint(self.drift[place] * (time - self.at[place]).astype(np.float64)).astype(np.int64)
        corrected: Int64 = time + self.offset[place] + lean
        return corrected


def base_times(traces: Sequence[TraceInfo]) -> pl.DataFrame:
    """What to add to the times of each rank's files to have its wall clock: rank, window, base_ns."""
    rows = [(info.rank, info.base_time_ns) for info in traces if info.rank is not None]
    return pl.DataFrame(rows, schema={"rank": pl.Int64, "base_ns": pl.Int64}, orient="row").with_columns(
        pl.int_range(pl.len()).over("rank").alias("window")
    )


def with_arrivals(rows: pl.DataFrame, clock: pl.DataFrame, bases: pl.DataFrame) -> pl.DataFrame:
    """Collectives with their arrivals on the common clock, without ranks that have no clock.

    Args:
        rows: rank, window, start_ns and any others.
        clock: rank, offset_ns, drift_ppm, at_ns, residual_ns and any others: the result of `clock`.
        bases: as `base_times` gives them.

    Returns:
        the rows with the columns of both, and ``arrival_ns``.
    """
    wall = pl.col("start_ns") + pl.col("base_ns").fill_null(0)
    lean = ((wall - pl.col("at_ns")) * pl.col("drift_ppm").fill_null(0.0) * 1e-6).round().cast(pl.Int64)
    return (
        rows.join(bases, on=["rank", "window"], how="left")
        .join(clock, on="rank", how="inner")
        .filter(pl.col("residual_ns").is_not_null())
        .with_columns((wall + pl.col("offset_ns") + lean).alias("arrival_ns"))
    )


def align_clocks(
    ranks: Int64, rank: Int64, match: Int64, start: Int64, end: Int64, lenient: np.ndarray, *, worst: int
) -> Clocks:
    """Find the ranks' offsets.

    Args:
        ranks: all ranks, ascending; those without a row keep their clock.
        rank: of each matched end of a synchronising collective, the rank.
        match: which collective it is.
        start: when it started there, ns.
        end: when it ended there, ns.
        lenient: whether it is one that need not synchronise (SendRecv, all_to_all): its outliers are left out.
        worst: by how much ends of one collective differ at most as far as is known, ns: what a few of them may hide.
    """
    place = np.searchsorted(ranks, rank)
    _, event = np.unique(match, return_inverse=True)
    event = event.reshape(-1)
    offset, component = _spanning(ranks.size, place, event, end)
    drift = np.zeros(ranks.size)
    origin = end.min() if end.size else 0
    at = np.full(ranks.size, origin, dtype=np.int64)
    residual = np.full(ranks.size, -1, dtype=np.int64)
    anchors = np.zeros(ranks.size, dtype=np.int64)
    if end.size:
        keep = np.ones(end.size, dtype=np.bool_)
        value, moved = (end - origin) + offset[place], np.zeros(ranks.size, dtype=np.int64)
        value, moved = _settle(value, moved, place, event, keep, ranks.size)
        if lenient.any():
            keep = ~(lenient & _outlying(_deviation(value, event, keep), place))
            value, moved = _settle(value, moved, place, event, keep, ranks.size)
        lean = (end - origin).astype(np.float64)
        drift, middle, deviation = _drifts(value, lean, place, event, keep, ranks.size)
        offset = offset + moved
        at = (origin + middle).astype(np.int64)
        offset = offset + _levels(deviation, place, keep, ranks.size)
        deviation = deviation + _levels(deviation, place, keep, ranks.size)[place]
        residual, anchors = _residuals(deviation, place, event, keep, ranks.size)
        few = (anchors > 0) & (anchors < FEW)
        if few.any():
            common = (offset - origin)[place] + np.rint(drift[place] * (lean - middle[place])).astype(np.int64)
            bound = _bounds(start + common, end + common, place, event, keep, ranks.size)
            residual = np.where(few, np.maximum(residual, np.minimum(bound, worst)), residual)
    offset, drift = _from_first(offset, drift, at, component)
    return Clocks(ranks, offset, drift, at, residual, anchors, component)


def group_medians(code: Int64, value: Int64, size: int, empty: int = 0) -> Int64:
    """The median of the values of each code: of an even number, the mean of the middle two.

    Args:
        code: integers from 0 to size − 1.
        value: integers.
        size: how many codes there are.
        empty: for codes without any value.
    """
    order = np.lexsort((value, code))
    count = np.bincount(code, minlength=size)
    first = np.cumsum(count) - count
    sorted_ = value[order]
    if not sorted_.size:
        return np.full(size, empty, dtype=np.int64)
    last = sorted_.size - 1
    low = sorted_[np.minimum(first + np.maximum(count - 1, 0) // 2, last)]
    high = sorted_[np.minimum(first + count // 2, last)]
    return np.where(count > 0, low + (high - low) // 2, empty).astype(np.int64)


def _spanning(size: int, place: Int64, event: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Offsets along the pairs of ranks with most in common, and which ranks they link."""
    offset, component = np.zeros(size, dtype=np.int64), np.arange(size)
    if not end.size:
        return offset, component
    # Each event ties its ranks to one of them: the one with the most events, which the other events choose as well.
    fullness = np.bincount(place, minlength=size)
    order = np.lexsort((place, -fullness[place], event))
    hub = order[np.concatenate([[True], np.diff(event[order]) != 0])]
    hub_place, hub_end = place[hub][event], end[hub][event]
    spoke = place != hub_place
    pair = place[spoke] * size + hub_place[spoke]
    edges, code, counts = np.unique(pair, return_inverse=True, return_counts=True)
    apart = group_medians(code.reshape(-1), (hub_end - end)[spoke], edges.size)
    # What to add to a rank's clock to have that of its root; roots are found as in union-find.
    root, to_root = list(range(size)), [0] * size

    def climb(rank: int) -> tuple[int, int]:
        total, here = 0, rank
        while root[here] != here:
            total, here = total + to_root[here], root[here]
        root[rank], to_root[rank] = here, total
        return here, total

    for edge in np.argsort(-counts, kind="stable"):
        one, other = divmod(int(edges[edge]), size)
        (root_one, up_one), (root_other, up_other) = climb(one), climb(other)
        if root_one != root_other:
            # clock(one) + apart = clock(other), both carried to their roots.
            root[root_one], to_root[root_one] = root_other, up_other + int(apart[edge]) - up_one
    for rank in range(size):
        component[rank], offset[rank] = climb(rank)
    _, component = np.unique(component, return_inverse=True)
    return offset, component.reshape(-1)


def _deviation(value: Int64, event: Int64, keep: np.ndarray) -> Int64:
    """By how much each end is later than its collective's median."""
    size = int(event.max()) + 1
    typical = group_medians(event[keep], value[keep], size)
    return value - typical[event]


def _settle(value: Int64, moved: Int64, place: Int64, event: Int64, keep: np.ndarray, size: int) -> tuple[Int64, Int64]:
    """Times and offsets alternately, each the median of what the other leaves."""
    for _ in range(ROUNDS):
        late = group_medians(place[keep], _deviation(value, event, keep)[keep], size)
        if not late.any():
            break
        value, moved = value - late[place], moved - late
    return value, moved


def _outlying(deviation: Int64, place: Int64) -> np.ndarray:
    size = int(place.max()) + 1
    spread = group_medians(place, np.abs(deviation), size)
    return np.abs(deviation) > MADS * np.maximum(spread, LEAST_MAD)[place] * PER_MAD


def _drifts(
    value: Int64, time: np.ndarray, place: Int64, event: Int64, keep: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, Int64]:
    """What to add per ns, around which time, and the deviations that are left."""
    drift = np.zeros(size)
    count = np.maximum(np.bincount(place[keep], minlength=size), 1)
    middle = np.rint(np.bincount(place[keep], weights=time[keep], minlength=size) / count)
    centred = time - middle[place]
    span = np.full(size, -np.inf)
    np.maximum.at(span, place[keep], time[keep])
    first = np.full(size, np.inf)
    np.minimum.at(first, place[keep], time[keep])
    span = np.where(np.isfinite(span), span - first, 0.0)
    deviation = _deviation(value, event, keep)
    for _ in range(3):
        inlier = keep & ~_outlying(deviation - group_medians(place[keep], deviation[keep], size)[place], place)
        weight = inlier.astype(np.float64)
        square = np.bincount(place, weights=weight * centred**2, minlength=size)
        slope = np.bincount(place, weights=weight * centred * deviation, minlength=size) / np.maximum(square, 1.0)
        slope[np.bincount(place[inlier], minlength=size) < DRIFT_ANCHORS] = 0.0
        drift -= slope
        now = value + np.rint(drift[place] * centred).astype(np.int64)
        deviation = _deviation(now, event, keep)
    residual, anchors = _residuals(deviation, place, event, keep, size)
    total = drift - np.median(drift[anchors > 0]) if (anchors > 0).any() else drift
    significant = (np.abs(total) * span > DRIFT_TIMES * residual) & (anchors >= DRIFT_ANCHORS)
    drift = np.where(significant, drift, 0.0)
    now = value + np.rint(drift[place] * centred).astype(np.int64)
    return drift, middle, _deviation(now, event, keep)


def _levels(deviation: Int64, place: Int64, keep: np.ndarray, size: int) -> Int64:
    return -group_medians(place[keep], deviation[keep], size)


def _residuals(deviation: Int64, place: Int64, event: Int64, keep: np.ndarray, size: int) -> tuple[Int64, Int64]:
    """By rank: how far its ends are from the *other* ranks', and how many there are."""
    members = np.bincount(event[keep], minlength=int(event.max()) + 1)[event]
    # A rank is compared with a median that contains a share of itself: half, if there are two ranks.
    apart = np.abs(deviation) * (members / np.maximum(members - 1, 1))
    residual, anchors = np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=np.int64)
    order = np.lexsort((apart, place))
    order = order[keep[order]]
    count = np.bincount(place[order], minlength=size)
    first = np.cumsum(count) - count
    has = count > 0
    rank_at = first + np.minimum(np.ceil(count * SHARE / 100).astype(np.int64) - 1, count - 1)
    residual[has] = np.rint(apart[order][rank_at[has]]).astype(np.int64)
    anchors[has] = count[has]
    return residual, anchors


def _bounds(start: Int64, end: Int64, place: Int64, event: Int64, keep: np.ndarray, size: int) -> Int64:
    """By rank: how far its clock can be off, as no rank ends a collective before the last has started it."""
    start, end, place, event = start[keep], end[keep], place[keep], event[keep]
    latest, earliest = _beyond_others(start, event), -_beyond_others(-end, event)
    bound = np.zeros(size, dtype=np.int64)
    for slack in (end - latest, earliest - start):
        least = np.full(size, np.iinfo(np.int64).max)
        np.minimum.at(least, place, slack)
        bound = np.maximum(bound, least)
    return np.where(np.bincount(place, minlength=size) > 0, bound, 0)


def _beyond_others(value: Int64, event: Int64) -> Int64:
    """For each value the largest of the others of its event."""
    order = np.lexsort((-value, event))
    first = np.concatenate([[True], np.diff(event[order]) != 0])
    begin = np.flatnonzero(first)
    top = order[begin]
    second = order[np.minimum(begin + 1, order.size - 1)]
    count = int(event.max()) + 1
    greatest, next_one, owner = (np.zeros(count, dtype=np.int64) for _ in range(3))
    greatest[event[top]], next_one[event[top]], owner[event[top]] = value[top], value[second], top
    return np.where(owner[event] == np.arange(value.size), next_one[event], greatest[event])


def _from_first(offset: Int64, drift: np.ndarray, at: Int64, component: Int64) -> tuple[Int64, np.ndarray]:
    """Everything on the clock of each component's first rank."""
    _, first = np.unique(component, return_index=True)
    mine = first[component]
    # The first rank's own drift, taken off at each rank's own time.
    common = (at + offset - (at[mine] + offset[mine])).astype(np.float64)
    new = offset - offset[mine] - np.rint(drift[mine] * common).astype(np.int64)
    return new, drift - drift[mine]
