"""Logs of real DDP jobs with NCCL: what is wrong with rank 1 is known from the script, `tests/gpu/nccl_job.py`.

Recorded on 26 November 2026 by `tests/gpu/test_watch.py`: two ranks that share one H100, torch 2.11.0, NCCL 2.28.9.
Only the name of the host was replaced.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.status import read_status

LOGS = Path(__file__).parent / "h100"


def status_of(case):
    return read_status(LOGS / case, WatchLogs(LOGS / case))


@pytest.mark.parametrize(
    ("case", "phase", "least_ms"),
    [("loading", "data loading", 58), ("forward", "forward", 45), ("backward", "backward", 45)],
)
def test_the_late_rank_and_its_phase(case, phase, least_ms):
    status = status_of(case)
    (late,) = status.late_ranks
    assert (late.rank, late.phase) == (1, phase)
    assert least_ms < late.found.excess_ns / 1e6 < 65
    waiting = {each.rank: each.waiting_ns for each in status.rank_times}
    assert waiting[0] > waiting[1] + 0.8 * late.found.excess_ns


def test_ranks_that_wait_outside_of_the_backward_pass():
    status = status_of("reduced_timed")
    (late,) = status.late_ranks
    assert (late.rank, late.phase) == (1, None)
    assert 45 < late.found.excess_ns / 1e6 < 65
    assert [each.rank for each in status.last_arrivals] == [1]
    assert "TORCH_NCCL_ENABLE_TIMING=1" in status_of("reduced_untimed").unknown


def test_nobody_is_named_where_no_rank_is_late():
    assert status_of("none").late_ranks == ()
