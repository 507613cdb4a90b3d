"""Collectives that a rank has called and torch has not handed to the device yet: the host waits in the call.

NCCL connects the ranks of a group at its first collective, and the host waits until all of them have come. If the
group's communicator is made then, the collective is not in the Flight Recorder yet: it is known from the group's
counter, which is ahead by one, and from the stack. If the group has its communicator (``device_id`` of
``init_process_group``), the recorder has it, and it is ``on_host``. A rank that has left such a call after an exception
has not made it.

In: one dump for each rank. Out: the same, with the calls that the ranks are in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from rankscope.answers.hang.causes import call_frame, collective_of, is_backward
from rankscope.answers.hang.records import Call, Group, RankDump
from rankscope.rundir.hang_dump import ThreadStack


def with_calls_on_host(dumps: Mapping[int, RankDump]) -> dict[int, RankDump]:
    """Dumps with each rank's unrecorded call, and without those that it has left.

    Args:
        dumps: by rank.
    """
    kept = {rank: _without_left_calls(dump) for rank, dump in dumps.items()}
    return {**kept, **_in_first_collectives(kept)}


def _without_left_calls(dump: RankDump) -> RankDump:
    """A dump without the calls on the host that none of its threads is in."""
    if not dump.threads or not any(call.on_host for call in dump.calls):
        return dump
    return replace(
        dump,
        calls=tuple(
            call for call in dump.calls if not call.on_host or any(_is_in(thread, call) for thread in dump.threads)
        ),
    )


def _is_in(thread: ThreadStack, call: Call) -> bool:
    """Whether a thread is in a call: where it was made, or in any collective if that is not recorded."""
    place = call_frame(call.frames)
    if place is None:
        return bool(collective_of(thread)) or is_backward(thread)
    here = (place.file, place.function, place.line)
    return any((frame.file, frame.function, frame.line) == here for frame in thread.frames)


def _in_first_collectives(dumps: Mapping[int, RankDump]) -> dict[int, RankDump]:
    """The dumps of ranks that wait in the first collective of a group.

    A group counts if every member with a dump either has called nothing in it, or can be in its first collective; and
    if a member may be missing.
    """
    begun: dict[Group, set[int]] = defaultdict(set)
    for rank, dump in dumps.items():
        group = _just_begun(dump)
        if group is not None:
            begun[group].add(rank)
    return {
        rank: _in_first_collective(dumps[rank], group.name)
        for group, ranks in begun.items()
        if _others_have_not_come(group, ranks, dumps)
        for rank in ranks
    }


def _just_begun(dump: RankDump) -> Group | None:
    """The group whose first collective a rank can be in, if its stack is in a collective and it can be in no other.

    NCCL's recorder knows a group once it has a communicator, and from then on has its calls.
    """
    stack = dump.training_stack
    if stack is None or not collective_of(stack) or not dump.nccl_groups or dump.only_active:
        return None
    if not all(call.finished for call in dump.calls):
        return None
    recorded = {*dump.nccl_groups, *(call.group for call in dump.calls)}
    counted = [name for name, count in dump.sequences.items() if count and name not in recorded]
    if len(counted) != 1 or dump.sequences[counted[0]] != 1:
        return None
    group = dump.groups.get(counted[0])
    return group if group is not None and group.backends <= {"nccl"} else None


def _others_have_not_come(group: Group, ranks: set[int], dumps: Mapping[int, RankDump]) -> bool:
    others = set(group.ranks) - ranks
    return bool(others) and all(rank not in dumps or dumps[rank].sequences.get(group.name) == 0 for rank in others)


def _in_first_collective(dump: RankDump, group: str) -> RankDump:
    """A dump with the call of a group's first collective."""
    stack = dump.training_stack
    assert stack is not None
    call = Call(
        group,
        1,
        collective_of(stack),
        record=1 + max((call.record for call in dump.calls), default=-1),
        created_ns=dump.time_ns,  # the latest that it can be
        backend="nccl",
        frames=stack.frames,
        on_host=True,
        recorded=False,
    )
    return replace(dump, calls=(*dump.calls, call))
