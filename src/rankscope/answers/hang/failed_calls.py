"""Collectives that ranks have left by an exception, since another rank did not come or is gone.

Gloo's Flight Recorder has them as over, like those that are complete. A rank that such an exception ended was in those
of its collectives that another rank of the group has not called; if there are none, in its latest.

In: one dump for each rank. Out: the same, with these collectives not finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rankscope.answers.hang.liveness import reports_others
from rankscope.answers.hang.records import Call, RankDump


def with_failed_calls(dumps: Mapping[int, RankDump]) -> dict[int, RankDump]:
    """Dumps with the calls that failed.

    Args:
        dumps: by rank.
    """
    return {rank: _with_failed(rank, dump, dumps) for rank, dump in dumps.items()}


def _with_failed(rank: int, dump: RankDump, dumps: Mapping[int, RankDump]) -> RankDump:
    calls = [call for call in dump.calls if call.backend == "gloo" and not call.point_to_point]
    if not calls or not reports_others(dump.uncaught):
        return dump
    others = [other for number, other in dumps.items() if number != rank and other.has_calls]
    reached = {name: min((_latest(other, name) for other in others), default=0) for name in {c.group for c in calls}}
    failed = [call for call in calls if others and call.sequence > reached[call.group] and _is_shared(call, dump)]
    failed = failed or calls[-1:]
    completed = dict(dump.last_completed)
    for call in failed:
        if call.group in completed:
            completed[call.group] = min(completed[call.group], call.sequence - 1)
    marked = tuple(replace(call, finished=False) if call in failed else call for call in dump.calls)
    return replace(dump, calls=marked, last_completed=completed)


def _latest(dump: RankDump, group: str) -> int:
    return max((call.sequence for call in dump.calls if call.group == group and not call.point_to_point), default=0)


def _is_shared(call: Call, dump: RankDump) -> bool:
    """Whether all ranks are in the group of a call: of others, it is not known which ranks' calls have its name."""
    group = dump.groups.get(call.group)
    return call.group == "0" or (group is not None and len(group.ranks) == (dump.world_size or 0))
