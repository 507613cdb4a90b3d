"""Which rank caused each wait: not always the rank that arrived last.

1. The arrivals at each collective are put on one clock (`with_aligned_arrivals`).
2. A program may arrive last by design: at a collective of all ranks of a pipeline the first stage does, whose backward
   pass is the last. So in a collective of several programs only ranks with the same program as the last one are
   compared, and the others' wait counts from when the first of these arrived (`arrivals_within_programs`).
3. The last rank may be late only because it waited itself, in another group or for another stage. Then it has no excess
   local time in that step, and the rank that has caused the wait (`reassign_by_local_time`).

Arrays hold one row per rank and collective; ``event`` is the number of the collective, from 0. Times are on one clock.

In: collectives of all ranks, and their comparison. Out: by collective, the rank that caused its wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.arrival_skew import Arrivals, WaitAttribution, arrivals_by_event
from rankscope.primitives.intervals import Int64
from rankscope.primitives.stragglers.stragglers import Comparison

SETTLED = pl.col("start_ns") >= pl.col("end_ns").min().over("rank", "window", "group")
"""Whether a collective is not the first of its group in its file: how much was recorded before that differs by rank."""


def arrivals_within_programs(event: Int64, arrival: Int64, role: Int64, found: Arrivals) -> tuple[Arrivals, Int64]:
    """Compare the last rank of each event with those of its program, if the event has at least two of them and others.

    Args:
        event: by row.
        arrival: by row.
        role: by row, which program its rank runs.
        found: of the same rows.

    Returns:
        ``found`` with `first_ns` and `second_ns` of those ranks, and by event how late the last one is beside them.
    """
    same = role == role[found.last][event]
    count = np.bincount(event[same], minlength=found.last.size)
    mixed = (count > 1) & (count < np.bincount(event))
    late = found.late[found.last].copy()
    if not mixed.any():
        return found, late
    rows = np.flatnonzero(same & mixed[event])
    of = np.cumsum(mixed) - 1
    inside = arrivals_by_event(of[event[rows]], arrival[rows])
    first, second = found.first_ns.copy(), found.second_ns.copy()
    first[mixed], second[mixed], late[mixed] = inside.first_ns, inside.second_ns, inside.late[inside.last]
    return replace(found, first_ns=first, second_ns=second), late


def reassign_by_local_time(
    responsible: Int64,
    step: Int64,
    late: Int64,
    ranks: Int64,
    steps: Int64,
    excess: npt.NDArray[np.float64],
    is_outlier: npt.NDArray[np.bool_],
) -> Int64:
    """The rank that caused each event's wait: if its local time does not explain it, the rank whose local time does.

    If a rank does not stand out in that step, and its excess is less than half of the lateness, the wait is attributed
    to the rank that stands out with the largest excess, if that is at least half of the lateness.

    Args:
        responsible: by event, a rank; −1 for none.
        step: by event.
        late: by event, how late the last rank arrived, ns.
        ranks: the ranks of the rows of the matrices, ascending.
        steps: the steps of their columns, ascending.
        excess: (ranks, steps) local time less the peers' median, ns; nan where not compared.
        is_outlier: (ranks, steps) where a rank stands out.
    """
    if not is_outlier.any() or not responsible.size:
        return responsible
    taken = np.where(np.isfinite(excess), excess, 0.0)
    worst = np.where(is_outlier, taken, -1.0)
    column = np.minimum(np.searchsorted(steps, step), steps.size - 1)
    row = np.minimum(np.searchsorted(ranks, responsible), ranks.size - 1)
    known = (steps[column] == step) & (ranks[row] == responsible)
    handed = (
        known & ~is_outlier[row, column] & (2 * taken[row, column] < late) & (2 * worst.max(axis=0)[column] >= late)
    )
    found: Int64 = np.where(handed, ranks[worst.argmax(axis=0)[column]], responsible).astype(np.int64)
    return found


def with_aligned_arrivals(stretches: pl.DataFrame) -> pl.DataFrame:
    """Matched collectives of at least two ranks, with arrivals on the common clock, and what each rank did before.

    Args:
        stretches: as `narrow_parts` gives them. Rows of all ranks take much memory, so they are copied seldom.

    Returns:
        rank, match, arrival_ns, residual_ns, event (from 0), event_step (its step) and step_index (from 0).
    """
    rows = _those(stretches, stretches["residual_ns"].is_not_null())
    # A kernel without a launch has no step: it gets that of the same collective on other ranks.
    rows = rows.with_columns(pl.col("step").max().over("match").alias("event_step")).drop("step")
    rows = rows.with_columns(
        pl.max_horizontal("residual_ns", pl.col("residual_ns").median().over("match").cast(pl.Int64))
    )
    several = pl.col("rank").min().over("match") < pl.col("rank").max().over("match")
    row_of_rank = pl.col("match") * (pl.col("rank").max() + 1) + pl.col("rank")
    rows = _those(rows, rows.select(several & row_of_rank.is_unique()).to_series())
    rows = rows.with_columns(pl.min_horizontal("arrival_ns", _end_of_others(rows)).alias("arrival_ns"))
    known = rows["event_step"].is_not_null()
    rows = _those(rows, known) if known.any() else rows.with_columns(event_step=pl.lit(0))
    settled = rows.select(pl.col("settled").all().over("match")).to_series()
    rows = _those(rows, settled) if settled.any() else rows
    return rows.with_columns(
        (pl.col("match").rank("dense").cast(pl.Int64) - 1).alias("event"),
        (pl.col("event_step").rank("dense").cast(pl.Int64) - 1).alias("step_index"),
    )


def _those(rows: pl.DataFrame, chosen: pl.Series) -> pl.DataFrame:
    """The chosen rows: without a copy if all are."""
    return rows if chosen.all() else rows.filter(chosen)


def _end_of_others(rows: pl.DataFrame) -> pl.Series:
    """When the last of the other ranks has ended each collective: a rank for which they wait has arrived by then.

    It can seem later if its clock was set during the recording, or if the operation does not wait for it.

    Args:
        rows: match, arrival_ns, start_ns, end_ns.
    """
    end = pl.col("arrival_ns") + pl.col("end_ns") - pl.col("start_ns")
    latest = end.max().over("match")
    others = pl.when(end < latest).then(latest).otherwise(end.top_k(2).min().over("match"))
    return rows.select(others.alias("others")).to_series()


def attribute_waits(
    rows: pl.DataFrame, role: Mapping[int, int], collectives: pl.DataFrame, comparison: Comparison
) -> WaitAttribution:
    """Which rank arrived late at each collective, and which rank caused it.

    Args:
        rows: as `with_aligned_arrivals` gives them; not empty.
        role: which program each rank runs.
        collectives: match, group, group_ranks.
        comparison: local times, and the ranks that stand out.
    """
    event, arrival, rank = (rows[name].to_numpy() for name in ("event", "arrival_ns", "rank"))
    programs = rows.select(pl.col("rank").replace_strict(role, default=-2, return_dtype=pl.Int64)).to_series()
    every = arrivals_by_event(event, arrival)
    residual = rows["residual_ns"].to_numpy()
    late = np.where(every.late > residual, every.late, 0)
    found, by = arrivals_within_programs(event, arrival, programs.to_numpy(), every)
    by = np.where(by > residual[found.last], by, 0)
    step = rows["event_step"].to_numpy()
    responsible = reassign_by_local_time(
        np.where(by > 0, rank[found.last], -1),
        step[found.last],
        by,
        comparison.seen.ranks,
        comparison.seen.steps,
        comparison.excess,
        comparison.is_late,
    )
    groups = collectives.select("match", "group", "group_ranks").drop_nulls("match").unique("match")
    codes = rows.select("event", "match").unique("event").join(groups, on="match", how="left").sort("event")
    group = codes.select(pl.struct("group", "group_ranks").rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
    return WaitAttribution(rank, rows["step_index"].to_numpy(), np.unique(step), found, late, responsible, group)
