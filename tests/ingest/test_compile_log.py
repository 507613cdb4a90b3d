"""torch's structured trace log: that of a small job with torch 2.13 (`recorded/`), and damaged ones.

The job calls a function with a `print` in it, first with three values of an argument, then with another shape.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import polars as pl
import pytest

from rankscope.cli import main
from rankscope.errors import NotATraceError, NoTracesError
from rankscope.ingest.compile_log import read_compile_log, with_calls

RECORDED = gzip.decompress((Path(__file__).parent / "recorded" / "torch_trace_rank2.log.gz").read_bytes())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log" / "dedicated_log_torch_trace_rank_2_dd9pd1af.log"
    path.parent.mkdir()
    path.write_bytes(RECORDED)
    return path


def test_what_was_compiled_and_why_again(log: Path) -> None:
    frame = read_compile_log(log.parent).frame
    assert frame["rank"].to_list() == [2] * 5
    assert frame["compile_id"].to_list() == ["0/0", "1/0", "0/1", "0/2", "1/1"]
    assert frame["function"].to_list()[:2] == ["f", "torch_dynamo_resume_in_f_at_7"]
    assert frame["place"][0] == "/home/user/job.py:4"
    assert frame["breaks"].to_list() == [1, 0, 1, 1, 0]
    assert frame["break_reason"][0].startswith(
        "/home/user/job.py:7: Dynamo does not know how to trace builtin operator `print`"
    )
    assert frame["recompile_reason"].to_list() == [
        None,
        None,
        "0/0: n == 1  # y = torch.sin(x) + n  # mp/fmt/job.py:6 in f",
        "0/1: tensor 'x' size mismatch at index 0. expected 4, actual 8",
        "1/0: tensor 'y' size mismatch at index 0. expected 4, actual 8",
    ]
    # As the records say: entire_frame_compile_time_s, in seconds.
    assert frame["compile_ns"][0] == 143_234_021_000
    assert frame["backward_ns"][1] == 9_099_036_000
    assert frame["start_ns"].to_list()[:2] == sorted(frame["start_ns"].to_list())[:2]
    assert frame["start_ns"][0] == 0


def test_calls_of_the_regions_in_a_trace(log: Path) -> None:
    compiled = pl.DataFrame(
        {"rank": [2, 2, 0], "kind": ["region", "graph", "region"], "frame": [0, 0, 0], "version": [1, 1, 0],
         "calls": [7, 9, 1], "host_ns": [70, 90, 10]}
    )  # fmt: skip
    joined = with_calls(read_compile_log(log).frame, compiled)
    assert joined.select("compile_id", "calls", "host_ns").rows() == [
        ("0/0", None, None), ("1/0", None, None), ("0/1", 7, 70), ("0/2", None, None), ("1/1", None, None),
    ]  # fmt: skip


def test_damage_loses_what_it_hits(log: Path) -> None:
    text = RECORDED.decode()
    metrics = next(line for line in text.splitlines() if '"compilation_metrics"' in line)
    hostile = metrics.split("] ")[0] + '] {"compilation_metrics": {"compile_id": [], "co_name": 5}}\n'
    other = hostile.replace("[]", '"9/9"').replace("5}", '"g", "entire_frame_compile_time_s": 1e999}')
    log.write_text(text.replace(metrics, metrics[:200]) + hostile + other + "\x00junk\n")
    found = read_compile_log(log)
    assert found.unread == 3
    assert found.frame["compile_id"].to_list() == ["1/0", "0/1", "0/2", "1/1", "0/0"]


def test_a_rank_that_is_none_is_unknown(tmp_path: Path) -> None:
    for number, rank in enumerate(("true", "10000000000000000000000", "-1", '"0"')):
        text = f'V1125 22:13:19.115000 12 a.py:1] {{"compilation_metrics": {{"compile_id": "0/0"}}, "rank": {rank}}}\n'
        (tmp_path / f"dedicated_log_torch_trace_{number}.log").write_text(text)
    assert read_compile_log(tmp_path).frame["rank"].to_list() == [None] * 4


def test_an_empty_log_hides_no_other(log: Path) -> None:
    empty = log.with_name("dedicated_log_torch_trace_rank_3_x.log")
    empty.touch()
    found = read_compile_log(log.parent)
    assert (found.frame.height, found.left_out) == (5, [empty])


def test_errors_name_the_file(log: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_text("hello\n")
    with pytest.raises(NotATraceError, match=r"notes\.log"):
        read_compile_log(tmp_path / "notes.log")
    with pytest.raises(NoTracesError, match="TORCH_TRACE"):
        read_compile_log(tmp_path / "nothing")


def test_the_command(log: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rankscope", "compile-log", str(log.parent), "--format", "json"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (0, None)
    document = json.loads(capfd.readouterr().out)
    assert document["analysis"] == "compile_log"
    assert document["columns"]["compile_ns"]["unit"] == "ns"
    assert len(document["rows"]) == 5
