"""One decision for all ranks about each window: as votes, and in real jobs with a slow writer, a dead store or rank."""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading

import pytest
import torch.distributed as dist

from rankscope.capture import process, votes
from rankscope.capture.notices import CaptureWarning
from rankscope.capture.votes import BUSY as WRITER_BUSY
from rankscope.capture.votes import WAITING_LIMIT
from rankscope.rundir.manifest import read_rank_manifest

from .conftest import clean_environ, traces
from .two_ranks import TRAIN, run

SLOW_ON_ONE = """
from rankscope.capture import trace_queue
original = trace_queue.finish_trace
def slow(*given, **named):
    time.sleep(0.5)
    return original(*given, **named)
if rank == 1:
    trace_queue.finish_trace = slow
"""
PACED = (
    "import time as t; train_one = train\ndef train(steps):\n    for _ in range(steps): t.sleep(0.01); train_one(1)\n"
)
DROP = "del model; gc.collect(); dist.destroy_process_group()"


def windows_of(folder):
    """By rank: first steps of the windows that were recorded, and of those that were skipped with the reasons."""
    found = []
    for rank in range(2):
        manifest = read_rank_manifest(folder / "run" / "ranks" / f"rank{rank}.json")
        assert not manifest.failed, manifest.failed
        found.append(
            (
                [each.first_step for each in manifest.written],
                {each.first_step: each.reason for each in manifest.skipped},
            )
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("wait", [1, 12], ids=["back to back", "some steps between"])
def test_all_ranks_record_the_same_windows_with_a_slow_writer_on_one(tmp_path, wait):
    options = {"RANKSCOPE_WAIT": str(wait), "RANKSCOPE_WARMUP": "1", "RANKSCOPE_ACTIVE": "2", "RANKSCOPE_REPEAT": "10"}
    ended = run(
        TRAIN.format(before=SLOW_ON_ONE, after=f"{PACED}\ntrain({(wait + 3) * 10 + 4})\n{DROP}"), tmp_path, **options
    )
    assert [each.code for each in ended] == [0, 0], ended
    (first, first_skipped), (second, second_skipped) = windows_of(tmp_path)
    assert first == second
    assert sorted([*first, *first_skipped]) == [1 + wait + 1 + n * (wait + 3) for n in range(10)]
    assert first_skipped == second_skipped
    assert first
    backlogged = f"{WAITING_LIMIT} recordings were waiting to be written"
    allowed = {f"{why} on rank {rank}" for why in (WRITER_BUSY, backlogged) for rank in (0, 1)}
    assert set(first_skipped.values()) <= allowed
    assert any(reason.endswith(" on rank 1") for reason in first_skipped.values())
    assert traces(tmp_path / "run") == sorted(
        f"rank{rank}_iter{n}_{n + 1}.trace.json.gz" for rank in (0, 1) for n in first
    )


@pytest.mark.slow
@pytest.mark.parametrize("when_busy", ["skip", "wait"])
def test_ranks_wait_for_a_slow_writer_if_asked_and_one_warns_if_not(tmp_path, when_busy):
    options = {"RANKSCOPE_WAIT": "5", "RANKSCOPE_ACTIVE": "2", "RANKSCOPE_WARMUP": "1", "RANKSCOPE_REPEAT": "6"}
    ended = run(
        TRAIN.format(before=SLOW_ON_ONE, after=f"train(60)\n{DROP}"), tmp_path, **options, RANKSCOPE_WHEN_BUSY=when_busy
    )
    assert [each.code for each in ended] == [0, 0], ended
    (first, first_skipped), (second, second_skipped) = windows_of(tmp_path)
    assert (first, first_skipped) == (second, second_skipped)
    assert sorted([*first, *first_skipped]) == [7 + n * 8 for n in range(6)]
    kinds = {reason.partition(" on rank ")[0] for reason in first_skipped.values()}
    if when_busy == "wait":
        assert not first_skipped
    # One rank says each, and the manifests of both have it.
    assert sum(each.errors.count("were not recorded") for each in ended) == len(kinds), ended
    for rank in range(2):
        warned = read_rank_manifest(tmp_path / "run" / "ranks" / f"rank{rank}.json").warnings
        assert len([text for text in warned if "were not recorded" in text]) == len(kinds)


WITHOUT_GROUP = """
import os, time, torch
rank = int(os.environ["RANK"])
{before}
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(80):
    open(f"step{{step}}_{{rank}}", "w").close()
    while not os.path.exists(f"step{{step}}_{{1 - rank}}"): time.sleep(0.001)  # as if they communicated
    time.sleep(0.01)
    optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step()
"""


@pytest.mark.slow
def test_ranks_without_a_process_group_agree_through_torchruns_store(tmp_path):
    (tmp_path / "job.py").write_text(WITHOUT_GROUP.format(before=SLOW_ON_ONE))
    options = ["--wait", "4", "--warmup", "1", "--active", "2", "--repeat", "0", "--stop-off-loop", "never"]
    command = [sys.executable, "-m", "rankscope", "run", "--run-dir", "run", "--nproc-per-node", "2", *options]
    done = subprocess.run(
        [*command, "job.py"], cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (first, first_skipped), (second, second_skipped) = windows_of(tmp_path)
    assert first == second
    assert first
    assert first_skipped == second_skipped
    assert any(reason.endswith(" on rank 1") for reason in first_skipped.values())


# --- votes on a real store ----------------------------------------------------------------------------------

BUSY = "the previous trace was still being written on rank 1"


def ranks_on(store, monkeypatch, number=2):
    """The votes of several ranks, as if each had a connection of its own to this store."""
    monkeypatch.setattr(votes, "job_store", lambda: store)
    return [votes.WindowVotes("test", rank, number) for rank in range(number)]


def answered(rank, first):
    """The decision, once this rank has its answer."""
    assert rank._thread.drain(60)
    return rank.decision(first)


def test_the_first_rank_that_comes_acts_for_all(monkeypatch):
    acted = []
    ranks = ranks_on(dist.HashStore(), monkeypatch, 3)
    for kind in ("a", "b"):
        for rank in (ranks[2], *ranks):
            rank.by_first_rank(kind, lambda rank=rank, kind=kind: acted.append((rank._rank, kind)))
            assert rank._thread.drain(60)
    assert set(acted) == {(2, "a"), (2, "b")}
    # Without a store each acts for itself.
    monkeypatch.setattr(votes, "job_store", lambda: None)
    for rank in [votes.WindowVotes("test", number, 2) for number in range(2)]:
        rank.by_first_rank("c", lambda rank=rank: acted.append((rank._rank, "c")))
        assert rank._thread.drain(60)
    assert {each for each in acted if each[1] == "c"} == {(0, "c"), (1, "c")}


@pytest.mark.parametrize("skips_first", [True, False])
def test_the_first_vote_decides_for_all_ranks(monkeypatch, skips_first):
    fast, slow = ranks_on(dist.HashStore(), monkeypatch)
    order = [(slow, BUSY), (fast, "")] if skips_first else [(fast, ""), (slow, BUSY)]
    for rank, reason in order:
        rank.vote(5, reason)
        assert rank._thread.drain(60)
    wanted = BUSY if skips_first else ""
    assert [answered(rank, 5) for rank in (fast, slow)] == [wanted] * 2
    assert [rank.final(5) for rank in (fast, slow)] == [wanted] * 2


def test_a_rank_that_withdraws_a_window_takes_it_from_all(monkeypatch):
    first, second = ranks_on(dist.HashStore(), monkeypatch)
    for rank in (first, second):
        rank.vote(5)
        assert answered(rank, 5) == ""
    second.withdraw(5, "the job started a torch profiler of its own on rank 1")
    assert second._thread.drain(60)
    assert first.final(5) == second.final(5) == "the job started a torch profiler of its own on rank 1"


def test_a_rank_that_died_after_its_vote_is_not_waited_for(monkeypatch):
    dead, *others = ranks_on(dist.HashStore(), monkeypatch, number=3)
    dead.vote(5, BUSY)
    assert dead._thread.drain(60)
    del dead
    for rank in others:
        rank.vote(5)
        assert answered(rank, 5) == BUSY
        # It votes on no later window: the others record it.
        rank.vote(9)
        assert answered(rank, 9) == rank.final(9) == ""


@pytest.mark.parametrize("voted_first", [True, False])
def test_when_a_rank_defers_to_a_script_profiler_all_ranks_do(monkeypatch, voted_first):
    why = "the script's own profiler records on rank 0 instead: profile, train.py:9"
    deferring, other = ranks_on(dist.HashStore(), monkeypatch)
    other.connect()
    assert other.why_deferred() == ""
    if voted_first:
        other.vote(5)
        assert answered(other, 5) == ""
    deferring.defer(why, 5)
    assert deferring._thread.drain(60)
    other.vote(5)
    other.vote(9)
    assert other._thread.drain(60)
    assert [other.final(5), other.final(9)] == [why] * 2
    assert other.why_deferred() == why


def test_requested_windows_are_recorded_though_a_rank_defers(monkeypatch):
    deferring, other = ranks_on(dist.HashStore(), monkeypatch)
    deferring.defer("the script's own profiler records on rank 0 instead: profile, train.py:9", 5)
    for rank in (deferring, other):
        rank.vote(20, requested=True)
        assert answered(rank, 20) == rank.final(20) == ""


def test_windows_before_a_rank_deferred_stay(monkeypatch):
    deferring, other = ranks_on(dist.HashStore(), monkeypatch)
    for rank in (deferring, other):
        rank.vote(5)
        assert answered(rank, 5) == ""
    deferring.defer("the script's own profiler records", 9)
    assert deferring._thread.drain(60)
    assert other.final(5) == ""  # its writer was slow


def test_votes_of_processes_that_torchrun_has_replaced_do_not_count(monkeypatch):
    """torchrun keeps its store at a restart, and after a change of nodes its restart count as well."""
    store = dist.HashStore()
    *_, leaving = before = ranks_on(store, monkeypatch, number=3)
    for rank in before:
        rank.connect()
    leaving.vote(5, BUSY)
    leaving.defer("the script's own profiler records", None)
    before[0].vote(9, BUSY)
    assert all(rank._thread.drain(60) for rank in before)
    after = ranks_on(store, monkeypatch, number=2)
    for rank in after:
        rank.connect()
        assert rank._thread.drain(60)
    assert [rank.why_deferred() for rank in after] == ["", ""]
    for rank in after:
        rank.vote(5)
        rank.vote(9)
        assert [answered(rank, 5), answered(rank, 9)] == ["", ""]
    after[1].withdraw(5, "lost")
    assert after[1]._thread.drain(60)
    assert [after[0].final(first) for first in (5, 9)] == ["lost", ""]


def test_a_process_connects_to_the_store_once(monkeypatch):
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(process, "_torchrun_stores", {})
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    assert process.job_store() is process.job_store()
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    dist.init_process_group("gloo", store=server, rank=0, world_size=1)
    try:
        assert process.job_store() is process.job_store()
    finally:
        dist.destroy_process_group()
    assert process.job_store() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_has_a_connection_of_its_own(monkeypatch):
    """On one connection, each process would read answers to the other's questions."""
    torchrun = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(process, "_torchrun_stores", {})
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(torchrun.port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    store = process.job_store()
    child = os.fork()
    if not child:
        own = process.job_store()
        os._exit(0 if own is not None and own is not store and own.compare_set("a", "", "b") == b"b" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert process.job_store() is store


class LateStore:
    """A store whose answers wait until they are let through."""

    def __init__(self, store):
        self.store, self.open = store, threading.Event()

    def set(self, *given):
        assert self.open.wait(60)
        self.store.set(*given)

    def compare_set(self, *given):
        assert self.open.wait(60)
        return self.store.compare_set(*given)


def test_an_answer_that_comes_after_the_warm_up_drops_the_recording(monkeypatch):
    store = dist.HashStore()
    busy, _ = ranks_on(store, monkeypatch)
    busy.vote(5, BUSY)
    assert answered(busy, 5) == BUSY
    late = LateStore(store)
    _, rank = ranks_on(late, monkeypatch)
    rank.vote(5)
    assert rank.decision(5) is None  # it records
    late.open.set()
    assert rank._thread.drain(60)
    assert rank.final(5) == BUSY


def test_a_store_that_never_answers_is_not_asked_again(monkeypatch):
    monkeypatch.setattr(votes, "ANSWER_LIMIT_S", 0.05)
    late = LateStore(dist.HashStore())
    (rank,) = ranks_on(late, monkeypatch, number=1)
    rank._store = late  # the connection was made before
    rank.vote(5)
    assert rank.final(5) == ""
    late.open.set()
    assert rank._thread.drain(60)
    rank.vote(9, BUSY)
    assert rank.decision(9) == rank.final(9) == ""


def test_all_ranks_record_when_the_store_dies(monkeypatch):
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = server.port
    monkeypatch.setattr(votes, "job_store", lambda: dist.TCPStore("127.0.0.1", port, is_master=False))
    ranks = [votes.WindowVotes("test", rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.vote(5, BUSY)
        assert answered(rank, 5) == BUSY
    del server
    ranks[0].vote(9, BUSY)
    ranks[1].vote(9)
    assert [answered(rank, 9) for rank in ranks] == ["", ""]
    assert [rank.final(9) for rank in ranks] == ["", ""]


class Garbage(socketserver.BaseRequestHandler):
    """Answers as a web server does, so that torch's client tries again until its limit."""

    def handle(self):
        self.request.recv(1000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 5000)


@pytest.fixture(params=["nothing listens", "another server"])
def wrong_port(request):
    """A port at which there is no store."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Garbage) as server:
        if request.param == "another server":
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield server.server_address[1]
            server.shutdown()
            return
    yield server.server_address[1]


def test_a_torchrun_store_that_is_not_there_is_tried_once(monkeypatch, wrong_port):
    tried = []
    original = socket.create_connection
    monkeypatch.setattr(process.socket, "create_connection", lambda *given: tried.append(given) or original(*given))
    monkeypatch.setattr(process, "CONNECT_LIMIT_S", 0.5)
    monkeypatch.setattr(process, "_torchrun_stores", {})
    for name, value in (("TORCHELASTIC_USE_AGENT_STORE", "True"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(wrong_port))
    with pytest.warns(CaptureWarning, match="torchrun's store at 127.0.0.1:.* does not answer"):
        assert process.job_store() is None
    assert process.job_store() is None
    assert len(tried) == 1


OF_ITS_OWN = """
import time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    time.sleep(0.01)
    optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step()
"""


@pytest.mark.slow
def test_a_job_ends_as_without_capture_though_the_store_is_not_there(tmp_path, wrong_port):
    """A thread that is still connecting when the interpreter ends aborts it: exit status 134."""
    (tmp_path / "job.py").write_text(OF_ITS_OWN)
    environ = clean_environ() | {
        "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(wrong_port), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    command = [sys.executable, "-m", "rankscope", "exec", "--run-dir", "run", "--wait", "1", "--warmup", "1"]
    done = subprocess.run(
        [*command, "--active", "2", sys.executable, "job.py"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("does not answer") == 1
    assert traces(tmp_path / "run")


ALONE = """
import json, os, signal, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(steps):
    for _ in range(steps):
        time.sleep(0.01)
        optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step()
def written(of, n):
    path = f"run/ranks/rank{of}.json"
    return os.path.exists(path) and len(json.load(open(path))["written"]) >= n
while not written(rank, 1): train(1)
dist.barrier()
if rank == 0: os.kill(os.getpid(), signal.SIGKILL)  # the store goes with it
while not written(rank, 3): train(1)
os._exit(0)  # gloo would wait for the dead rank
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux")
def test_a_rank_goes_on_recording_without_the_one_that_held_the_store(tmp_path):
    options = {"RANKSCOPE_WAIT": "6", "RANKSCOPE_WARMUP": "1", "RANKSCOPE_ACTIVE": "2", "RANKSCOPE_REPEAT": "0"}
    ended = run(ALONE, tmp_path, **options)
    assert [each.code for each in ended] == [-signal.SIGKILL, 0], ended
    (dead, _), (alive, _) = windows_of(tmp_path)
    assert dead
    assert len(alive) >= 2
    assert set(dead) & set(alive)
