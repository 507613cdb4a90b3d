"""Matched collectives in the embedded timeline: which event each is, and its kind as a number.

In: the analysis `collectives` and a rank's events. Out: columns of integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.show.report.embed.encoding import fold, steps_of
from rankscope.show.report.embed.stages import StagedRank
from rankscope.show.timeline.timeline import Timeline


class CollectiveKinds:
    """Collectives' kind, group and size as numbers."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def columns(self, rows: pl.DataFrame) -> dict[str, Int64]:
        """A rank's collectives as columns. Match, wait and sequence are one more, because 0 encodes null."""
        kind = np.empty(rows.height, dtype=np.int64)
        for place, row in enumerate(rows.select("collective", "group", "bytes").iter_rows()):
            number = self._numbers.get(row)
            if number is None:
                number = self._numbers[row] = len(self.rows)
                self.rows.append(list(row))
            kind[place] = number
        values = {name: _or_zero(rows[name]) for name in ("match", "wait_ns", "sequence")}
        return {
            "event": steps_of(rows["event"].to_numpy()),
            "match": steps_of(values["match"]),
            "wait": fold(values["wait_ns"]),
            "sequence": steps_of(values["sequence"]),
            "kind": kind,
        }


def _or_zero(values: pl.Series) -> Int64:
    """One more than each number that is not below zero; 0 for null."""
    moved = values.cast(pl.Int64) + (values >= 0).cast(pl.Int64)
    return np.asarray(moved.fill_null(0), dtype=np.int64)


def with_event_numbers(timeline: Timeline, rank: StagedRank, collectives: pl.DataFrame | None) -> pl.DataFrame:
    """A rank's collectives with the number of the event that each is, as `details` finds it: by times and name."""
    schema = {"event": pl.Int64}
    if collectives is None or collectives.is_empty():
        return pl.DataFrame(schema=schema)
    rows = collectives.filter(pl.col("rank") == rank.rank)
    clock = timeline.clock.ranks[rank.rank]
    parts = []
    for (window,), mine in rows.filter(pl.col("end_ns").is_not_null()).group_by("window", maintain_order=True):
        assert isinstance(window, int)
        times = {name: clock.run_time(window, mine[name].to_numpy()) for name in ("start_ns", "end_ns")}
        parts.append(mine.with_columns(**{name: pl.Series(value) for name, value in times.items()}))
    if not parts:
        return pl.DataFrame(schema=schema)
    found = pl.concat(parts)
    at = np.sort(rank.order)
    events = pl.DataFrame(
        {
            "start_ns": rank.start[at],
            "end_ns": rank.end[at],
            "name_number": rank.in_run.names[rank.in_run.lanes.arrays["name"][at]].astype(np.int64),
            "event": rank.number[at],
        }
    )
    wanted = found["name"].unique()
    numbers = pl.DataFrame(
        [(name, number) for number, name in enumerate(timeline.names) if name in set(wanted.to_list())],
        schema={"name": pl.String, "name_number": pl.Int64},
        orient="row",
    )
    first = events.unique(["start_ns", "end_ns", "name_number"], keep="first", maintain_order=True)
    joined = found.join(numbers, on="name").join(first, on=["start_ns", "end_ns", "name_number"])
    return joined.unique("event", keep="first", maintain_order=True).sort("event")
