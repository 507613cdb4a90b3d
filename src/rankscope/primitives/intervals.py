"""Sets of time, as sorted disjoint half-open intervals of integer nanoseconds.

Everything works on int64 numpy arrays and is exact: a set of time is a pair ``(starts, ends)`` with
``starts[i] < ends[i] <= starts[i + 1]``. `IntervalSet.of` makes one from any intervals, overlapping or not; union,
intersection and difference keep this form, and `IntervalSet.within` measures many windows at once. All are O(n log n),
without a Python loop.

In: starts and ends in ns. Out: interval sets, and lengths in ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IntervalSet:
    """A set of time: sorted, disjoint, non-empty half-open intervals ``[starts[i], ends[i])`` in ns."""

    starts: Int64
    ends: Int64

    @classmethod
    def of(cls, starts: npt.ArrayLike, ends: npt.ArrayLike) -> IntervalSet:
        """The union of intervals in any order, overlapping or not; empty ones are dropped.

        Args:
            starts: starts, ns, shape ``(n,)``.
            ends: ends (exclusive), ns, shape ``(n,)``.
        """
        first = np.asarray(starts, dtype=np.int64)
        last = np.asarray(ends, dtype=np.int64)
        keep = last > first
        if not keep.all():
            first, last = first[keep], last[keep]
        if first.size == 0:
            return EMPTY
        # Tables are already in this order.
        if (first[1:] < first[:-1]).any():
            order = np.argsort(first, kind="stable")
            first, last = first[order], last[order]
        reach = np.maximum.accumulate(last)
        # A new interval begins where nothing before it reaches its start. Touching intervals are one.
        begins = np.empty(first.size, dtype=np.bool_)
        begins[0] = True
        np.greater(first[1:], reach[:-1], out=begins[1:])
        index = np.flatnonzero(begins)
        return cls(first[index], reach[np.append(index[1:] - 1, first.size - 1)])

    @property
    def length(self) -> int:
        """The total duration in ns."""
        return int((self.ends - self.starts).sum())

    def __len__(self) -> int:
        return int(self.starts.size)

    def __or__(self, other: IntervalSet) -> IntervalSet:
        if not len(self):
            return other
        if not len(other):
            return self
        return IntervalSet.of(np.concatenate([self.starts, other.starts]), np.concatenate([self.ends, other.ends]))

    def __and__(self, other: IntervalSet) -> IntervalSet:
        if not len(self) or not len(other):
            return EMPTY
        few, many = (self, other) if len(self) <= len(other) else (other, self)
        a, b, _ = few._overlaps(many)
        return IntervalSet(np.maximum(few.starts[a], many.starts[b]), np.minimum(few.ends[a], many.ends[b]))

    def _overlaps(self, other: IntervalSet) -> tuple[Int64, Int64, Int64]:
        """The indices of overlapping intervals of both sets, in order, and the number of overlaps of each interval."""
        # An interval overlaps a run of others: those that end after it starts and start before it ends.
        low = np.searchsorted(other.ends, self.starts, side="right")
        counts = np.searchsorted(other.starts, self.ends, side="left") - low
        index = np.repeat(np.arange(len(self)), counts)
        other_index = np.arange(index.size) + np.repeat(low - (np.cumsum(counts) - counts), counts)
        return index, other_index, counts

    def __sub__(self, other: IntervalSet) -> IntervalSet:
        return self.split(other)[1]

    def split(self, other: IntervalSet) -> tuple[IntervalSet, IntervalSet, Int64]:
        """The parts of the set inside and outside another one, and the index of the other's interval for each part
        inside."""
        if not len(self) or not len(other):
            return EMPTY, self, np.empty(0, dtype=np.int64)
        index, other_index, counts = self._overlaps(other)
        starts = np.maximum(self.starts[index], other.starts[other_index])
        ends = np.minimum(self.ends[index], other.ends[other_index])
        # Each interval has gaps before, between and after its parts inside: one more than these.
        number = np.arange(len(self))
        first, part = np.cumsum(counts) - counts + number, np.arange(index.size) + index
        gap_starts, gap_ends = np.empty((2, index.size + len(self)), dtype=np.int64)
        gap_starts[first], gap_starts[part + 1] = self.starts, ends
        gap_ends[part], gap_ends[first + counts] = starts, self.ends
        outside = gap_ends > gap_starts
        return IntervalSet(starts, ends), IntervalSet(gap_starts[outside], gap_ends[outside]), other_index

    def complement(self, start: int, end: int) -> IntervalSet:
        """The part of ``[start, end)`` outside the set."""
        firsts = np.concatenate([[start], self.ends]).astype(np.int64)
        lasts = np.concatenate([self.starts, [end]]).astype(np.int64)
        firsts, lasts = np.maximum(firsts, start), np.minimum(lasts, end)
        keep = lasts > firsts
        return IntervalSet(firsts[keep], lasts[keep])

    def before(self, instants: npt.ArrayLike) -> Int64:
        """The duration of the set before each instant, ns."""
        at = np.asarray(instants, dtype=np.int64)
        if not len(self):
            return np.zeros(at.shape, dtype=np.int64)
        total = np.concatenate([[0], np.cumsum(self.ends - self.starts)])
        index = np.searchsorted(self.starts, at, side="right")
        # All intervals that started before, minus the part of the last one after the instant.
        last = np.maximum(index - 1, 0)
        beyond = np.where(index > 0, np.maximum(self.ends[last] - at, 0), 0)
        measured: Int64 = total[index] - beyond
        return measured

    def within(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64:
        """The duration of the set in each window ``[starts[i], ends[i])``, ns."""
        return self.before(ends) - self.before(starts)


def covered_once(starts: npt.ArrayLike, ends: npt.ArrayLike) -> IntervalSet:
    """The time that exactly one of the intervals covers.

    Args:
        starts: starts, ns, shape ``(n,)``, in any order.
        ends: ends (exclusive), ns, shape ``(n,)``.
    """
    first, last = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    instants, index = np.unique(np.concatenate([first, last]), return_inverse=True)
    change = np.zeros(instants.size, dtype=np.int64)
    np.add.at(change, index[: first.size], 1)
    np.add.at(change, index[first.size :], -1)
    once = np.flatnonzero(np.cumsum(change)[:-1] == 1)
    return IntervalSet.of(instants[once], instants[once + 1])


def interval_at(starts: Int64, ends: Int64, instants: Int64) -> Int64:
    """For each instant the index of the interval that contains it, of disjoint intervals sorted by start.

    Returns:
        −1 for none; shape of `instants`.
    """
    if not starts.size:
        return np.full(instants.size, -1, dtype=np.int64)
    index = np.searchsorted(starts, instants, side="right") - 1
    inside = (index >= 0) & (instants < ends[np.maximum(index, 0)])
    return np.where(inside, index, -1).astype(np.int64)


def union_length_by(frame: pl.DataFrame, keys: Sequence[str], name: str) -> pl.DataFrame:
    """The length of the union of each group's ranges, ns: one row per group, the keys and a column `name`.

    In the order of starts, a range adds its part beyond the end of all ranges before it in its group.

    Args:
        frame: start_ns, end_ns and the keys.
    """
    reach = pl.col("end_ns").cum_max().shift(1).over(keys)
    added = pl.col("end_ns") - pl.max_horizontal("start_ns", reach)
    return (
        frame.sort("start_ns")
        .with_columns(added.clip(lower_bound=0).alias(name))
        .group_by(keys, maintain_order=True)
        .agg(pl.col(name).sum())
    )


EMPTY = IntervalSet(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
