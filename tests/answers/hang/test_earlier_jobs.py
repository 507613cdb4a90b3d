"""What an earlier job left in the same directory, and processes that are gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rankscope.answers.hang import Cause, NoDumpsError, read
from rankscope.rundir.hang_dump import (
    DUMP_FORMAT,
    HEARTBEAT_FORMAT,
    Frame,
    HangDump,
    Heartbeat,
    ThreadStack,
    dump_name,
    heartbeat_name,
)
from rankscope.rundir.processes import pid_namespace

SLEEPS = ThreadStack((Frame("/job/train.py", 19, "main", "time.sleep(9)"),), "MainThread", 1, training=True)


def dump(folder, rank, at, **fields):
    values = {"reason": "no step for 300 s", "threads": (SLEEPS,), "world_size": 2, **fields}
    (folder / dump_name(rank)).write_text(HangDump(DUMP_FORMAT, rank, time_ns=at, **values).to_json())


def beat(folder, rank, at, began, **fields):
    values = {"interval_ns": 10**10, "world_size": 2, **fields}
    written = Heartbeat(HEARTBEAT_FORMAT, rank, time_ns=at, began_ns=began, **values)
    (folder / heartbeat_name(rank)).write_text(written.to_json())


def test_a_dump_of_an_earlier_attempt_is_left_out(tmp_path):
    dump(tmp_path, 0, at=500, run_id="a", began_ns=100, uncaught="RuntimeError: Connection reset by peer")
    for rank in (0, 1):
        beat(tmp_path, rank, at=2000, began=1000, run_id="a", restart_count=1)
    found = read(tmp_path)
    assert not found.found
    assert any("1 dump of an earlier job" in note for note in found.notes)


@pytest.mark.parametrize("run_id", ["a", ""])
def test_while_a_job_starts_again_the_attempt_before_is_no_hang(tmp_path, run_id):
    dump(tmp_path, 0, at=500, run_id=run_id, began_ns=100, uncaught="RuntimeError: Connection closed by peer")
    beat(tmp_path, 0, at=500, began=100, run_id=run_id, ended=True, exception="RuntimeError: Connection closed by peer")
    beat(tmp_path, 1, at=450, began=100, run_id=run_id, ended=True)
    assert read(tmp_path).culprits == (1,)
    # Rank 1 of the next attempt is there; rank 0 is not.
    beat(tmp_path, 1, at=2000, began=1000, run_id=run_id, restart_count=1)
    assert not read(tmp_path).found


def test_a_dump_of_an_earlier_job_is_left_out(tmp_path):
    for rank in (0, 1):
        dump(tmp_path, rank, at=500, began_ns=100)
        beat(tmp_path, rank, at=2000, began=1000)
    verdict = read(tmp_path)
    assert not verdict.found
    assert verdict.notes == ("2 dumps of an earlier job or attempt in this directory were left out",)
    dump(tmp_path, 1, at=1900, began_ns=1000)
    verdict = read(tmp_path)
    assert (verdict.found, verdict.culprits, verdict.cause) == (True, (1,), Cause.PYTHON_CODE)
    assert verdict.notes == ("1 dump of an earlier job or attempt in this directory was left out",)


def test_ranks_that_the_latest_job_does_not_have_are_of_an_earlier_one(tmp_path):
    for rank in range(4):
        beat(tmp_path, rank, at=500, began=100, world_size=4)
        dump(tmp_path, rank, at=450, world_size=4)
    for rank in (0, 1):
        beat(tmp_path, rank, at=2000, began=1000)
    verdict = read(tmp_path)
    assert (verdict.found, verdict.world_size) == (False, 2)


def test_another_run_id_is_another_job(tmp_path):
    beat(tmp_path, 0, at=10**12, began=10**11, run_id="second")
    # Rank 1 of this job never began: nothing says when.
    beat(tmp_path, 1, at=10**10, began=10**9, run_id="first")
    dump(tmp_path, 1, at=10**10, run_id="first")
    assert not read(tmp_path).found


def test_without_heartbeats_every_dump_counts(tmp_path):
    dump(tmp_path, 1, at=500)
    assert read(tmp_path).culprits == (1,)


def gone_process():
    """The number of a process that has ended, and was waited for."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


@pytest.mark.skipif(not pid_namespace(), reason="processes are looked for in /proc")
def test_a_process_that_is_gone_without_a_word_is_dead_if_others_are_not(tmp_path):
    import os
    import socket

    here = {"host": socket.gethostname(), "pid_namespace": pid_namespace()}
    beat(tmp_path, 0, at=1000, began=1, pid=os.getpid(), **here)
    beat(tmp_path, 1, at=1000, began=1, pid=gone_process(), **here)
    verdict = read(tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.DEAD, (1,))
    assert "is gone without having noted its end" in verdict.ranks[0].evidence
    # Elsewhere its number means nothing.
    for place in ({"host": "elsewhere"}, {"pid_namespace": "pid:[1]"}):
        beat(tmp_path, 1, at=1000, began=1, pid=gone_process(), **{**here, **place})
        assert not read(tmp_path).found
    # All gone: the job was ended as a whole.
    beat(tmp_path, 0, at=1000, began=1, pid=gone_process(), **here)
    beat(tmp_path, 1, at=1000, began=1, pid=gone_process(), **here)
    assert not read(tmp_path).found


@pytest.mark.skipif(not pid_namespace(), reason="processes are looked for in /proc")
def test_the_ranks_that_the_launcher_ended_after_a_failure_are_not_the_cause(tmp_path):
    import socket

    here = {"host": socket.gethostname(), "pid_namespace": pid_namespace(), "pid": gone_process()}
    beat(tmp_path, 0, at=10**12, began=1, **here)
    beat(tmp_path, 1, at=10**12 + 1, began=1, ended=True, exception="ValueError: bad batch", **here)
    verdict = read(tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.EXCEPTION, (1,))
    # A rank that had been silent for long by then is.
    beat(tmp_path, 0, at=10**11, began=1, **here)
    assert read(tmp_path).culprits == (0,)


def test_an_empty_directory_has_nothing(tmp_path):
    with pytest.raises(NoDumpsError):
        read(tmp_path)
