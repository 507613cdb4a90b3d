"""Logs are read incrementally, across segments, and whatever is in them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rankscope.answers.watch.log import WatchLogs
from rankscope.capture.watch.log import WatchLog
from rankscope.errors import NoTracesError
from rankscope.rundir.watch_files import SCHEMA_VERSION, Header

from .jobs import SimulatedJob


def header(rank=0, **fields):
    return Header(SCHEMA_VERSION, rank, run_id="one", world_size=2, **fields)


def step(number):
    return json.dumps({"step": number, "start_ns": number * 100, "ns": 100})


@pytest.mark.parametrize("segment_bytes", [300, 1000, 10**6])
def test_each_look_reads_what_is_new(tmp_path, segment_bytes):
    rng = random.Random(segment_bytes)
    log = WatchLog(tmp_path / "watch", header(), segment_bytes=segment_bytes)
    log.write([step(0)], ['{"kind":0,"group":"0","op":"allreduce"}'])
    logs, written = WatchLogs(tmp_path), 1
    for _ in range(60):
        for _ in range(rng.randrange(3)):
            log.write([step(written), json.dumps({"calls": [[0, written, 0]], "base_ns": written})])
            written += 1
        logs.look()
        found = logs.latest()[0]
        assert [line.step for line in found.steps] == list(range(written))
        assert [call.sequence for call in found.calls] == list(range(1, written))
        assert found.damaged == 0
    # One that begins to read now has the latest segments.
    late = WatchLogs(tmp_path).latest()[0]
    steps = [line.step for line in late.steps]
    assert steps == list(range(steps[0], written))


def test_a_line_that_is_not_complete_is_read_later(tmp_path):
    log = WatchLog(tmp_path / "watch", header())
    log.write([step(0)])
    logs = WatchLogs(tmp_path)
    line = step(1).encode()
    for part in (line[:5], line[5:]):
        with log.path.open("ab") as file:
            file.write(part)
        logs.look()
        assert logs.latest()[0].last_step == 0
    with log.path.open("ab") as file:
        file.write(b"\n")
    logs.look()
    assert (logs.latest()[0].last_step, logs.latest()[0].damaged) == (1, 0)


HOSTILE = [
    b"{", b"[]", b"null", b"\xff\xfe", b'{"step":-1,"start_ns":0,"ns":1}', b'{"step":1e400,"start_ns":0,"ns":1}',
    b'{"calls":[[0,1,2]],"base_ns":5}', b'{"calls":7,"base_ns":5}', b'{"calls":[[0,1]],"base_ns":5}',
    b'{"group":"0","ranks":"0-999999999"}', b'{"group":"0","ranks":"x"}', b"[" * 100_000,
    b'{"step":' + b"9" * 5000 + b',"start_ns":0,"ns":1}', b'{"kind":0}', b"x" * (2 << 20),
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_a_damaged_line_costs_itself_alone(tmp_path, line):
    log = WatchLog(tmp_path / "watch", header())
    log.write([step(0)])
    with log.path.open("ab") as file:
        file.write(line + b"\n")
    log.write([step(1)])
    found = WatchLogs(tmp_path).latest()[0]
    assert [each.step for each in found.steps] == [0, 1]
    assert not found.calls
    assert all(len(ranks) < 1000 for ranks in found.groups.values())


def test_cut_at_every_byte(tmp_path):
    SimulatedJob(ranks=1, steps=3).write(tmp_path / "whole")
    raw = (tmp_path / "whole" / "watch" / "rank0.jsonl").read_bytes()
    path = tmp_path / "cut" / "watch" / "rank0.jsonl"
    path.parent.mkdir(parents=True)
    for size in range(raw.index(b"\n") + 1, len(raw), 7):
        path.write_bytes(raw[:size])
        logs = WatchLogs(tmp_path / "cut")
        assert logs.latest()[0].damaged == 0
        path.write_bytes(raw)
        logs.look()
        assert len(logs.latest()[0].steps) == 3


@pytest.mark.parametrize(
    "head", [b"", b"{}\n", b"[1]\n", b'{"schema_version":99,"rank":0}\n', b'{"schema_version":1,"rank":-1}\n']
)
def test_what_is_no_log_is_left_out(tmp_path, head):
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "rank0.jsonl").write_bytes(head)
    with pytest.raises(NoTracesError, match="no log of a watched job"):
        WatchLogs(tmp_path)


def test_no_directory(tmp_path):
    with pytest.raises(NoTracesError, match="no such directory"):
        WatchLogs(tmp_path / "missing")


def test_the_latest_attempt_counts(tmp_path):
    SimulatedJob(steps=20).write(tmp_path)
    SimulatedJob(ranks=2, steps=5).write(tmp_path, restart=1)
    logs = WatchLogs(tmp_path)
    assert logs.attempts() == 2
    assert {rank: log.last_step for rank, log in logs.latest().items()} == {0: 4, 1: 4}


def test_of_many_logs_the_first_look_reads_the_end_of_each(tmp_path, monkeypatch):
    SimulatedJob(ranks=2, steps=200).write(tmp_path)
    everything = WatchLogs(tmp_path).latest()
    monkeypatch.setattr("rankscope.answers.watch.log._ALL_FIRST_BYTES", 0)
    monkeypatch.setattr("rankscope.answers.watch.log._LEAST_FIRST_BYTES", 4000)
    for rank, log in WatchLogs(tmp_path).latest().items():
        steps, calls = list(everything[rank].steps), list(everything[rank].calls)
        assert log.damaged == 0
        assert 0 < len(log.calls) < len(calls)
        assert list(log.calls) == calls[-len(log.calls) :]
        assert list(log.steps) == steps[len(steps) - len(log.steps) :]
        assert log.groups == everything[rank].groups


def test_ranks_share_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("rankscope.answers.watch.log.ALL_CALLS", 200)
    monkeypatch.setattr("rankscope.answers.watch.log.LEAST_CALLS", 10)
    SimulatedJob(ranks=4, steps=100).write(tmp_path)
    assert [len(log.calls) for log in WatchLogs(tmp_path).logs()] == [50] * 4


def test_a_log_that_may_not_be_read_is_not_called_missing(tmp_path, monkeypatch):
    SimulatedJob(ranks=2, steps=3).write(tmp_path)

    def denied(_path, *_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(NoTracesError, match="cannot be read: Permission denied"):
        WatchLogs(tmp_path)
