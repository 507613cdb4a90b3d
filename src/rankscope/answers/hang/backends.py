"""Tells the backends of a group apart.

A process group may have several: ``cpu:gloo,cuda:nccl``. Each numbers its collectives by itself, so that the fifth
all-reduce of NCCL and the fifth of Gloo are not the same one. Which backends a group has is known only from the calls
of all ranks: the rank at fault may not have called one of them yet.

In: one dump for each rank. Out: the same, with a group for each backend where a group has several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from rankscope.answers.hang.records import Group, RankDump, Status

T = TypeVar("T")
Apart = Mapping[str, Mapping[str, str]]
"""By the name of a group and a backend: the name of the group of that backend alone."""


def with_backends_apart(dumps: Mapping[int, RankDump]) -> dict[int, RankDump]:
    """Dumps in which each group has one backend.

    Args:
        dumps: by rank.
    """
    used: dict[str, set[str]] = defaultdict(set)
    for dump in dumps.values():
        for call in dump.calls:
            used[call.group].add(call.backend)
    apart = {
        name: {backend: f"{name} ({backend})" for backend in sorted(backends)}
        for name, backends in used.items()
        if len(backends) > 1
    }
    return {rank: _apart(dump, apart) for rank, dump in dumps.items()} if apart else dict(dumps)


def _apart(dump: RankDump, apart: Apart) -> RankDump:
    groups = _without(dump.groups, apart)
    enqueued, completed = _without(dump.last_enqueued, apart), _without(dump.last_completed, apart)
    for name, by_backend in apart.items():
        group = dump.groups.get(name)
        for backend, new in by_backend.items():
            if group is not None:
                groups[new] = Group(new, group.ranks, group.description)
            status = dump.by_backend.get(backend, Status())
            if name in status.enqueued:
                enqueued[new] = status.enqueued[name]
            if name in status.completed:
                completed[new] = status.completed[name]
    return replace(
        dump,
        groups=groups,
        calls=tuple(
            replace(call, group=apart[call.group][call.backend]) if call.group in apart else call for call in dump.calls
        ),
        last_enqueued=enqueued,
        last_completed=completed,
        sequences=_without(dump.sequences, apart),  # they are those of one backend, and not known of which
    )


def _without(values: Mapping[str, T], apart: Apart) -> dict[str, T]:
    return {name: value for name, value in values.items() if name not in apart}
