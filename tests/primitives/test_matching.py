from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tests.primitives.jobs import faults, frame, random_job

from rankscope.primitives.communicators import COLUMNS
from rankscope.primitives.matching import METHODS, Matching, match_collectives


def matched(rows: pl.DataFrame) -> Matching:
    return match_collectives(rows.select(COLUMNS))


def events(*specs: tuple[int, str, int], **more: object) -> list[dict[str, object]]:
    """Rows of (rank, collective, end in µs)."""
    return [
        {
            "rank": rank, "group": "g", "group_ranks": "[0, 1]", "group_size": 2, "stream": 7, "collective": kind,
            "dtype": "Float", "in_elements": 8, "out_elements": 8, "start_ns": (end - 10) * 1000, "end_ns": end * 1000,
            **more,
        }
        for rank, kind, end in specs
    ]  # fmt: skip


def test_random_jobs_without_anchors() -> None:
    # Repeating layers, windows cut at both ends, up to 2 % lost, clocks hours and 100 ppm apart.
    sure = wrong = missing = rows = 0
    for seed in range(1000, 1100):
        made = random_job(seed)
        found = matched(made.rows)
        if found.doubts:
            continue
        bad, lonely = faults(made.rows, found)
        sure, wrong, missing, rows = sure + 1, wrong + (bad > 0), missing + lonely, rows + made.rows.height
    assert sure >= 90
    assert wrong <= 0.01 * sure
    assert missing <= 0.005 * rows


def test_random_jobs_with_steps() -> None:
    outcomes = [
        faults(made.rows, matched(made.rows))[0] for made in (random_job(s, known_steps=True) for s in range(40))
    ]
    assert sum(each > 0 for each in outcomes) == 0


def test_recorded_sequence_needs_no_clock() -> None:
    made = random_job(3, known_sequence=True, lost=0.1)
    rows = made.rows.with_columns(pl.col("end_ns") * (1 + pl.col("rank")), pl.col("start_ns") * (1 + pl.col("rank")))
    found = matched(rows)
    assert faults(rows, found) == (0, 0)
    assert set(found.method[found.match >= 0]) == {METHODS.index("sequence")}


def test_sequence_with_another_kind_is_no_match() -> None:
    rows = frame(
        [
            *events((0, "all_reduce", 100), (1, "all_reduce", 100), recorded=1),
            *events((0, "all_reduce", 200), recorded=2),
            *events((1, "all_reduce", 200), recorded=2, in_elements=9, out_elements=9),
        ]
    )
    found = matched(rows)
    assert found.match.tolist()[:2] == [0, 0]
    assert found.disagreeing == 1


@pytest.mark.parametrize("rank", range(4))
def test_any_event_may_be_missing(rank: int) -> None:
    made = random_job(11, ranks=4, steps=3, layers=4, lost=0.0, cut=False)
    whole = made.rows
    for index in range(0, whole.filter(pl.col("rank") == rank).height, 2):
        gone = (pl.col("rank") == rank) & (pl.col("truth") == index)
        rows = whole.filter(~gone)
        assert faults(rows, matched(rows)) == (0, 0)


def test_what_the_fullest_rank_lacks_is_found_among_the_others() -> None:
    made = random_job(12, ranks=4, steps=4, layers=3, lost=0.0, cut=False, known_steps=True)
    # Rank 0 has one more than any other at the end, and lacks three in the middle.
    rows = made.rows.filter(
        ~((pl.col("rank") == 0) & pl.col("truth").is_in([8, 9, 15]))
        & ~((pl.col("rank") > 0) & (pl.col("truth") > pl.col("truth").max() - 4))
    )
    assert faults(rows, matched(rows)) == (0, 0)


def test_regular_steps_cut_at_both_ends_are_ambiguous_without_their_numbers() -> None:
    made = random_job(5, ranks=2, steps=8, layers=3, jitter=0.0, step_jitter=0.0, lost=0.0, cut=False, known_steps=True)
    cut = made.rows.filter(
        ((pl.col("rank") == 0) & (pl.col("step") < 7)) | ((pl.col("rank") == 1) & (pl.col("step") > 0))
    )
    found = matched(cut.with_columns(pl.lit(None, pl.Int64).alias("step")))
    assert [doubt.ranks for doubt in found.doubts] == [(1,)]
    assert faults(cut, matched(cut)) == (0, 0)
    assert not matched(cut).doubts


def test_groups_of_one_name_and_other_ranks_stay_apart() -> None:
    one = random_job(21, ranks=2, group="dp", known_sequence=True)
    other = random_job(22, ranks=2, group="dp", first_rank=2, known_sequence=True)
    rows = pl.concat([one.rows, other.rows.with_columns(pl.col("truth") + 10_000)])
    found = matched(rows)
    assert faults(rows, found)[0] == 0
    assert found.group[0] != found.group[-1]


def test_unknown_communicators_have_streams_of_any_number() -> None:
    made = random_job(23, ranks=3, steps=4, layers=3, lost=0.0)
    rows = made.rows.with_columns(
        pl.format("stream {}", pl.col("rank") + 20).alias("group"),
        pl.lit(None, pl.String).alias("group_ranks"),
        pl.lit(None, pl.Int64).alias("group_size"),
        *(pl.lit(None, pl.Int64).alias(name) for name in ("in_elements", "out_elements")),
    )
    found = matched(rows)
    assert faults(rows, found)[0] == 0
    assert (found.match >= 0).mean() > 0.8


def test_send_meets_recv_of_its_channel() -> None:
    told = {"source_rank": 0, "destination_rank": 1}
    back = {"source_rank": 1, "destination_rank": 0}
    both = {"group": "pp", "group_ranks": "[0, 1, 2, 3]", "group_size": 4}
    times = [1000, 2300, 4100, 7000, 9000, 14000]
    rows = frame(
        [
            *(row for t in times for row in events((0, "send", t), (1, "recv", t + 5), **told, **both)),
            *(row for t in times for row in events((1, "send", t + 400), (0, "recv", t + 410), **back, **both)),
        ]
    )
    found = matched(rows)
    pairs = found.match.reshape(-1, 2)
    assert (pairs[:, 0] == pairs[:, 1]).all()
    assert np.unique(pairs[:, 0]).size == 12
    # Without peers a group of four cannot tell who sends to whom.
    nameless = rows.with_columns(pl.lit(None, pl.Int64).alias(name) for name in ("source_rank", "destination_rank"))
    assert (matched(nameless).match == -1).all()
    # In a group of two there is but one other.
    two = nameless.with_columns(pl.lit("[0, 1]").alias("group_ranks"), pl.lit(2, pl.Int64).alias("group_size"))
    assert (matched(two).match == found.match).all()


def test_two_threads_need_not_keep_their_order() -> None:
    # Gloo: two collectives of a step at once, of different sizes, that end in another order on each rank.
    rows = []
    for step, at in enumerate((1000, 30_500, 61_700, 90_100)):
        for rank in (0, 1):
            small, large = (at, at + 300) if rank else (at + 250, at)
            rows += events((rank, "all_reduce", small), step=step, stream=1, in_elements=8, truth=2 * step)
            rows += events((rank, "all_reduce", large), step=step, stream=2, in_elements=80, truth=2 * step + 1)
    made = frame(rows)
    assert faults(made, matched(made)) == (0, 0)


def test_uneven_sizes_are_the_same_collective() -> None:
    times = [1000, 2300, 4100, 7000]
    rows = frame(
        [
            *(row for i, t in enumerate(times) for row in events((0, "all_to_all", t), in_elements=10 + i)),
            *(row for i, t in enumerate(times) for row in events((1, "all_to_all", t + 3), in_elements=90 - i)),
        ]
    )
    assert matched(rows).match.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_numbers_rise_with_time_and_need_two_ranks() -> None:
    made = random_job(31, ranks=5)
    found = matched(made.rows)
    rows = made.rows.with_columns(pl.Series("match", found.match)).filter(pl.col("match") >= 0)
    assert rows.group_by("match").agg(pl.col("rank").n_unique())["rank"].min() >= 2
    assert sorted(rows["match"].unique()) == list(range(rows["match"].n_unique()))


def test_nothing_and_one_rank() -> None:
    assert matched(frame([])).match.size == 0
    alone = random_job(1, ranks=2).rows.filter(pl.col("rank") == 0)
    found = matched(alone)
    assert (found.match == -1).all()
    assert (found.method == 0).all()


def test_ranks_that_share_no_time_fit_nowhere() -> None:
    rows = frame(
        [
            *events(*((0, "all_reduce", 100 * n * n + 50) for n in range(1, 20))),
            *events(*((1, "all_gather", 77 * n * n * n) for n in range(1, 20))),
        ]
    )
    found = matched(rows)
    assert (found.match == -1).all()
    assert found.unplaced == (("g", (1,)),)
