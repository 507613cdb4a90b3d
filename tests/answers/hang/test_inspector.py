"""Logs of the NCCL Inspector, in the format that NCCL publishes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rankscope.answers.hang import NoDumpsError, read
from rankscope.cli import make_app


def line(rank, sequence, *, operation="AllReduce", size=4, communicator="0x7f8c496ae9f661", at=0):
    return json.dumps(
        {
            "header": {"id": communicator, "rank": rank, "n_ranks": size, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "",
                "rec_mechanism": "profiler_plugin",
                "dump_timestamp_us": 1748030377748202 + at,
                "hostname": "h0",
                "pid": 100 + rank,
            },
            "coll_perf": {
                "coll": operation,
                "coll_sn": sequence,
                "coll_msg_size_bytes": 4096,
                "coll_exec_time_us": 61974,
                "coll_algobw_gbs": 277.210914,
                "coll_busbw_gbs": 485.119099,
            },
        }
    )


def write(folder, rank, *lines):
    (folder / f"h0-pid{100 + rank}.log").write_text("\n".join(lines) + "\n")


def test_the_rank_that_is_behind_is_named_and_no_verdict_is_given(tmp_path):
    for rank in (0, 1, 2):
        write(tmp_path, rank, line(rank, 1406), line(rank, 1407, at=1))
    write(tmp_path, 3, line(3, 1404), line(3, 1405, at=1)[:-5])  # killed while it wrote
    verdict = read(tmp_path)
    assert not verdict.found
    assert verdict.notes == (
        "Inspector: communicator 0x7f8c496ae9f661 of 4 ranks: "
        "the last completed collective is AllReduce 1407, 4,096 bytes, on its ranks 0-2",
        "Inspector: communicator 0x7f8c496ae9f661 of 4 ranks: its ranks 3 have completed 3 fewer, up to 1404",
    )
    done = CliRunner().invoke(make_app(["hang"]), ["hang", str(tmp_path)], env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert "its ranks 3 have completed 3 fewer" in done.output


def test_uneven_communicators_come_first_and_missing_logs_are_named(tmp_path):
    write(tmp_path, 0, line(0, 7, communicator="a", size=2), line(0, 9, communicator="b", size=2))
    write(tmp_path, 1, line(1, 7, communicator="a", size=2), line(1, 8, communicator="b", size=2))
    write(tmp_path, 2, line(0, 3, communicator="c", size=3))
    notes = read(tmp_path).notes
    assert notes[0].startswith("Inspector: communicator b of 2 ranks: the last completed")
    assert notes[-1] == "Inspector: communicator c of 3 ranks: no log of its ranks 1-2"


def test_a_log_without_a_completed_collective_is_a_problem(tmp_path):
    bad = line(0, 1).replace('"coll_sn": 1', '"coll_sn": -1')
    write(tmp_path, 0, bad)
    with pytest.raises(NoDumpsError, match="no completed collective"):
        read(tmp_path)
