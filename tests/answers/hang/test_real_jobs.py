"""Real Gloo jobs that hang, each in another way: group, sequence number, operation, rank and cause of the verdict.

What is expected follows from the script: each step calls one all_reduce of the default group, the fault comes after the
sixth, and it is in rank 1.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest
import torch
from tests.answers.hang.jobs import verdict_of

from rankscope.answers.hang import Cause

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the job's processes are found in /proc"),
    pytest.mark.skipif(not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"), reason="no Flight Recorder of Gloo"),
]


@dataclass(frozen=True)
class Expected:
    """The right verdict."""

    cause: Cause
    culprits: tuple[int, ...]
    ranks: int = 3
    group: str | None = "0"
    sequence: int | None = 7
    operation: str | None = "all_reduce"
    missing: tuple[int, ...] = ()


CASES = {
    "sleep": Expected(Cause.PYTHON_CODE, (1,), missing=(1,)),
    "loader": Expected(Cause.DATA_LOADING, (1,), sequence=6, missing=(1,)),
    "stopped": Expected(Cause.DEAD, (1,)),
    "exception": Expected(Cause.EXCEPTION, (1,)),
    "branch": Expected(Cause.MISMATCH, (1,)),
    "order": Expected(Cause.DEADLOCK, (0, 1), ranks=2, group="1", sequence=1, missing=(1,)),
    "cycle": Expected(Cause.DEADLOCK, (0, 1, 2), group="1", sequence=1, missing=(1,)),
    "store": Expected(Cause.NETWORK, (1,), missing=(1,)),
    # Rank 0 waits in the store for rank 1, which cannot reach it: both wait for the store.
    "no_store": Expected(Cause.NETWORK, (0, 1), ranks=2, group=None, sequence=None, operation=None),
    "killed": Expected(Cause.DEAD, (1,), group=None, sequence=None, operation=None),
    # Gloo ends the process of a rank that gets more than it wants: its dump is missing, and the rest may be in a tie.
    "size": Expected(Cause.MISMATCH, (1,), ranks=4),
    "dtype": Expected(Cause.MISMATCH, (1,), ranks=4),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_on_a_real_job(case, tmp_path):
    right = CASES[case]

    def is_right(verdict):
        among = set(right.culprits) <= set(verdict.culprits)
        ranks = among if case in ("size", "dtype") else verdict.culprits == right.culprits
        where = right.group is None or verdict.collective is not None
        return verdict.cause is right.cause and ranks and where

    verdict = verdict_of(case, tmp_path, right.ranks, is_right)
    assert is_right(verdict), (verdict, (tmp_path / "output.txt").read_text())
    place = verdict.collective
    if right.group is not None:
        assert place is not None
        assert (place.group, place.sequence, place.operation) == (right.group, right.sequence, right.operation)
        assert place.missing == right.missing
