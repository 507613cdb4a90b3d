"""One decision for all ranks about each window: as votes, and in real jobs with a slow writer, a dead store or rank."""

from __future__ import annotations

import pytest

from rankscope.rundir.manifest import read_rank_manifest

from .conftest import traces
from .two_ranks import TRAIN, run

SLOW_ON_ONE = """
from rankscope.capture import trace_queue
original = trace_queue.finish_trace
def slow(*given, **named):
    time.sleep(0.5)
    return original(*given, **named)
if rank == 1:
    trace_queue.finish_trace = slow
"""
PACED = (
    "import time as t; train_one = train\ndef train(steps):\n    for _ in range(steps): t.sleep(0.01); train_one(1)\n"
)
DROP = "del model; gc.collect(); dist.destroy_process_group()"


def windows_of(folder):
    """By rank: first steps of the windows that were recorded, and of those that were skipped with the reasons."""
    found = []
    for rank in range(2):
        manifest = read_rank_manifest(folder / "run" / "ranks" / f"rank{rank}.json")
        assert not manifest.failed, manifest.failed
        found.append(
            (
                [each.first_step for each in manifest.written],
                {each.first_step: each.reason for each in manifest.skipped},
            )
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("wait", [1, 12], ids=["back to back", "some steps between"])
def test_all_ranks_record_the_same_windows_with_a_slow_writer_on_one(tmp_path, wait):
    options = {"RANKSCOPE_WAIT": str(wait), "RANKSCOPE_WARMUP": "1", "RANKSCOPE_ACTIVE": "2", "RANKSCOPE_REPEAT": "10"}
    ended = run(
        TRAIN.format(before=SLOW_ON_ONE, after=f"{PACED}\ntrain({(wait + 3) * 10 + 4})\n{DROP}"), tmp_path, **options
    )
    assert [each.code for each in ended] == [0, 0], ended
    (first, first_skipped), (second, second_skipped) = windows_of(tmp_path)
    assert first == second
    assert sorted([*first, *first_skipped]) == [1 + wait + 1 + n * (wait + 3) for n in range(10)]
    assert first_skipped == second_skipped
    assert first
    assert set(first_skipped.values()) <= {
        f"the previous trace was still being written on rank {rank}" for rank in (0, 1)
    }
    assert "the previous trace was still being written on rank 1" in first_skipped.values()
    assert traces(tmp_path / "run") == sorted(
        f"rank{rank}_iter{n}_{n + 1}.trace.json.gz" for rank in (0, 1) for n in first
    )
