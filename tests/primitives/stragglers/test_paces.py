"""Steps place by place: by hand."""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.stragglers.paces import StepBounds, device_places, step_paces

Step = list[tuple[int, int]]


def paces(steps: list[Step]) -> pl.DataFrame:
    """Steps of (code, ns up to its end) that follow each other without a gap; nothing behind the last piece."""
    flat = [piece for step in steps for piece in step]
    at = np.cumsum([ns for _, ns in flat]).astype(np.int64)
    ends = np.cumsum([sum(ns for _, ns in step) for step in steps]).astype(np.int64)
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    bounds = StepBounds(np.arange(len(steps)), begins, begins, ends, ends)
    return step_paces(at, np.array([code for code, _ in flat], dtype=np.int64), at, bounds)


def steady(*steps: Step) -> list[int | None]:
    return paces(list(steps))["steady_ns"].to_list()


def test_a_hiccup_is_cut_off_at_twice_the_usual_time_of_its_place() -> None:
    usual = [(1, 10), (2, 10), (3, 10)]
    assert steady(usual, [(1, 10), (2, 500), (3, 10)], usual) == [30, 40, 30]


def test_what_recurs_at_the_same_place_stays() -> None:
    # In three steps of four: that is the usual time of the place.
    slow = [(1, 10), (2, 500), (3, 10)]
    assert steady(slow, [(1, 10), (2, 10), (3, 10)], slow, slow) == [520, 30, 520, 520]
    # Of two steps the lesser is the usual one.
    assert steady(slow, [(1, 10), (2, 100), (3, 10)]) == [220, 120]


def test_pieces_that_were_lost_count_with_the_next() -> None:
    ten = [(code, 10) for code in range(10)]
    lost = [*ten[:4], (5, 20), *ten[6:]]  # 4 and 5 in one
    assert steady(ten, lost, ten) == [100, 100, 100]


def test_a_step_that_does_something_else_is_not_known() -> None:
    assert steady([(1, 10), (2, 10)], [(1, 10), (2, 10)], [(3, 10)]) == [20, 20, None]


def test_threads_may_take_turns() -> None:
    # The same pieces in another order.
    one, other = [(1, 10), (2, 10), (3, 10)], [(2, 10), (1, 10), (3, 10)]
    assert steady(one, other) == [30, 30]


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
    at, code = device_places(device, pl.DataFrame(), pl.DataFrame(), None)
    assert at.tolist() == [40, 60, 90]
    assert code[0] == code[2] != code[1]
