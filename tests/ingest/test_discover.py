"""Which files of a directory are traces."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.kineto import kernel, op, step, trace, write

from rankscope.engine.pipeline import open_run
from rankscope.errors import NoTracesError
from rankscope.experiments.simulate.truth import SCHEMA
from rankscope.ingest.discover import find_traces, natural
from rankscope.rundir.hang_dump import DUMP_FORMAT, HEARTBEAT_FORMAT, HangDump, Heartbeat


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
    names = ["rank10", "rank9", "10rank", "9rank", "rank", "", "٣", "rank²", "1²2", "a/b", "-1"]
    assert sorted(names, key=natural).index("rank9") < sorted(names, key=natural).index("rank10")


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


@pytest.mark.parametrize(
    ("names", "command"),
    [
        (
            ["_dump_0", "_dump_1"],
            "rankscope hang {folder}",
        ),  # of the Flight Recorder
        (["nccl_trace_rank_3"], "rankscope hang {folder}"),
        (["job 1/_dump_0", "notes.txt"], "rankscope hang {folder}/job 1"),
        (["job2/_dump_0", "job2/_dump_1", "job10/nccl_trace_rank_0"], "rankscope hang {folder}/job2"),
        (["later/mem.pkl"], "rankscope summary {folder}/later/mem.pkl"),
        (["mem.pickle", "notes.txt"], "rankscope summary {folder}/mem.pickle"),
        (["step10.pkl", "step9.pkl"], "rankscope summary {folder}/step9.pkl"),
    ],
)
def test_a_directory_of_dumps_alone_names_the_command_that_reads_them(
    tmp_path: Path, names: list[str], command: str
) -> None:
    folder = tmp_path / "of dumps"
    for name in names:
        write(folder / name, b"\x80\x04N.", None)
    with pytest.raises(NoTracesError) as caught:
        find_traces(folder)
    # Quoted, so that it can be pasted though the folder's name has a space.
    hint = str(caught.value.hint)
    words = shlex.split(hint.rsplit(": ", 1)[-1])
    assert words == [part.replace("{folder}", str(folder)) for part in command.split(" ", 2)]
    assert ("2 directories" in hint) == (len({name.partition("/")[0] for name in names if "job" in name}) == 2)


def test_dumps_and_truths_of_ranks_are_no_traces(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", trace([step(1, 0, 90), kernel("k", 20, 30)]))
    heartbeat = Heartbeat(format=HEARTBEAT_FORMAT, rank=0).to_json().encode()
    write(tmp_path / "hang" / "rank0.json", HangDump(format=DUMP_FORMAT, rank=0).to_json().encode(), None)
    write(tmp_path / "hang" / "rank0.heartbeat.json", heartbeat, None)
    truth = json.dumps({"schema": SCHEMA, "rank": 0, "collectives": []}).encode()
    write(tmp_path / "truth" / "rank0.json", truth, None)
    assert [Path(path).name for path in find_traces(tmp_path).traces] == ["rank0.json"]
    # A user's own directories may have these names: what holds a trace, or may hold one, is read.
    others = [f"{folder}/rank{rank}.json" for folder in ("hang", "truth") for rank in (1, 2)]
    for name, content in zip(others, [trace([kernel("k", 20, 30)]), b'{"schema": 1}'] * 2, strict=True):
        write(tmp_path / name, content, None)
    found = [str(Path(path).relative_to(tmp_path)) for path in find_traces(tmp_path).traces]
    assert sorted(found) == sorted(["rank0.json", *others])


def test_a_directory_of_heartbeats_alone_names_the_command_that_reads_them(tmp_path: Path) -> None:
    heartbeat = Heartbeat(format=HEARTBEAT_FORMAT, rank=0).to_json().encode()
    write(tmp_path / "hang" / "rank0.heartbeat.json", heartbeat, None)
    with pytest.raises(NoTracesError) as caught:
        find_traces(tmp_path)
    assert str(caught.value.hint).endswith(f"rankscope hang {shlex.quote(str(tmp_path / 'hang'))}")


def test_a_directory_without_dumps_lists_the_names_of_traces(tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", b"", None)
    with pytest.raises(NoTracesError) as caught:
        find_traces(tmp_path)
    assert ".json.gz" in str(caught.value.hint) and "pickle" not in str(caught.value.hint).split("end in")[0]
