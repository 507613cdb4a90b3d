"""What speaks against the ranks that files say they are of, and numbers that were taken for ranks and are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.ingest.test_run_grouping import window
from tests.kineto import kernel, op, step, trace, write

from rankscope.ingest.contradictions import contradictions
from rankscope.ingest.discover import find_traces
from rankscope.ingest.identify import assign_ranks, without_numbered_folders
from rankscope.pipeline import open_run
from rankscope.store.trace_info import TraceInfo


def said(path: str, rank: int, source: str = "distributedInfo", world: int | None = 4) -> TraceInfo:
    return replace(window(path, rank, 0, world=world, pid=100 + rank), rank_source=source)


def ids(*infos: TraceInfo) -> list[str]:
    return [finding.id for finding in contradictions({info.rank or 0: [info] for info in infos})]


def test_nothing_speaks_against_it() -> None:
    assert ids(said("rank0.json", 0), said("rank1.json", 1, "name"), said("x.json", 2, "metadata")) == []
    # These numbers are not called ranks.
    assert (
        ids(said("worker0.1623143089861.pt.trace.json", 3), said("0/trace.json", 2), said("t-TP-0.trace.json", 1)) == []
    )


def test_a_name_for_another_rank() -> None:
    (finding,) = contradictions({1: [said("d/rank0.json", 1)], 0: [said("d/rank0_iter1_3.trace.json", 0)]})
    assert (finding.id, finding.severity, finding.ranks) == ("rank-contradicted", "warning", (1,))
    assert finding.evidence[0].name == "rank0.json"
    assert finding.evidence[0].value == "rank 1 by its distributedInfo, 0 by its name"


def test_sizes_that_differ_and_a_rank_beyond_them() -> None:
    differ, beyond = contradictions(
        {0: [said("rank0.json", 0, world=2)], 1: [said("rank1.json", 1)], 7: [said("rank7.json", 7, "name", None)]}
    )
    assert (differ.id, differ.ranks) == ("world-size-differs", (0,))
    assert "2 and 4 ranks" in differ.title
    assert (beyond.id, beyond.ranks) == ("rank-beyond", (7,))


def folder(number: int, at_s: float, pid: int) -> TraceInfo:
    return replace(window(f"t/{number}/h_{pid}.json", number, at_s, pid=pid, world=None), rank_source="folder")


def test_folders_that_count_steps() -> None:
    one = [folder(10, 0, 7), folder(20, 50, 7)]
    infos, (finding,) = without_numbered_folders(one)
    assert [info.rank for info in infos] == [None, None]
    assert (finding.id, len(finding.evidence)) == ("folders-are-no-ranks", 2)
    ranks, _ = assign_ranks(infos)
    assert {rank: [info.path for info in files] for rank, files in ranks.items()} == {
        0: ["t/10/h_7.json", "t/20/h_7.json"]
    }
    # Two processes in each.
    two = [folder(number, number, pid) for number in (10, 20) for pid in (7, 8)]
    ranks, _ = assign_ranks(without_numbered_folders(two)[0])
    assert [len(files) for files in ranks.values()] == [2, 2]
    assert without_numbered_folders([folder(10, 0, 7), folder(10, 0, 8)])[0][0].rank is None


@pytest.mark.parametrize(
    "infos",
    [
        [folder(0, 0, 7), folder(1, 0, 8)],
        [folder(0, 0, 7), folder(1, 50, 8)],
        [folder(0, 0, 1), folder(1, 0, 1)],  # containers, each with its own process 1
        [folder(0, 0, 7), folder(0, 50, 9), folder(1, 0, 8), folder(1, 50, 10)],  # two runs
        [replace(window(f"t/rank_{k}/x.json", k, 50 * k, pid=7), rank_source="folder") for k in (0, 1)],
    ],
)
def test_folders_that_count_ranks(infos: list[TraceInfo]) -> None:
    assert without_numbered_folders(infos) == (infos, [])


def test_a_server_is_no_rank_and_dimensions_are_counted_from_within() -> None:
    server = window("h_9.async_llm.1764000000000000001.pt.trace.json.gz", None, 0, pid=9)
    ranks, (finding,) = assign_ranks([window("rank0.json", 0, 0), server])
    assert (list(ranks), finding.id) == ([0], "no-rank")
    assert list(assign_ranks([server])[0]) == [0]
    cells = [
        replace(window(f"1764.5-TP-{tp}-PP-{pp}.trace.json.gz", None, 0, pid=10 * pp + tp), mesh={"tp": tp, "pp": pp})
        for tp in range(2)
        for pp in range(2)
    ]
    ranks, _ = assign_ranks(cells)
    assert [(files[0].mesh["pp"], files[0].mesh["tp"]) for files in ranks.values()] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_file_by_two_names_and_a_merged_one_are_read_once(tmp_path: Path) -> None:
    for rank in range(2):
        made = trace([step(1, 0, 90), {**op("aten::mm", 5, 9), "pid": 50 + rank}, kernel("k", 20, 30)])
        write(tmp_path / f"pre-1764.5-TP-{rank}-DECODE.trace.json.gz", made)
    for name in ("merged-1764.5.trace.json.gz", "merged-1.5.trace.json.gz"):
        write(tmp_path / name, trace([kernel("k", 20, 30)]))
    (tmp_path / "latest.json.gz").symlink_to(tmp_path / "pre-1764.5-TP-0-DECODE.trace.json.gz")
    found = find_traces(tmp_path)
    assert [Path(path).name for path in found.doubled] == ["merged-1764.5.trace.json.gz"]
    # Of another profile there are no parts here.
    assert [Path(path).name for path in found.traces] == [
        "merged-1.5.trace.json.gz",
        "pre-1764.5-TP-0-DECODE.trace.json.gz",
        "pre-1764.5-TP-1-DECODE.trace.json.gz",
    ]
    (tmp_path / "merged-1.5.trace.json.gz").unlink()
    run = open_run(tmp_path, executor="serial").load()
    assert run.ranks == [0, 1]
    assert [finding.id for finding in run.findings] == ["trace-doubled"]
    # Who names it, means it.
    assert find_traces([tmp_path / "merged-1764.5.trace.json.gz"]).doubled == []
    (link,) = find_traces(tmp_path / "latest.json.gz").traces
    assert link.endswith("latest.json.gz")
