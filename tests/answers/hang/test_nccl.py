"""Hangs of real NCCL jobs, and what may be concluded from the group's counters where NCCL blocks the host.

The dumps in `nccl/` are those that `hanging_job.py` wrote with NCCL 2.28.9 and torch 2.11.0 on one H100, which two or
three ranks shared. They are shortened: the training thread and the latest calls only, without the state of the device;
the folders of the job and of Python's libraries are shorter. Nothing else was changed.

With `device_id` a group has its communicator before its first collective, and what blocks the host is the connection.
Without it the communicator is made in the first collective, before the recorder has the call or knows the group.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankscope.answers.hang import Cause, read

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


def set_count(dump, group, count):
    next(each for each in dump["groups"] if each["name"] == group)["sequence"] = count


@pytest.mark.parametrize(
    ("case", "cause", "culprits", "group", "sequence", "missing"),
    [
        ("order", Cause.DEADLOCK, (0, 1), "1", 1, (1,)),
        ("cycle", Cause.DEADLOCK, (0, 1, 2), "1", 1, (1,)),
        ("sleep", Cause.PYTHON_CODE, (1,), "0", 7, (1,)),
        ("size", Cause.MISMATCH, (1,), "0", 7, ()),
        ("order_without_device_id", Cause.DEADLOCK, (0, 1), "1", 1, (1,)),
        ("cycle_without_device_id", Cause.DEADLOCK, (0, 1, 2), "1", 1, (1,)),
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


@pytest.mark.parametrize("device", ["", "_without_device_id"])
def test_the_ranks_of_a_deadlock_and_their_groups(device):
    order, cycle = read(RECORDED / f"order{device}"), read(RECORDED / f"cycle{device}")
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
def test_the_counters_show_the_deadlock_that_a_recorded_call_shows(case):
    recorded, counted = read(RECORDED / case), read(RECORDED / f"{case}_without_device_id")
    assert counted.summary == recorded.summary
    assert (counted.collective.operation, counted.collective.elements) == ("all_reduce", None)


def asleep_before_group_1():
    """Rank 0 is in the first collective of group 1; rank 1 has called nothing in it, and sleeps."""
    dumps = of("order_without_device_id")
    set_count(dumps[1], "2", 0)
    dumps[1]["threads"][0]["frames"] = ASLEEP
    return dumps


def test_a_rank_that_does_not_come_to_the_first_collective(tmp_path):
    verdict = verdict_on(asleep_before_group_1(), tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.PYTHON_CODE, (1,))
    assert verdict.summary.startswith("Rank 1 did not arrive at all_reduce 1 of group 1: rank 1 is in Python code")


def test_a_dump_may_say_that_the_group_is_of_nccl(tmp_path):
    """As dumps do since the recorded ones were written."""
    dumps = asleep_before_group_1()
    for dump in dumps:
        for group in dump["groups"]:
            group["backends"] = "cuda:nccl"
    assert verdict_on(dumps, tmp_path).culprits == (1,)


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


def recorder_knows_the_group(dumps):
    """It has a communicator, and a call would be recorded."""
    for dump in dumps:
        dump["flight_recorder"]["pg_config"]["1"] = {"name": "1", "desc": "undefined", "ranks": "[0, 1]"}


def group_is_of_gloo(dumps):
    for dump in dumps:
        dump["groups"][1]["backends"] = "cpu:gloo"


def group_has_two_backends(dumps):
    """The counter is that of one of them, and it is not known of which."""
    for dump in dumps:
        dump["groups"][1]["backends"] = "cpu:gloo,cuda:nccl"


def another_group_is_counted(dumps):
    """Group 2 has calls of a backend without a recorder: the rank may be in one of those."""
    for dump in dumps:
        set_count(dump, "2", 7)


def nothing_of_nccl_is_recorded(dumps):
    of_gloo(dumps)


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
        recorder_knows_the_group,
        group_is_of_gloo,
        group_has_two_backends,
        another_group_is_counted,
        nothing_of_nccl_is_recorded,
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
    dumps = of("order_without_device_id")
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
        # Another group of all three, without a communicator.
        dump["groups"].append({"name": "4", "description": "", "ranks": [0, 1, 2], "sequence": int(dump["rank"] != 1)})
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
