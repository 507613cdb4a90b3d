"""Waiting where ranges overlap: the time in which a rank had come to a collective and another had not."""

from __future__ import annotations

import random

import polars as pl

from rankscope.experiments.measure.trace_summary import waiting_time
from rankscope.store.trace_info import TraceInfo

# Two collectives that overlap on each rank, as Gloo's threads run them: starts and ends on each rank's own clock; that
# of rank 1 is 1000 ahead. Rank 0 waits for rank 1 from 10 to 40 in one and from 20 to 60 in the other: 50 in all.
# To the third rank 1 came first, and waits 5.
STARTS = {0: (10, 20, 105), 1: (1040, 1060, 1100)}
ENDS = {0: (45, 66, 112), 1: (1045, 1066, 1112)}
CLOCK = pl.DataFrame(
    {"rank": [0, 1], "offset_ns": [0, -1000], "drift_ppm": [None, None], "at_ns": [0, 0], "residual_ns": [1, 1]},
    schema={
        "rank": pl.Int64(),
        "offset_ns": pl.Int64(),
        "drift_ppm": pl.Float64(),
        "at_ns": pl.Int64(),
        "residual_ns": pl.Int64(),
    },
)


def info(rank):
    return TraceInfo(path=f"rank{rank}.json", rank=rank, base_time_ns=0)


def collectives(starts=STARTS, ends=ENDS, ranks=2, **changed):
    rows = [
        {
            "rank": rank, "window": 0, "step": 1, "match": k, "matched_ranks": ranks, "group_size": None, "peers": None,
            "start_ns": starts[rank][k], "duration_ns": ends[rank][k] - starts[rank][k], **changed,
        }
        for rank in starts for k in range(len(starts[rank]))
    ]  # fmt: skip
    return pl.DataFrame(rows, schema_overrides={"group_size": pl.Int64(), "peers": pl.String(), "step": pl.Int64()})


def waited(*arguments):
    waits = waiting_time(*arguments)
    return None if waits is None else waits.length


def test_the_union_of_what_a_rank_waits():
    traces = [info(0), info(1)]
    assert waited(collectives(), CLOCK, traces, 0) == 50
    assert waited(collectives(), CLOCK, traces, 1) == 5


def test_whose_data_are_there_waits_for_nobody():
    # A broadcast's root is done before the others come.
    assert waited(collectives(ends={0: (12, 22, 112), 1: (1045, 1066, 1112)}), CLOCK, [info(0), info(1)], 0) == 4


def test_what_cannot_be_told():
    traces = [info(0), info(1)]
    assert waiting_time(collectives(matched_ranks=1), CLOCK, traces, 0) is None
    assert waiting_time(collectives(group_size=3), CLOCK, traces, 0) is None
    unaligned = CLOCK.with_columns(pl.lit(None, pl.Int64).alias("residual_ns"))
    assert waiting_time(collectives(), unaligned, traces, 0) is None
    assert waiting_time(collectives(step=None), CLOCK, traces, 0) is None


def test_against_instants_one_by_one():
    rng = random.Random(0)
    starts = {rank: tuple(1000 * rank + rng.randrange(200) for _ in range(20)) for rank in (0, 1)}
    ends = {rank: tuple(each + 300 for each in starts[rank]) for rank in (0, 1)}
    for rank, other in ((0, 1), (1, 0)):
        waiting = set()
        for k in range(20):
            waiting |= set(range(starts[rank][k] - 1000 * rank, starts[other][k] - 1000 * other))
        assert waited(collectives(starts, ends), CLOCK, [info(0), info(1)], rank) == len(waiting)
