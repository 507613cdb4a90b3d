"""One clock for all ranks: that of their host, and between hosts what the collectives that they ran together allow.

The ranks of one host share its clock, so nothing is estimated between them: a busy rank notices an end late, by dozens
of milliseconds, and no statistic of ends tells that from a clock. Only ranks of a host whose times contradict one clock
(most of their collectives end before the others start them, or the reverse) have clocks of their own.

Between two hosts, each shared collective bounds the offset: no rank ends a synchronizing collective before the last has
started it. A host's start is the last of its ranks' and its end the first, as late ends say nothing. The bounds that
90 % of the collectives keep (a few may be mismatched) leave an interval. It is cut to where the ends agree: to their
median difference, give or take the 90th percentile of the deviations from it, and more if they are few. That decides
where ends are exact, as those of kernels; where ranks are busy, the bounds do. Within the interval the offset follows
the lower envelope: after the last arrival, which is that of the rank with the shorter duration, both hosts' earliest
ends are equally early. If the interval contains 0, the wall clocks agree and the offset is 0. Hosts are compared along
a spanning tree of the pairs with the most collectives in common.

In: the matched collectives of ranks, ns, and the ranks' hosts. Out: each rank's offset, drift and residual (`Clocks`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.store.trace_info import TraceInfo

MADS = 5.0  # further away, an end of SendRecv or all_to_all does not count as synchronized
PER_MAD = 1.4826
LEAST_MAD = 1_000  # ns
DRIFT_TIMES = 4.0  # a drift counts if it moves ends by more than this many residuals over the span
DRIFT_ANCHORS = 8
SHARE = 90  # percent of deviations within the residual, and of collectives that bound an offset
FEW = 4  # anchors: the deviations of fewer show how well they fit one another, not how well they fit the clocks
ONE_HOST_NS = 100_000  # the times of traces agree with the clock of their host to this: to 70 µs in all known ones


@dataclass(frozen=True)
class Clocks:
    """The clocks of ranks, in the order of `ranks`.

    A rank's clock plus ``offset + drift · (clock − at)`` is the clock of the first rank of its component.

    Attributes:
        ranks: the ranks.
        offset: ns.
        drift: ns per ns; 0 if not distinguishable from noise.
        at: the rank's own time at which the offset holds, ns.
        residual: a bound on the error of its times on the common clock, ns; −1 without anchors.
        anchors: number of collectives that it shares with other ranks.
        component: ranks with the same number are linked, by a host or by collectives.
        host: ranks with the same number share a clock.
    """

    ranks: Int64
    offset: Int64
    drift: np.ndarray
    at: Int64
    residual: Int64
    anchors: Int64
    component: Int64
    host: Int64

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
    hosts: Mapping[int, str | None],
    rank: Int64,
    match: Int64,
    start: Int64,
    end: Int64,
    lenient: np.ndarray,
    *,
    worst: int,
) -> Clocks:
    """Find the ranks' offsets.

    Args:
        hosts: the host of each rank, None if that is not known; ranks without a row keep their clock.
        rank: the rank of each matched synchronizing collective.
        match: the number of the collective.
        start: when it started there, ns.
        end: when it ended there, ns.
        lenient: whether the collective need not synchronize (SendRecv, all_to_all): its outliers are left out.
        worst: the largest known difference between ends of one collective, ns: the error that a few of them may hide.
    """
    ranks = np.array(sorted(hosts), dtype=np.int64)
    numbers: dict[str | int, int] = {}
    host = np.array([numbers.setdefault(hosts[each] or each, len(numbers)) for each in sorted(hosts)], dtype=np.int64)
    position = np.searchsorted(ranks, rank)
    _, event = np.unique(match, return_inverse=True)
    event = event.reshape(-1)
    host = _by_clock(host, position, event, start, end)
    clocks, component = _host_clocks(int(host.max(initial=-1)) + 1, host[position], event, start, end, lenient, worst)
    own = [clocks[each] for each in host]
    offset, at, bound = (
        np.array([getattr(clock, name) for clock in own], dtype=np.int64) for name in ("offset", "at", "bound")
    )
    drift = np.array([clock.drift for clock in own], dtype=np.float64)
    aligned = end + offset[position] + np.rint(drift[position] * (end - at[position])).astype(np.int64)
    spread, anchors = _spreads(aligned, position, event, lenient, ranks.size)
    bound = np.where(np.bincount(host)[host] > 1, np.maximum(bound, ONE_HOST_NS), bound)
    # Ranks that agree with one another may still be off from the first, if that is the busy one.
    spread = np.maximum(spread, spread[np.unique(component[host], return_index=True)[1]][component[host]])
    residual = np.where(anchors < FEW, bound, np.minimum(bound, spread))
    residual[anchors == 0] = -1
    return Clocks(ranks, offset, drift, at, residual, anchors, component[host], host)


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


@dataclass(frozen=True)
class _Offset:
    """What to add to one clock to get another: ``offset + drift · (clock − at)``; at most ``less`` below and ``more``
    above that, ns."""

    offset: int = 0
    drift: float = 0.0
    at: int = 0
    less: int = 0
    more: int = 0

    @property
    def bound(self) -> int:
        """The largest error, ns."""
        return max(self.less, self.more)

    def then(self, other: _Offset) -> _Offset:
        """On to a third clock."""
        moved = self.at + self.offset
        further = other.offset + round(other.drift * (moved - other.at))
        errors = self.less + other.less, self.more + other.more
        return _Offset(self.offset + further, self.drift + other.drift, self.at, *errors)

    def back(self) -> _Offset:
        """The way back."""
        return _Offset(-self.offset, -self.drift, self.at + self.offset, self.more, self.less)

    def unless_zero(self) -> _Offset:
        """The same, or nothing to add if that is possible: the two wall clocks agree."""
        if self.drift or not -self.more <= self.offset <= self.less:
            return self
        return _Offset(0, 0.0, self.at, self.less - self.offset, self.more + self.offset)


def _by_clock(host: Int64, position: Int64, event: Int64, start: Int64, end: Int64) -> Int64:
    """The hosts, and a number of its own for each rank that most of its collectives show not to have its host's clock:
    they end there before they start on its host's other ranks, or the reverse."""
    _, code, counts = np.unique(
        event * (int(host.max(initial=0)) + 1) + host[position], return_inverse=True, return_counts=True
    )
    code = code.reshape(-1)
    begin, finish = (group_medians(code, value, counts.size)[code] for value in (start, end))
    shared = counts[code] > 1
    apart = np.maximum(start - finish, begin - end)[shared]
    split = group_medians(position[shared], apart, host.size) > ONE_HOST_NS
    alone = np.where(split, int(host.max(initial=-1)) + 1 + np.arange(host.size), host)
    _, first, number = np.unique(alone, return_index=True, return_inverse=True)
    by_first_rank: Int64 = np.argsort(np.argsort(first))[number.reshape(-1)]
    return by_first_rank


def _host_clocks(
    size: int, host: Int64, event: Int64, start: Int64, end: Int64, lenient: np.ndarray, worst: int
) -> tuple[list[_Offset], Int64]:
    """The offset of each host's clock to that of the first host of its component, and the hosts' components."""
    component = np.arange(size)
    order = np.lexsort((host, event))
    if not order.size:
        return [_Offset()] * size, component
    first = np.flatnonzero(np.diff(event[order] * size + host[order], prepend=-1))
    several = np.diff(first, append=order.size) > 1  # of which the last start may be late and the first end early
    start = np.maximum.reduceat(start[order], first) - np.where(several, ONE_HOST_NS, 0)
    host, event, end = host[order][first], event[order][first], np.minimum.reduceat(end[order], first)
    lenient = np.logical_or.reduceat(lenient[order], first)
    # Each collective links its hosts to one of them: the one with the most, so that most collectives choose the same.
    fullness = np.bincount(host, minlength=size)
    order = np.lexsort((host, -fullness[host], event))
    hub = order[np.flatnonzero(np.diff(event[order], prepend=-1))][event]
    spoke = np.flatnonzero(host != host[hub])
    pair = host[spoke] * size + host[hub[spoke]]
    spoke = spoke[np.argsort(pair, kind="stable")]
    pairs, begins, counts = np.unique(np.sort(pair), return_index=True, return_counts=True)
    links: list[dict[int, _Offset]] = [{} for _ in range(size)]
    for edge in np.argsort(-counts, kind="stable"):
        one, other = divmod(int(pairs[edge]), size)
        if component[one] == component[other]:
            continue
        component[component == component[other]] = component[one]
        rows = spoke[begins[edge] : begins[edge] + counts[edge]]
        there = hub[rows]
        found = _compare(start[rows], end[rows], start[there], end[there], lenient[rows], worst)
        links[one][other], links[other][one] = found, found.back()
    clocks: dict[int, _Offset] = {}
    roots = 0
    for root in range(size):
        if root in clocks:
            continue
        members, clocks[root] = [root], _Offset()
        for current in members:  # which grows meanwhile
            for neighbor in links[current].keys() - clocks.keys():
                clocks[neighbor] = links[neighbor][current].then(clocks[current])
                members.append(neighbor)
        for member in members[1:]:
            clocks[member] = clocks[member].unless_zero()
        component[members], roots = roots, roots + 1
        # It fits other clocks as well as they fit it.
        fit = min((clocks[member].bound for member in members[1:]), default=0)
        clocks[root] = _Offset(less=fit, more=fit)
    return [clocks[each] for each in range(size)], component


def _compare(
    start: Int64, end: Int64, other_start: Int64, other_end: Int64, lenient: np.ndarray, worst: int
) -> _Offset:
    """What to add to a host's clock to get another's, from when both started and ended the same collectives."""
    base, origin = int(other_end[0] - end[0]), int(end[0])
    apart = (other_end - end - base).astype(np.float64)
    keep = ~lenient | _near(apart)
    apart, own, others = apart[keep], (end - start)[keep], (other_end - other_start)[keep]
    time = (end[keep] - origin).astype(np.float64)
    middle = round(float(time.mean()))
    drift = _drift(apart, time - middle)
    apart = apart - drift * (time - middle)
    typical = float(np.median(apart))
    spread = _latest(np.abs(apart - typical))
    wide = spread * (1 + FEW / apart.size) if apart.size >= FEW else max(spread, worst)
    offset, low, high = typical, typical - wide, typical + wide
    # How long each took to end from the start of the other, with the offset added or subtracted.
    until_other, until_own = own + apart, others - apart
    least, most = -_earliest(until_own), _earliest(until_other)
    if least <= most:
        noise = min(spread, ONE_HOST_NS)
        least, most = least - noise, most + noise
        low, high = (least, most) if least > high or low > most else (max(least, low), min(most, high))
        last = own <= others
        after_own = float(last.mean()) * (_earliest(until_other[last]) - _earliest(own[last])) if last.any() else 0.0
        last = ~last
        after_other = float(last.mean()) * (_earliest(others[last]) - _earliest(until_own[last])) if last.any() else 0.0
        offset = min(max(after_own + after_other, low), high)
    errors = math.ceil(offset - low), math.ceil(high - offset)
    return _Offset(base + round(offset), drift, origin + middle, *errors)


def _latest(value: np.ndarray) -> float:
    """The value that `SHARE` percent of the values do not exceed."""
    return float(np.sort(value)[-(-value.size * SHARE // 100) - 1])


def _earliest(value: np.ndarray) -> float:
    """The value that `SHARE` percent of the values reach."""
    return -_latest(-value)


def _near(value: np.ndarray) -> np.ndarray:
    """Whether a value is no outlier."""
    distance = np.abs(value - np.median(value))
    near: np.ndarray = distance <= MADS * PER_MAD * max(float(np.median(distance)), LEAST_MAD)
    return near


def _drift(apart: np.ndarray, time: np.ndarray) -> float:
    """The slope of a line through the differences without outliers; 0 where it is not distinguishable from noise."""
    slope, left = 0.0, apart
    for _ in range(3):
        inlier = _near(left)
        if inlier.sum() < DRIFT_ANCHORS:
            return 0.0
        slope += float(np.polyfit(time[inlier], left[inlier], 1)[0])
        left = apart - slope * time
    residual = _latest(np.abs(left - np.median(left)))
    return slope if abs(slope) * float(np.ptp(time)) > DRIFT_TIMES * residual else 0.0


def _spreads(end: Int64, position: Int64, event: Int64, lenient: np.ndarray, size: int) -> tuple[Int64, Int64]:
    """By rank: how far its ends are from those of the others on the common clock, and the number of ends."""
    if not end.size:
        return np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=np.int64)
    keep = np.ones(end.size, dtype=np.bool_)
    deviation = _deviation(end, event, keep)
    if lenient.any():
        keep = ~(lenient & _outlying(deviation, position))
        # Its own end says nothing about a rank's clock.
        keep &= np.bincount(event[keep], minlength=int(event.max()) + 1)[event] > 1
        deviation = _deviation(end, event, keep)
    return _residuals(deviation, position, event, keep, size)


def _deviation(value: Int64, event: Int64, keep: np.ndarray) -> Int64:
    """How much later each end is than its collective's median."""
    size = int(event.max()) + 1
    typical = group_medians(event[keep], value[keep], size)
    return value - typical[event]


def _outlying(deviation: Int64, position: Int64) -> np.ndarray:
    size = int(position.max()) + 1
    spread = group_medians(position, np.abs(deviation), size)
    return np.abs(deviation) > MADS * np.maximum(spread, LEAST_MAD)[position] * PER_MAD


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
