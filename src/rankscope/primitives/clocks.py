"""One clock for all ranks, from the ends of the collectives that they ran together.

A synchronizing collective ends on all its ranks at nearly the same time. So a rank's end is that time plus the rank's
offset plus noise. Offsets and times are estimated in turn, each as the median of the residuals of the other, which is
robust against outliers. The first estimate comes from a spanning tree of the pairs of ranks with the most collectives
in common, so offsets of hours are no harder than of microseconds. Ranks that no chain of collectives links cannot be
compared.

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
MADS = 5.0  # further away, an end of SendRecv or all_to_all does not count as synchronized
PER_MAD = 1.4826
LEAST_MAD = 1_000  # ns
DRIFT_TIMES = 4.0  # a drift counts if it moves ends by more than this many residuals over the span
DRIFT_ANCHORS = 8
SHARE = 90.0  # percent of deviations within the residual
FEW = 4  # anchors: the deviations of fewer show how well they fit one another, not how well they fit the clocks


@dataclass(frozen=True)
class Clocks:
    """The clocks of ranks, in the order of `ranks`.

    A rank's clock plus ``offset + drift · (clock − at)`` is the clock of the first rank of its component.

    Attributes:
        ranks: the ranks.
        offset: ns.
        drift: ns per ns; 0 if not distinguishable from noise.
        at: the rank's own time at which the offset holds, ns.
        residual: the 90th percentile of the deviations from the others' ends, ns; with fewer than `FEW` anchors, a
            bound on the offset's error; −1 without anchors.
        anchors: number of collectives that determine the offset.
        component: ranks with the same number are linked by collectives.
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
            rank: the rank of each time.
            time: ns.
        """
        index = np.searchsorted(self.ranks, rank)
        drifted = np.rint(self.drift[index] * (time - self.at[index]).astype(np.float64)).astype(np.int64)
        corrected: Int64 = time + self.offset[index] + drifted
        return corrected


def base_times(traces: Sequence[TraceInfo]) -> pl.DataFrame:
    """The offset of each file's times from the rank's wall clock: rank, window, base_ns."""
    rows = [(info.rank, info.base_time_ns) for info in traces if info.rank is not None]
    return pl.DataFrame(rows, schema={"rank": pl.Int64, "base_ns": pl.Int64}, orient="row").with_columns(
        pl.int_range(pl.len()).over("rank").alias("window")
    )


def with_arrivals(rows: pl.DataFrame, clock: pl.DataFrame, bases: pl.DataFrame) -> pl.DataFrame:
    """Collectives with their arrivals on the common clock, without ranks that have no clock.

    Args:
        rows: rank, window, start_ns and any others.
        clock: rank, offset_ns, drift_ppm, at_ns, residual_ns and any others: the result of `clock`.
        bases: the result of `base_times`.

    Returns:
        the rows with the columns of both, and ``arrival_ns``.
    """
    return with_clock(rows, clock, bases).filter(pl.col("residual_ns").is_not_null())


def with_clock(rows: pl.DataFrame, clock: pl.DataFrame, bases: pl.DataFrame) -> pl.DataFrame:
    """The same of all ranks: those that have no clock have no ``residual_ns``, and their arrivals mean nothing."""
    wall = pl.col("start_ns") + pl.col("base_ns").fill_null(0)
    drifted = ((wall - pl.col("at_ns")) * pl.col("drift_ppm").fill_null(0.0) * 1e-6).round().cast(pl.Int64)
    return (
        rows.join(bases, on=["rank", "window"], how="left")
        .join(clock, on="rank", how="inner")
        .with_columns((wall + pl.col("offset_ns") + drifted).alias("arrival_ns"))
    )


def align_clocks(
    ranks: Int64, rank: Int64, match: Int64, start: Int64, end: Int64, lenient: np.ndarray, *, worst: int
) -> Clocks:
    """Estimate the ranks' offsets.

    Args:
        ranks: all ranks, ascending; those without a row keep their clock.
        rank: the rank of each matched end of a synchronizing collective.
        match: the number of its collective.
        start: when it started there, ns.
        end: when it ended there, ns.
        lenient: whether the collective need not synchronize (SendRecv, all_to_all): its outliers are left out.
        worst: the largest known difference between ends of one collective, ns: the error that a few of them may hide.
    """
    position = np.searchsorted(ranks, rank)
    _, event = np.unique(match, return_inverse=True)
    event = event.reshape(-1)
    offset, component = _spanning(ranks.size, position, event, end)
    drift = np.zeros(ranks.size)
    origin = end.min() if end.size else 0
    at = np.full(ranks.size, origin, dtype=np.int64)
    residual = np.full(ranks.size, -1, dtype=np.int64)
    anchors = np.zeros(ranks.size, dtype=np.int64)
    if end.size:
        keep = np.ones(end.size, dtype=np.bool_)
        value, correction = (end - origin) + offset[position], np.zeros(ranks.size, dtype=np.int64)
        value, correction = _settle(value, correction, position, event, keep, ranks.size)
        if lenient.any():
            keep = ~(lenient & _outlying(_deviation(value, event, keep), position))
            # Its own end says nothing about a rank's clock.
            keep &= np.bincount(event[keep], minlength=int(event.max()) + 1)[event] > 1
            value, correction = _settle(value, correction, position, event, keep, ranks.size)
        since_origin = (end - origin).astype(np.float64)
        drift, middle, deviation = _drifts(value, since_origin, position, event, keep, ranks.size)
        offset = offset + correction
        at = (origin + middle).astype(np.int64)
        offset = offset + _levels(deviation, position, keep, ranks.size)
        deviation = deviation + _levels(deviation, position, keep, ranks.size)[position]
        residual, anchors = _residuals(deviation, position, event, keep, ranks.size)
        few = (anchors > 0) & (anchors < FEW)
        if few.any():
            common = (offset - origin)[position] + np.rint(drift[position] * (since_origin - middle[position])).astype(
                np.int64
            )
            bound = _bounds(start + common, end + common, position, event, keep, ranks.size)
            residual = np.where(few, np.maximum(residual, np.minimum(bound, worst)), residual)
    offset, drift = _from_first(offset, drift, at, component)
    return Clocks(ranks, offset, drift, at, residual, anchors, component)


def group_medians(code: Int64, value: Int64, size: int, empty: int = 0) -> Int64:
    """The median of the values of each code; for an even number, the mean of the middle two.

    Args:
        code: integers from 0 to size − 1.
        value: integers.
        size: the number of codes.
        empty: the result for codes without a value.
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


def _spanning(size: int, position: Int64, event: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Offsets along a spanning tree of the pairs of ranks with most collectives in common, and its components."""
    offset, component = np.zeros(size, dtype=np.int64), np.arange(size)
    if not end.size:
        return offset, component
    # Each event links its ranks to one of them: the one with the most events, so that most events choose the same.
    fullness = np.bincount(position, minlength=size)
    order = np.lexsort((position, -fullness[position], event))
    hub = order[np.concatenate([[True], np.diff(event[order]) != 0])]
    hub_place, hub_end = position[hub][event], end[hub][event]
    spoke = position != hub_place
    pair = position[spoke] * size + hub_place[spoke]
    edges, code, counts = np.unique(pair, return_inverse=True, return_counts=True)
    difference = group_medians(code.reshape(-1), (hub_end - end)[spoke], edges.size)
    # The offset from a rank's clock to that of its root; roots are found by union-find.
    root, to_root = list(range(size)), [0] * size

    def find_root(rank: int) -> tuple[int, int]:
        total, current = 0, rank
        while root[current] != current:
            total, current = total + to_root[current], root[current]
        root[rank], to_root[rank] = current, total
        return current, total

    for edge in np.argsort(-counts, kind="stable"):
        one, other = divmod(int(edges[edge]), size)
        (root_one, from_one), (root_other, from_other) = find_root(one), find_root(other)
        if root_one != root_other:
            # clock(one) + difference = clock(other), both moved to their roots.
            root[root_one], to_root[root_one] = root_other, from_other + int(difference[edge]) - from_one
    for rank in range(size):
        component[rank], offset[rank] = find_root(rank)
    _, component = np.unique(component, return_inverse=True)
    return offset, component.reshape(-1)


def _deviation(value: Int64, event: Int64, keep: np.ndarray) -> Int64:
    """How much later each end is than its collective's median."""
    size = int(event.max()) + 1
    typical = group_medians(event[keep], value[keep], size)
    return value - typical[event]


def _settle(
    value: Int64, correction: Int64, position: Int64, event: Int64, keep: np.ndarray, size: int
) -> tuple[Int64, Int64]:
    """Estimate times and offsets in turn, each as the median of the residuals of the other."""
    for _ in range(ROUNDS):
        late = group_medians(position[keep], _deviation(value, event, keep)[keep], size)
        if not late.any():
            break
        value, correction = value - late[position], correction - late
    return value, correction


def _outlying(deviation: Int64, position: Int64) -> np.ndarray:
    size = int(position.max()) + 1
    spread = group_medians(position, np.abs(deviation), size)
    return np.abs(deviation) > MADS * np.maximum(spread, LEAST_MAD)[position] * PER_MAD


def _drifts(
    value: Int64, time: np.ndarray, position: Int64, event: Int64, keep: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, Int64]:
    """Each rank's drift per ns, the time around which it applies, and the remaining deviations."""
    drift = np.zeros(size)
    count = np.maximum(np.bincount(position[keep], minlength=size), 1)
    middle = np.rint(np.bincount(position[keep], weights=time[keep], minlength=size) / count)
    centered = time - middle[position]
    span = np.full(size, -np.inf)
    np.maximum.at(span, position[keep], time[keep])
    first = np.full(size, np.inf)
    np.minimum.at(first, position[keep], time[keep])
    span = np.where(np.isfinite(span), span - first, 0.0)
    deviation = _deviation(value, event, keep)
    for _ in range(3):
        inlier = keep & ~_outlying(deviation - group_medians(position[keep], deviation[keep], size)[position], position)
        weight = inlier.astype(np.float64)
        square = np.bincount(position, weights=weight * centered**2, minlength=size)
        slope = np.bincount(position, weights=weight * centered * deviation, minlength=size) / np.maximum(square, 1.0)
        slope[np.bincount(position[inlier], minlength=size) < DRIFT_ANCHORS] = 0.0
        drift -= slope
        corrected = value + np.rint(drift[position] * centered).astype(np.int64)
        deviation = _deviation(corrected, event, keep)
    residual, anchors = _residuals(deviation, position, event, keep, size)
    total = drift - np.median(drift[anchors > 0]) if (anchors > 0).any() else drift
    significant = (np.abs(total) * span > DRIFT_TIMES * residual) & (anchors >= DRIFT_ANCHORS)
    drift = np.where(significant, drift, 0.0)
    corrected = value + np.rint(drift[position] * centered).astype(np.int64)
    return drift, middle, _deviation(corrected, event, keep)


def _levels(deviation: Int64, position: Int64, keep: np.ndarray, size: int) -> Int64:
    return -group_medians(position[keep], deviation[keep], size)


def _residuals(deviation: Int64, position: Int64, event: Int64, keep: np.ndarray, size: int) -> tuple[Int64, Int64]:
    """By rank: the distance of its ends from the *other* ranks' ends, and the number of ends."""
    members = np.bincount(event[keep], minlength=int(event.max()) + 1)[event]
    # The median that a rank is compared with includes the rank itself, which makes up half of it if there are two.
    distance = np.abs(deviation) * (members / np.maximum(members - 1, 1))
    residual, anchors = np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=np.int64)
    order = np.lexsort((distance, position))
    order = order[keep[order]]
    count = np.bincount(position[order], minlength=size)
    first = np.cumsum(count) - count
    has = count > 0
    rank_at = first + np.minimum(np.ceil(count * SHARE / 100).astype(np.int64) - 1, count - 1)
    residual[has] = np.rint(distance[order][rank_at[has]]).astype(np.int64)
    anchors[has] = count[has]
    return residual, anchors


def _bounds(start: Int64, end: Int64, position: Int64, event: Int64, keep: np.ndarray, size: int) -> Int64:
    """By rank: the largest possible clock error, as no rank ends a collective before the last has started it."""
    start, end, position, event = start[keep], end[keep], position[keep], event[keep]
    latest, earliest = _beyond_others(start, event), -_beyond_others(-end, event)
    bound = np.zeros(size, dtype=np.int64)
    for slack in (end - latest, earliest - start):
        least = np.full(size, np.iinfo(np.int64).max)
        np.minimum.at(least, position, slack)
        bound = np.maximum(bound, least)
    return np.where(np.bincount(position, minlength=size) > 0, bound, 0)


def _beyond_others(value: Int64, event: Int64) -> Int64:
    """For each value the largest of the other values of its event."""
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
    """Offsets and drifts relative to the first rank of each component."""
    _, first = np.unique(component, return_index=True)
    reference = first[component]
    # Subtract the reference's drift at each rank's own time.
    common = (at + offset - (at[reference] + offset[reference])).astype(np.float64)
    new = offset - offset[reference] - np.rint(drift[reference] * common).astype(np.int64)
    return new, drift - drift[reference]
