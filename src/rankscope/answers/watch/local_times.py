"""From the logs of all ranks: how long each rank was busy by itself in each step, and who arrived last.

The log has when each rank called each collective: its arrival. A collective that needs the data of all ranks releases
them when the last has arrived. So between two collectives a rank spent

    local time = arrival − release of the collective before, if it waited for that one,
               = arrival − its own arrival at the one before, if that one ran in the background.

Which of the two holds is not in the log: `waits` infers it for each place in a step. The local time of a step is the
sum of the pieces from the last collective of the step before to the last of its own. Hosts' clocks are aligned at the
end of the backward pass, which ranks leave together.

In: logs. Out: matrices of ranks and steps, and arrivals by group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rankscope.answers.watch.log import Call, Kind, RankLog, StepLine
from rankscope.answers.watch.steps_read import Lines, steps_read
from rankscope.answers.watch.waits import Piece, Place, waited
from rankscope.primitives.stragglers.with_log import LOADING

Int64 = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]
RELEASES = (
    "allreduce",
    "allreduce_coalesced",
    "allgather",
    "_allgather_base",
    "allgather_coalesced",
    "reduce_scatter",
    "_reduce_scatter_base",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
)
"""Collectives that ranks may not leave before all have called them; whether they do is inferred. A broadcast may end on
its root at once; with Gloo, that of large tensors does not."""
FEW = 0.1
"""Of a rank's steps: fewer with a collective before the backward pass are exceptions."""
_AFTER = 2
"""The stretch after the backward pass. It is of the next step's local time, which begins with the last collective."""
_SPAN = 10
"""Times the number of wanted steps: they are taken from that many latest steps, if their collectives were read."""


@dataclass(frozen=True)
class Arrivals:
    """When the ranks of one group arrived at its collectives.

    Attributes:
        group: its name.
        ranks: those whose logs are known.
        steps: of each collective.
        late_ns: (collectives, ranks) after the first to arrive.
    """

    group: str
    ranks: tuple[int, ...]
    steps: Int64
    late_ns: Int64


@dataclass(frozen=True)
class LocalTimes:
    """The times of ranks in the steps that are known of all of them.

    Attributes:
        ranks: their numbers.
        steps: likewise.
        step_ns: (ranks, steps) how long each step took.
        local_ns: (ranks, steps) of that, what the rank was busy by itself.
        phases: of the local time, by name, as far as they are known: (ranks, steps).
        basis: what the local time is made of: ``collectives``; ``device``: events on the device; ``phases``, where no
            collectives are in the log: then it lacks the backward pass.
        arrivals: by group.
        unaligned: whether several hosts' clocks could not be aligned.
        unread: whether the basis is phases only because of no step all collectives could be read.
        undecided_ns: how much of the usual step may be local time or waiting: of the rank with the most.
        ready_ns: (ranks, steps) of the local time, for how long the loop's thread waited for a core; None where that is
            not known.
    """

    ranks: tuple[int, ...]
    steps: Int64
    step_ns: Int64
    local_ns: Int64
    phases: Mapping[str, Int64]
    basis: str
    arrivals: tuple[Arrivals, ...]
    unaligned: bool
    unread: bool = False
    undecided_ns: int = 0
    ready_ns: Int64 | None = None


def local_times(logs: Mapping[int, RankLog], most_steps: int) -> LocalTimes | None:
    """The times of the latest steps that all ranks have; None if there are none, or if there is one rank alone.

    Steps that a profiler recorded are left out, and so are those whose collectives were not all read, and those from
    before a host's clock was set.
    """
    if len(logs) < 2:
        return None
    ranks = tuple(logs)
    first = max(log.clock_set_at for log in logs.values())
    lines = {rank: {line.step: line for line in log.steps if line.step >= first} for rank, log in logs.items()}
    common = sorted(set.intersection(*(set(of_rank) for of_rank in lines.values())))
    common = [step for step in common if not any(lines[rank][step].profiled for rank in ranks)]
    whole = steps_read(logs, lines, common, _SPAN * most_steps)[-most_steps:]
    unread = not whole
    common = whole or common[-most_steps:]
    if not common:
        return None
    offsets, unaligned = _clock_offsets(logs, lines, common)
    matched = _matched(logs, offsets)
    pieces, cut = _pieces(logs, lines, offsets, matched, set(whole))
    local = _local(pieces, ranks, [step for step in whole if step not in cut])
    if local is None:
        phases, steps = _phases(lines, ranks, common, None)
        total: Int64 = np.sum(list(phases.values()), axis=0) if phases else np.zeros((len(ranks), 0), dtype=np.int64)
        if not phases:
            return None
        times = _durations(lines, ranks, steps)
        unread = unread or any(log.gaps for log in logs.values())
        return LocalTimes(ranks, steps, times, total, phases, "phases", (), unaligned, unread)
    known, values, undecided = local
    early = _calls_before_backward(logs, lines, matched, set(known))
    phases, steps = _phases(lines, ranks, known, values, waits_before_backward=early)
    arrivals = _arrivals(matched, lines, offsets, set(known))
    times = _durations(lines, ranks, steps)
    return LocalTimes(
        ranks, steps, times, values, phases, "collectives", arrivals, unaligned,
        undecided_ns=undecided, ready_ns=_ready(lines, ranks, known),
    )  # fmt: skip


def in_local_time(lines: Mapping[int, StepLine], step: int, name: str) -> int:
    """Of what the loop's thread did (`running_us`, `ready_us`), that in a step's local time: of the step until its
    backward pass ends, and of the one before after that, ns."""
    now: tuple[int, ...] = getattr(lines[step], name)
    before: tuple[int, ...] = getattr(lines[step - 1], name)
    return 1000 * (sum(now[:_AFTER]) + sum(before[_AFTER:]))


def _ready(lines: Lines, ranks: Sequence[int], steps: Sequence[int]) -> Int64 | None:
    read = [lines[rank].get(each) for rank in ranks for step in steps for each in (step - 1, step)]
    if not all(line is not None and line.running_us for line in read):
        return None
    return np.array(
        [[in_local_time(lines[rank], step, "ready_us") for step in steps] for rank in ranks], dtype=np.int64
    )


Matched = Mapping[tuple[str, int], Mapping[int, int]]


def _clock_offsets(logs: Mapping[int, RankLog], lines: Lines, steps: Sequence[int]) -> tuple[dict[int, int], bool]:
    """By rank what its host's clock is ahead, ns, and whether that could not be found out."""
    hosts = {rank: log.header.host for rank, log in logs.items()}
    none = dict.fromkeys(logs, 0)
    if len(set(hosts.values())) < 2:
        return none, False
    ends = np.full((len(logs), len(steps)), np.nan)
    for row, rank in enumerate(logs):
        for column, step in enumerate(steps):
            line = lines[rank][step]
            if line.backward_end_ns is not None:
                ends[row, column] = line.start_ns - lines[next(iter(logs))][step].start_ns + line.backward_end_ns
    if not np.isfinite(ends).all():
        return none, True
    ahead = np.median(ends - np.median(ends, axis=0), axis=1)
    by_host = {
        host: float(np.median([ahead[row] for row, rank in enumerate(logs) if hosts[rank] == host]))
        for host in set(hosts.values())
    }
    return {rank: round(by_host[hosts[rank]]) for rank in logs}, False


def _matched(logs: Mapping[int, RankLog], offsets: Mapping[int, int]) -> Matched:
    """By group and sequence number the arrivals of all ranks, where each of the group's logged ranks has one."""
    found: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    operations: dict[tuple[str, int], set[str]] = defaultdict(set)
    members: dict[str, set[int]] = defaultdict(set)
    for rank, log in logs.items():
        for call in log.calls:
            if call.sequence and call.kind.op in RELEASES:
                key = (call.kind.group, call.sequence)
                found[key][rank] = call.at_ns - offsets[rank]
                operations[key].add(call.kind.op)
                members[call.kind.group].add(rank)
    return {
        key: arrivals
        for key, arrivals in found.items()
        if len(arrivals) > 1 and len(arrivals) == len(members[key[0]]) and len(operations[key]) == 1
    }


def _pieces(
    logs: Mapping[int, RankLog],
    lines: Lines,
    offsets: Mapping[int, int],
    matched: Matched,
    wanted: set[int],
) -> tuple[list[Piece], set[int]]:
    """The pieces of the wanted steps, and the steps of which not all pieces are known."""
    releases = {key: max(arrivals.values()) for key, arrivals in matched.items()}
    found: list[Piece] = []
    cut: set[int] = set()
    kinds: dict[Kind, int] = {}
    for rank, log in logs.items():
        # A kind is one object in a log: its hash takes longer than all else here.
        numbered = {
            id(kind): (kinds.setdefault(kind, len(kinds)), kinds.setdefault(replace(kind, group=""), len(kinds)))
            for kind in {id(c.kind): c.kind for c in log.calls}.values()
        }
        numbers = np.array(list(lines[rank]), dtype=np.int64)
        starts = np.array([line.start_ns for line in lines[rank].values()], dtype=np.int64)
        ends = starts + np.array([line.ns for line in lines[rank].values()], dtype=np.int64)
        calls = [each for each in log.calls if (each.kind.group, each.sequence) in matched]
        at = np.array([each.at_ns for each in calls], dtype=np.int64)
        owner = np.searchsorted(starts, at, side="right") - 1
        before: tuple[int, Call] | None = None
        for each, row in zip(calls, owner.tolist(), strict=True):
            if row < 0 or each.at_ns > ends[row]:
                before = None
                continue
            step = int(numbers[row])
            key = (each.kind.group, each.sequence)
            arrival = matched[key][rank]
            if before is None or before[0] not in (step, step - 1):
                cut.add(step)  # the step before has no line: what is before this collective is not known
            elif step in wanted:
                earlier = (before[1].kind.group, before[1].sequence)
                place = Place(before[0] != step, numbered[id(before[1].kind)][0], numbered[id(each.kind)][1])
                since = arrival - releases[earlier], arrival - matched[earlier][rank]
                found.append(Piece(rank, step, place, earlier, *since, before[1].kind.op == "barrier"))
            before = (step, each)
    return found, cut


def _local(pieces: Sequence[Piece], ranks: Sequence[int], steps: Sequence[int]) -> tuple[list[int], Int64, int] | None:
    """The steps whose pieces are known of all ranks, the local times, and how much of them is undecided; None if there
    are none."""
    by_place: dict[Place, list[Piece]] = defaultdict(list)
    for each in pieces:
        by_place[each.place].append(each)
    decided = {place: waited(each) for place, each in by_place.items()}
    total: Counter[tuple[int, int]] = Counter()
    number: Counter[tuple[int, int]] = Counter()
    undecided: Counter[tuple[int, int]] = Counter()
    for each in pieces:
        key = (each.rank, each.step)
        waits = decided[each.place]
        if waits is None:
            undecided[key] += each.since_arrival - each.since_release
            waits = each.place.first or each.blocks  # the optimizer needs the result of the last one
        total[key] += max(each.since_release if waits else each.since_arrival, 0)
        number[key] += 1
    usual = {}
    for rank in ranks:
        counts = Counter(number[rank, step] for step in steps)
        counts.pop(0, None)
        if not counts:
            return None
        usual[rank] = max(counts, key=lambda n: (counts[n], n))
    # A step may have further collectives, as the barrier after an evaluation: the same number on all ranks.
    further = {step: {number[rank, step] - usual[rank] for rank in ranks} for step in steps}
    known = [step for step in steps if len(further[step]) == 1 and min(further[step]) >= 0]
    if not known:
        return None
    most = max(float(np.median([undecided[rank, step] for step in known])) for rank in ranks)
    return known, np.array([[total[rank, step] for step in known] for rank in ranks], dtype=np.int64), round(most)


def _durations(lines: Lines, ranks: Sequence[int], steps: Int64) -> Int64:
    return np.array([[lines[rank][step].ns for step in steps.tolist()] for rank in ranks], dtype=np.int64)


def _phases(
    lines: Lines,
    ranks: Sequence[int],
    steps: Sequence[int],
    local: Int64 | None,
    *,
    waits_before_backward: bool = False,
) -> tuple[dict[str, Int64], Int64]:
    """The phases of the local time, as far as they are known of all ranks and steps; what remains of a known local time
    is the backward pass.

    The local time of a step begins with the last collective of the step before: the optimizer and what follows it are
    those of that step. Where ranks wait for each other before the backward pass, the forward pass contains that. It
    contains data loading, too, if that is not a `DataLoader`'s.
    """
    found: dict[str, Int64] = {}

    def add(name: str, values: list[list[int | None]]) -> bool:
        if is_known := all(value is not None for row in values for value in row):
            found[name] = np.array(values, dtype=np.int64)
        return is_known

    loading = [[lines[rank][step].loading_ns for step in steps] for rank in ranks]
    loaded = sum(value is not None for row in loading for value in row)
    loads = 2 * loaded > len(ranks) * len(steps)
    forward = "forward" if loads else "loading or forward"
    if loaded:
        add(LOADING, [[value or 0 for value in row] for row in loading])
    known = add(forward, [[lines[rank][step].forward_ns for step in steps] for rank in ranks])
    shift = 0 if local is None else 1
    earlier = [[lines[rank].get(step - shift) for step in steps] for rank in ranks]
    known &= add("optimizer", [[line.optimizer_ns if line else None for line in row] for row in earlier])
    known &= add("other", [[_other(line) if line else None for line in row] for row in earlier])
    if local is not None and known:
        if waits_before_backward:
            del found[forward]
        rest = local - np.sum(list(found.values()), axis=0)
        both = "forward and backward" if loads else "loading, forward and backward"
        found[both if waits_before_backward else "backward"] = np.maximum(rest, 0)
    return found, np.array(steps, dtype=np.int64)


def _calls_before_backward(logs: Mapping[int, RankLog], lines: Lines, matched: Matched, steps: set[int]) -> bool:
    """Whether collectives are called before the backward pass, in more than a few steps of a rank."""
    for rank, log in logs.items():
        ranges = [
            (line.start_ns, line.start_ns + line.backward_end_ns - line.backward_ns)
            for step, line in lines[rank].items()
            if step in steps and line.backward_end_ns is not None and line.backward_ns is not None
        ]
        at = np.array([each.at_ns for each in log.calls if (each.kind.group, each.sequence) in matched])
        begin, end = (np.searchsorted(at, [each[side] for each in ranges]) for side in (0, 1))
        if ranges and np.mean(end > begin) > FEW:
            return True
    return False


def _other(line: StepLine) -> int | None:
    """What a step took besides its phases; None if they are not known."""
    if line.forward_ns is None or line.backward_ns is None or line.optimizer_ns is None:
        return None
    return max(line.ns - (line.loading_ns or 0) - line.forward_ns - line.backward_ns - line.optimizer_ns, 0)


def _arrivals(matched: Matched, lines: Lines, offsets: Mapping[int, int], steps: set[int]) -> tuple[Arrivals, ...]:
    by_group: dict[str, list[tuple[int, Mapping[int, int]]]] = defaultdict(list)
    first = next(iter(lines))
    starts = {
        rank: np.array([line.start_ns - offsets[rank] for line in of_rank.values()], dtype=np.int64)
        for rank, of_rank in lines.items()
    }
    numbers = {rank: list(of_rank) for rank, of_rank in lines.items()}
    for (group, _), arrivals in matched.items():
        rank = first if first in arrivals else next(iter(arrivals))
        row = int(np.searchsorted(starts[rank], arrivals[rank], side="right")) - 1
        if row >= 0 and numbers[rank][row] in steps:
            by_group[group].append((numbers[rank][row], arrivals))
    found = []
    for group, each in sorted(by_group.items()):
        ranks = tuple(sorted(each[0][1]))
        late = np.array([[arrivals[rank] for rank in ranks] for _, arrivals in each], dtype=np.int64)
        late -= late.min(axis=1, keepdims=True)
        found.append(Arrivals(group, ranks, np.array([step for step, _ in each], dtype=np.int64), late))
    return tuple(found)
