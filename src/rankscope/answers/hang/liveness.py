"""The state of ranks without a dump, from their heartbeats: ended, silent, or alive.

A rank is silent if its latest heartbeat is much older than the job's latest sign of life. A job that was ended as a
whole has no silent rank, since all of its heartbeats stop at the same time. On the host of a rank, its process can be
looked up as well: if it is gone without having noted its end while others live or have ended normally, it was killed.

In: heartbeats, and dumps. Out: what each rank without a dump is known to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rankscope.answers.hang.causes import FAILED, Cause, Place
from rankscope.answers.hang.records import RankDump
from rankscope.rundir.hang_dump import Heartbeat
from rankscope.rundir.processes import is_dead

MISSED_BEATS = 5
"""How many heartbeats a silent rank has missed: a busy host may delay some."""
_LOST = "ended without noting it ({process}): killed by a signal, possibly the launcher's after another rank failed"
_GONE = "{process} is gone without having noted its end: killed by a signal, or out of memory"
# What the other ranks report once one is gone.
_CONSEQUENCE = re.compile(
    r"connection (?:was likely )?(?:closed|reset|refused)|broken pipe|DistNetworkError|timed? ?out|aborted",
    re.IGNORECASE,
)


def latest_heartbeats(heartbeats: Iterable[Heartbeat]) -> dict[int, Heartbeat]:
    """The heartbeats of the job's latest attempt, by rank."""
    heartbeats = list(heartbeats)
    attempt = max((beat.restart_count for beat in heartbeats), default=0)
    return {beat.rank: beat for beat in heartbeats if beat.restart_count == attempt}


def places_without_dump(beats: Mapping[int, Heartbeat], dumps: Mapping[int, RankDump]) -> dict[int, Place]:
    """Where the ranks with a heartbeat and without a dump are."""
    times = [beat.time_ns for beat in beats.values()] + [dump.time_ns for dump in dumps.values()]
    now = max(times, default=0)
    lost = _lost(beats, dumps)
    gone = _gone(beats, dumps)
    return {
        rank: Place(Cause.DEAD, _LOST.format(process=_process(beat)))
        if rank in lost
        else Place(Cause.DEAD, _GONE.format(process=_process(beat)))
        if rank in gone
        else _place(beat, now, bool(dumps))
        for rank, beat in beats.items()
        if rank not in dumps
    }


def _lost(beats: Mapping[int, Heartbeat], dumps: Mapping[int, RankDump]) -> set[int]:
    """Ranks that ended without noting it, and whose end the other ranks report."""
    reports = [beat for beat in beats.values() if beat.ended and beat.exception and _CONSEQUENCE.search(beat.exception)]
    if not reports:
        return set()
    until = min(beat.time_ns for beat in reports)
    silent = {r: b for r, b in beats.items() if r not in dumps and not b.ended}
    return {rank for rank, beat in silent.items() if beat.time_ns <= until + beat.interval_ns}


def _gone(beats: Mapping[int, Heartbeat], dumps: Mapping[int, RankDump]) -> set[int]:
    """Ranks whose processes are gone from this host without having noted their end, if not all are.

    A launcher ends the other ranks once one has failed: those that were alive until then are not the reason.
    """
    failures = [beat.time_ns for beat in beats.values() if beat.exception and not _CONSEQUENCE.search(beat.exception)]
    until = min(failures, default=None)
    gone = {
        rank
        for rank, beat in beats.items()
        if rank not in dumps and not beat.ended and is_dead(beat) and (until is None or _was_silent(beat, until))
    }
    return gone if len(gone) < len({*beats, *dumps}) else set()


def _was_silent(beat: Heartbeat, at_ns: int) -> bool:
    return at_ns - beat.time_ns > MISSED_BEATS * max(beat.interval_ns, 1)


def _process(beat: Heartbeat) -> str:
    return f"process {beat.pid}{' on ' + beat.host if beat.host else ''}"


def _place(beat: Heartbeat, now_ns: int, others_hang: bool) -> Place:
    step = f" in step {beat.step}" if beat.step is not None else ""
    if beat.ended and beat.exception:
        return Place(Cause.EXCEPTION, f"{FAILED}{step} with {beat.exception}")
    if beat.ended and beat.signal:
        return Place(Cause.ENDED, f"was ended{step} by {beat.signal}")
    if beat.ended:
        return Place(Cause.ENDED, f"has left its training loop{step}")
    silent_ns = now_ns - beat.time_ns
    if _was_silent(beat, now_ns):
        return Place(
            Cause.DEAD,
            f"no sign of life for {silent_ns / 1e9:.0f} s{step} ({_process(beat)}): "
            "killed, stopped, or in code that holds Python's lock",
        )
    last = f" {silent_ns / 1e9:.0f} s before the latest file, and has written no dump" if others_hang else ""
    return Place(Cause.UNKNOWN, f"was alive{step}{last}")


def is_consequence(place: Place) -> bool:
    """Whether an exception only reports that another rank is gone."""
    return place.cause is Cause.EXCEPTION and reports_others(place.evidence)


def reports_others(exception: str) -> bool:
    """Whether this text of an exception reports that another rank is gone or has not come."""
    return bool(_CONSEQUENCE.search(exception))
