"""By rank and step: wait caused on other ranks, lateness, wait, and step time.

The wait caused on other ranks is `waited_ns` of `stragglers --by step`: a rank that was late because it was itself
waiting has none.

Wait is `wait_ns` of the analysis `collectives`, summed. Lateness is how much later than the median of the other ranks a
rank arrived at a collective, the maximum in the step, on the run's clock; values below the clock's residual and
point-to-point operations do not count, as in `stragglers`. Step time is `window_ns` of `step_time`.

In: results of analyses. Out: columns by rank and step, in ns.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import polars as pl

from rankscope.errors import describe_error
from rankscope.pipeline import Run
from rankscope.primitives.arrival_skew import arrivals_by_event
from rankscope.primitives.communicators import POINT_TO_POINT
from rankscope.primitives.steps import distinct_steps
from rankscope.results.failures import FAILURES
from rankscope.timeline.clock import RunClock

logger = logging.getLogger(__name__)


def heat_of(run: Run, clock: RunClock) -> dict[str, Any] | None:
    """Values by rank and step of a run, from `heat`; None if they, or the analyses that they need, fail."""
    frames = {name: result.frame for name, result in run.attempt("collectives", "step_time").items()}
    if len(frames) < 2:
        return None
    late = run.attempt("stragglers", parameters={"stragglers": {"by": "step"}}).get("stragglers")
    try:
        return heat(frames["collectives"], frames["step_time"], late.frame if late else None, clock)
    except FAILURES as error:
        logger.warning("waiting and lateness by step could not be computed: %s", describe_error(error))
        return None


def heat(
    collectives: pl.DataFrame, step_time: pl.DataFrame, stragglers: pl.DataFrame | None, clock: RunClock
) -> dict[str, Any]:
    """Values by rank and step, row-major by rank; None if unknown.

    `windows` is the window of each step, from 0, where several number their steps alike, else None.

    Args:
        collectives: the analysis's result.
        step_time: the analysis's result.
        stragglers: the analysis's result by step; None where there is none.
        clock: the run's clock.
    """
    # Where windows number their steps alike, each has columns of its own.
    named, (step_time, collectives, *late) = distinct_steps(
        [step_time, collectives, *([stragglers] if stragglers is not None else [])]
    )
    placed = pl.concat([each.select("step", "window") for each in (step_time, collectives)]).drop_nulls()
    window = dict(placed.unique("step").iter_rows())
    steps = sorted(window)
    ranks = sorted(clock.ranks)
    waits = (
        collectives.filter(pl.col("step").is_not_null() & pl.col("wait_ns").is_not_null())
        .group_by("rank", "step")
        .agg(pl.col("wait_ns").sum().alias("value"))
    )
    lengths = step_time.filter(pl.col("step").is_not_null()).group_by("rank", "step").agg(
        pl.col("window_ns").sum().alias("value")
    )  # fmt: skip
    return {
        "ranks": ranks,
        "steps": [named.get(step, step) for step in steps],
        "windows": [window[step] for step in steps] if named else None,
        "waited_ns": _grid(_values(late[0] if late else None), ranks, steps),
        "wait_ns": _grid(waits, ranks, steps),
        "lateness_ns": _grid(_lateness(collectives, clock), ranks, steps),
        "step_ns": _grid(lengths, ranks, steps),
        "doc": (__doc__ or "").strip(),
    }


def _values(stragglers: pl.DataFrame | None) -> pl.DataFrame:
    if stragglers is None:
        return pl.DataFrame(schema={"rank": pl.Int64, "step": pl.Int64, "value": pl.Int64})
    return (
        stragglers.select("rank", "step", pl.col("waited_ns").alias("value"))
        .drop_nulls()
        .group_by("rank", "step")
        .agg(pl.col("value").sum())
    )


def _lateness(collectives: pl.DataFrame, clock: RunClock) -> pl.DataFrame:
    rows = collectives.filter(
        pl.col("match").is_not_null() & ~pl.col("collective").is_in(POINT_TO_POINT)
    ).with_columns(pl.col("step").max().over("match"))  # fmt: skip
    parts = []
    for (rank, window), own in rows.group_by("rank", "window"):
        if not isinstance(rank, int) or not isinstance(window, int) or rank not in clock.ranks:
            continue
        mine = clock.ranks[rank]
        if mine.residual_ns is not None:
            at = mine.run_time(window, own["start_ns"].to_numpy())
            parts.append(
                own.select("rank", "match", "step").with_columns(arrival=pl.Series(at), residual=mine.residual_ns)
            )
    schema = {"rank": pl.Int64, "step": pl.Int64, "value": pl.Int64}
    if not parts:
        return pl.DataFrame(schema=schema)
    found = pl.concat(parts).filter(
        (pl.len().over("match") > 1)
        & (pl.col("rank").n_unique().over("match") == pl.len().over("match"))
        & pl.col("step").is_not_null()
    )
    if found.is_empty():
        return pl.DataFrame(schema=schema)
    event = (found["match"].rank("dense").cast(pl.Int64) - 1).to_numpy()
    late = arrivals_by_event(event, found["arrival"].to_numpy()).late
    late = np.where(late > found["residual"].to_numpy(), late, 0)
    return found.select("rank", "step").with_columns(late=pl.Series(late)).group_by("rank", "step").agg(
        pl.col("late").max().alias("value")
    )  # fmt: skip


def _grid(values: pl.DataFrame, ranks: list[int], steps: list[int]) -> list[int | None]:
    grid: list[int | None] = [None] * (len(ranks) * len(steps))
    row = {rank: place for place, rank in enumerate(ranks)}
    column = {step: place for place, step in enumerate(steps)}
    for rank, step, value in values.select("rank", "step", "value").iter_rows():
        if rank in row and step in column:
            grid[row[rank] * len(steps) + column[step]] = value
    return grid
