from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tests.primitives.jobs import faults, frame, gloo_job, random_job

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


@pytest.mark.parametrize("sizes", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("seen", [1e5, 1e6, 5e6])
def test_collectives_at_the_same_time_are_paired_by_their_launches(ranks: int, sizes: bool, seen: float) -> None:
    swapped = 0
    for seed in range(20):
        rows = gloo_job(seed, ranks=ranks, sizes=sizes, seen=seen).rows
        assert faults(rows, matched(rows)) == (0, 0)
        ends = rows.sort("end_ns").filter(pl.col("rank") == 0)["truth"]
        swapped += int((ends.diff() < 0).sum())
    assert swapped > 20  # by their ends they would not be


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_recording_that_cuts_a_step_has_its_last_or_its_first_collectives(ranks: int) -> None:
    jobs = [gloo_job(seed, ranks=ranks, cut=True).rows for seed in range(40)]
    outcomes = [faults(rows, matched(rows)) for rows in jobs]
    assert not any(wrong for wrong, _ in outcomes)
    # Two ranks may have what the most complete one lacks.
    assert sum(missing for _, missing in outcomes) <= 0.002 * sum(rows.height for rows in jobs)


def test_a_step_that_lacks_a_collective_in_the_middle_is_not_paired_by_counting() -> None:
    rows = gloo_job(0, seen=1e4).rows
    lacking = rows.filter(~((pl.col("rank") == 1) & (pl.col("truth") == 15)))
    assert faults(lacking, matched(lacking))[0] == 0


def test_few_pairs_of_gloo_are_wrong_without_steps() -> None:
    # By their ends, 21 of 100 rows were.
    jobs = [gloo_job(seed, known_steps=False).rows for seed in range(40)]
    wrong = sum(faults(rows, matched(rows))[0] for rows in jobs)
    assert wrong <= 0.1 * sum(rows.height for rows in jobs)


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
        pl.lit(None, pl.String).alias("group"),
        pl.lit(None, pl.String).alias("group_ranks"),
        pl.lit(None, pl.Int64).alias("group_size"),
        *(pl.lit(None, pl.Int64).alias(name) for name in ("in_elements", "out_elements")),
    )
    found = matched(rows)
    assert faults(rows, found)[0] == 0
    assert (found.match >= 0).mean() > 0.8


def test_send_meets_recv_of_its_channel() -> None:
    endpoints = {"source_rank": 0, "destination_rank": 1}
    back = {"source_rank": 1, "destination_rank": 0}
    both = {"group": "pp", "group_ranks": "[0, 1, 2, 3]", "group_size": 4}
    times = [1000, 2300, 4100, 7000, 9000, 14000]
    rows = frame(
        [
            *(row for t in times for row in events((0, "send", t), (1, "recv", t + 5), **endpoints, **both)),
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


def captured(
    ranks: int,
    *,
    seed: int = 0,
    replays: int = 3,
    layers: int = 8,
    late: int = 150_000,
    streams: str = "permuted",
    cut: int = 0,
    families: int = 1,
) -> pl.DataFrame:
    """DeepEP in a captured graph: dispatch and combine of each layer, ends within 150 µs, streams of any number.

    ``streams``: each kernel kind on one stream whose number is another on every rank (`permuted`), or kernels on
    whichever of three streams the graph has (`any`). ``cut``: at most so many are missing at either edge of a rank.
    ``families``: so many communicators at once, each with its own streams.
    """
    random = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for family in range(families):
        kinds = ("dispatch", "combine") * (layers * replays)
        gaps = 500_000 * (1 + 0.1 * random.standard_normal(len(kinds)))
        gaps[:: 2 * layers] += 2_000_000
        begin = np.cumsum(gaps)
        for rank in range(ranks):
            number = random.permutation(50)
            kept = slice(random.integers(0, cut + 1), len(kinds) - random.integers(0, cut + 1))
            for index in range(len(kinds))[kept]:
                end = int(begin[index] + random.uniform(0, late))
                lane = random.integers(0, 3) if streams == "any" else index % 2
                rows.append(
                    {
                        "rank": rank, "stream": int(number[lane]), "collective": kinds[index],
                        "name": f"void deep_ep::internode_ll::{kinds[index]}<7168>(int4*)",
                        "start_ns": int(begin[index]) - int(random.uniform(20_000, 80_000)), "end_ns": end,
                        "truth": index + 10_000 * family,
                    }
                )  # fmt: skip
    return frame(rows)


@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize("streams", ["permuted", "any"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_kernels_of_captured_graphs_are_matched_by_sequence_and_ends(ranks: int, streams: str, hosts: bool) -> None:
    rows = captured(ranks, streams=streams)
    found = match_collectives(rows.select(COLUMNS), dict.fromkeys(range(ranks), "node") if hosts else None)
    assert faults(rows, found) == (0, 0)
    assert (found.match >= 0).all()
    assert not found.doubts


def test_one_host_has_one_clock_when_windows_differ() -> None:
    # Layers are alike: but for the host's clock, ends within 150 µs cannot tell one layer from the next.
    rows = captured(4, cut=9)
    found = match_collectives(rows.select(COLUMNS), dict.fromkeys(range(4), "node"))
    assert faults(rows, found) == (0, 0)
    assert not found.doubts


def test_a_rank_off_its_hosts_clock_is_found_all_the_same() -> None:
    made = random_job(24, ranks=3, steps=4, layers=3, lost=0.0)
    rows = nameless(made.rows)
    found = match_collectives(rows.select(COLUMNS), dict.fromkeys(range(3), "node"))
    assert faults(rows, found)[0] == 0
    assert (found.match >= 0).mean() > 0.8


def test_kernels_of_one_rank_have_no_partner() -> None:
    rows = captured(2)
    extra = rows.filter(pl.col("rank") == 1)[::7].with_columns(
        pl.lit("notify").alias("collective"), pl.lit("void deep_ep::intranode::notify(int)").alias("name"),
        pl.lit(None, pl.Int64).alias("truth"), pl.lit(33, pl.Int64).alias("stream"),
    )  # fmt: skip
    both = pl.concat([rows, extra])
    found = matched(both)
    assert faults(rows, Matching(found.match[: rows.height], found.method[: rows.height], found.group)) == (0, 0)
    assert (found.match[rows.height :] == -1).all()


def nameless(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows as a trace without collective metadata has them."""
    return rows.with_columns(
        *(pl.lit(None, pl.String).alias(name) for name in ("group", "group_ranks", "dtype")),
        *(pl.lit(None, pl.Int64).alias(name) for name in ("group_size", "in_elements", "out_elements", "recorded")),
    )


def test_communicators_at_one_time_are_told_apart_by_their_streams() -> None:
    # Both run all_reduces, whose streams are 7 and 9 on one rank and 9 and 7 on the other.
    parts = []
    for family in (0, 1):
        made = random_job(60 + family, ranks=2, steps=4, layers=4, lost=0.0, cut=False, jitter=0.3).rows
        first = made.filter(pl.col("rank") == 0)
        ends = first["end_ns"].to_numpy()
        for rank in (0, 1):
            stream = 7 if rank == family else 9
            parts.append(
                first.with_columns(
                    pl.lit(rank, pl.Int64).alias("rank"), pl.lit(stream, pl.Int64).alias("stream"),
                    pl.lit("all_reduce").alias("collective"), pl.Series("end_ns", ends + 3_000 * rank),
                    pl.col("start_ns") - 200 * rank, pl.col("truth") + 10_000 * family,
                )
            )  # fmt: skip
    rows = nameless(pl.concat(parts))
    found = matched(rows)
    assert faults(rows, found) == (0, 0)
    groups = rows.with_columns(pl.Series("group", found.group))
    assert groups.group_by("group").agg((pl.col("truth") // 10_000).n_unique())["truth"].to_list() == [1, 1]


def test_ranks_whose_kernels_do_not_run_together_are_of_other_groups() -> None:
    # Two tensor-parallel groups of one host, each with its own batches: kernels of 20 µs every millisecond or so.
    random = np.random.default_rng(3)
    rows = []
    for group in (0, 1):
        times = np.cumsum(random.uniform(600, 1800, 60)).astype(int) + 7_000 * group
        for rank in (2 * group, 2 * group + 1):
            for index, time in enumerate(times.tolist()):
                end = time + int(random.integers(0, 5))
                rows += events((rank, "all_reduce", end), truth=index + 1000 * group, stream=rank + 3)
    made = nameless(frame(rows))
    found = match_collectives(made.select(COLUMNS), dict.fromkeys(range(4), "node"))
    assert faults(made, found) == (0, 0)
    assert np.unique(found.group[found.match >= 0]).size == 2
