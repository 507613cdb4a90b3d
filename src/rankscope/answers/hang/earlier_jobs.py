"""Leaves out what an earlier job or attempt left in the run directory: it is not evidence about the latest one.

A rank rewrites its heartbeat from the start, but its dump only when it hangs. So a dump may be from an earlier job, and
if that job had more ranks, so may a heartbeat. A dump or heartbeat is from an earlier job if it

- has another run id than the newest file, or is of an earlier attempt than that: while a job is started again, some
  ranks are there already and others are not,
- was written before the rank's present watch began, which its heartbeat says, in the same attempt, or
- belongs to a rank that the latest job does not have.

In: dumps and heartbeats of a directory. Out: those of the latest job, and notes on what was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.answers.hang.records import RankDump
from rankscope.rundir.hang_dump import Heartbeat
from rankscope.rundir.plurals import counted


@dataclass(frozen=True)
class Present:
    """What the latest job has written."""

    dumps: list[RankDump]
    heartbeats: list[Heartbeat]
    notes: list[str]


def of_the_latest_job(dumps: Sequence[RankDump], heartbeats: Sequence[Heartbeat]) -> Present:
    """Leave out what an earlier job has written; files without a time are kept."""
    if not heartbeats:
        return Present(list(dumps), [], [])
    files: list[RankDump | Heartbeat] = [*heartbeats, *dumps]
    newest = max(files, key=lambda each: each.time_ns)
    # If a rank has several heartbeats, the older ones are from earlier attempts on other hosts.
    latest = sorted(heartbeats, key=lambda beat: beat.restart_count)
    began = {beat.rank: (beat.restart_count, beat.began_ns) for beat in latest}

    def is_present(each: RankDump | Heartbeat) -> bool:
        if not each.time_ns or each.rank is None:
            return True
        if each.run_id and newest.run_id and each.run_id != newest.run_id:
            return False
        if newest.world_size is not None and each.rank >= newest.world_size:
            return False
        if each.restart_count < newest.restart_count:
            return False
        restart_count, began_ns = began.get(each.rank, (0, 0))
        return each.restart_count > restart_count or each.time_ns >= began_ns

    kept, beats = [each for each in dumps if is_present(each)], [each for each in heartbeats if is_present(each)]
    notes = []
    for left, noun in ((len(dumps) - len(kept), "dump"), (len(heartbeats) - len(beats), "heartbeat")):
        if left:
            notes.append(f"{counted(left, noun)} of an earlier job or attempt in this directory {_was(left)} left out")
    return Present(kept, beats, notes)


def _was(count: int) -> str:
    return "was" if count == 1 else "were"
