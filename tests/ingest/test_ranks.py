"""Which rank a trace is of: the order of the sources, windows, conflicts, guesses, contradictions."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.test_runs import window
from tests.kineto import small_step, step, trace, write

from rankscope.ingest.kineto import read_kineto
from rankscope.ingest.ranks import assign_ranks, without_numbered_folders
from rankscope.ingest.run_findings import contradicted_ranks
from rankscope.ingest.trace_metadata import trace_info
from rankscope.store.trace_info import TraceInfo


def info_of(folder: Path, name: str, **metadata: Any) -> TraceInfo:
    return trace_info(read_kineto(str(write(folder / name, trace(small_step(), **metadata)))))


OWN: dict[str, Any] = {"schema_version": 1, "rank": 5, "world_size": 8, "run_id": "r", "host": "h"}
INFO = {"backend": "nccl", "rank": 3, "world_size": 4}


@pytest.mark.parametrize(
    ("name", "metadata", "rank", "source", "world_size"),
    [
        ("rank1_iter1_2.trace.json", {"rankscope": OWN, "distributedInfo": INFO}, 5, "metadata", 8),
        ("rank1.json", {"distributedInfo": INFO}, 3, "distributedInfo", 4),
        ("rank1.json", {"distributedInfo": str(INFO)}, 3, "distributedInfo", 4),
        ("rank1.json", {}, 1, "name", None),
        ("trace-2-of-4.json", {}, 2, "name", 4),
        ("rank-3-coord-1-0-trace.tar.gz", {}, 3, "name", None),
        ("rank_7/trace.json", {}, 7, "folder", None),
        ("7/trace.json", {}, 7, "folder", None),
        ("worker0.1623143089861.pt.trace.json", {}, 0, "name", None),
        ("host_123.1698955894937697163.pt.trace.json", {}, None, "none", None),
        ("rank1.json", {"distributedInfo": {"rank": "three"}}, 1, "name", None),
        ("rank1.json", {"distributedInfo": [1]}, 1, "name", None),
        ("rank1.json", {"distributedInfo": {"rank": 2**62, "world_size": 2**62}}, 1, "name", None),
        ("rank1.json", {"rankscope": "not an object"}, 1, "name", None),
    ],
)
def test_the_first_source_gives_the_rank(
    tmp_path: Path, name: str, metadata: dict[str, Any], rank: int | None, source: str, world_size: int | None
) -> None:
    info = info_of(tmp_path / "run", name, **metadata)
    assert (info.rank, info.rank_source, info.world_size) == (rank, source, world_size)


def test_metadata_of_a_trace(tmp_path: Path) -> None:
    info = info_of(
        tmp_path,
        "rank0.json",
        rank=0,
        world_size=2,
        base_time_ns=1_700_000_000_000_000_000,
        deviceProperties=[{"id": 0, "name": "H100", "totalGlobalMem": 80, "numSms": 132}, "odd", {"id": "x"}],
    )
    assert (info.first_step, info.last_step) == (1, 1)
    assert (info.start_ns, info.end_ns) == (0, 100_000)
    assert info.base_time_ns == 1_700_000_000_000_000_000
    assert info.devices[0]["name"] == "H100"
    assert info.counts["X kernel"] == 2
    assert (info.lost_events, info.truncated) == (0, False)


def at(rank: int | None, start: int, end: int, path: str, base: int = 0) -> TraceInfo:
    return TraceInfo(path, rank=rank, start_ns=start, end_ns=end, base_time_ns=base, rank_source="name")


def test_windows_of_one_rank_follow_one_another() -> None:
    infos = [at(0, 200, 300, "a"), at(0, 0, 100, "b"), at(1, 0, 100, "c", base=1000), at(1, 0, 100, "d")]
    ranks, findings = assign_ranks(infos)
    assert {rank: [info.path for info in files] for rank, files in ranks.items()} == {0: ["b", "a"], 1: ["d", "c"]}
    assert findings == []


def test_two_files_that_claim_one_rank_and_time() -> None:
    ranks, findings = assign_ranks([at(0, 0, 100, "rank0_b"), at(0, 50, 150, "rank0_a"), at(1, 0, 9, "rank1")])
    assert [info.path for info in ranks[0]] == ["rank0_a"]
    (finding,) = findings
    assert (finding.id, finding.severity, finding.ranks) == ("rank-conflict", "error", (0,))
    assert "rank0_a is read" in finding.title
    assert "rank0_b is left out" in finding.title
    assert finding.advice


def test_files_without_a_rank_get_the_free_ones_in_order() -> None:
    ranks, findings = assign_ranks([at(None, 0, 1, "t10"), at(1, 0, 1, "x"), at(None, 0, 1, "t9")])
    assert {rank: files[0].path for rank, files in ranks.items()} == {0: "t9", 1: "x", 2: "t10"}
    assert ranks[0][0].rank_source == "order"
    (finding,) = findings
    assert (finding.id, finding.ranks) == ("rank-guessed", (0, 2))
    ranks, findings = assign_ranks([at(None, 0, 1, "alone")])
    assert (list(ranks), findings) == ([0], [])


@pytest.mark.parametrize("seed", range(20))
def test_windows_that_overlap_any_kept_one_are_left_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(seed)
    infos = []
    for number in range(200):
        start = source.randrange(1000)
        infos.append(at(0, start, start + source.choice((0, 1, 3, 10)), f"t{number}"))
    kept: list[TraceInfo] = []
    for info in infos:
        if not any(info.overlaps(other) for other in kept):
            kept.append(info)
    compared = 0
    overlaps = TraceInfo.overlaps

    def counted(self: TraceInfo, other: TraceInfo) -> bool:
        nonlocal compared
        compared += 1
        return overlaps(self, other)

    monkeypatch.setattr(TraceInfo, "overlaps", counted)
    ranks, findings = assign_ranks(infos)
    assert {info.path for info in ranks[0]} == {info.path for info in kept}
    assert len(findings) == len(infos) - len(kept) > 0
    # Each is compared with its neighbors in time, not with all.
    assert compared <= 2 * len(infos)


def test_a_host_only_trace_has_an_extent_too(tmp_path: Path) -> None:
    info = trace_info(read_kineto(str(write(tmp_path / "t.json", trace([step(4, 10, 5), step(5, 20, 5)])))))
    assert (info.start_ns, info.end_ns, info.first_step, info.last_step) == (10_000, 25_000, 4, 5)
    empty = trace_info(read_kineto(str(write(tmp_path / "e.json", trace([])))))
    assert (empty.start_ns, empty.end_ns, empty.first_step) == (None, None, None)


def of_rank(path: str, rank: int, source: str = "distributedInfo", world: int | None = 4) -> TraceInfo:
    return replace(window(path, rank, 0, world=world, pid=100 + rank), rank_source=source)


def ids(*infos: TraceInfo) -> list[str]:
    return [finding.id for finding in contradicted_ranks({info.rank or 0: [info] for info in infos})]


def test_no_contradiction() -> None:
    assert ids(of_rank("rank0.json", 0), of_rank("rank1.json", 1, "name"), of_rank("x.json", 2, "metadata")) == []
    # These numbers are not called ranks.
    assert (
        ids(
            of_rank("worker0.1623143089861.pt.trace.json", 3),
            of_rank("0/trace.json", 2),
            of_rank("t-TP-0.trace.json", 1),
        )
        == []
    )


def test_a_name_for_another_rank() -> None:
    (finding,) = contradicted_ranks({1: [of_rank("d/rank0.json", 1)], 0: [of_rank("d/rank0_iter1_3.trace.json", 0)]})
    assert (finding.id, finding.severity, finding.ranks) == ("rank-contradicted", "warning", (1,))
    assert finding.evidence[0].name == "rank0.json"
    assert finding.evidence[0].value == "rank 1 by distributedInfo, 0 by name"


def test_sizes_that_differ_and_a_rank_beyond_them() -> None:
    differ, beyond = contradicted_ranks(
        {
            0: [of_rank("rank0.json", 0, world=2)],
            1: [of_rank("rank1.json", 1)],
            7: [of_rank("rank7.json", 7, "name", None)],
        }
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


def test_a_server_is_not_a_rank_and_dimensions_are_counted_from_within() -> None:
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
