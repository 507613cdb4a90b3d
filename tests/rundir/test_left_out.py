"""Ranks that were not to be recorded."""

from __future__ import annotations

import pytest

from rankscope.rundir.left_out import left_out
from rankscope.rundir.manifest import LostWindow, RankManifest, RunManifest, WrittenTrace


def run(ranks: str) -> RunManifest:
    return RunManifest(run_id="r", world_size=4, ranks=ranks)


@pytest.mark.parametrize(
    ("ranks", "present", "expected"),
    [
        ("all", {0, 2}, None),
        ("0,2", {0, 2}, (1, 3)),
        ("0,2", {0}, (1, 3)),  # rank 2 is lost
        ("0-3", {0, 2}, None),
        ("nonsense", {0, 2}, None),
    ],
)
def test_by_the_choice_of_the_user(ranks: str, present: set[int], expected: tuple[int, ...] | None) -> None:
    found = left_out(4, present, run(ranks), ())
    assert (found.ranks if found is not None else None) == expected


def test_by_the_script() -> None:
    """Rank 0 has the script's own recording; rank 1 has none and is fine, rank 2 lost one, rank 3 was killed."""
    adopted = WrittenTrace(file="a.json", adopted=True)
    manifests = [
        RankManifest(rank=0, state="finished", written=(adopted,)),
        RankManifest(rank=1, state="finished", skipped=(LostWindow(reason="the script's own profiler records"),)),
        RankManifest(rank=2, state="finished", failed=(LostWindow(reason="disk full"),)),
        RankManifest(rank=3, state="running"),
    ]
    found = left_out(4, {0}, run("all"), manifests)
    assert found is not None
    assert found.ranks == (1,)
    assert left_out(4, {0}, run("all"), manifests[1:]) is None
    assert left_out(4, {0}, None, ()) is None
