from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.primitives.jobs import Planted, planted_offsets, random_job

from rankscope.primitives.clocks import Clocks, align_clocks, group_medians
from rankscope.primitives.communicators import COLUMNS, ONE_SIDED
from rankscope.primitives.matching import match_collectives


def apart(ranks: int) -> dict[int, str | None]:
    """Ranks of which no host is known."""
    return dict.fromkeys(range(ranks))


def clocks(ranks: int, rank: list[int], match: list[int], end: list[int], lenient: bool = False):  # type: ignore[no-untyped-def]
    # Ends are what counts: with collectives of no length their order bounds nothing.
    ends = np.array(end, dtype=np.int64)
    lenient_ = np.full(len(rank), lenient, dtype=np.bool_)
    return align_clocks(apart(ranks), np.array(rank), np.array(match), ends, ends, lenient_, worst=0)


def test_offsets_of_random_jobs_lie_within_the_residual() -> None:
    compared = 0
    for seed in range(2000, 2060):
        made = random_job(seed)
        found = match_collectives(made.rows.select(COLUMNS))
        if found.doubts:
            continue
        rows = made.rows.with_columns(pl.Series("match", found.match)).filter(
            (pl.col("match") >= 0) & ~pl.col("collective").is_in(ONE_SIDED)
        )
        ranks = np.unique(made.rows["rank"].to_numpy())
        result = align_clocks(
            dict.fromkeys(ranks.tolist()),
            rows["rank"].to_numpy(),
            rows["match"].to_numpy(),
            rows["start_ns"].to_numpy(),
            rows["end_ns"].to_numpy(),
            np.zeros(rows.height, dtype=np.bool_),
            worst=100_000,
        )
        for index, rank in enumerate(ranks):
            if result.anchors[index] == 0 or result.component[index] != result.component[0]:
                continue
            at = result.at[index : index + 1]
            error = abs(float(result.corrected(np.array([rank]), at)[0] - made.true_time(int(rank), at)[0]))
            assert error <= max(result.residual[index], result.residual[0]) + 200
            compared += 1
    assert compared > 300


def test_a_drift_is_found_where_it_moves_ends_beyond_the_noise() -> None:
    made = random_job(7, ranks=3, steps=200, layers=4, lost=0.0, cut=False, known_sequence=True)
    found = match_collectives(made.rows.select(COLUMNS))
    rows = made.rows
    result = align_clocks(
        apart(3),
        rows["rank"].to_numpy(),
        found.match,
        rows["start_ns"].to_numpy(),
        rows["end_ns"].to_numpy(),
        np.zeros(rows.height, dtype=np.bool_),
        worst=100_000,
    )
    for rank in (1, 2):
        # The correction undoes the drift.
        assert abs(result.drift[rank] + made.drift[rank] / (1 + made.drift[rank])) < 2e-6
    assert result.drift[0] == 0


def test_no_drift_is_invented_over_a_moment() -> None:
    random = np.random.default_rng(0)
    at = np.arange(40) * 1_000_000
    ends = np.concatenate([at + random.normal(0, 20_000, 40), at + 5_000_000_000 + random.normal(0, 20_000, 40)])
    result = clocks(2, [0] * 40 + [1] * 40, [*range(40)] * 2, np.rint(ends).astype(int).tolist())
    assert result.drift.tolist() == [0.0, 0.0]
    assert abs(int(result.offset[1]) + 5_000_000_000) <= result.residual[1]
    assert 20_000 < result.residual[1] < 70_000


def test_two_ranks_deviate_from_one_another_not_from_their_mean() -> None:
    result = clocks(2, [0, 1] * 5, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [0, 0, 100, 100, 200, 240, 300, 300, 400, 400])
    assert result.residual.tolist() == [40, 40]
    assert result.offset.tolist() == [0, 0]


def test_ranks_linked_through_others_share_a_clock() -> None:
    # 0–1 and 1–2 share collectives, 0–2 do not; 3–4 are apart; 5 has none.
    rank = [0, 1, 1, 2, 3, 4]
    match = [0, 0, 1, 1, 2, 2]
    end = [1000, 1500, 7500, 97_500, 50, 90]
    result = clocks(6, rank, match, end)
    assert result.offset.tolist()[:5] == [0, -500, -90_500, 0, -40]
    assert result.component[0] == result.component[1] == result.component[2] != result.component[3]
    assert result.component[3] == result.component[4] != result.component[5]
    assert result.anchors.tolist() == [1, 2, 1, 1, 1, 0]
    assert result.residual[5] == -1


def test_what_need_not_synchronize_counts_without_its_outliers() -> None:
    at = np.arange(20) * 1_000_000
    other = at + 3_000 + np.array([0, 500, -500, 200] * 5)
    other[::5] += 900_000
    result = clocks(2, [0] * 20 + [1] * 20, [*range(20)] * 2, [*at.tolist(), *other.tolist()], lenient=True)
    assert abs(int(result.offset[1]) + 3_000) <= 500
    assert result.residual[1] <= 1_000
    assert result.anchors[1] == 16


def test_an_end_whose_others_are_outliers_is_no_anchor() -> None:
    """Rank 0 varies by milliseconds with rank 2, so that it is no outlier itself where rank 1 is one."""
    rows = [(rank, n, n * 10**7 + (-1) ** n * rank * 10**6, True) for n in range(20) for rank in (0, 2)]
    rows += [(rank, n, n * 10**7, False) for n in range(20, 30) for rank in (0, 1)]
    rows += [(rank, 30, 30 * 10**7 + rank * 5 * 10**6, True) for rank in (0, 1)]
    rank, match, end, lenient = map(np.array, zip(*rows, strict=True))
    result = align_clocks(apart(3), rank, match, end, end, lenient, worst=0)
    assert result.offset.tolist() == [0, 0, 0]
    assert result.anchors.tolist() == [30, 10, 20]


def test_nothing_to_go_by() -> None:
    result = clocks(3, [], [], [])
    assert result.offset.tolist() == [0, 0, 0]
    assert np.unique(result.component).size == 3
    assert result.anchors.tolist() == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-(10**15), 10**15)), max_size=40))
def test_medians(pairs: list[tuple[int, int]]) -> None:
    code = np.array([c for c, _ in pairs], dtype=np.int64)
    value = np.array([v for _, v in pairs], dtype=np.int64)
    found = group_medians(code, value, 5, empty=-7)
    for each in range(5):
        mine = np.sort(value[code == each])
        if mine.size:
            low, high = int(mine[(mine.size - 1) // 2]), int(mine[mine.size // 2])
            assert found[each] == low + (high - low) // 2
        else:
            assert found[each] == -7


def test_few_anchors_do_not_vouch_for_themselves() -> None:
    # Two collectives whose ends agree exactly: the deviations are 0, whatever the clocks are.
    start = np.array([0, 990, 5000, 5900])
    end = np.array([1000, 1000, 6000, 6000])
    rank, match = np.array([0, 1] * 2), np.array([0, 0, 1, 1])
    strict = np.zeros(4, dtype=np.bool_)
    found = align_clocks(apart(2), rank, match, start, end, strict, worst=100_000)
    # Rank 1 may be 10 ns early (else rank 0 would be through before rank 1 starts), and up to 1000 ns late.
    assert found.residual.tolist() == [1000, 1000]
    assert found.anchors.tolist() == [2, 2]
    # Ends are never that far apart: what is known of them bounds it as well.
    assert align_clocks(apart(2), rank, match, start, end, strict, worst=300).residual.tolist() == [300, 300]


def test_enough_anchors_state_their_deviations() -> None:
    rank, match = np.array([0, 1] * 4), np.repeat(np.arange(4), 2)
    end = np.repeat(np.arange(1, 5) * 10_000, 2) + np.array([0, 40] * 2 + [0, 0] * 2)
    strict = np.zeros(8, dtype=np.bool_)
    found = align_clocks(apart(2), rank, match, end - 5_000, end, strict, worst=100_000)
    assert found.residual.max() <= 40


def test_the_bound_of_few_anchors_holds() -> None:
    random = np.random.default_rng(4)
    for _ in range(200):
        ranks = int(random.integers(2, 5))
        arrival = random.uniform(0, 5_000, (1, ranks)).astype(int)
        done = int(arrival.max()) + 300
        end = done + random.integers(0, 90, ranks)
        clock = np.concatenate([[0], random.integers(-(10**6), 10**6, ranks - 1)])
        found = align_clocks(
            apart(ranks), np.arange(ranks), np.zeros(ranks, dtype=np.int64), arrival[0] + clock, end + clock,
            np.zeros(ranks, dtype=np.bool_), worst=100_000,
        )  # fmt: skip
        error = np.abs(found.offset + clock - clock[0])
        assert (error <= found.residual + found.residual[0]).all()


def aligned(job: Planted) -> Clocks:
    strict = np.zeros(job.end.size, dtype=np.bool_)
    return align_clocks(job.hosts, job.rank, job.match, job.start, job.end, strict, worst=40_000_000)


def errors(job: Planted, found: Clocks) -> np.ndarray:
    return np.abs(found.offset + job.offset - job.offset[0])


@pytest.mark.parametrize("offset", [0, 2_000_000, 5_000_000_000])
@pytest.mark.parametrize("late", [None, -1])
@pytest.mark.parametrize("busy", [(), (0,), (0, 1, 2)], ids=["idle", "one host busy", "all busy"])
def test_planted_offsets_are_found_to_the_residual(offset: int, late: int | None, busy: tuple[int, ...]) -> None:
    known, worst = 0.0, []
    for seed in range(30):
        job = planted_offsets(seed, hosts=3, per_host=4, offset=offset, busy=busy, late=late)
        found = aligned(job)
        assert (errors(job, found) <= np.maximum(found.residual, found.residual[0])).all(), seed
        assert (found.offset.reshape(3, 4) == found.offset[::4, None]).all()
        assert (found.drift == 0).all()
        known = max(known, float(errors(job, found).max()))
        worst.append(int(found.residual.max()))
    if not busy:
        assert known < 100_000
        assert max(worst) < 200_000
    assert np.median(worst) < 8_000_000  # ends are up to 50 ms late


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_busy_ranks_of_one_host_have_its_clock(ranks: int) -> None:
    for seed in range(30):
        job = planted_offsets(seed, hosts=1, per_host=ranks, offset=0, busy=(0,), late=ranks - 1)
        found = aligned(job)
        assert found.offset.tolist() == [0] * ranks
        assert 0 < found.residual.max() <= 100_000
        assert (found.component == 0).all()


def test_ranks_that_no_host_names_keep_clocks_that_agree() -> None:
    for seed in range(30):
        job = planted_offsets(seed, hosts=2, per_host=1, offset=0, busy=(0, 1))
        found = aligned(replace(job, hosts=dict.fromkeys(job.hosts)))
        assert found.offset.tolist() == [0, 0]


def test_matches_that_are_wrong_now_and_then_bound_nothing() -> None:
    job = planted_offsets(3, hosts=2, per_host=1, offset=5_000_000_000)
    start, end = job.start.reshape(-1, 2).copy(), job.end.reshape(-1, 2).copy()
    # One in sixteen collectives of rank 1 is taken for the one before it.
    for row in range(8, len(start), 16):
        start[[row - 1, row], 1], end[[row - 1, row], 1] = start[[row, row - 1], 1], end[[row, row - 1], 1]
    found = aligned(replace(job, start=start.reshape(-1), end=end.reshape(-1)))
    assert len(start) >= 16
    assert errors(job, found)[1] <= min(found.residual[1], 1_000_000)


def test_a_rank_whose_times_its_host_cannot_have_is_moved() -> None:
    job = planted_offsets(5, hosts=1, per_host=4, offset=0)
    moved = np.where(job.rank == 2, 7_000_000_000, 0)
    found = aligned(replace(job, start=job.start + moved, end=job.end + moved))
    assert found.offset[[0, 1, 3]].tolist() == [0, 0, 0]
    assert abs(int(found.offset[2]) + 7_000_000_000) <= found.residual[2] < 200_000


def test_two_hosts_drift_apart() -> None:
    job = planted_offsets(1, hosts=2, per_host=4, offset=2_000_000)
    since = (job.end - job.end.min()).astype(np.float64)
    drifted = np.rint(np.where(job.rank >= 4, since * 1e-3, 0.0)).astype(np.int64)
    found = aligned(replace(job, start=job.start + drifted, end=job.end + drifted))
    assert found.drift[:4].tolist() == [0.0] * 4
    assert abs(found.drift[4:] + 1e-3).max() < 1e-4
    common = found.corrected(job.rank, job.end + drifted)
    true = job.end - job.offset[job.rank]
    assert np.abs(common - true).max() <= 2 * found.residual.max()
