"""Findings from the ranks' manifests, and for steps that not all ranks recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.kineto import small_step, trace, write

from rankscope.engine.pipeline import open_run
from rankscope.errors import NoTracesError
from rankscope.ingest.manifests import capture_findings, window_gaps
from rankscope.rundir.coverage import KEPT
from rankscope.rundir.manifest import LostWindow, RankManifest, WrittenTrace, to_json
from rankscope.store.trace_info import TraceInfo


def says(rank: int, **more: Any) -> RankManifest:
    return RankManifest(run_id="r", rank=rank, state="finished", **more)


def test_nothing_to_say() -> None:
    quiet = [says(rank, written=(WrittenTrace(f"rank{rank}.json"),)) for rank in range(2)]
    assert capture_findings(quiet, ["/x/rank0.json", "/y/rank1.json"]) == []


def test_windows_lost_for_one_reason_are_one_finding() -> None:
    full = [LostWindow(10, 12, f"OSError: no space left: {rank} bytes wanted") for rank in range(3)]
    manifests = [says(rank, failed=(full[rank],)) for rank in range(3)]
    manifests[2] = says(2, failed=(full[2], LostWindow(20, 22, "killed")), skipped=(LostWindow(30, None, ""),))
    failed, killed, skipped = capture_findings(manifests, [])
    assert (failed.id, failed.severity, failed.ranks, failed.steps) == (
        "windows-failed",
        "warning",
        (0, 1, 2),
        (10, 11, 12),
    )
    assert failed.title == (
        "1 window was recorded but not written to the run directory on 3 ranks: OSError: no space left: 0 bytes wanted"
    )
    assert "lost" in failed.advice
    assert [(each.name, each.value) for each in failed.evidence][:1] == [("rank 0, steps 10–12", full[0].reason)]
    assert (killed.ranks, killed.steps) == ((2,), (20, 21, 22))
    assert (skipped.id, skipped.severity, skipped.ranks, skipped.steps) == ("windows-skipped", "info", (2,), ())
    assert skipped.title == "1 window was not recorded on 1 rank: no reason given"


def test_a_kept_trace_is_not_called_lost() -> None:
    reason = f"TraceKeptError: disk full; {KEPT}/tmp/kept-run-1/rank0.json: rankscope gather adds it"
    (kept,) = capture_findings([says(0, failed=(LostWindow(1, 2, reason),))], [])
    assert "lost" not in kept.advice
    assert "rankscope gather" in kept.advice


def test_traces_that_are_gone_and_captures_that_did_not_end() -> None:
    written = (
        WrittenTrace("ranks0-1023/rank0_iter1_2.trace.json.gz", 1, 2),
        WrittenTrace("rank0_iter5_5.trace.json.gz", 5, 5),
    )
    manifest = RankManifest(run_id="r", rank=0, written=written, warnings=("slow disk",))
    gone, unfinished, warned = capture_findings([manifest], ["/run/ranks0-1023/rank0_iter1_2.trace.json.gz"])
    assert (gone.id, gone.severity, gone.steps) == ("traces-gone", "warning", (5,))
    assert gone.evidence[0].value == "rank0_iter5_5.trace.json.gz"
    assert (unfinished.id, unfinished.ranks) == ("capture-unfinished", (0,))
    assert (warned.id, warned.title) == ("capture-warned", "Capture warned: slow disk")


def test_traces_that_a_running_job_wrote_since_are_not_gone(tmp_path: Path) -> None:
    (tmp_path / "rank0_iter5_5.trace.json.gz").touch()
    written = (WrittenTrace("rank0_iter5_5.trace.json.gz", 5, 5), WrittenTrace("rank0_iter9_9\0.trace.json.gz", 9, 9))
    found = capture_findings([RankManifest(run_id="r", rank=0, written=written)], [], [str(tmp_path)])
    assert [(each.id, each.steps) for each in found] == [("traces-gone", (9,)), ("capture-unfinished", ())]


def test_an_interrupted_job_is_no_running_one() -> None:
    """Two windows of three steps each were recorded of twelve steps that were wanted."""
    written = (WrittenTrace("a.trace.json.gz", 3, 5), WrittenTrace("b.trace.json.gz", 9, 11))
    common = {"run_id": "r", "state": "interrupted", "ended_by": "SIGTERM", "last_step": 13}
    ranks = [RankManifest(**common, rank=rank, written=written, requested_steps=12) for rank in (0, 1)]
    (found,) = capture_findings(ranks, ["a.trace.json.gz", "b.trace.json.gz"])
    assert (found.id, found.severity, found.ranks) == ("job-interrupted", "warning", (0, 1))
    assert found.title == "The job was interrupted on 2 ranks: SIGTERM after step 13, 6 of 12 requested steps recorded"
    assert found.evidence[0].value == "SIGTERM after step 13, 6 of 12 requested steps recorded"
    assert RankManifest(run_id="r", rank=0).interruption == ""


@pytest.mark.parametrize("state", ["interrupted", "running"])
def test_dumps_of_a_job_that_did_not_finish_are_named(tmp_path: Path, state: str) -> None:
    rank = RankManifest(run_id="r", rank=1, state=state)
    (found,) = capture_findings([rank], [], [str(tmp_path)])
    assert "rankscope hang" not in (found.advice or "")
    (tmp_path / "hang").mkdir()
    (tmp_path / "hang" / "rank1.json").touch()
    (found,) = capture_findings([rank], [], [str(tmp_path)])
    assert (found.advice or "").endswith(f"rankscope hang {tmp_path}")


def test_each_attempt_of_an_elastic_job_has_its_end() -> None:
    """The first attempt of rank 0 noted a signal, that of rank 1 nothing: a later attempt shows that it was killed."""
    first = [
        RankManifest(run_id="r", rank=0, state="interrupted", ended_by="SIGTERM", last_step=6),
        RankManifest(run_id="r", rank=1),
    ]
    second = [RankManifest(run_id="r", rank=rank, restart_count=1, state="finished") for rank in (0, 1)]
    (found,) = capture_findings([*first, *second], [])
    assert (found.id, found.title) == ("job-interrupted", "Attempt 1 of 2 was interrupted on 2 ranks: SIGTERM, killed")
    assert [each.value for each in found.evidence] == [
        "SIGTERM after step 6, 0 steps recorded",
        "killed, 0 steps recorded",
    ]


def test_a_warning_of_a_loss_is_reported_once() -> None:
    lost = LostWindow(1, 2, "OSError: disk full")
    text = "steps 1 to 2 were lost (save): OSError: disk full; the job goes on"
    assert [each.id for each in capture_findings([says(0, failed=(lost,), warnings=(text,))], [])] == ["windows-failed"]


def test_an_absurd_manifest_costs_nothing() -> None:
    (finding,) = capture_findings([says(0, skipped=(LostWindow(0, 2**62, "x"), LostWindow(5, 1, "x")))], [])
    assert len(finding.steps) <= 1000


def windows(*spans: tuple[int, int]) -> list[TraceInfo]:
    return [TraceInfo(f"{first}", first_step=first, last_step=last) for first, last in spans]


def test_steps_that_not_all_ranks_recorded() -> None:
    assert window_gaps({0: windows((1, 3), (10, 12)), 1: windows((2, 4), (12, 14))}) == []
    assert window_gaps({0: windows((1, 3)), 1: [TraceInfo("no steps")]}) == []
    (gap,) = window_gaps({0: windows((1, 3), (10, 12)), 1: windows((1, 3)), 2: windows((1, 3), (9, 12))})
    assert (gap.id, gap.severity, gap.ranks, gap.steps) == ("window-gap", "warning", (1,), (9, 10, 11, 12))
    assert gap.title == "1 rank has no trace of steps 9–12, which others recorded"
    assert [each.value for each in gap.evidence] == [2, 1]


def test_from_a_run_directory(tmp_path: Path) -> None:
    for rank in range(2):
        own = {"schema_version": 1, "run_id": "r", "rank": rank, "world_size": 2}
        write(tmp_path / f"rank{rank}_iter1_1.trace.json", trace(small_step(), rankscope=own))
        manifest = says(rank, written=(WrittenTrace(f"rank{rank}_iter1_1.trace.json", 1, 1),))
        write(tmp_path / "ranks" / f"rank{rank}.json", to_json(manifest))
    assert open_run(tmp_path).load().findings == []
    lost = LostWindow(7, 8, "the profiler was in use")
    write(tmp_path / "ranks" / "rank1.json", to_json(says(1, skipped=(lost,))))
    # Of another run in the same directory, and one that is cut.
    other = RankManifest(run_id="other", rank=0, failed=(lost,))
    write(tmp_path / "ranks" / "rank0.2.json", to_json(other))
    write(tmp_path / "ranks" / "rank0.3.json", to_json(other)[:40])
    write(tmp_path / "ranks" / "rank0.4.json", to_json(says(-1)))
    run = open_run(tmp_path).load()
    assert run.findings[0].title.startswith("2 rank manifests cannot be read")
    assert [(each.id, each.ranks, each.steps) for each in run.findings] == [
        ("manifest-unreadable", (), ()),
        ("windows-skipped", (1,), (7, 8)),
    ]
    assert [manifest.rank for manifest in run.loaded.rank_manifests] == [0, 1]


@pytest.mark.parametrize("case", ["withdrawn", "adopted", "not decided for all", "recorded by both"])
def test_a_window_that_one_rank_withdrew_is_left_out_on_the_others(tmp_path: Path, case: str) -> None:
    """Rank 0 had written step 5 when rank 1, in the last step of the window, dropped it for all ranks."""
    windows = {0: [1, 5], 1: [1, 5] if case == "recorded by both" else [1]}
    why = "the job started a torch profiler of its own on rank 1"
    for rank, steps in windows.items():
        for step in steps:
            own = {"schema_version": 1, "run_id": "r", "rank": rank, "world_size": 2}
            write(
                tmp_path / f"rank{rank}_iter{step}_{step}.trace.json",
                trace(small_step(1000.0 * step, step), rankscope=own),
            )
        adopted = case == "adopted"
        written = tuple(WrittenTrace(f"rank{rank}_iter{n}_{n}.trace.json", n, n, adopted=adopted) for n in steps)
        skipped = (LostWindow(5, 5, why, case != "not decided for all"),) if rank else ()
        write(tmp_path / "ranks" / f"rank{rank}.json", to_json(says(rank, written=written, skipped=skipped)))
    loaded = open_run(tmp_path).load().loaded
    found = {each.id: each for each in loaded.findings}
    left_out = case == "withdrawn"
    assert [trace.info.first_step for trace in loaded.ranks[0]] == ([1] if left_out else [1, 5])
    assert ("window-withdrawn" in found) is left_out
    assert ("window-gap" in found) is (case in ("adopted", "not decided for all"))
    if left_out:
        withdrawn = found["window-withdrawn"]
        assert (withdrawn.ranks, withdrawn.steps, withdrawn.evidence[1].value) == ((0,), (5,), why)
        assert withdrawn.title == "The trace of step 5 on rank 0 is left out: rank 1 has none of these steps"


def test_many_ranks_have_folders_of_manifests(tmp_path: Path) -> None:
    own = {"schema_version": 1, "run_id": "r", "rank": 5, "world_size": 2000}
    write(tmp_path / "ranks0-1023" / "rank5_iter1_1.trace.json", trace(small_step(), rankscope=own))
    write(tmp_path / "ranks" / "ranks0-1023" / "rank5.json", to_json(says(5, failed=(LostWindow(2, 2, "why"),))))
    found = {each.id: each for each in open_run(tmp_path).load().findings}
    assert found.keys() == {"windows-failed", "missing-ranks"}


def test_no_trace_at_all_says_why(tmp_path: Path) -> None:
    write(tmp_path / "ranks" / "rank0.json", to_json(says(0, failed=(LostWindow(1, 2, "OSError: disk full"),))))
    with pytest.raises(NoTracesError, match="rank 0 reported: OSError: disk full"):
        open_run(tmp_path)
