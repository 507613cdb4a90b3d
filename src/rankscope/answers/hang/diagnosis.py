"""From dumps to a verdict.

The questions, in order: did the ranks call different things (mismatch)? Where do the chains of waiting end (a rank that
did not arrive)? Do they end at all (deadlock)? Did a device stop? If all ranks have arrived and agree, it is the
network.
The class of cause of a rank that did not arrive is from its stack or its heartbeat; without either it is unknown.

In: dumps, heartbeats. Out: a :class:`HangVerdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from rankscope.answers.hang.arrivals import ROOTED, Arrivals, Stuck, world_size_of
from rankscope.answers.hang.backends import with_backends_apart
from rankscope.answers.hang.causes import INIT, Cause, Place, call_frame, place_of
from rankscope.answers.hang.earlier_jobs import of_the_latest_job
from rankscope.answers.hang.failed_calls import with_failed_calls
from rankscope.answers.hang.host_calls import with_calls_on_host
from rankscope.answers.hang.inspector import Completed, notes_on
from rankscope.answers.hang.liveness import is_consequence, latest_heartbeats, places_without_dump
from rankscope.answers.hang.mismatches import OPERATION, Mismatch, find_mismatch
from rankscope.answers.hang.ranks import assign_ranks
from rankscope.answers.hang.records import Group, RankDump
from rankscope.answers.hang.verdict import CollectiveVariant, HangVerdict, HungCollective, RankVerdict, WaitInCycle
from rankscope.answers.hang.waits import Wait, Waits, find_waits
from rankscope.answers.hang.wording import advice_for, summary_of
from rankscope.errors import ConfigError
from rankscope.rundir.hang_dump import Heartbeat
from rankscope.rundir.ranks import parse_ranks

_MAX_STACK = 100
_BLOCKING = (Cause.COMMUNICATION, Cause.UNKNOWN)


@dataclass(frozen=True)
class _Case:
    """All that is known before the verdict."""

    dumps: Mapping[int, RankDump]
    places: Mapping[int, Place]
    """Where each rank is, by its stack or its heartbeat."""
    stuck: list[Stuck]
    waits: Waits
    mismatch: Mismatch | None
    stopped: tuple[int, ...]
    """Ranks whose devices have not finished what the others' have."""
    unseen: tuple[int, ...]
    """Ranks without a dump and a heartbeat."""
    absent: tuple[int, ...]
    """Those of them that would have one if they had come."""


def diagnose(
    dumps: Iterable[RankDump],
    heartbeats: Iterable[Heartbeat],
    problems: Iterable[str] = (),
    completed: Iterable[Completed] = (),
) -> HangVerdict:
    """The verdict on the dumps of a job.

    Args:
        dumps: of its ranks, as they were read.
        heartbeats: of its ranks, if they wrote any.
        problems: files that could not be read.
        completed: collectives that logs of the Inspector have.
    """
    present = of_the_latest_job(list(dumps), list(heartbeats))
    by_rank, notes = assign_ranks(present.dumps)
    by_rank = with_failed_calls(with_calls_on_host(with_backends_apart(by_rank)))
    notes += [*present.notes, *notes_on(completed)]
    beats = latest_heartbeats(present.heartbeats)
    size = max(world_size_of(by_rank), *(max(b.rank + 1, b.world_size or 0) for b in beats.values()), 0)
    arrivals = Arrivals(by_rank, size)
    stuck = arrivals.stuck()
    places = {rank: place for rank, dump in by_rank.items() if (place := place_of(dump)) is not None}
    places |= places_without_dump(beats, by_rank)
    unseen = tuple(rank for rank in range(size) if rank not in by_rank and rank not in beats)
    case = _Case(
        by_rank,
        places,
        stuck,
        find_waits(arrivals, stuck),
        find_mismatch(arrivals, stuck),
        _stopped(by_rank, arrivals),
        unseen,
        _watched(unseen, beats),
    )
    signal = _ended_from_outside(by_rank, beats)
    verdict = HangVerdict(False, Cause.UNKNOWN, "", ended_by=signal) if signal else _verdict(case)
    ranks = _rank_verdicts(case, verdict)
    verdict = replace(
        verdict,
        ranks=ranks,
        over=verdict.found and _is_over(by_rank, beats),
        world_size=size,
        dumps=len(by_rank),
        without_dump=tuple(rank for rank in range(size) if rank not in by_rank),
        problems=tuple(problems),
        notes=tuple(notes),
    )
    without_calls = tuple(rank for rank, dump in by_rank.items() if not dump.has_calls)
    return replace(verdict, summary=summary_of(verdict), advice=advice_for(verdict, without_calls))


def _watched(ranks: tuple[int, ...], beats: Mapping[int, Heartbeat]) -> tuple[int, ...]:
    """Those of these ranks that are watched; all, if that is not known."""
    choices = []
    for expression in {beat.ranks for beat in beats.values() if beat.ranks}:
        with suppress(ConfigError):  # heartbeats are untrusted
            choices.append(parse_ranks(expression))
    return tuple(rank for rank in ranks if all(choice.selects(rank) for choice in choices))


def _ended_from_outside(dumps: Mapping[int, RankDump], beats: Mapping[int, Heartbeat]) -> str:
    """The signal that ended the first rank to end; empty if an exception did, or a rank has hung before."""
    if any(not dump.uncaught and not dump.signal for dump in dumps.values()):
        return ""
    ends = [(dump.time_ns, dump.signal) for dump in dumps.values()]
    ends += [(beat.time_ns, beat.signal) for beat in beats.values() if beat.exception or beat.signal]
    return min(ends, default=(0, ""))[1]


def _is_over(dumps: Mapping[int, RankDump], beats: Mapping[int, Heartbeat]) -> bool:
    """Whether the ranks have made steps since they wrote their dumps, by their heartbeats."""

    def made_steps(rank: int, at: int | None) -> bool:
        now = beats[rank].step if rank in beats else None
        return at is not None and now is not None and now > at

    return bool(dumps) and all(made_steps(rank, dump.step) for rank, dump in dumps.items())


def _verdict(case: _Case) -> HangVerdict:
    """Cause, culprits and collective; the rest is filled in later."""
    if case.mismatch is not None:
        return _of_mismatch(case, case.mismatch)
    waits = case.waits
    dead = tuple(sorted(rank for rank, place in case.places.items() if place.cause is Cause.DEAD))
    if dead:
        wait = waits.for_any(dead)
        return _found(Cause.DEAD, dead, wait.stuck if wait else None)
    if waits.roots or case.stopped:
        culprits = tuple(sorted({*waits.roots, *case.stopped}))
        wait = waits.for_any(waits.roots) or waits.for_any(culprits)
        stuck = wait.stuck if wait else _first_pending(case, culprits)
        return _found(_cause_of(case, culprits), culprits, stuck)
    if waits.cycle:
        cycle = tuple(WaitInCycle(wait.rank, wait.waits_for, _collective(wait.stuck)) for wait in waits.cycle)
        return HangVerdict(True, Cause.DEADLOCK, "", _in_deadlock(waits.cycle), cycle[0].collective, cycle=cycle)
    if waits.suspects:
        wait = waits.for_any(waits.suspects)
        return _found(_cause_of(case, waits.suspects), waits.suspects, wait.stuck if wait else None)
    if case.stuck:
        return _found(Cause.NETWORK, (), case.stuck[0])
    return _without_collective(case)


def _found(cause: Cause, culprits: tuple[int, ...], stuck: Stuck | None) -> HangVerdict:
    return HangVerdict(True, cause, "", culprits, _collective(stuck) if stuck else None)


def _of_mismatch(case: _Case, mismatch: Mismatch) -> HangVerdict:
    """The culprits of a mismatch: a rank out of step after an exception, if there is one; otherwise the minority."""
    failed = tuple(
        rank
        for variant in mismatch.variants
        for rank in variant.ranks
        if (place := case.places.get(rank)) and place.cause is Cause.EXCEPTION and not is_consequence(place)
    )
    is_failure = bool(failed) and mismatch.differs == OPERATION
    variants = tuple(
        CollectiveVariant(
            variant.ranks,
            variant.operation,
            variant.elements,
            variant.dtypes[0] if variant.dtypes else None,
            call_frame(variant.call.frames) or (place.frame if (place := case.places.get(variant.ranks[0])) else None),
        )
        for variant in mismatch.variants
    )
    return HangVerdict(
        True,
        Cause.EXCEPTION if is_failure else Cause.MISMATCH,
        "",
        tuple(sorted(failed)) if is_failure else mismatch.minority,
        _collective(mismatch.stuck),
        variants=variants,
        mismatch=mismatch.differs,
    )


def _in_deadlock(cycle: tuple[Wait, ...]) -> tuple[int, ...]:
    """The ranks of a cycle; of those that wait in two collectives of the same ranks, the minority."""
    sides = [set(wait.stuck.waiting) for wait in cycle]
    members = {wait.stuck.group.ranks for wait in cycle}
    if len(cycle) == 2 and len(members) == 1 and all(members) and not sides[0] & sides[1]:
        fewer, more = sorted(sides, key=len)
        if len(fewer) < len(more):
            return tuple(sorted(fewer))
    return tuple(sorted(wait.rank for wait in cycle))


def _cause_of(case: _Case, culprits: tuple[int, ...]) -> Cause:
    """The culprits' common cause, or the first one that is known."""
    causes = [_own_cause(case, rank) for rank in culprits]
    return next((cause for cause in causes if cause not in _BLOCKING), Cause.UNKNOWN)


def _own_cause(case: _Case, rank: int) -> Cause:
    place = case.places.get(rank)
    if rank in case.stopped and (place is None or place.cause in (*_BLOCKING, Cause.HOST_SYNCHRONIZATION)):
        return Cause.DEVICE
    return Cause.UNKNOWN if place is None or place.cause in _BLOCKING else place.cause


def _without_collective(case: _Case) -> HangVerdict:
    """No recorded collective is stuck: the stacks and heartbeats alone."""
    gone = {rank: place for rank, place in case.places.items() if rank not in case.dumps}
    failed = tuple(
        sorted(r for r, place in case.places.items() if place.cause is Cause.EXCEPTION and not is_consequence(place))
    )
    if failed:
        return _found(Cause.EXCEPTION, failed, None)
    hung = {rank: case.places[rank] for rank, dump in case.dumps.items() if dump.reason and rank in case.places}
    busy = tuple(sorted(rank for rank, place in hung.items() if place.cause is not Cause.COMMUNICATION))
    connecting = {rank for rank, place in hung.items() if place.call == INIT}
    elsewhere = tuple(rank for rank in busy if rank not in connecting)
    ended = tuple(sorted(rank for rank, place in gone.items() if place.cause is Cause.ENDED))
    if ended and hung:
        return _found(Cause.ENDED, ended, None)
    if connecting and elsewhere:
        return _found(_cause_of(case, elsewhere), elsewhere, None)
    if connecting and case.absent:
        return _found(Cause.ABSENT, case.absent, None)
    if connecting and case.unseen:
        return _found(Cause.UNKNOWN, (), None)
    if busy:
        return _found(_cause_of(case, busy), busy, None)
    if hung:
        return _found(Cause.UNKNOWN, (), None)
    return HangVerdict(False, Cause.UNKNOWN, "")


def _stopped(dumps: Mapping[int, RankDump], arrivals: Arrivals) -> tuple[int, ...]:
    """Ranks whose first unfinished call was finished by all others of its group: only their device can be the reason.

    Calls that some ranks may finish before the others arrive do not count.
    """
    found = []
    looked_at: dict[tuple[Group, int], Stuck] = {}
    for rank, dump in dumps.items():
        first = next((call for call in dump.calls if not call.finished), None)
        if first is None or first.point_to_point or first.operation in ROOTED:
            continue
        key = arrivals.group_of(rank, first.group), first.sequence
        stuck = looked_at[key] = looked_at.get(key) or arrivals.at(*key)
        others = set(stuck.arrived) - {rank}
        if others and not stuck.missing and not stuck.unknown and others & set(stuck.completed):
            found.append(rank)
    return tuple(found)


def _first_pending(case: _Case, culprits: tuple[int, ...]) -> Stuck | None:
    return next((stuck for stuck in case.stuck if set(culprits) & set(stuck.waiting)), None)


def _collective(stuck: Stuck, rank: int | None = None) -> HungCollective:
    """A stuck collective, as the given rank or most ranks called it."""
    own = stuck.calls.get(rank) if rank is not None else None
    if own and rank is not None:
        stuck = replace(stuck, calls={**dict.fromkeys(stuck.calls, own), rank: own})
    waiting = frozenset(stuck.waiting)
    calls = [calls[-1] for rank, calls in sorted(stuck.calls.items()) if rank in waiting]
    call = next((call for call in calls if call.operation == stuck.operation), None)
    frames = next((each.frames for each in calls if each.frames), ())
    return HungCollective(
        group=stuck.group.name,
        description=stuck.group.description,
        group_ranks=stuck.group.ranks or tuple(sorted({*stuck.arrived, *stuck.missing, *stuck.unknown})),
        sequence=stuck.sequence,
        operation=stuck.operation,
        arrived=stuck.arrived,
        missing=stuck.missing,
        unknown=stuck.unknown,
        elements=call.elements if call is not None and call.inputs else None,
        dtype=call.dtypes[0] if call is not None and call.dtypes else None,
        called_at=call_frame(frames),
    )


def _rank_verdicts(case: _Case, verdict: HangVerdict) -> tuple[RankVerdict, ...]:
    """All ranks with any information, the culprits first."""
    known = sorted({*case.dumps, *case.places}, key=lambda rank: (rank not in verdict.culprits, rank))
    first: dict[int, Stuck] = {}
    targets: dict[int, set[int]] = {}
    for wait in case.waits.waits:
        if wait.rank in case.stopped:
            # Its device is in an earlier call, whichever rank it would wait for next.
            continue
        if first.setdefault(wait.rank, wait.stuck) is wait.stuck:
            targets.setdefault(wait.rank, set()).add(wait.waits_for)
    for stuck in case.stuck:
        for rank in stuck.waiting:
            first.setdefault(rank, stuck)
    return tuple(_rank_verdict(case, rank, first.get(rank), targets.get(rank, set())) for rank in known)


def _rank_verdict(case: _Case, rank: int, stuck: Stuck | None, targets: set[int]) -> RankVerdict:
    dump, place = case.dumps.get(rank), case.places.get(rank)
    collective = _collective(stuck, rank) if stuck else None
    stack = dump.training_stack if dump is not None else None
    cause, evidence, frame = (place.cause, place.evidence, place.frame) if place else (Cause.UNKNOWN, "", None)
    if rank in case.stopped:
        cause = _own_cause(case, rank)
        evidence = "; ".join(filter(None, (evidence, "has not finished a collective that the others have finished")))
    elif place is None and stuck is not None:
        cause, evidence = Cause.COMMUNICATION, f"waits in {stuck.operation or 'a collective'}"
        own = stuck.calls.get(rank, ())
        frame = call_frame(next((call.frames for call in own if call.frames), ()))
    elif place is None:
        evidence = "is in no recorded collective, and its stack was not recorded"
    return RankVerdict(
        rank,
        cause,
        evidence,
        host=dump.host if dump else "",
        place=frame,
        stack=stack.frames[:_MAX_STACK] if stack else (),
        step=dump.step if dump else None,
        phase=dump.phase if dump else "",
        waits_in=collective,
        waits_for=tuple(sorted(targets)),
    )
