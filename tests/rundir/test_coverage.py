"""Windows that ranks lost, and steps that only some of them recorded."""

from __future__ import annotations

from rankscope.rundir.coverage import Gap, gaps, lost_by_reason, other_warnings
from rankscope.rundir.manifest import LostWindow, RankManifest


def test_one_window_of_several_ranks_is_one() -> None:
    both = tuple(LostWindow(n, n + 1, f"busy for {n} s on rank 1") for n in (3, 9))
    manifests = [RankManifest("r", rank, skipped=both, failed=(LostWindow(None, None, ""),)) for rank in (0, 1, 2)]
    manifests[2] = RankManifest("r", 2, skipped=(*both, LostWindow(9, 10, "busy for 4 s on rank 1")), restart_count=1)
    (skipped,) = lost_by_reason(manifests, "skipped")
    # Two of the first attempt, and three of the second.
    assert (skipped.windows, skipped.ranks, skipped.reason) == (5, (0, 1, 2), "busy for 3 s on rank 1")
    (failed,) = lost_by_reason(manifests, "failed")
    assert (failed.windows, failed.ranks, failed.reason) == (1, (0, 1), "no reason given")


def test_warnings_of_lost_windows_are_not_repeated() -> None:
    lost = LostWindow(3, 4, "the disk is full")
    manifest = RankManifest("r", 1, failed=(lost,), warnings=("steps 3 to 4 were lost: the disk is full", "slow"))
    assert other_warnings([manifest]) == {"slow": (1,)}


def test_gaps() -> None:
    assert gaps({}) == gaps({0: [(1, 2)]}) == gaps({0: [(1, 3), (7, 9)], 1: [(9, 9), (2, 4)]}) == []
    assert gaps({0: [(1, 2), (5, 6)], 1: [(1, 2)], 2: []}) == [Gap(1, 2, (0, 1), (2,)), Gap(5, 6, (0,), (1, 2))]
    # A long window that contains others, and the first of overlapping ones.
    assert gaps({0: [(1, 100), (3, 4)], 1: [(50, 51)], 2: [(1, 2)]}) == [
        Gap(1, 2, (0, 2), (1,)),
        Gap(3, 4, (0,), (1, 2)),
        Gap(50, 51, (0, 1), (2,)),
    ]


def test_gaps_of_many_ranks_are_found_at_once() -> None:
    spans = [(n, n) for n in range(1000)]
    found = gaps({rank: spans if rank else spans[:-1] for rank in range(5000)})
    assert [(each.first, each.lacking) for each in found] == [(999, (0,))]
