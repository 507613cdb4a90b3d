"""Hangs of real NCCL jobs, and what may be concluded from the group's counters where NCCL blocks the host.

The dumps in `nccl/` are those that `hanging_job.py` wrote with NCCL 2.28.9 and torch 2.11.0 on one H100, which two or
three ranks shared, each bound to it (`device_id`). They are shortened: the training thread and the latest calls only,
without the state of the device; the folders of the job and of Python's libraries are shorter. Nothing else was changed.

With `device_id` a group has its communicator before its first collective, and what blocks the host is the connection.
Without it the communicator is made in the first collective, before the call is recorded. No such job has been recorded:
those dumps are the same ones without the call.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankscope.hang import Cause, read

RECORDED = Path(__file__).parent / "nccl"
ASLEEP = [{"file": "/job/hanging_job.py", "line": 44, "function": "fault", "text": "time.sleep(FAR)"}]
RECEIVES = [
    {"file": "/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", "line": 2600, "function": "recv"},
    *ASLEEP,
]


def of(case):
    """The dumps of a case, by rank."""
    return [json.loads(path.read_text()) for path in sorted((RECORDED / case).glob("rank*.json"))]


def verdict_on(dumps, folder):
    for dump in dumps:
        (folder / f"rank{dump['rank']}.json").write_text(json.dumps(dump))
    return read(folder)


def without_unfinished_call(dump):
    """A dump as of a job without `device_id`: the call that blocks is not recorded yet."""
    recorder = dump["flight_recorder"]
    call = recorder["entries"].pop()
    del recorder["pg_status"][str(call["pg_id"])]
    return dump


def set_count(dump, group, count):
    next(each for each in dump["groups"] if each["name"] == group)["sequence"] = count


@pytest.mark.parametrize(
    ("case", "cause", "culprits", "group", "sequence", "missing"),
    [
        ("order", Cause.DEADLOCK, (0, 1), "1", 1, (1,)),
        ("cycle", Cause.DEADLOCK, (0, 1, 2), "1", 1, (1,)),
        ("sleep", Cause.PYTHON_CODE, (1,), "0", 7, (1,)),
        ("size", Cause.MISMATCH, (1,), "0", 7, ()),
    ],
)
def test_the_verdict_on_a_recorded_job(case, cause, culprits, group, sequence, missing):
    verdict = read(RECORDED / case)
    assert (verdict.cause, verdict.culprits) == (cause, culprits)
    place = verdict.collective
    assert (place.group, place.sequence, place.operation) == (group, sequence, "all_reduce")
    assert place.missing == missing
    assert place.called_at.function == ("fault" if case != "sleep" else "main")
    assert verdict.advice == ()


def test_the_ranks_of_a_deadlock_and_their_groups():
    order, cycle = read(RECORDED / "order"), read(RECORDED / "cycle")
    assert [(w.rank, w.waits_for, w.collective.group) for w in order.cycle] == [(0, 1, "1"), (1, 0, "2")]
    waits = [(w.rank, w.waits_for, w.collective.group) for w in cycle.cycle]
    assert waits == [(0, 1, "1"), (1, 2, "2"), (2, 0, "3")]


# --- the call is recorded, and torch is still in it ----------------------------------------------------------------


def handed_over(dumps):
    for dump in dumps:
        for status in dump["flight_recorder"]["pg_status"].values():
            status["last_enqueued_collective"] = max(status["last_enqueued_collective"], 1)


def retired(dumps):
    for dump in dumps:
        dump["flight_recorder"]["entries"][-1]["retired"] = True


def of_gloo(dumps):
    for dump in dumps:
        for entry in dump["flight_recorder"]["entries"]:
            entry["profiling_name"] = "gloo:all_reduce"


def coalesced(dumps):
    for dump in dumps:
        entries = dump["flight_recorder"]["entries"]
        entries.append({**entries[-1], "record_id": 7, "profiling_name": "nccl:coalesced"})


def with_pairs(dumps):
    """A group with sends counts those in its status too."""
    for dump in dumps:
        entries = dump["flight_recorder"]["entries"]
        send = {"record_id": 5, "profiling_name": "nccl:send 0->1", "is_p2p": True, "collective_seq_id": 0}
        entries.insert(1, {**entries[-1], **send})


@pytest.mark.parametrize("change", [handed_over, retired, of_gloo, coalesced, with_pairs])
def test_a_call_that_may_be_over_is_none_that_a_rank_waits_in(tmp_path, change):
    dumps = of("order")
    change(dumps)
    verdict = verdict_on(dumps, tmp_path)
    assert (verdict.cause, verdict.culprits, verdict.collective) == (Cause.UNKNOWN, (), None)
    assert verdict.advice == ()  # the collectives and the stacks are recorded


def test_a_rank_that_has_left_the_call_has_not_made_it(tmp_path):
    """Rank 1's call of group 2 failed, and it sleeps; rank 0 still waits for it in group 1."""
    dumps = of("order")
    dumps[1]["threads"][0]["frames"] = ASLEEP
    verdict = verdict_on(dumps, tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.PYTHON_CODE, (1,))
    assert (verdict.collective.group, verdict.collective.missing) == ("1", (1,))


def test_torchs_dumps_without_stacks_are_enough(tmp_path):
    for dump in of("order"):
        (tmp_path / f"nccl_trace_rank_{dump['rank']}").write_text(json.dumps(dump["flight_recorder"]))
    verdict = read(tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.DEADLOCK, (0, 1))


# --- the call is not recorded yet ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["order", "cycle"])
def test_the_counters_show_a_deadlock_while_communicators_are_made(tmp_path, case):
    recorded = read(RECORDED / case)
    verdict = verdict_on([without_unfinished_call(dump) for dump in of(case)], tmp_path)
    assert (verdict.cause, verdict.culprits) == (recorded.cause, recorded.culprits)
    assert verdict.summary == recorded.summary
    assert (verdict.collective.operation, verdict.collective.elements) == ("all_reduce", None)
    assert str(verdict.collective.called_at) == str(recorded.collective.called_at)


def asleep_before_group_1():
    """Rank 0 is in the first collective of group 1; rank 1 has called nothing in it, and sleeps."""
    dumps = [without_unfinished_call(dump) for dump in of("order")]
    set_count(dumps[1], "2", 0)
    dumps[1]["threads"][0]["frames"] = ASLEEP
    return dumps


def test_a_rank_that_does_not_come_to_the_first_collective(tmp_path):
    verdict = verdict_on(asleep_before_group_1(), tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.PYTHON_CODE, (1,))
    assert verdict.summary.startswith("Rank 1 did not arrive at all_reduce 1 of group 1: rank 1 is in Python code")


def test_a_rank_without_a_dump_may_be_missing(tmp_path):
    verdict = verdict_on(asleep_before_group_1()[:1], tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.UNKNOWN, (1,))
    assert (verdict.collective.group, verdict.collective.unknown) == ("1", (1,))


def other_is_counted(dumps):
    """Rank 1 has counted the collective as well, but it is in none: it may have finished it."""
    set_count(dumps[1], "1", 1)


def other_has_no_counter(dumps):
    dumps[1]["groups"] = []


def two_groups_are_begun(dumps):
    set_count(dumps[0], "2", 1)


def counter_is_higher(dumps):
    set_count(dumps[0], "1", 2)


def group_is_not_of_nccl(dumps):
    for dump in dumps:
        del dump["flight_recorder"]["pg_config"]["1"]


def thread_receives(dumps):
    dumps[0]["threads"][0]["frames"] = RECEIVES


def thread_is_elsewhere(dumps):
    dumps[0]["threads"][0]["frames"] = ASLEEP


def no_stack(dumps):
    dumps[0]["threads"] = []


@pytest.mark.parametrize(
    "change",
    [
        other_is_counted,
        other_has_no_counter,
        two_groups_are_begun,
        counter_is_higher,
        group_is_not_of_nccl,
        thread_receives,
        thread_is_elsewhere,
        no_stack,
    ],
)
def test_without_agreement_of_counters_and_stacks_no_collective_is_named(tmp_path, change):
    dumps = asleep_before_group_1()
    change(dumps)
    assert verdict_on(dumps, tmp_path).collective is None


def test_a_rank_that_waits_in_a_recorded_call_is_not_in_another_one(tmp_path):
    """All ranks are in the recorded call 7 of group 0; rank 0 has counted one of group 3 too, and rank 2 has not."""
    dumps = of("sleep")
    for dump in dumps:
        dump["flight_recorder"]["entries"] = dumps[0]["flight_recorder"]["entries"]
        dump["flight_recorder"]["pg_status"] = dumps[0]["flight_recorder"]["pg_status"]
        dump["threads"] = of("order")[0]["threads"]
        set_count(dump, "0", 7)
    set_count(dumps[0], "3", 1)
    verdict = verdict_on(dumps, tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.NETWORK, ())
    assert (verdict.collective.group, verdict.collective.sequence) == ("0", 7)


def test_a_group_whose_ranks_are_all_there_waits_for_none_of_them(tmp_path):
    dumps = [without_unfinished_call(dump) for dump in of("order")]
    set_count(dumps[1], "1", 1)
    set_count(dumps[1], "2", 0)
    verdict = verdict_on(dumps, tmp_path)
    assert (verdict.cause, verdict.culprits, verdict.collective) == (Cause.UNKNOWN, (), None)


def test_different_collectives_are_no_mismatch_while_the_group_waits_for_a_rank(tmp_path):
    """Ranks 0 and 2 are in the first collective of group 0, by their stacks in different ones; rank 1 sleeps."""
    dumps = of("sleep")
    every = of("order")[0]["threads"][0]["frames"]
    for dump, function in ((dumps[0], "all_reduce"), (dumps[2], "barrier")):
        dump["threads"][0]["frames"] = [{**every[0], "function": function}, *every[1:]]
    for dump in dumps:
        # Another group of all three, of which nothing is recorded.
        dump["groups"].append({"name": "4", "description": "", "ranks": [0, 1, 2], "sequence": int(dump["rank"] != 1)})
        dump["flight_recorder"]["pg_config"]["4"] = {"name": "4", "desc": "", "ranks": "[0, 1, 2]"}
        dump["flight_recorder"]["entries"] = dump["flight_recorder"]["entries"][:1]
        dump["flight_recorder"]["pg_status"]["0"]["last_enqueued_collective"] = 6
        set_count(dump, "0", 6)
    verdict = verdict_on(dumps, tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.PYTHON_CODE, (1,))
    assert (verdict.collective.group, verdict.collective.sequence, verdict.collective.missing) == ("4", 1, (1,))


# --- what to record next time --------------------------------------------------------------------------------------


def test_only_what_is_missing_is_to_be_recorded(tmp_path):
    dumps = of("order")
    handed_over(dumps)
    for dump in dumps:
        for group in dump["groups"]:
            group["sequence"] = None
    for rank, ranks in ((1, "rank 1"), (0, "all ranks")):
        dumps[rank]["flight_recorder"] = {}
        (advice,) = verdict_on(dumps, tmp_path).advice
        assert "TORCH_FR_BUFFER_SIZE" in advice
        assert advice.endswith(f" in {ranks}")
