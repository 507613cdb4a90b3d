"""What each step launched, where a step's range is not in the recording."""

from __future__ import annotations

import polars as pl

from rankscope.primitives.stragglers.timeline import step_work


def launched(steps: list[tuple[int, int, int]], at: list[int]) -> list[tuple[int, int, int]]:
    """(step, ranged, pieces) of kernels launched at these times, of steps (number, start, end)."""
    device = pl.DataFrame(
        {
            "start_ns": at, "end_ns": [each + 5 for each in at], "name": ["gemm"] * len(at),
            "kind": ["kernel"] * len(at),
            "is_collective": [False] * len(at), "stream": [7] * len(at), "launch_ns": at, "grid": ["[1,1,1]"] * len(at),
        },
        schema_overrides={"start_ns": pl.Int64, "end_ns": pl.Int64, "launch_ns": pl.Int64},
    )  # fmt: skip
    annotations = pl.DataFrame(
        [(start, end, False, number) for number, start, end in steps],
        schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "on_device": pl.Boolean, "step": pl.Int64},
        orient="row",
    )
    found = step_work({"device_events": device, "annotations": annotations}, None)
    return sorted(found.select("step", "ranged", "pieces").rows())


def test_work_of_a_step_whose_range_is_lost_or_cut() -> None:
    steps = [(4, 100, 200), (5, 201, 300), (7, 400, 500)]
    # Before the first, in it, between two that follow one another, in the second, in the lost one, in the last, behind.
    found = launched(steps, [50, 110, 200, 250, 350, 351, 450, 600, 601])
    assert found == [(3, 0, 1), (4, 1, 1), (5, 1, 1), (6, 0, 2), (7, 1, 1), (8, 0, 2)]


def test_without_steps_nothing_has_one() -> None:
    assert launched([], [50, 110]) == []
