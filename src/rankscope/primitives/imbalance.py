"""Whether one of several computes longer than the others step after step, or by chance.

In: the compute of each in each step. Out: the one that computes longest, and by how much; None if none lasts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.stragglers.suspects import TOO_FEW

LASTING = 0.75
"""Of the steps: the same one computes longest in at least this share."""
ENOUGH = 3
"""Steps: in fewer, the one that has most may just have its turn; of two, one always has (`TOO_FEW`)."""


@dataclass(frozen=True)
class Longest:
    """The one that computes longest.

    Attributes:
        who: a value of the column ``who``.
        most_ns: its compute where it computes longest, median over steps.
        mean_ns: the mean of all in these steps, median over steps.
        steps: in which it computes longest.
        compared: steps that all have.
    """

    who: object
    most_ns: float
    mean_ns: float
    steps: int
    compared: int


def computes_longest(frame: pl.DataFrame) -> Longest | None:
    """The one that computes longest in at least three of four steps, by more than both vary from step to step.

    Args:
        frame: window, step, who, compute_ns: a row for each in each step.
    """
    number = frame["who"].n_unique()
    steps = (
        frame.group_by("window", "step")
        .agg(
            pl.col("compute_ns").max().alias("most"),
            pl.col("compute_ns").mean().alias("mean"),
            pl.col("who").sort_by("compute_ns", "who", descending=[True, False]).first(),
            pl.len().alias("number"),
        )
        .filter(pl.col("number") == number)
    )
    if number < 2 or steps.height < (TOO_FEW if number == 2 else ENOUGH):
        return None
    who = steps["who"].mode().sort()[0]
    own = steps.filter(pl.col("who") == who)
    if own.height < LASTING * steps.height or not _apart(frame, pl.col("who") == who):
        return None
    most, mean = (float(np.median(own[name].to_numpy())) for name in ("most", "mean"))
    return Longest(who, most, mean, own.height, steps.height)


def _apart(frame: pl.DataFrame, is_own: pl.Expr) -> bool:
    """Whether its compute exceeds that of the others by more than both vary from step to step."""
    low = frame.filter(is_own)["compute_ns"].quantile(0.25)
    others = frame.filter(~is_own).group_by("window", "step").agg(pl.col("compute_ns").mean())
    high = others["compute_ns"].quantile(0.75)
    return low is not None and high is not None and low > high
