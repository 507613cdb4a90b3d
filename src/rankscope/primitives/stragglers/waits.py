"""Which rank caused each wait: not always the rank that arrived last.

A rank can arrive last without having caused the delay for three reasons:

- its program has it arrive there last: at a collective of all ranks of a pipeline the first stage, whose backward pass
  is the last. So in a collective of several programs only ranks with the same program as the last one are compared,
  and the others' wait counts from when the first of these arrived
- it waited itself, in another group, or was already late to an earlier collective: `trace_to_origin`
- it waited for something that is not compared, such as a stage for the previous one: then it has no excess local time
  in that step, and a rank that has (`attribution`) caused the wait: `reassign_by_local_time`

Arrays hold one row per rank and collective; ``event`` is the number of the collective, from 0. Times are on one clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.arrival_skew import Arrivals, WaitAttribution, arrivals_by_event, excess_over_others
from rankscope.primitives.intervals import Int64
from rankscope.primitives.stragglers.stragglers import Comparison
from rankscope.primitives.stragglers.timeline import ENDED, PARTS, STARTED

HOPS = 6  # a delay is traced over so many groups at most


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


def trace_to_origin(
    event: Int64,
    rank: Int64,
    begin: Int64,
    arrival: Int64,
    found: Arrivals,
    inherits: npt.NDArray[np.bool_],
    carried: Int64,
) -> Int64:
    """The origin of each event's delay: the row of the rank that caused it.

    A rank that is late because it waited in another group did not cause the delay: the rank that arrived last at the
    collective in which it waited longest did, or the rank that this one waited for. Lateness that is only carried over
    from an earlier collective (waiting there does not delay what others compute meanwhile) belongs to that one.

    Args:
        event: by row.
        rank: by row.
        begin: where the row's stretch begins.
        arrival: by row.
        found: of the same rows.
        inherits: by event, whether its last rank was late mostly because it waited elsewhere.
        carried: by event, the earlier one that its last rank was late to already; −1 for none.
    """
    pointer = np.arange(found.last.size)
    # The same rank must have been last there too.
    earlier = np.flatnonzero(carried >= 0)
    earlier = earlier[rank[found.last[carried[earlier]]] == rank[found.last[earlier]]]
    pointer[earlier] = carried[earlier]
    asked = np.flatnonzero(inherits)
    if asked.size:
        # Each rank's rows in order; those whose arrival lies in the asked stretch are a run.
        order = np.lexsort((arrival, rank))
        span = int(arrival.max() - min(begin.min(), arrival.min())) + 2
        base = min(int(begin.min()), int(arrival.min()))
        key = rank[order] * span + (arrival[order] - base)
        rows = found.last[asked]
        low = np.searchsorted(key, rank[rows] * span + (begin[rows] - base), side="left")
        high = np.searchsorted(key, rank[rows] * span + (arrival[rows] - base), side="left")
        counts = np.maximum(high - low, 0)
        owner = np.repeat(np.arange(asked.size), counts)
        inside = order[np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(owner.size)]
        waited = found.last_ns[event[inside]] - arrival[inside]
        by_wait = np.lexsort((waited, owner))
        owner, inside, waited = owner[by_wait], inside[by_wait], waited[by_wait]
        longest = np.flatnonzero(np.concatenate([np.diff(owner) != 0, [True]])) if owner.size else owner
        longest = longest[waited[longest] > 0]
        pointer[asked[owner[longest]]] = event[inside[longest]]
    for _ in range(HOPS):
        pointer = pointer[pointer]
    return found.last[pointer]


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
        stretches: as `with_time_breakdown` takes them, with step, arrival_ns and residual_ns. Columns of parts that are
            not needed may be missing: rows of all ranks take much memory, so they are copied as seldom as possible.

    Returns:
        rank, match, arrival_ns, residual_ns, what `with_time_breakdown` adds, event (from 0), event_step (its step)
        and step_index (from 0).
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
    rows = with_time_breakdown(rows).drop("window", "start_ns")
    # How much was recorded before the first collective of a group differs between ranks.
    settled = rows["began_by"] >= 0
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
    more = excess_over_others(event, {name: rows[name].to_numpy() for name in ("communication", "compute")})
    inherits = (2 * more["communication"] > found.late)[found.last] & (by > 0)
    carries = ~inherits & (2 * more["compute"] > found.late)[found.last] & (by > 0)
    carried = np.where(carries, preceding_events(rows)[found.last], -1)
    behind = trace_to_origin(event, rank, rows["begin_ns"].to_numpy(), arrival, found, inherits, carried)
    responsible = np.where(by > 0, rank[behind], -1)
    step = rows["event_step"].to_numpy()
    answers = reassign_by_local_time(
        responsible,
        step[found.last],
        by,
        comparison.seen.ranks,
        comparison.seen.steps,
        comparison.excess,
        comparison.is_late,
    )
    # A delay that the rank did not inherit is its own, however small a part of the step it is.
    responsible = np.where(inherits | (responsible != rank[found.last]), answers, responsible)
    groups = collectives.select("match", "group", "group_ranks").drop_nulls("match").unique("match")
    codes = rows.select("event", "match").unique("event").join(groups, on="match", how="left").sort("event")
    group = codes.select(pl.struct("group", "group_ranks").rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
    return WaitAttribution(rank, rows["step_index"].to_numpy(), np.unique(step), found, late, responsible, group)


def with_time_breakdown(rows: pl.DataFrame) -> pl.DataFrame:
    """What each rank did in the stretch before each collective.

    It begins at the same collective on all ranks: the last one that had ended on all of them. Matches are numbered in
    the order of time, so it is the lowest number among those that the ranks name.

    Args:
        rows: rank, window, match (once per rank), previous (the match that each rank names, −1 for none), start_ns,
            end_ns, arrival_ns (the start on the common clock), and columns of `STARTED` and `ENDED`.

    Returns:
        the rows with began_by (a match), begin_ns (on the common clock), measured (whether the rank's trace has that
        match), and what each of `PARTS` took between, ns, if the rows have its columns; without previous, end_ns and
        these.
    """
    parts = [each for each in zip(PARTS, STARTED, ENDED, strict=True) if each[1] in rows.columns]
    rows = rows.with_columns(pl.col("previous").min().over("match").alias("began_by")).drop("previous")
    at = _rows_of(rows, "match", "began_by")
    # Times of another file of the rank are on another clock.
    at = at.set(rows["window"].gather(at).ne_missing(rows["window"]), None)
    for part, started, ended in parts:
        took = (rows[started] - rows[ended].gather(at)).fill_null(0)
        rows = rows.drop(started, ended).with_columns(took.alias(part))
    ended_at = rows["end_ns"].gather(at)
    return rows.drop("end_ns").with_columns(
        (pl.col("arrival_ns") - pl.col("start_ns") + ended_at.fill_null(rows["start_ns"])).alias("begin_ns"),
        measured=ended_at.is_not_null(),
    )


def _rows_of(rows: pl.DataFrame, of: str, wanted: str) -> pl.Series:
    """For each row the row of its rank whose `of` is its `wanted`; null if there is none."""
    ranks = int(rows["rank"].to_numpy().max(initial=0)) + 1
    key, asked = (rows.select((pl.col(name) * ranks + pl.col("rank")).alias("key")) for name in (of, wanted))
    asked = asked.with_columns(pl.when(rows[wanted] >= 0).then("key").alias("key"))
    found: pl.Series = asked.join(key.with_row_index("row"), on="key", how="left", maintain_order="left")["row"]
    return found


def preceding_events(rows: pl.DataFrame) -> Int64:
    """The event, from 0 in the order of matches, that each row's stretch begins with; −1 where it is none of these.

    Args:
        rows: match, began_by.
    """
    matches = np.unique(rows["match"].to_numpy())
    wanted = rows["began_by"].to_numpy()
    place = np.minimum(np.searchsorted(matches, wanted), matches.size - 1)
    return np.where(matches[place] == wanted, place, -1).astype(np.int64)
