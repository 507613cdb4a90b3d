"""Verdicts on recorded dumps of small jobs: what is expected follows from the calls that each test makes."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace

import pytest
from tests.answers.hang.dumps import WORLD, recorders
from typer.testing import CliRunner

from rankscope.answers.hang import Cause, NoDumpsError, read
from rankscope.answers.hang.causes import classify, place_of
from rankscope.answers.hang.files import _own_dump
from rankscope.cli import make_app
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.hang_dump import DUMP_FORMAT, HEARTBEAT_FORMAT, Frame, HangDump, Heartbeat, ThreadStack


def healthy(size=4, groups=None, steps=3):
    """Recorders after a few steps in which all is well."""
    jobs = recorders(size, groups)
    for recorder in jobs:
        for _ in range(steps):
            recorder.call("all_reduce")
    return jobs


def written(jobs, folder, **options):
    for recorder in jobs:
        recorder.write(folder, **options)
    return read(folder)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("only_active", [False, True])
def test_a_rank_that_does_not_come(tmp_path, as_json, only_active):
    jobs = healthy()
    for rank in (0, 1, 3):
        jobs[rank].call("all_reduce", done=False, elements=1024, line=33)
    verdict = written(jobs, tmp_path, as_json=as_json, only_active=only_active)
    assert (verdict.culprits, verdict.cause) == ((2,), Cause.UNKNOWN)
    place = verdict.collective
    assert (place.group, place.sequence, place.operation, place.missing) == (WORLD, 4, "all_reduce", (2,))
    assert (place.arrived, place.elements, place.dtype) == ((0, 1, 3), 1024, "Float")
    assert str(place.called_at) == "train (/job/train.py:33)"


def test_a_finished_job_does_not_hang(tmp_path):
    verdict = written(healthy(), tmp_path)
    assert not verdict.found
    done = CliRunner().invoke(make_app(), ["hang", str(tmp_path)])
    assert (done.exit_code, "No hang found" in done.stdout) == (1, True)


def test_all_ranks_have_arrived_and_agree(tmp_path):
    jobs = healthy()
    for recorder in jobs:
        recorder.call("all_reduce", done=False)
    verdict = written(jobs, tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.NETWORK, ())
    assert verdict.collective.arrived == (0, 1, 2, 3)


def test_a_missing_dump_is_not_taken_for_a_missing_rank(tmp_path):
    jobs = healthy()
    for rank in (0, 1, 3):
        jobs[rank].call("all_reduce", done=False)
        jobs[rank].write(tmp_path)
    verdict = read(tmp_path)
    assert (verdict.cause, verdict.culprits, verdict.without_dump) == (Cause.UNKNOWN, (2,), (2,))
    assert (verdict.collective.missing, verdict.collective.unknown) == ((), (2,))
    assert "may not have arrived" in verdict.summary
    assert any("the dump of rank 2" in line for line in verdict.advice)


def test_the_end_of_a_chain_of_waits_is_found(tmp_path):
    """Ranks 0 and 1 wait for 2, 2 waits for 3, and 3 waits for nobody."""
    jobs = healthy(groups={"1": [0, 1, 2], "2": [2, 3]})
    for rank in (0, 1):
        jobs[rank].call("all_reduce", "1", done=False)
    jobs[2].call("broadcast", "2", done=False)
    verdict = written(jobs, tmp_path)
    assert verdict.culprits == (3,)
    assert (verdict.collective.group, verdict.collective.operation) == ("2", "broadcast")


def test_two_groups_in_another_order_are_a_deadlock(tmp_path):
    jobs = healthy(2, groups={"1": [0, 1], "2": [0, 1]})
    jobs[0].call("all_reduce", "1", done=False)
    jobs[1].call("all_reduce", "2", done=False)
    verdict = written(jobs, tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.DEADLOCK, (0, 1))
    assert [(w.rank, w.waits_for, w.collective.group) for w in verdict.cycle] == [(0, 1, "1"), (1, 0, "2")]


def test_of_two_groups_in_another_order_the_minority_is_at_fault(tmp_path):
    ranks = [0, 1, 2, 3]
    jobs = healthy(4, groups={"1": ranks, "2": ranks})
    for rank in ranks:
        jobs[rank].call("all_reduce", "2" if rank == 1 else "1", done=False)
    verdict = written(jobs, tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.DEADLOCK, (1,))
    assert "ranks 0,2-3 wait for rank 1 in all_reduce 1 of group 1" in verdict.summary
    assert "rank 1 waits for ranks 0,2-3 in all_reduce 1 of group 2" in verdict.summary


def test_the_shortest_cycle_of_three_ranks_is_reported(tmp_path):
    jobs = healthy(4, groups={"1": [0, 1], "2": [1, 2], "3": [0, 2], "4": [0, 3]})
    for rank, group in ((0, "1"), (1, "2"), (2, "3"), (3, "4")):
        jobs[rank].call("all_reduce", group, done=False)
    verdict = written(jobs, tmp_path)
    assert [(w.rank, w.waits_for) for w in verdict.cycle] == [(0, 1), (1, 2), (2, 0)]


@pytest.mark.parametrize(
    ("differs", "change"),
    [("operation", {"operation": "barrier"}), ("dtype", {"dtype": "Double"}), ("size", {"elements": 8})],
)
def test_a_rank_that_calls_something_else(tmp_path, differs, change):
    jobs = healthy()
    for rank, recorder in enumerate(jobs):
        given = {"operation": "all_reduce", "done": False, **(change if rank == 2 else {})}
        recorder.call(**given)
    verdict = written(jobs, tmp_path)
    assert (verdict.cause, verdict.mismatch, verdict.culprits) == (Cause.MISMATCH, differs, (2,))
    assert [variant.ranks for variant in verdict.variants] == [(0, 1, 3), (2,)]
    assert verdict.collective.sequence == 4


def test_without_a_majority_no_rank_is_singled_out(tmp_path):
    jobs = healthy(2)
    for rank, recorder in enumerate(jobs):
        recorder.call("all_reduce" if rank else "barrier", done=False)
    assert written(jobs, tmp_path).culprits == (0, 1)


def test_an_uneven_all_to_all_is_no_mismatch(tmp_path):
    jobs = healthy()
    for rank, recorder in enumerate(jobs):
        recorder.call("all_to_all", done=False, elements=4 + rank)
    assert written(jobs, tmp_path).cause is Cause.NETWORK


def test_a_device_that_stopped(tmp_path):
    """All called number 4; the others finished it and wait in number 5, in which rank 1 is as well."""
    jobs = healthy()
    for rank, recorder in enumerate(jobs):
        recorder.call("all_reduce", done=rank != 1)
        recorder.call("all_reduce", done=False)
    verdict = written(jobs, tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.DEVICE, (1,))


def test_a_broadcast_that_the_root_has_finished_is_no_device_that_stopped(tmp_path):
    jobs = healthy(2)
    jobs[0].call("broadcast").call("all_reduce", done=False)
    jobs[1].call("broadcast", done=False)
    verdict = written(jobs, tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.UNKNOWN, (1,))
    assert verdict.collective.operation == "all_reduce"


def test_a_receive_without_its_send(tmp_path):
    jobs = healthy(groups={"1": [0, 2]})
    jobs[2].call("recv 1<-0", "1", done=False, p2p=True)
    verdict = written(jobs, tmp_path)
    assert (verdict.culprits, verdict.collective.operation) == ((0,), "recv")
    # Once both ends are there, it is not the other rank that is missing.
    jobs[0].call("send 0->1", "1", done=False, p2p=True)
    assert written(jobs, tmp_path).culprits == ()


def test_the_verdict_does_not_depend_on_the_order_of_the_files(tmp_path):
    jobs = healthy(8, groups={"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]})
    for rank in (0, 1, 2):
        jobs[rank].call("all_reduce", "1", done=False)
    paths = [recorder.write(tmp_path) for recorder in jobs]
    verdicts = []
    for seed in range(5):
        random.Random(seed).shuffle(paths)
        verdicts.append(read(paths))
    assert {verdict.culprits for verdict in verdicts} == {(3,)}
    assert len({verdict.summary for verdict in verdicts}) == 1


# --- files --------------------------------------------------------------------------------------------------------


def test_host_names_are_settled_by_the_groups_and_by_elimination(tmp_path):
    jobs = healthy(groups={"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]})
    for rank in (0, 1, 2):
        jobs[rank].call("all_reduce", done=False)
    for recorder, name in zip(jobs, ("node-b", "node-a", "node-d", "node-c"), strict=True):
        recorder.write(tmp_path, f"fr_trace_{name}.pickle")
    verdict = read(tmp_path)
    assert (verdict.culprits, verdict.notes) == ((3,), ())


def test_dumps_whose_rank_cannot_be_known_are_named(tmp_path):
    for recorder, name in zip(healthy(), ("alpha", "beta", "gamma", "delta"), strict=True):
        recorder.write(tmp_path, f"fr_trace_{name}")
    verdict = read(tmp_path)
    assert verdict.dumps == 0
    assert len(verdict.notes) == 4
    assert "its rank is in neither the name nor the content" in verdict.notes[0]


class Exploit:
    def __reduce__(self):
        return print, ("this ran",)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (pickle.dumps({"version": "2.9", "pg_config": Exploit()}), "imports"),
        (pickle.dumps({"version": "2.9", "pg_config": {"0": {}}}, 2)[:-9], "ends too early"),
        (b"", "the file is empty"),
        (b'{"version": "2.9", "pg_config": {', "Expecting"),
        (b'{"version": 3, "pg_config": {}}', "not a dump of the Flight Recorder"),
        (json.dumps({"format": DUMP_FORMAT, "rank": -1}).encode(), "without a valid rank"),
        (b"[" * 100_000, "not a dump"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_costs_nothing_else(tmp_path, capsys, content, why):
    jobs = healthy(2)
    jobs[0].call("all_reduce", done=False)
    (tmp_path / "nccl_trace_rank_7").write_bytes(content)
    verdict = written(jobs, tmp_path)
    assert verdict.culprits == (1,)
    (problem,) = verdict.problems
    assert "nccl_trace_rank_7" in problem
    assert why in problem
    assert capsys.readouterr().out == ""


def test_hostile_values_are_left_out(tmp_path):
    jobs = healthy(2)
    jobs[0].call("all_reduce", done=False)
    dump = jobs[0].dump()
    bad = [{"collective_seq_id": 2**80}, {"collective_seq_id": "4"}, {"process_group": 5}, {"profiling_name": None}]
    dump["entries"] += [{**dump["entries"][-1], **change} for change in bad] + [7, None]
    dump["entries"][-7]["input_sizes"] = [[2**61] * 40]
    dump["pg_config"]["9"] = {"ranks": "[0, 1] or __import__('os')"}
    dump["pg_config"]["8"] = {"ranks": [2**40, -1]}
    (tmp_path / "nccl_trace_rank_0").write_bytes(json.dumps(dump).encode())
    jobs[1].write(tmp_path)
    assert read(tmp_path).culprits == (1,)


def test_text_from_dumps_is_inert(tmp_path):
    jobs = healthy(2)
    jobs[0].call("all_\x1b[31mreduce", done=False)
    written(jobs, tmp_path)
    done = CliRunner().invoke(make_app(), ["hang", str(tmp_path)])
    assert "\x1b" not in done.stdout
    assert "all_" in done.stdout


def test_nothing_to_read_is_an_error(tmp_path):
    (tmp_path / "rank0.trace.json").write_text('{"schemaVersion": 1, "traceEvents": [], "pg_config": {}}')
    with pytest.raises(NoDumpsError, match="no dump of a hung job"):
        read(tmp_path)
    with pytest.raises(NoDumpsError, match="no such file"):
        read(tmp_path / "absent")


STACKS = """PARTIAL DATA: 2/3 workers responded
=== Rank 0: http://host:1 ===
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f00 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/job/train.py", line 20 in <module>
=== Rank 1: http://host:2 ===
Thread 0x00007f00 (most recent call first):
  File "/job/data.py", line 7 in read
  File "/x/site-packages/torch/utils/data/dataloader.py", line 700 in __next__
  File "/job/train.py", line 19 in <module>
=== Rank 2: http://host:3 ===
Error: 503
"""


def test_stacks_of_torchs_debug_server_are_joined_with_the_calls(tmp_path):
    jobs = healthy(2)
    jobs[0].call("all_reduce", done=False)
    (tmp_path / "stacks_20260101_120000.txt").write_text(STACKS)
    verdict = written(jobs, tmp_path)
    assert (verdict.culprits, verdict.cause) == ((1,), Cause.DATA_LOADING)
    assert str(verdict.ranks[0].place) == "read (/job/data.py:7)"


# --- heartbeats ---------------------------------------------------------------------------------------------------


def beat(folder, rank, seconds, **values):
    heartbeat = Heartbeat(
        HEARTBEAT_FORMAT, rank, time_ns=int(seconds * 1e9), interval_ns=10**10, world_size=3, pid=9, **values
    )
    (folder / f"rank{rank}.heartbeat.json").write_text(heartbeat.to_json())


def test_a_silent_rank_is_dead_and_a_late_one_is_not(tmp_path):
    for rank, seconds in ((0, 1000), (1, 949), (2, 951)):
        beat(tmp_path, rank, seconds)
    verdict = read(tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.DEAD, (1,))
    assert "no sign of life for 51 s" in verdict.summary


def test_a_rank_that_others_lost_is_dead(tmp_path):
    beat(tmp_path, 0, 1001, ended=True, exception="RuntimeError: Connection closed by peer")
    beat(tmp_path, 1, 1000)
    beat(tmp_path, 2, 1002, ended=True, exception="RuntimeError: Connection reset by peer")
    assert read(tmp_path).culprits == (1,)


GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 300000ms for "
    "recv operation to complete; the peer of this pair may have ended, or the network may be slow\n"
    "Exception raised from waitRecv at unbound_buffer.cc:81 (most recent call first):\n  frame 0: none of these lines"
)


def test_a_long_message_is_folded_in_the_table_and_whole_in_json(tmp_path):
    beat(tmp_path, 0, 1001, ended=True, exception=GLOO)
    beat(tmp_path, 1, 1000, ended=True, exception=GLOO)
    verdict = read(tmp_path)
    assert all(GLOO in each["evidence"] for each in verdict.to_json()["ranks"])
    assert len(verdict.summary) < 300
    shown = CliRunner().invoke(make_app(), ["hang", str(tmp_path)]).stdout
    assert "unbound_buffer.cc:81]" in "".join(shown.split())
    assert "frame 0" not in shown
    assert "…" in shown


def test_a_job_that_ended_well_does_not_hang(tmp_path):
    for rank in range(3):
        beat(tmp_path, rank, 1000 + rank, ended=True)
    assert not read(tmp_path).found


def test_the_exception_of_one_rank_comes_before_those_that_follow_from_it(tmp_path):
    beat(tmp_path, 0, 1001, ended=True, exception="RuntimeError: Connection closed by peer")
    beat(tmp_path, 1, 1000, ended=True, exception="ValueError: bad batch")
    verdict = read(tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.EXCEPTION, (1,))


# --- stacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "frames"),
    [
        (Cause.DATA_LOADING, [("/lib/python3.11/multiprocessing/queues.py", "get", ""),
                              ("/s/torch/utils/data/dataloader.py", "_try_get_data", ""), ("/job/t.py", "main", "")]),
        (Cause.HOST_SYNCHRONIZATION, [("/job/t.py", "main", "total += loss.item()")]),
        (Cause.HOST_SYNCHRONIZATION, [("/s/torch/cuda/__init__.py", "synchronize", ""), ("/job/t.py", "main", "")]),
        (Cause.NETWORK, [("/job/t.py", "main", "store.wait(['ready'])")]),
        (Cause.NETWORK, [("/job/t.py", "main", "dist.distributed_c10d._get_default_store().get('ready')")]),
        (Cause.PYTHON_CODE, [("/job/t.py", "main", "row = feature_store.get('ready')")]),
        (Cause.NETWORK, [("/s/torch/distributed/rendezvous.py", "_create_c10d_store", ""), ("/job/t.py", "main", "")]),
        (Cause.COMMUNICATION, [("/s/torch/distributed/c10d_logger.py", "wrapper", ""), ("/job/t.py", "main", "")]),
        (Cause.COMMUNICATION, [("/s/torch/autograd/graph.py", "_engine_run_backward", ""), ("/job/t.py", "main", "")]),
        (Cause.COMMUNICATION, [("/job/t.py", "main", "work.wait()")]),
        (Cause.PYTHON_CODE, [("/job/t.py", "save_checkpoint", "time.sleep(10)"), ("/job/t.py", "main", "")]),
        (Cause.UNKNOWN, []),
    ],
)  # fmt: skip
def test_the_class_of_cause_of_a_stack(cause, frames):
    stack = ThreadStack(tuple(Frame(file, 1, function, text) for file, function, text in frames))
    place = classify(stack)
    assert place.cause is cause
    if frames:
        assert place.frame.file == "/job/t.py"


def test_a_rank_without_a_device_does_not_wait_for_one():
    stack = ThreadStack((Frame("/job/t.py", 1, "main", "rows = column.read().tolist()"),))
    assert classify(stack, has_no_device=True).cause is Cause.PYTHON_CODE
    dump = HangDump(DUMP_FORMAT, 0, threads=(replace(stack, training=True),))
    kinds = [_own_dump(replace(dump, **fields), "") for fields in ({}, {"device": {"type": "cuda"}})]
    kinds.append(_own_dump(replace(dump, failed={"device": "no answer within 10 s"}), ""))
    causes = [place_of(each).cause for each in kinds]
    assert causes == [Cause.PYTHON_CODE, Cause.HOST_SYNCHRONIZATION, Cause.HOST_SYNCHRONIZATION]


@pytest.mark.parametrize("steps", [(30, 31), (30, 20), (30, None)])
def test_a_hang_is_over_once_all_ranks_have_made_steps(tmp_path, steps):
    for rank, step in enumerate(steps):
        recorder = healthy(2)[rank]
        if rank == 0:
            recorder.call("all_reduce", done=False)
        dump = HangDump(
            DUMP_FORMAT, rank, world_size=2, step=20, time_ns=50, flight_recorder=recorder.dump(), reason="no step"
        )
        write_atomic(tmp_path / "hang" / f"rank{rank}.json", dump.to_json())
        if step is not None:
            beat = Heartbeat(HEARTBEAT_FORMAT, rank, time_ns=90, interval_ns=10, world_size=2, step=step)
            write_atomic(tmp_path / "hang" / f"rank{rank}.heartbeat.json", beat.to_json())
    verdict, is_over = read(tmp_path), steps == (30, 31)
    assert (verdict.found, verdict.culprits, verdict.over) == (True, (1,), is_over)
    assert verdict.summary.startswith("Over, the ranks have made steps since: Rank 1" if is_over else "Rank 1")
    done = CliRunner().invoke(make_app(["hang"]), ["hang", str(tmp_path)])
    assert done.exit_code == is_over


def test_a_call_that_no_dump_has_is_named(tmp_path):
    for rank in range(3):
        recorder = healthy(3)[rank]
        inner = Frame("/s/torch/distributed/distributed_c10d.py", 1, "recv")
        frames = (inner, Frame("/job/t.py", 9, "main")) if rank == 1 else ()
        if rank != 1:
            recorder.call("all_reduce", done=False)
        stack = ThreadStack(frames, "MainThread", training=True)
        dump = HangDump(
            DUMP_FORMAT, rank, world_size=3, threads=(stack,), flight_recorder=recorder.dump(), reason="no step"
        )
        write_atomic(tmp_path / "hang" / f"rank{rank}.json", dump.to_json())
    verdict = read(tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.UNKNOWN, (1,))
    assert "rank 1 is in torch.distributed's recv, which is in no dump, at main (/job/t.py:9)" in verdict.summary


def test_each_culprit_is_where_it_is(tmp_path):
    lines = {1: "time.sleep(10)", 2: "store.wait(['ready'])"}
    for rank in range(4):
        frames = (Frame("/job/t.py", 7 + rank, "main", lines.get(rank, "")),)
        stack = ThreadStack(frames, "MainThread", training=True)
        recorder = healthy(4)[rank]
        if rank in (0, 3):
            recorder.call("all_reduce", done=False)
        dump = HangDump(
            DUMP_FORMAT, rank, world_size=4, threads=(stack,), flight_recorder=recorder.dump(), reason="no step"
        )
        write_atomic(tmp_path / "hang" / f"rank{rank}.json", dump.to_json())
    verdict = read(tmp_path)
    assert verdict.culprits == (1, 2)
    assert "Ranks 1-2 did not arrive at all_reduce" in verdict.summary
    assert "rank 1 is in Python code outside of torch.distributed, at main (/job/t.py:8)" in verdict.summary
    assert "rank 2 is waiting for the job's store, at main (/job/t.py:9)" in verdict.summary


CONNECTING = (
    Frame("/lib/torch/distributed/rendezvous.py", 9, "_create_c10d_store", "return TCPStore("),
    Frame("/lib/torch/distributed/distributed_c10d.py", 8, "init_process_group", ""),
    Frame("/job/t.py", 7, "main", "dist.init_process_group()"),
)


@pytest.mark.parametrize(
    ("lines", "beats", "watched", "culprits", "cause"),
    [
        ({0: "", 1: ""}, (0, 1), "", (2,), Cause.ABSENT),
        ({0: "", 1: ""}, (0, 1), "all", (2,), Cause.ABSENT),
        ({0: ""}, (0,), "0,2", (2,), Cause.ABSENT),
        ({0: "", 1: ""}, (0, 1), "0-1", (), Cause.UNKNOWN),
        ({0: "", 1: ""}, (0, 1), "no ranks", (2,), Cause.ABSENT),
        ({0: "", 1: "", 2: "time.sleep(9)"}, (0, 1, 2), "", (2,), Cause.PYTHON_CODE),
        # All have come: they do not reach the store, or rank 2 has another address.
        ({0: "", 1: "", 2: ""}, (0, 1, 2), "", (0, 1, 2), Cause.NETWORK),
        ({0: "", 1: ""}, (0, 1, 2), "", (0, 1), Cause.NETWORK),
    ],
)
def test_ranks_that_wait_in_init_process_group(tmp_path, lines, beats, watched, culprits, cause):
    for rank, line in lines.items():
        frames = (Frame("/job/t.py", 3, "main", line),) if line else CONNECTING
        stack = ThreadStack(frames, "MainThread", training=True)
        dump = HangDump(DUMP_FORMAT, rank, world_size=3, threads=(stack,), reason="no step", time_ns=10)
        write_atomic(tmp_path / "hang" / f"rank{rank}.json", dump.to_json())
    for rank in beats:
        beat = Heartbeat(HEARTBEAT_FORMAT, rank, time_ns=10, interval_ns=10**10, world_size=3, ranks=watched)
        write_atomic(tmp_path / "hang" / f"rank{rank}.heartbeat.json", beat.to_json())
    verdict = read(tmp_path)
    assert (verdict.culprits, verdict.cause) == (culprits, cause), verdict.summary
    if cause is Cause.ABSENT:
        assert "missing from init_process_group" in verdict.summary
        assert "MASTER_ADDR" in verdict.advice[0]


TIMED_OUT = "RuntimeError: unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation to complete"


def gloo_calls(count):
    """As Gloo's recorder has them, whether they are complete or have failed."""
    return {
        "version": "2.10",
        "pg_config": {},
        "pg_status": {"0": {"last_enqueued_collective": count, "last_completed_collective": count}},
        "entries": [
            {
                "record_id": number,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": number + 1,
                "profiling_name": "gloo:all_reduce",
                "time_created_ns": 10**18 + number,
                "input_sizes": [[4]],
                "input_dtypes": ["Float"],
                "output_sizes": [[4]],
                "output_dtypes": ["Float"],
                "state": "scheduled",
                "retired": True,
                "is_p2p": False,
            }
            for number in range(count)
        ],
    }


def ended(folder, rank, calls, at_s, function, **end):
    """The dump of a rank that has ended."""
    frame = Frame("/job/train.py", 10, function)
    (folder / f"rank{rank}.json").write_text(
        HangDump(
            DUMP_FORMAT,
            rank,
            world_size=2,
            time_ns=int(at_s * 1e9),
            reason="the training loop was ended",
            step=30,
            threads=(ThreadStack((frame,), training=True),),
            flight_recorder=gloo_calls(calls),
            **end,
        ).to_json()
    )


def test_a_collective_that_timed_out_is_one_that_a_rank_did_not_reach(tmp_path):
    ended(tmp_path, 0, 36, 100, "backward", uncaught=TIMED_OUT)
    ended(tmp_path, 1, 35, 101, "tokenize", signal="SIGTERM")
    verdict = read(tmp_path)
    assert (verdict.culprits, verdict.cause, verdict.collective.sequence) == ((1,), Cause.PYTHON_CODE, 36)
    assert "Rank 1 did not arrive at all_reduce 36" in verdict.summary
    assert "at tokenize (/job/train.py:10)" in verdict.summary


def test_a_rank_that_failed_is_not_one_that_hangs(tmp_path):
    ended(tmp_path, 0, 36, 100.5, "backward", signal="SIGTERM")
    ended(tmp_path, 1, 35, 100, "train_step", uncaught="ValueError: bad batch")
    verdict = read(tmp_path)
    assert (verdict.culprits, verdict.cause) == ((1,), Cause.EXCEPTION)
    assert verdict.summary.startswith("Rank 1 failed with ValueError: bad batch, at train_step (/job/train.py:10)")


@pytest.mark.parametrize("other", [{"signal": "SIGTERM"}, {"uncaught": "RuntimeError: Connection closed by peer"}])
def test_a_job_that_a_signal_ended_did_not_hang(tmp_path, other):
    ended(tmp_path, 0, 36, 100, "forward", signal="SIGTERM")
    ended(tmp_path, 1, 35, 100.5, "forward", **other)
    verdict = read(tmp_path)
    assert (verdict.found, verdict.summary) == (False, "No hang found: the job was ended by SIGTERM.")
