"""A rank compared with its peers, the other ranks with the same program: its time in each step less their median.

In: times by rank and step, and each rank's program. Out: the excess of each rank and step.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rankscope.primitives.arrival_skew import median_of_others
from rankscope.primitives.intervals import Int64

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

MANY = 6
"""From so many values on, mean and spread come from quartiles, which a few outliers do not change."""


def excess_over_peers(value: Float, role: Int64, out: Bool) -> Float:
    """By rank and step, its time less the median of the peers, ns; nan where it cannot be compared.

    Args:
        value: (ranks, steps) ns; nan where not known.
        role: of each rank, from 0.
        out: ranks that others are not compared with.
    """
    steps = value.shape[1]
    found = np.full(value.shape, np.nan)
    code = role[:, None] * steps + np.arange(steps)
    standard = np.isfinite(value) & ~out[:, None]
    if standard.any():
        event, taken = code[standard], np.round(value[standard]).astype(np.int64)
        alone = np.bincount(event)[event] < 2
        found[standard] = np.where(alone, np.nan, taken - median_of_others(event, taken))
    for row in np.flatnonzero(out):
        peers = (role == role[row]) & ~out
        there = np.isfinite(value[row]) & standard[peers].any(axis=0)
        if there.any():
            found[row, there] = value[row, there] - medians(value[peers][:, there])
    return found


def medians(values: Float) -> Float:
    """The median of each column's values that are not nan, at least one: a faster `np.nanmedian`."""
    ordered = np.sort(values, axis=0)
    count = np.isfinite(values).sum(axis=0)
    column = np.arange(count.size)
    found: Float = (ordered[(count - 1) // 2, column] + ordered[count // 2, column]) / 2
    return found


def usual(value: Float) -> Float:
    """(ranks, 1) The median of each rank over its steps, of an even number the lower; nan where nothing is known."""
    ordered = np.sort(value, axis=1)
    middle = np.maximum(np.isfinite(value).sum(axis=1) - 1, 0) // 2
    found: Float = ordered[np.arange(middle.size), middle][:, None]
    return found


def with_lost_filled(value: Float, lost: Bool, role: Int64) -> Float:
    """Values in which lost ones are replaced by the peers' median of the step, or by the rank's usual value, or by 0.

    Args:
        value: (ranks, steps) ns; nan where not known.
        lost: which values to fill in.
        role: of each rank.
    """
    found: Float = value.copy()
    for each in np.unique(role[lost.any(axis=1)]):
        rows = np.flatnonzero(role == each)
        peers, own = _middle(value[rows]), _middle(value[rows].T)
        instead = np.where(np.isfinite(peers), peers, own[:, None])
        found[rows] = np.where(lost[rows], np.nan_to_num(instead), value[rows])
    return found


def _middle(values: Float) -> Float:
    """The median of each column's values that are not nan; nan if there are none."""
    found: Float = np.full(values.shape[1], np.nan)
    some = np.isfinite(values).any(axis=0)
    found[some] = medians(values[:, some])
    return found


def center_and_spread(values: Float) -> tuple[float, float]:
    """Mean and standard deviation; from `MANY` values on, those of the normal distribution with the same quartiles."""
    if values.size < MANY:
        return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(middle), float(high - low) / 1.349


def below_widest_gap(values: Float) -> Float:
    """The smaller half of some values, and those that follow up to the widest gap, ascending."""
    ordered = np.sort(values)
    half = (ordered.size + 1) // 2
    gaps = np.diff(ordered[half - 1 :])
    return ordered[: half + int(gaps.argmax())] if gaps.size else ordered


def root_mean_square(values: Float) -> float:
    """√ of the mean of the squares of what is not nan; 0 of nothing."""
    known = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(known**2))) if known.size else 0.0


def mean_known(values: Float) -> float:
    """The mean of what is not nan; nan of nothing."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan
