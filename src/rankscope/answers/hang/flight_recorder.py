"""A dump of torch's Flight Recorder as plain values, from NCCL or Gloo, from a pickle or from JSON.

The groups are in ``pg_config``; Gloo leaves their names out there (torch 2.13), and an entry's group is then known by
its name alone. ``pg_status`` has the latest numbers by a process-local id that only the entries connect to a name: the
other ids are matched by their order, since torch numbers groups as they are created. It counts point-to-point calls
where a group has any, so it is used only where the entries of the group confirm it.

In: parsed values. Out: a :class:`RankDump` without stacks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rankscope.answers.hang.records import Call, Group, RankDump, Status
from rankscope.rundir import fields
from rankscope.rundir.hang_dump import Frame

MAX_ENTRIES = 1_000_000
_MAX_RECORDERS = 8
_PEER = re.compile(r"(send|recv) (\d{1,7})(->|<-)(\d{1,7})")
_RANKS = re.compile(r"\[[\d,\s]*\]")
_DONE = "completed"
_NCCL = "nccl"


def is_flight_recorder(value: object) -> bool:
    """Whether a parsed file is a dump of the Flight Recorder."""
    return isinstance(value, dict) and isinstance(value.get("version"), str) and "pg_config" in value


def read_flight_recorder(value: object, source: str) -> RankDump:
    """The groups and calls of one dump; anything unexpected in it is left out.

    Args:
        value: the parsed dump; rankscope's have a list of ``recorders`` where several backends have one.
        source: the file, for messages.
    """
    dump = fields.mapping(value)
    several = dump.get("recorders")
    if not isinstance(several, list):
        return _read_one(dump, source)
    found = _read_one({}, source)
    for each in several[:_MAX_RECORDERS]:
        found = both_backends(found, _read_one(fields.mapping(each), source))
    return found


def both_backends(one: RankDump, other: RankDump) -> RankDump:
    """What two recorders of one rank have, of different backends."""
    if not one.calls or not other.calls:
        return one if one.calls or not other.calls else other
    calls = sorted((*one.calls, *other.calls), key=lambda call: call.created_ns)
    return replace(
        one,
        candidates=one.candidates & other.candidates or one.candidates,
        groups={**other.groups, **one.groups},
        calls=tuple(replace(call, record=number) for number, call in enumerate(calls)),
        only_active=one.only_active or other.only_active,
        last_enqueued={**other.last_enqueued, **one.last_enqueued},
        last_completed={**other.last_completed, **one.last_completed},
        by_backend={**other.by_backend, **one.by_backend},
        nccl_groups=one.nccl_groups | other.nccl_groups,
    )


def _read_one(dump: Mapping[str, object], source: str) -> RankDump:
    """The dump of one recorder."""
    groups = _groups(dump.get("pg_config"))
    entries = [fields.mapping(entry) for entry in _entries(dump.get("entries"))]
    calls = sorted(filter(None, map(_call, entries)), key=lambda call: call.record)
    enqueued, completed = _status(dump.get("pg_status"), entries, groups, calls)
    calls = _with_call_on_host(calls, entries, fields.mapping(dump.get("pg_status")))
    backends = {call.backend for call in calls}
    # Of several in one recorder, it is not known which one a status is of.
    by_backend = {backend: Status(enqueued, completed) for backend in backends} if len(backends) == 1 else {}
    return RankDump(
        source=source,
        candidates=_candidates(groups, calls),
        groups=groups,
        calls=tuple(calls),
        has_calls="entries" in dump or not calls,
        only_active=bool(groups) and not any(call.finished for call in calls) and _began_late(calls, enqueued),
        last_enqueued=enqueued,
        last_completed=completed,
        by_backend=by_backend,
        nccl_groups=frozenset(groups) if backends == {_NCCL} else frozenset(),
    )


def _entries(value: object) -> list[object]:
    return list(value[:MAX_ENTRIES]) if isinstance(value, (list, tuple)) else []


def _began_late(calls: list[Call], enqueued: Mapping[str, int]) -> bool:
    """Whether finished calls are missing: the first recorded one is not the job's first."""
    return calls[0].record > 0 if calls else any(enqueued.values())


def _groups(value: object) -> dict[str, Group]:
    groups = {}
    for name, raw in fields.mapping(value).items():
        config = fields.mapping(raw)
        ranks = _ranks(config.get("ranks"))
        if name and ranks:
            groups[name] = Group(name, ranks, fields.text(config.get("desc")) or "")
    return groups


def _ranks(value: object) -> tuple[int, ...]:
    """Ranks from ``[0, 1]``, which torch writes as text."""
    if isinstance(value, str) and len(value) < 32 * fields.MAX_RANKS and _RANKS.fullmatch(value.strip()):
        value = [int(digits) for digits in re.findall(r"\d{1,9}", value)]
    return fields.items(value, fields.rank)


def _call(entry: Mapping[str, object]) -> Call | None:
    group = _texts(entry.get("process_group"))
    sequence = fields.count(entry.get("collective_seq_id"))
    name = fields.text(entry.get("profiling_name"))
    if not group or sequence is None or not name:
        return None
    backend, _, operation = name.rpartition(":")
    pair = _PEER.fullmatch(operation)
    if entry.get("is_p2p") is True and pair is None:
        return None  # the end of a batch of sends and receives, which have entries of their own
    inputs, outputs = _shapes(entry.get("input_sizes")), _shapes(entry.get("output_sizes"))
    dtypes = _texts(entry.get("input_dtypes")) or _texts(entry.get("output_dtypes"))
    over = entry.get("state") == _DONE or bool(fields.count(entry.get("time_discovered_completed_ns")))
    return Call(
        group=sys.intern(group[0]),
        sequence=sequence,
        pair_sequence=fields.count(entry.get("p2p_seq_id")) or 0,
        operation=sys.intern(pair[1] if pair else operation),
        finished=over or entry.get("retired") is True,
        peer=int(pair[4]) if pair else None,
        own=int(pair[2]) if pair else None,
        record=fields.count(entry.get("record_id")) or 0,
        created_ns=fields.count(entry.get("time_created_ns")) or 0,
        started=entry.get("state") == "started" or bool(fields.count(entry.get("time_discovered_started_ns"))),
        backend=sys.intern(backend),
        inputs=_shared(inputs),
        outputs=_shared(outputs),
        dtypes=_shared(dtypes),
        frames=_shared(fields.items(entry.get("frames"), _frame)[:64]),
    )


def _with_call_on_host(calls: list[Call], entries: list[dict[str, object]], status: Mapping[str, object]) -> list[Call]:
    """The calls, the latest of them unfinished where torch is still in it.

    Torch records a collective, calls NCCL, which may wait until the other ranks of the group connect, and then updates
    the group's status. Until then the event at its end has not been recorded, which CUDA reports as complete: the
    recorder has the call as completed.
    """
    latest = calls[-1] if calls else None
    if latest is None or latest.backend != _NCCL or not latest.finished:
        return calls
    entry = next((each for each in reversed(entries) if fields.count(each.get("record_id")) == latest.record), {})
    same = [call for call in calls if call.group == latest.group and call.sequence == latest.sequence]
    counts_pairs = any(call.point_to_point for call in calls if call.group == latest.group)
    last = _number(fields.mapping(status.get(str(entry.get("pg_id")))), "last_enqueued_collective")
    if entry.get("retired") is not False or len(same) > 1 or counts_pairs or last != latest.sequence - 1:
        return calls
    return [*calls[:-1], replace(latest, finished=False, on_host=True)]


@lru_cache(maxsize=1 << 16)
def _shared(value: Hashable) -> Any:
    """One object for equal ones: thousands of ranks call the same collectives from the same places."""
    return value


def _texts(value: object) -> tuple[str, ...]:
    return fields.items(value, fields.text)


def _shapes(value: object) -> tuple[tuple[int, ...], ...]:
    return fields.items(value, lambda shape: fields.items(shape, fields.count)[:16] if _is_list(shape) else None)


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _frame(value: object) -> Frame | None:
    raw = fields.mapping(value)
    file, function = fields.text(raw.get("filename")), fields.text(raw.get("name"))
    return Frame(file or "", fields.count(raw.get("line")) or 0, function or "") if file or function else None


def _candidates(groups: Mapping[str, Group], calls: list[Call]) -> frozenset[int]:
    """The ranks that a dump can be of: members of all its groups, and the caller that point-to-point calls name."""
    possible: set[int] | None = None
    for group in groups.values():
        possible = set(group.ranks) if possible is None else possible & set(group.ranks)
    for call in calls:
        members = groups[call.group].ranks if call.group in groups else ()
        if call.own is not None and call.own < len(members):
            return frozenset((members[call.own],))
    return frozenset(possible or ())


def _status(
    value: object, entries: list[dict[str, object]], groups: Mapping[str, Group], calls: list[Call]
) -> tuple[dict[str, int], dict[str, int]]:
    """The latest started and completed numbers by group, where they count collectives and the group is known."""
    status = {int(key): fields.mapping(raw) for key, raw in fields.mapping(value).items() if key.isdecimal()}
    names: dict[int, str] = {}
    for entry in entries:
        local = fields.count(entry.get("pg_id"))
        group = _texts(entry.get("process_group"))
        if local is not None and group:
            names[local] = group[0]
    # Names of groups count upwards as well, unless torch made hashes of their ranks.
    if len(status) == len(groups) and all(name.isdecimal() for name in groups):
        by_order = dict(zip(sorted(status), sorted(groups, key=int), strict=True))
        if all(by_order.get(local) == name for local, name in names.items()):
            names = by_order
    latest: dict[str, int] = {}
    mixed = {call.group for call in calls if call.point_to_point}
    for call in calls:
        latest[call.group] = max(latest.get(call.group, 0), call.sequence)
    enqueued, completed = {}, {}
    for local, name in names.items():
        numbers = status.get(local, {})
        last, done = _number(numbers, "last_enqueued_collective"), _number(numbers, "last_completed_collective")
        if last is None or name in mixed or latest.get(name, last) != last:
            continue
        enqueued[name] = last
        if done is not None and done <= last:
            completed[name] = done
    return enqueued, completed


def _number(status: Mapping[str, object], key: str) -> int | None:
    """A number that NCCL's dump has as such and Gloo's JSON as text; torch writes -1 where there is none."""
    value = status.get(key)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value = int(value)
    number = fields.integer(value)
    return None if number is None else max(number, 0)
