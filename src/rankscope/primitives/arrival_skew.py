"""The last arrival at each collective, how late it was, and which rank caused it.

All arrays have one row per rank and collective; ``event`` is the number of the collective, from 0. Times are on one
clock.

In: arrivals of matched collectives, and which rank caused each wait. Out: lateness and waits, ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64, union_length_by


def median_of_others(event: Int64, value: Int64, missing: int = 0) -> Int64:
    """For each row the median of the other rows of its event.

    Args:
        event: the row's event, from 0.
        value: integers.
        missing: the result for a row without others.
    """
    order = np.lexsort((value, event))
    sorted_ = value[order]
    count = np.bincount(event)[event[order]]
    first = (np.cumsum(np.bincount(event)) - np.bincount(event))[event[order]]
    position = np.arange(order.size) - first
    others = np.maximum(count - 1, 1)
    # Leaving out the row itself moves the positions at or after its own by one.
    low, high = (others - 1) // 2, others // 2
    low, high = low + (low >= position), high + (high >= position)
    limit = np.maximum(count - 1, 0)
    below = sorted_[first + np.minimum(low, limit)]
    above = sorted_[first + np.minimum(high, limit)]
    result = np.empty_like(value)
    result[order] = np.where(count > 1, below + (above - below) // 2, missing)
    return result


@dataclass(frozen=True)
class Arrivals:
    """The arrivals of each event, and the lateness of each row.

    Attributes:
        last: by event, the row that arrived last.
        first_ns: by event, the first arrival.
        second_ns: by event, the second-to-last arrival.
        last_ns: by event, the last arrival.
        late: by row, the arrival minus the median of the others.
    """

    last: Int64
    first_ns: Int64
    second_ns: Int64
    last_ns: Int64
    late: Int64


def arrivals_by_event(event: Int64, arrival: Int64) -> Arrivals:
    """The arrivals of each event; every event has at least two rows."""
    order = np.lexsort((arrival, event))
    ends = np.cumsum(np.bincount(event)) - 1
    begins = np.concatenate([[0], ends[:-1] + 1])
    return Arrivals(
        last=order[ends],
        first_ns=arrival[order[begins]],
        second_ns=arrival[order[np.maximum(ends - 1, begins)]],
        last_ns=arrival[order[ends]],
        late=arrival - median_of_others(event, arrival),
    )


def union_length_by_code(code: Int64, start: Int64, end: Int64, size: int) -> Int64:
    """The length of the union of the intervals of each code from 0 to size − 1, ns; shape ``(size,)``."""
    lengths = union_length_by(pl.DataFrame({"code": code, "start_ns": start, "end_ns": end}), ["code"], "length_ns")
    result = np.zeros(size, dtype=np.int64)
    result[lengths["code"].to_numpy()] = lengths["length_ns"].to_numpy()
    return result


@dataclass(frozen=True)
class WaitAttribution:
    """Lateness, and which rank caused each wait.

    Attributes:
        rank: by row.
        step: by row, from 0.
        steps: the numbers of these steps.
        found: the arrivals of the same rows.
        late: by row, ns; 0 below the clocks' residual.
        responsible: by event, the rank that caused the wait; −1 for none.
        group: by event, a number for its group.
    """

    rank: Int64
    step: Int64
    steps: Int64
    found: Arrivals
    late: Int64
    responsible: Int64
    group: Int64


def totals_by_rank_and_step(ranks: Sequence[int], caused: WaitAttribution) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Lateness and waits by rank, and by rank and step.

    Args:
        ranks: all of them, ascending.
        caused: lateness and which rank caused it.

    Returns:
        rank, lateness_ns, waited_ns, last_share, steps, late_steps; and rank, step, lateness_ns, waited_ns
        of the steps in which it was compared.
    """
    rank, step, found, late, responsible = caused.rank, caused.step, caused.found, caused.late, caused.responsible
    steps = caused.steps.size
    event_step = step[found.last]
    known = np.array(ranks, dtype=np.int64)
    position = np.searchsorted(known, rank)
    size = known.size * steps
    worst = np.zeros(size, dtype=np.int64)
    np.maximum.at(worst, position * steps + step, late)
    is_caused = responsible >= 0
    code = np.searchsorted(known, np.where(is_caused, responsible, known[0])) * steps + event_step
    waited = union_length_by_code(code[is_caused], found.first_ns[is_caused], found.last_ns[is_caused], size)
    seen = np.zeros(size, dtype=np.bool_)
    seen[position * steps + step] = True
    last = np.zeros(rank.size, dtype=np.bool_)
    last[found.last[late[found.last] > 0]] = True
    # A step counts as late for the rank that caused the delay, not for one that only passed it on.
    late_step = (waited > 0).reshape(known.size, steps)
    count = np.maximum(seen.reshape(known.size, steps).sum(axis=1), 1)
    collectives = np.maximum(np.bincount(position, minlength=known.size), 1)
    compared = np.bincount(position, minlength=known.size) > 0
    by_rank = pl.DataFrame(
        {
            "rank": known,
            "lateness_ns": worst.reshape(known.size, steps).sum(axis=1) // count,
            "waited_ns": waited.reshape(known.size, steps).sum(axis=1),
            "last_share": np.bincount(position, weights=last, minlength=known.size) / collectives,
            "steps": seen.reshape(known.size, steps).sum(axis=1).astype(np.int64),
            "late_steps": late_step.sum(axis=1).astype(np.int64),
            "compared": compared,
        }
    ).with_columns(pl.when("compared").then(name).alias(name) for name in ("lateness_ns", "waited_ns", "last_share"))
    by_step = pl.DataFrame(
        {
            "rank": np.repeat(known, steps)[seen],
            "step": np.tile(caused.steps, known.size)[seen],
            "lateness_ns": worst[seen],
            "waited_ns": waited[seen],
        },
        schema_overrides={"step": pl.Int64},
    )
    return by_rank.drop("compared"), by_step
