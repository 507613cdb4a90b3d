from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from rankscope.primitives.offset_estimation import Timeline
from rankscope.primitives.unnamed_communicators import infer_groups, link_streams, order_offset, runs_together


def line(*ends: int, length: int = 20, kinds: list[int] | None = None, uneven: bool = False) -> Timeline:
    """Kernels with these ends, in µs."""
    end = np.array(ends, dtype=np.int64) * 1000
    none, flags = np.full(end.size, -1, dtype=np.int64), np.zeros(end.size, dtype=np.bool_)
    kind = np.zeros(end.size, dtype=np.int64) if kinds is None else np.array(kinds, dtype=np.int64)
    return Timeline(end, kind, none, none, flags, flags | uneven, end - length * 1000)


def none_of(other: Timeline) -> np.ndarray:
    return np.zeros(len(other), dtype=np.int64)


def test_streams_whose_kernels_end_together_are_linked() -> None:
    mine, theirs = line(100, 900, 1700, 2600), line(103, 901, 1703, 2604)
    lanes, others = np.array([0, 1, 0, 1]), np.array([11, 10, 11, 10])
    assert link_streams(mine, lanes, theirs, others, none_of(theirs), 4_000) == [(0, 11), (1, 10)]
    # One rank's graph has them on two streams, the other's on one.
    assert link_streams(mine, lanes, theirs, np.full(4, 10), none_of(theirs), 4_000) == [(0, 10), (1, 10)]
    # Apart by more than ends are.
    late = np.full(4, 300_000)
    assert link_streams(mine, lanes, theirs, others, late, 4_000) == []


def test_no_rank_is_through_before_the_last_has_begun() -> None:
    mine = line(100, 900, 1700, 2600)
    partner = np.arange(4)
    assert runs_together(mine, line(130, 910, 1710, 2610), partner, none_of(mine))
    # The kernels take 20 µs and end 90 µs apart.
    assert not runs_together(mine, line(190, 990, 1790, 2690), partner, none_of(mine))
    # They overlap, yet synchronizing ends are not half a millisecond apart.
    assert not runs_together(mine, line(600, 1400, 2200, 3100, length=600), partner, none_of(mine))
    assert runs_together(mine, line(600, 1400, 2200, 3100, length=600, uneven=True), partner, none_of(mine))
    # Half of them or more are without a partner.
    assert not runs_together(mine, line(130, 910, 1710, 2610), np.array([0, -1, -1, -1]), none_of(mine))


def test_as_many_of_each_kernel_give_an_offset() -> None:
    mine = line(100, 700, 1300, 2000, kinds=[0, 1, 0, 1])
    found = order_offset(mine, line(5100, 5720, 6310, 7005, kinds=[0, 1, 0, 1]))
    assert found is not None
    assert found.offset == -5_007_500
    assert found.anchored == "order"
    assert order_offset(mine, line(100, 700, 1300, 2000, kinds=[0, 1, 1, 1])) is None
    assert order_offset(mine, line(100, 700, 1300, kinds=[0, 1, 0])) is None
    # Ends that agree no better than neighbors are apart say nothing.
    assert order_offset(mine, line(100, 1200, 1300, 3000, kinds=[0, 1, 0, 1])) is None


def rows(ranks: int, events: int = 6, *, kind: str = "all_reduce", size: int | None = None) -> pl.DataFrame:
    made = [
        {
            "communicator": 4, "match": event, "rank": rank, "group_size": size, "collective": kind,
            "end_ns": 1_000_000 * event + 1_000 * rank * (event % 2),
        }
        for event in range(events)
        for rank in range(ranks)
    ]  # fmt: skip
    return pl.DataFrame(made, schema_overrides={"group_size": pl.Int64})


@pytest.mark.parametrize(
    ("recorded", "world", "reason"),
    [
        (4, 4, None),
        (4, None, "the number of ranks of the job is not recorded"),
        (4, 8, "ranks of the job have no trace"),
    ],
)
def test_a_group_is_inferred_where_all_ranks_of_the_job_match(
    recorded: int, world: int | None, reason: str | None
) -> None:
    found = infer_groups(rows(4), recorded, world).row(0)
    known = (4, "[0, 1, 2, 3]") if reason is None else (None, None)
    assert found == (4, *known, 4, reason)


def test_names_that_tell_the_size_need_no_job() -> None:
    assert infer_groups(rows(4, size=4), 4, None)["group_ranks"].to_list() == ["[0, 1, 2, 3]"]
    assert infer_groups(rows(3, size=4), 3, 8)["group_ranks"].to_list() == [None]


def test_some_ranks_are_a_group_only_if_the_others_cannot_be_in_it() -> None:
    # Synchronizing collectives of ranks 0 and 1, all of the job recorded, nothing of the kind left over.
    assert infer_groups(rows(2), 4, 4)["group_ranks"].to_list() == ["[0, 1]"]
    over = pl.DataFrame({"communicator": 9, "match": None, "rank": 3, "collective": "all_reduce", "end_ns": 5})
    both = pl.concat([rows(2), over], how="diagonal_relaxed")
    assert infer_groups(both, 4, 4)["reason"].to_list() == ["other ranks may take part in its collectives"]
    # The ends of all_to_all cannot show who takes no part.
    assert infer_groups(rows(2, kind="dispatch"), 4, 4)["group_ranks"].to_list() == [None]


def test_ranks_that_miss_most_collectives_leave_it_open() -> None:
    partly = rows(3, 10).filter((pl.col("rank") < 2) | pl.col("match").is_in([0, 9]))
    assert infer_groups(partly, 3, 3)["group_size"].to_list() == [None]
    # What only some recorded at the edges says nothing.
    cut = rows(3, 10).filter((pl.col("rank") < 2) | (pl.col("match") > 4))
    assert infer_groups(cut, 3, 3)["group_size"].to_list() == [3]


def test_ends_that_agree_within_parts_leave_it_open() -> None:
    random = np.random.default_rng(1)
    wander = dict(enumerate(np.cumsum(random.normal(0, 200_000, 12)).astype(int).tolist()))
    astray = pl.when(pl.col("rank") > 1).then(pl.col("match").replace_strict(wander)).otherwise(0)
    parts = rows(4, 12).with_columns(pl.col("end_ns") + astray)
    assert infer_groups(parts, 4, 4)["reason"].to_list() == ["ends agree much better within parts of its ranks"]


def test_matches_in_doubt_leave_it_open() -> None:
    """Which collective is which is not known, so neither is who waits."""
    number = rows(4)["communicator"][0]
    found = infer_groups(rows(4), 4, 4, {number})
    assert found["group_size"].to_list() == [None]
    assert found["reason"].to_list() == ["its collectives match equally well at two positions"]


def test_nothing_matched() -> None:
    assert infer_groups(rows(2).with_columns(pl.lit(None, pl.Int64).alias("match")), 2, 2).height == 0
