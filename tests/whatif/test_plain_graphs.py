"""Plain graphs: one by hand, and the published slowdowns of three public jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.whatif import PUBLISHED, largest_difference

from rankscope.whatif.plain_graphs import PlainGraph


def small() -> PlainGraph:
    """Two replicas: an operation, then a transfer on both, then an operation; two steps."""
    duration = np.zeros((3, 2, 2))
    duration[0] = [[2, 3], [4, 5]]
    duration[2] = [[1, 1], [1, 7]]
    transfer = np.zeros((3, 2, 2))
    transfer[1] = [[0.5, 0.5], [0.25, 1.5]]
    return PlainGraph(
        duration, transfer, np.array([0, 0, 1, 2]), np.array([0, 1]), np.array([-1, 0, -1]),
        np.array([False, True, False]), np.array(["compute", "reduce", "compute"]), np.array([0, 0, 0]),
        np.array([False, True, False]),
    )  # fmt: skip


def test_by_hand() -> None:
    job = small()
    # Step 1: both wait until 4; 4 + 0.5 + 1 and 4 + 0.25 + 1. Step 2: 5 + 0.5 + 1 and 5 + 1.5 + 7.
    assert job.step_times(job.recorded).tolist() == pytest.approx([5.5, 13.5])
    # Ideal: compute takes the mean of its eight values, 3, and a transfer the median of its four, 0.5.
    assert job.ideal[:, 0, 0].tolist() == pytest.approx([3, 0.5, 3])
    assert job.step_times(job.ideal).tolist() == pytest.approx([6.5, 6.5])
    assert job.slowdown() == pytest.approx((5.5 + 13.5) / 2 / 6.5)
    nothing = np.zeros((3, 2), dtype=np.bool_)
    assert job.slowdown(nothing) == pytest.approx(1)
    second_replica = nothing.copy()
    second_replica[:, 1] = True
    # Replica 1 as recorded: 4 + 0.5 + 3 on the other, and 5 + 1.5 + 7.
    assert job.slowdown(second_replica) == pytest.approx((7.5 + 13.5) / 2 / 6.5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_slowdowns(name: str, shared_traces: Path) -> None:
    folder = shared_traces.parent / "whatif"
    if not folder.is_dir():
        pytest.skip("the published jobs are not here")
    _, difference, count = largest_difference(folder, name)
    assert count >= 18
    assert difference < 5e-7
