"""What recurs of a rank's own time: by hand, and against plain Python."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.primitives.recurring_delay import usual_times
from rankscope.primitives.step_alignment import COLUMNS, NEIGHBOURS, StepBounds, recurring_times, work_pieces


def made(steps: list[list[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray, StepBounds]:  # type: ignore[type-arg]
    """Steps of (code, ns up to its end) that follow each other without a gap; nothing behind the last piece."""
    flat = [piece for step in steps for piece in step]
    at = np.cumsum([ns for _, ns in flat]).astype(np.int64)
    ends = np.cumsum([sum(ns for _, ns in step) for step in steps]).astype(np.int64)
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    bounds = StepBounds(np.arange(len(steps)), begins, begins, ends, ends)
    return at, np.array([code for code, _ in flat], dtype=np.int64), bounds


def common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    at, code, bounds = made([one, other])
    (row,) = recurring_times(at, code, at, bounds).rows()
    assert len(row) == len(COLUMNS)
    assert row[:4] == (0, 1, sum(ns for _, ns in one), sum(ns for _, ns in other))
    assert row[4] == 0  # all of it is own time
    return int(row[5])


def test_what_is_not_own_time_was_waited() -> None:
    # Of 50 and 60 ns the rank waited 7 and 20.
    bounds = StepBounds(*(np.array(each) for each in ([0, 1], [0, 50], [0, 43], [50, 110], [43, 83])))
    (row,) = recurring_times(np.array([20, 70]), np.array([1, 1]), np.array([20, 63]), bounds).rows(named=True)
    assert (row["elapsed_ns"], row["other_elapsed_ns"], row["waited_ns"]) == (50, 60, 7)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 99), st.integers(1, 99)), min_size=1, max_size=40))
def test_of_the_same_program_it_is_the_sum_of_the_minima(found: list[tuple[int, int, int]]) -> None:
    one, other = [(code, a) for code, a, _ in found], [(code, b) for code, _, b in found]
    assert common(one, other) == sum(min(a, b) for _, a, b in found)


def test_hiccups_do_not_recur_and_faults_do() -> None:
    step = [(1, 10), (2, 10), (3, 10), (4, 10)]
    first, second, slow = [(1, 10), (2, 500), *step[2:]], [*step[:3], (4, 300)], [(1, 10), (2, 60), *step[2:]]
    assert common(first, second) == 40
    assert common(slow, slow) == common(slow, first) == 90
    assert common(slow, second) == 40


def test_the_most_at_one_place_and_the_greatest_hiccup() -> None:
    steps = [[(1, 10), (2, 90)], [(1, 10), (2, 40)], [(1, 11), (2, 12)], [(1, 9), (2, 13)]]
    at, code, bounds = made(steps)
    found = {(row["step"], row["other"]): row for row in recurring_times(at, code, at, bounds).iter_rows(named=True)}
    # Beyond the lesser of what the two other steps take there.
    assert (found[0, 1]["most_ns"], found[0, 1]["hiccup_ns"]) == (40 - 12, 90 - 12)
    assert (found[2, 3]["most_ns"], found[2, 3]["hiccup_ns"]) == (0, 11 - 10)  # nothing behind the last


def test_the_usual_step_is_that_of_all_places_alike() -> None:
    """The geometric mean over places of the medians over steps that do the same; pieces below 1 µs tell nothing."""
    slow = [[(1, 2000), (2, 8000), (3, 10)], [(1, 2000), (2, 90_000), (3, 10)], [(1, 50_000), (2, 8000), (3, 20)]]
    other = [(1, 2000), (3, 10)]
    for steps in (slow, [slow[0], other, *slow[1:]]):
        at, code, bounds = made(steps)
        assert set(recurring_times(at, code, at, bounds)["usual_ns"].drop_nulls()) == {2 * 4000}
    # Of two steps no median tells a hiccup.
    at, code, bounds = made([slow[0], other, slow[1]])
    assert recurring_times(at, code, at, bounds)["usual_ns"].null_count() == 3


def test_how_fast_each_step_went() -> None:
    """The geometric mean over the places whose median is 1 µs and more; a step that does something else has none."""
    steps = [[(1, 2000), (2, 8000), (3, 10)], [(1, 2000), (2, 32_000), (3, 10)], [(1, 4000), (2, 16_000), (3, 9000)]]
    at, code, bounds = made([*steps, [(1, 2000), (3, 10)]])
    found = recurring_times(at, code, at, bounds)
    assert dict(found.select("step", "paced_ns").rows()) == {0: 2 * 4000, 1: 2 * 8000, 2: 2 * 8000}
    assert dict(found.filter(pl.col("step") == 0).select("other", "other_paced_ns").rows()) == {
        1: 2 * 8000,
        2: 2 * 8000,
        3: None,
    }


def test_a_lost_event_makes_no_host_slow_whose_steps_do_two_things_in_turn() -> None:
    """Long and short steps in turn on all ranks: of the last one a piece of a short step was lost."""
    short, long = [(1, 2_000), (2, 3_000), (3, 4_000)], [(1, 2_000), (2, 3_000), (3, 4_000), (4, 90_000)]
    by_step = np.full((5, 6), np.nan)
    for rank in range(5):
        steps = [short, long] * 3
        if rank == 4:
            steps[0] = [short[0], short[2]]
        at, code, bounds = made(steps)
        for step, usual in recurring_times(at, code, at, bounds).select("step", "usual_ns").rows():
            by_step[rank, step] = np.nan if usual is None else usual * (1 + rank / 1_000)
    assert np.isnan(by_step[4, [0, 2, 4]]).all()  # of two steps no median tells
    assert (by_step[0, 1] / by_step[0, 0]) > 2
    found = usual_times(by_step, np.zeros(5, dtype=np.int64))
    np.testing.assert_allclose(found / found[0], [1, 1.001, 1.002, 1.003, 1.004], rtol=1e-3)
    # Whom nothing is known of is not known; another program is its own measure.
    role = np.array([0, 0, 0, 1, 1])
    by_step[2], by_step[3:] = np.nan, by_step[3:] * 10
    found = usual_times(by_step, role)
    assert np.isnan(found).tolist() == [False, False, True, False, False]
    assert found[4] / found[3] == pytest.approx(1.004 / 1.003, abs=1e-3)
    assert np.isnan(usual_times(np.full((2, 3), np.nan), role[:2])).all()


def test_a_lost_piece_counts_with_the_next() -> None:
    one = [(1, 10), (2, 20), (3, 30), (1, 10), (2, 25)]
    lost = [(1, 11), (3, 52), (1, 10), (2, 20)]  # 2 and 3 in one
    assert common(one, lost) == 10 + (20 + 30) + 10 + 20
    # What only one of them does counts with what both have behind it.
    assert common([(1, 10), (9, 40), (2, 20)], [(1, 10), (2, 20)]) == 30
    assert common([(1, 10)], [(2, 7)]) == 7


def test_each_step_beside_those_that_follow() -> None:
    at, code, bounds = made([[(1, 5)]] * (NEIGHBOURS + 3))
    found = recurring_times(at, code, at, bounds)
    assert found.columns == list(COLUMNS)
    ahead = (found["other"] - found["step"]).to_list()
    assert (min(ahead), max(ahead)) == (1, NEIGHBOURS)
    assert found["recurring_ns"].unique().to_list() == [5]
    at, code, bounds = made([[(1, 5)]] * 1_000)
    assert recurring_times(at, code, at, bounds).height == 999


def test_where_steps_begin_and_end() -> None:
    # Step 3 began before the file, the range of step 5 was lost; two collectives a step.
    rows = [(None, 10, 5), (None, 20, 9), (4, 30, 13), (4, 40, 20), (None, 50, 22), (None, 60, 30), (6, 70, 31)]
    frame = pl.DataFrame(rows, schema=dict.fromkeys(("step", "end_ns", "own_ns"), pl.Int64), orient="row")
    found = StepBounds.of(frame)
    assert found.step.tolist() == [3, 4, 5, 6]
    assert found.begin.tolist() == [10, 20, 40, 60]
    assert found.end.tolist() == [20, 40, 60, 70]
    assert (found.end_own - found.begin_own).tolist() == [4, 11, 10, 1]


def test_pieces_are_of_the_busiest_stream() -> None:
    device = pl.DataFrame(
        {
            "start_ns": [0, 0, 50, 60, 10],
            "end_ns": [40, 5, 60, 90, 90],
            "name": ["a", "b", "copy", "a", "ncclDevKernel_AllReduce"],
            "kind": ["kernel", "kernel", "memcpy", "kernel", "kernel"],
            "is_collective": [False, False, False, False, True],
            "stream": [7, 8, 7, 7, 9],
        }
    )
    at, code = work_pieces(device, pl.DataFrame(), pl.DataFrame(), None)
    assert at.tolist() == [40, 60, 90]
    assert code[0] == code[2] != code[1]
