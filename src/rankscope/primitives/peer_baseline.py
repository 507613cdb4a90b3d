"""A rank compared with its peers: its time in each step less their median, and the outliers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.primitives.arrival_skew import median_of_others
from rankscope.primitives.intervals import Int64

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LOCAL = "own"
RECURRING = "recurring"
SHARE = 0.5  # of a part's excess must be left in the own time as a whole
LEAST_PASSING = 0.03  # of a step, in each of its late steps
BY_CHANCE = 0.001  # cases expected among all ranks
MANY = 6  # steps, with which a few odd ones need not count


@dataclass(frozen=True)
class Outlier:
    """A rank whose local time is an outlier.

    Attributes:
        row: its row.
        part: the part of its time that stands out most.
        late: by step, where it does.
        lasting: whether it does all the time.
        excess: by step, its own time less its peers' median, ns; nan where not compared.
        score: how many times chance, or standard errors, it stands out by.
        recurring_ns: what recurs of it in a step, if that identified it; its hiccups and the others' are not in it.
    """

    row: int
    part: str
    late: Bool
    lasting: bool
    excess: Float
    score: float
    recurring_ns: float = 0.0

    @property
    def weight(self) -> float:
        """What it takes in its late steps, ns in all."""
        taken = float(np.nansum(np.where(self.late, self.excess, 0.0)))
        return max(taken, self.recurring_ns * int(self.late.sum()))


def excess_over_peers(value: Int64, known: Bool, role: Int64, without: Bool) -> Float:
    """By rank and step, its time less the median of the peers; nan where it cannot be compared.

    Args:
        value: (ranks, steps) ns.
        known: where it was measured.
        role: of each rank, from 0.
        without: ranks that are no standard for others.
    """
    steps = value.shape[1]
    found = np.full(value.shape, np.nan)
    code = role[:, None] * steps + np.arange(steps)
    standard = known & ~without[:, None]
    if standard.any():
        event, taken = code[standard], value[standard]
        alone = np.bincount(event)[event] < 2
        found[standard] = np.where(alone, np.nan, taken - median_of_others(event, taken))
    for row in np.flatnonzero(without):
        alike = np.flatnonzero(role == role[row])
        peers = standard[alike]
        there = known[row] & peers.any(axis=0)
        if there.any():
            held = np.where(peers[:, there], value[alike][:, there].astype(np.float64), np.nan)
            found[row, there] = value[row, there] - medians(held)
    return found


def medians(values: Float) -> Float:
    """The median of each column's values that are not nan, at least one: a faster `np.nanmedian`."""
    ordered = np.sort(values, axis=0)
    count = np.isfinite(values).sum(axis=0)
    column = np.arange(count.size)
    found: Float = (ordered[(count - 1) // 2, column] + ordered[count // 2, column]) / 2
    return found


def with_lost_filled(value: Int64, measured: Bool, lost: Bool, role: Int64) -> Int64:
    """Values in which lost ones are replaced by the peers' median of the step, or by the rank's usual value.

    Args:
        value: (ranks, steps) ns.
        measured: where it was measured.
        lost: where it is to be filled in; left as it is where neither the step nor the rank has a value.
        role: of each rank.
    """
    held = np.where(measured, value, np.nan)
    found: Int64 = value.copy()
    for each in np.unique(role[lost.any(axis=1)]):
        rows = np.flatnonzero(role == each)
        peers, own = _middle(held[rows]), _middle(held[rows].T)
        instead = np.where(np.isfinite(peers), peers, own[:, None])
        fills = lost[rows] & np.isfinite(instead)
        found[rows] = np.where(fills, np.round(np.where(fills, instead, 0.0)).astype(np.int64), value[rows])
    return found


def _middle(values: Float) -> Float:
    """Of each column the median of what is not nan; nan where there is nothing."""
    found: Float = np.full(values.shape[1], np.nan)
    some = np.isfinite(values).any(axis=0)
    found[some] = medians(values[:, some])
    return found


def centre_and_spread(values: Float) -> tuple[float, float]:
    """Mean and standard deviation; of many values those of a normal distribution through their quartiles."""
    if values.size < MANY:
        return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(middle), float(high - low) / 1.349
