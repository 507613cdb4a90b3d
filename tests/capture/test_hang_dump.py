"""The dump of a hang: what is in it, and that nothing that hangs keeps it from being written."""

from __future__ import annotations

import json
import sys
import threading
import time

import pytest
import torch.distributed as dist
from tests.answers.hang.jobs import free_port

from rankscope.capture.hang import dump as hang_dump
from rankscope.capture.hang.dump import Position, write_hang_dump
from rankscope.rundir.hang_dump import HangDump


def read(path):
    dump = HangDump.from_json(json.loads(path.read_text()))
    assert dump is not None
    return dump


@pytest.fixture
def one_rank_group():
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def write_from_a_thread(folder, **options):
    """As the watching thread does."""
    found = []
    main = threading.get_ident()
    thread = threading.Thread(
        target=lambda: found.append(write_hang_dump(folder, "test", training_thread=main, **options))
    )
    thread.start()
    thread.join(60)
    return found[0]


def test_the_stack_of_the_training_thread_comes_first_with_its_source(tmp_path):
    dump = read(write_from_a_thread(tmp_path, position=lambda: Position(7, "forward", 5)))
    stack = dump.threads[0]
    functions = [frame.function for frame in stack.frames]
    assert stack.training
    assert "write_from_a_thread" in functions
    assert stack.frames[functions.index("write_from_a_thread")].text.startswith("thread.")
    assert (dump.step, dump.phase, dump.since_step_ns, dump.reason) == (7, "forward", 5, "test")
    assert dump.failed == {}


def test_the_exception_that_is_handled_is_in_it(tmp_path):
    try:
        raise ValueError("bad batch")
    except ValueError:
        dump = read(write_from_a_thread(tmp_path))
    stack = dump.threads[0]
    assert stack.exception == "ValueError: bad batch"
    assert stack.raised_at is not None
    assert stack.raised_at.function == "test_the_exception_that_is_handled_is_in_it"


def test_at_exit_the_stack_is_where_the_exception_was_raised(tmp_path, monkeypatch):
    try:
        raise ValueError("bad batch")
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        monkeypatch.setattr(sys, "last_exc", error, raising=False)
    dump = read(write_hang_dump(tmp_path, "test"))
    assert dump.uncaught == "ValueError: bad batch"
    assert dump.threads[0].frames[0].text == 'raise ValueError("bad batch")'


def test_groups_counters_and_calls_are_in_it(tmp_path, one_rank_group):
    import torch

    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    dump = read(write_hang_dump(tmp_path, "test"))
    (group,) = dump.groups
    assert (group.name, group.description, group.ranks, group.sequence) == ("0", "default_pg", (0,), 3)
    assert "cpu:gloo" in group.backends.split(",")
    if hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        entries = [entry for entry in dump.flight_recorder["entries"] if entry["process_group"][0] == "0"]
        assert [entry["collective_seq_id"] for entry in entries][-3:] == [1, 2, 3]
        latest = hang_dump.flight_recorder(stacks=True)["entries"][-1]
        assert any("test_groups_counters" in frame["name"] for frame in latest["frames"])


@pytest.mark.parametrize("part", ["flight_recorder", "device_state", "_groups", "_with_source_lines"])
@pytest.mark.parametrize("harm", ["hangs", "raises"])
def test_a_part_that_hangs_or_fails_is_named_and_the_rest_is_written(tmp_path, monkeypatch, part, harm):
    released = threading.Event()

    def broken(*_, **__):
        if harm == "raises":
            raise RuntimeError("driver error")
        released.wait(60)

    monkeypatch.setattr(hang_dump, part, broken)
    dump = read(write_hang_dump(tmp_path, "test", limit_s=2.0))
    released.set()
    (why,) = dump.failed.values()
    assert why == ("RuntimeError: driver error" if harm == "raises" else "no answer within 2 s")
    assert dump.threads


def test_nothing_is_raised_where_nothing_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "hang").write_text("a file, not a folder")
    assert write_hang_dump(tmp_path, "test") is None
    monkeypatch.setattr(hang_dump, "write_atomic", lambda *_: time.sleep(30))
    assert write_hang_dump(tmp_path / "other", "test", limit_s=0.1) is None
    monkeypatch.setattr(hang_dump, "this_process", lambda: 1 / 0)
    assert write_hang_dump(tmp_path / "other", "test") is None


def test_stacks_of_calls_are_added_unless_there_is_a_newer_dump(tmp_path, monkeypatch):
    dump = HangDump("rankscope-hang-dump", 0, flight_recorder={"entries": [{"record_id": 3}, {"record_id": 4}]})
    later = {"entries": [{"record_id": 4, "frames": [{"name": "train"}]}, {"record_id": 5, "frames": []}]}
    monkeypatch.setattr(hang_dump, "flight_recorder", lambda stacks: later if stacks else {})
    path = tmp_path / "rank0.json"
    monkeypatch.setitem(hang_dump._latest, path, 8)
    hang_dump._add_call_stacks(path, dump, 7)
    assert not path.exists()
    hang_dump._add_call_stacks(path, dump, 8)
    assert read(path).flight_recorder["entries"] == [{"record_id": 3}, {"record_id": 4, "frames": [{"name": "train"}]}]


def test_old_finished_calls_lose_their_stacks_and_pending_ones_do_not():
    done = [{"process_group": ("0", ""), "retired": True, "frames": [1], "n": n} for n in range(40)]
    pending = [{"process_group": ("0", ""), "retired": False, "state": "scheduled", "frames": [1], "n": 0}]
    kept = hang_dump._shortened(pending + done)
    assert [entry["n"] for entry in kept] == [0, *range(40)]
    assert ["frames" in entry for entry in kept[1:]] == [False] * 24 + [True] * 16
