"""Whose trace it is: the order of who is believed, windows, conflicts, guesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.kineto import kernel, small_step, step, trace, write

from rankscope.ingest.discover import find_traces, natural
from rankscope.ingest.identify import assign_ranks
from rankscope.ingest.kineto import read_kineto
from rankscope.ingest.trace_facts import describe
from rankscope.store.trace_info import TraceInfo


def info_of(folder: Path, name: str, **metadata: Any) -> TraceInfo:
    return describe(read_kineto(str(write(folder / name, trace(small_step(), **metadata)))))


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
def test_who_is_believed(
    tmp_path: Path, name: str, metadata: dict[str, Any], rank: int | None, source: str, world_size: int | None
) -> None:
    info = info_of(tmp_path / "run", name, **metadata)
    assert (info.rank, info.rank_source, info.world_size) == (rank, source, world_size)


def test_what_a_trace_says(tmp_path: Path) -> None:
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


def test_files_that_say_no_rank_take_the_free_ones_in_order() -> None:
    ranks, findings = assign_ranks([at(None, 0, 1, "t10"), at(1, 0, 1, "x"), at(None, 0, 1, "t9")])
    assert {rank: files[0].path for rank, files in ranks.items()} == {0: "t9", 1: "x", 2: "t10"}
    assert ranks[0][0].rank_source == "order"
    (finding,) = findings
    assert (finding.id, finding.ranks) == ("rank-guessed", (0, 2))
    ranks, findings = assign_ranks([at(None, 0, 1, "alone")])
    assert (list(ranks), findings) == ([0], [])


def test_a_host_only_trace_has_an_extent_too(tmp_path: Path) -> None:
    info = describe(read_kineto(str(write(tmp_path / "t.json", trace([step(4, 10, 5), step(5, 20, 5)])))))
    assert (info.start_ns, info.end_ns, info.first_step, info.last_step) == (10_000, 25_000, 4, 5)
    empty = describe(read_kineto(str(write(tmp_path / "e.json", trace([])))))
    assert (empty.start_ns, empty.end_ns, empty.first_step) == (None, None, None)


def test_found_in_a_directory(tmp_path: Path) -> None:
    wanted = ["rank0.json", "rank2.json.gz", "rank10.pt.trace.json.zst", "sub/deep/rank11.tar.gz", "sub/rank12.ZIP"]
    wanted.insert(2, "rank3.memory.pickle")
    manifests = ["ranks/rank0.json", "ranks/ranks0-1023/rank5_restart1.2.json"]
    others = ["run.json", *manifests, ".hidden.json", "notes.txt", ".git/a.json", "rank3.flight.pickle"]
    for name in wanted + others:
        write(tmp_path / name, b'{"run_id": "r"}', None)
    write(tmp_path / "elsewhere" / "ranks" / "rank13.json", b'{"schemaVersion": 1, "traceEvents": []}', None)
    found = find_traces(tmp_path)
    assert [str(Path(path).relative_to(tmp_path)) for path in found.traces] == ["elsewhere/ranks/rank13.json", *wanted]
    assert [str(Path(path).relative_to(tmp_path)) for path in found.rank_manifests] == manifests
    assert found.run_manifests == [str(tmp_path / "run.json")]
    assert not found.named
    assert [Path(path).name for path in find_traces(str(tmp_path / "rank*.json*")).traces] == [
        "rank0.json",
        "rank2.json.gz",
        "rank10.pt.trace.json.zst",
    ]
    assert find_traces([tmp_path / "rank0.json", tmp_path / "notes.txt"]).named


def test_links_in_circles_do_not_hang(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", trace([kernel("k", 0, 1)]))
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    assert len(find_traces(tmp_path).traces) == 1


def test_natural_order_of_odd_names() -> None:
    names = ["rank10", "rank9", "10rank", "9rank", "rank", "", "٣", "rank²", "a/b", "-1"]
    assert sorted(names, key=natural).index("rank9") < sorted(names, key=natural).index("rank10")
