"""Which rank waits for which, and where the chains of waiting end.

Rank r waits for rank q if r is in a call that q has not made. A rank that others wait for and that waits for none is
where a hang begins. If every rank that others wait for waits itself, there is a cycle: a deadlock.

In: the progress of the ranks. Out: the waits, the ranks at their ends, and the cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rankscope.answers.hang.arrivals import Arrivals, Stuck
from rankscope.answers.hang.records import Call, Group


@dataclass(frozen=True)
class Wait:
    """One rank waits in a call for another one."""

    rank: int
    waits_for: int
    stuck: Stuck


@dataclass(frozen=True)
class Waits:
    """All waits of a job."""

    waits: tuple[Wait, ...]
    roots: tuple[int, ...]
    """Ranks that others wait for, and that wait for none."""
    suspects: tuple[int, ...]
    """Ranks without any information, for which only ranks without another known culprit can be waiting."""
    cycle: tuple[Wait, ...]
    """Waits that lead back to their beginning; empty if there is a root."""

    def of(self, rank: int) -> Wait | None:
        """What a rank waits for first."""
        return next((wait for wait in self.waits if wait.rank == rank), None)

    def for_any(self, ranks: Iterable[int]) -> Wait | None:
        """The wait that shows most of these ranks to be missing: in a collective before a pair, the first of these."""
        wanted = set(ranks)
        to_them = [wait for wait in self.waits if wait.waits_for in wanted]
        return max(to_them, key=lambda wait: (wait.stuck.is_collective, len(wanted & wait.stuck.absent)), default=None)


def find_waits(arrivals: Arrivals, stuck: list[Stuck]) -> Waits:
    """Who waits for whom, in the order of the calls."""
    waits = _of_collectives(stuck) + _of_pairs(arrivals)
    waits.sort(key=lambda wait: (wait.stuck.created_ns, wait.stuck.sequence, wait.rank, wait.waits_for))
    targets: dict[int, set[int]] = defaultdict(set)
    for wait in waits:
        targets[wait.rank].add(wait.waits_for)
    waited_for = {target for reached in targets.values() for target in reached}
    ends = {rank for rank in waited_for if not targets.get(rank)}
    unknown = {rank for rank in ends if rank not in arrivals.dumps or not arrivals.dumps[rank].has_calls}
    sure = {wait.waits_for for wait in waits if wait.waits_for in wait.stuck.missing}
    cycle = () if ends else _cycle(waits, targets)
    return Waits(tuple(waits), tuple(sorted(ends - (unknown - sure))), tuple(sorted(unknown - sure)), cycle)


def _of_collectives(stuck: list[Stuck]) -> list[Wait]:
    waits = []
    for each in stuck:
        # A rank without a dump counts as missing only where no other rank is known to be missing.
        targets = each.missing or each.unknown
        waits += [Wait(rank, target, each) for rank in each.waiting for target in targets]
    return waits


def _of_pairs(arrivals: Arrivals) -> list[Wait]:
    """Waits in sends and receives: the other end has not made the matching call."""
    pending: dict[tuple[Group, int, int, str], list[Call]] = defaultdict(list)
    for rank, dump in arrivals.dumps.items():
        for call in dump.calls:
            group = dump.groups.get(call.group)
            if call.peer is not None and not call.finished and group is not None and call.peer < len(group.ranks):
                pending[group, rank, group.ranks[call.peer], call.operation].append(call)
    waits = []
    for (group, rank, peer, operation), calls in pending.items():
        other = "send" if operation == "recv" else "recv"
        matched = len(pending.get((group, peer, rank, other), ()))
        if matched >= len(calls):
            continue
        call = calls[matched]
        is_known = peer in arrivals.dumps and arrivals.dumps[peer].has_calls
        stuck = Stuck(
            group,
            call.pair_sequence,
            arrived=(rank,),
            missing=(peer,) if is_known else (),
            unknown=() if is_known else (peer,),
            completed=(),
            calls={rank: (call,)},
            is_collective=False,
        )
        waits.append(Wait(rank, peer, stuck))
    return waits


def _cycle(waits: list[Wait], targets: Mapping[int, set[int]]) -> tuple[Wait, ...]:
    """A shortest cycle of waits, from its smallest rank on; empty if there is none."""
    best: tuple[int, ...] = ()
    for start in sorted(targets):
        path = _path_back(start, targets)
        if path and (not best or len(path) < len(best)):
            best = path
    steps = zip(best, (*best[1:], *best[:1]), strict=True)
    return tuple(next(w for w in waits if (w.rank, w.waits_for) == step) for step in steps)


def _path_back(start: int, targets: Mapping[int, set[int]]) -> tuple[int, ...]:
    """The ranks of a shortest path from a rank back to it."""
    paths: list[tuple[int, ...]] = [(start,)]
    seen = {start}
    while paths:
        longer: list[tuple[int, ...]] = []
        for path in paths:
            for target in sorted(targets.get(path[-1], ())):
                if target == start:
                    return path
                if target not in seen:
                    seen.add(target)
                    longer.append((*path, target))
        paths = longer
    return ()
