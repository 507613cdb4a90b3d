"""A rank's manifest and warnings, written by several threads."""

from __future__ import annotations

from rankscope.capture.rank_log import RankLog
from rankscope.rundir.manifest import RankManifest


def test_all_threads_of_a_rank_agree_that_it_warns(tmp_path):
    """The second of two threads found the first one's mark, took it for another rank's, and neither warned."""
    kept = tmp_path / "kept"
    logs = [RankLog(str(tmp_path / "file"), RankManifest("one", rank), kept) for rank in range(2)]
    assert [logs[0]._warns_of_run_dir(kept) for _ in range(2)] == [True, True]
    assert [logs[1]._warns_of_run_dir(kept) for _ in range(2)] == [False, False]
