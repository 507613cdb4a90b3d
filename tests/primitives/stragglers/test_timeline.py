"""Own time of a step: by hand."""

from __future__ import annotations

import polars as pl

from rankscope.primitives.stragglers.timeline import PARTS, cut_at_steps, local_times, programs_by_rank


def row(rank: int, step: int | None, end: int, count: int, compute: int, waiting: int, whole: bool = True) -> dict:  # type: ignore[type-arg]
    parts = dict.fromkeys(PARTS, 0) | {"compute": compute, "communication": waiting, "nothing": end - compute - waiting}
    return {"rank": rank, "window": 0, "step": step, "whole": whole, "end_ns": end, "count": count, **parts}


def test_from_the_last_collective_of_a_step_to_that_of_the_next() -> None:
    rows = pl.DataFrame(
        [
            row(0, 1, 100, 1, 50, 10),
            row(0, 1, 200, 2, 120, 20),
            # Step 2: 300 ns, of which 100 waiting; its last collective is not known on all ranks and bounds nothing.
            row(0, 2, 400, 3, 250, 90),
            row(0, 2, 500, 4, 300, 120),
            row(0, 2, 550, 5, 320, 140, whole=False),
            row(0, 3, 800, 6, 500, 150),
            row(0, None, 900, 7, 580, 160),
        ]
    )
    found = local_times(rows).sort("step")
    assert found.select("step", "elapsed_ns", "count", "own_ns", "first").rows() == [
        # The first is cut: it begins with its first collective.
        (1, 100, 1, 100 - 10, True),
        (2, 300, 2, 300 - 100, False),
        (3, 300, 2, 300 - 30, False),
    ]
    assert found["compute"].to_list() == [70, 180, 200]


def test_steps_that_do_not_follow_each_other() -> None:
    rows = pl.DataFrame([row(0, 1, 100, 1, 10, 0), row(0, 7, 1_000, 2, 20, 0), row(0, 7, 1_300, 3, 200, 100)])
    assert local_times(rows).select("step", "elapsed_ns", "own_ns", "first").rows() == [(7, 300, 200, True)]


def test_who_runs_the_same_program() -> None:
    frame = pl.DataFrame(
        {
            "rank": [0, 1, 1, 2, 3],
            "collective": ["send", "recv", "send", "recv", "all_reduce"],
            "peers": ["0 → 1", "0 → 1", "1 → 2", "1 → 2", None],
        }
    )
    # The first sends onwards, the middle does both, the last only takes; who does neither is of another kind.
    assert len(set(programs_by_rank(frame, {}).values())) == 4
    assert programs_by_rank(frame, {0: 0, 1: 1, 2: 1, 3: 0}) == {0: 0, 1: 1, 2: 1, 3: 0}
    alike = pl.DataFrame(
        {"rank": [0, 1], "collective": ["all_reduce"] * 2, "peers": pl.Series([None, None], dtype=pl.String)}
    )
    assert len(set(programs_by_rank(alike, {0: 0}).values())) == 1


def test_a_step_of_a_host_is_cut_at_its_range() -> None:
    # Gloo's thread ends step 1's second range at 130, when the host is in the next step already.
    own = pl.DataFrame({"step": [1, 1, 2, None, 3, 3, 3], "end_ns": [60, 130, 190, 205, 230, 240, 250]})
    ranges = pl.DataFrame(
        {
            "start_ns": [0, 100, 210, 0],
            "end_ns": [100, 200, 300, 999],
            "on_device": [False, False, False, True],
            "step": [1, 2, 3, 1],
        }
    )
    assert cut_at_steps(own, ranges)["cut_ns"].to_list() == [0, 100, 200, 205, 210, 300, 300]
