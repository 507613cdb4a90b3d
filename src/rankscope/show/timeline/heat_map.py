"""By rank and step: wait caused on other ranks, lateness, wait, and step time.

The wait caused on other ranks is `waited_ns` of `stragglers --by step`: a rank that was late because it was itself
waiting has none.

Lateness is `lateness_ns` of the same: how much later than the median of the other ranks it arrived at a collective, the
maximum in the step. Ranks that `stragglers` does not compare, such as those with incomplete traces, have neither. Wait
is `wait_ns` of the analysis `collectives`, summed. Step time is `window_ns` of `step_time`.

In: results of analyses. Out: columns by rank and step, in ns.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import RunClock
from rankscope.errors import describe_error
from rankscope.primitives.steps import distinct_steps
from rankscope.results.failures import FAILURES

logger = logging.getLogger(__name__)


def heat_of(run: Run, clock: RunClock) -> dict[str, Any] | None:
    """Values by rank and step of a run, from `heat`; None if they, or the analyses that they need, fail."""
    frames = {name: result.frame for name, result in run.attempt("collectives", "step_time").items()}
    if len(frames) < 2:
        return None
    late = run.attempt("stragglers", parameters={"stragglers": {"by": "step"}}).get("stragglers")
    try:
        return heat(frames["collectives"], frames["step_time"], late.frame if late else None, sorted(clock.ranks))
    except FAILURES as error:
        logger.warning("waiting and lateness by step could not be computed: %s", describe_error(error))
        return None


def heat(
    collectives: pl.DataFrame, step_time: pl.DataFrame, stragglers: pl.DataFrame | None, ranks: list[int]
) -> dict[str, Any]:
    """Values by rank and step, row-major by rank; None if unknown.

    `windows` is the window of each step, from 0, where several number their steps alike, else None.

    Args:
        collectives: the analysis's result.
        step_time: the analysis's result.
        stragglers: the analysis's result by step; None where there is none.
        ranks: all ranks, ascending.
    """
    # Where windows number their steps alike, each has columns of its own.
    named, (step_time, collectives, *late) = distinct_steps(
        [step_time, collectives, *([stragglers] if stragglers is not None else [])]
    )
    placed = pl.concat([each.select("step", "window") for each in (step_time, collectives)]).drop_nulls()
    window = dict(placed.unique("step").iter_rows())
    steps = sorted(window)
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
        "waited_ns": _grid(_values(late, "waited_ns"), ranks, steps),
        "wait_ns": _grid(waits, ranks, steps),
        "lateness_ns": _grid(_values(late, "lateness_ns"), ranks, steps),
        "step_ns": _grid(lengths, ranks, steps),
        "doc": (__doc__ or "").strip(),
    }


def _values(stragglers: Sequence[pl.DataFrame], column: str) -> pl.DataFrame:
    """A column of `stragglers`, where there is one, by rank and step."""
    schema = {"rank": pl.Int64, "step": pl.Int64, "value": pl.Int64}
    values = [each.select("rank", "step", pl.col(column).alias("value")).drop_nulls() for each in stragglers]
    return pl.concat([pl.DataFrame(schema=schema), *values])


def _grid(values: pl.DataFrame, ranks: list[int], steps: list[int]) -> list[int | None]:
    rows = pl.DataFrame({"rank": ranks}, schema={"rank": pl.Int64}).with_row_index("row")
    columns = pl.DataFrame({"step": steps}, schema={"step": pl.Int64}).with_row_index("column")
    placed = values.join(rows, on="rank", maintain_order="left").join(columns, on="step", maintain_order="left")
    at = placed["row"].to_numpy().astype(np.int64) * len(steps) + placed["column"].to_numpy()
    grid, known = np.zeros(len(ranks) * len(steps), dtype=np.int64), np.zeros(len(ranks) * len(steps), dtype=np.bool_)
    grid[at], known[at] = placed["value"].to_numpy(), True
    return pl.select(pl.when(pl.Series(known)).then(pl.Series(grid)).alias("value")).to_series().to_list()
