"""How far each rank has come in each process group, and the collectives that are stuck.

A rank has *arrived* at collective number s of a group once it has started it. A collective is stuck if a rank has
started it and has not finished it. Numbers come from the Flight Recorder's entries, else from its status of the group
where nothing contradicts it, else from the process group's own counter.

In: one dump per rank. Out: groups with the ranks' progress, and stuck collectives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rankscope.answers.hang.records import Call, Group, RankDump

# Some ranks may have left it before the others have arrived.
ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter", "_broadcast_oop", "_reduce_oop"))


@dataclass
class Progress:
    """How far one rank has come in one group."""

    calls: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """Its recorded collectives, by number; several for a coalesced one."""
    enqueued: int | None = None
    """The latest collective that it has started; None if unknown."""
    completed: int | None = None
    """The latest that it has finished."""

    @property
    def pending(self) -> list[int]:
        """The collectives that it has started and not finished."""
        return sorted(number for number, calls in self.calls.items() if not all(call.finished for call in calls))


@dataclass(frozen=True)
class Stuck:
    """A collective that does not complete."""

    group: Group
    sequence: int
    arrived: tuple[int, ...]
    missing: tuple[int, ...]
    """Ranks that have not started it, by their dumps."""
    unknown: tuple[int, ...]
    """Ranks of the group for which this is unknown: they have no dump, or one without calls."""
    completed: tuple[int, ...]
    """Ranks that have finished it."""
    calls: Mapping[int, tuple[Call, ...]]
    """What each rank called under this number, as far as it is recorded."""
    is_collective: bool = True
    """False for a send or a receive."""

    @property
    def absent(self) -> set[int]:
        """Ranks that have not arrived, or may not have."""
        return {*self.missing, *self.unknown}

    @property
    def operation(self) -> str:
        """What most ranks called; empty if no call is recorded."""
        names = [calls[-1].operation for calls in self.calls.values()]
        return max(sorted(set(names)), key=names.count, default="")

    @property
    def created_ns(self) -> int:
        """When the first rank called it; 0 if not recorded."""
        return min((call.created_ns for calls in self.calls.values() for call in calls if call.created_ns), default=0)

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that are in it."""
        return tuple(rank for rank in self.arrived if rank not in self.completed)


class Arrivals:
    """The progress of all ranks in all groups.

    Args:
        dumps: one for each rank.
        world_size: of the job; the ranks above those with dumps count as unknown.
    """

    def __init__(self, dumps: Mapping[int, RankDump], world_size: int) -> None:
        self.dumps = dumps
        self.world_size = world_size
        self.progress: dict[Group, dict[int, Progress]] = defaultdict(dict)
        self._calls = {rank: _by_group(dump.calls) for rank, dump in dumps.items()}
        self._identities: dict[tuple[int, str], Group] = {}
        # Torch's counter includes point-to-point calls, which differ between ranks.
        self._uncertain = self._groups_with_other_counts()
        self._may_be_over = self._groups_that_may_be_over()
        for rank, dump in dumps.items():
            self._add(rank, dump)

    def members(self, group: Group) -> Sequence[int]:
        """The ranks of a group; those seen in it if its ranks are not known."""
        return group.ranks or sorted(self.progress[group])

    def stuck(self) -> list[Stuck]:
        """The stuck collectives, in the order of their first calls."""
        found = []
        for group, by_rank in self.progress.items():
            numbers = {number for progress in by_rank.values() for number in progress.pending}
            found += [self.at(group, number) for number in sorted(numbers)]
            if not any(progress.calls for progress in by_rank.values()):
                found += self._by_counters(group, by_rank)
        return sorted(found, key=lambda stuck: (stuck.created_ns, stuck.sequence, stuck.group.name))

    def _by_counters(self, group: Group, by_rank: Mapping[int, Progress]) -> list[Stuck]:
        """The collective that some ranks have started and others have not, where only counters are known."""
        counts = [progress.enqueued for progress in by_rank.values() if progress.enqueued is not None]
        return [self.at(group, min(counts) + 1)] if counts and min(counts) < max(counts) else []

    def at(self, group: Group, number: int) -> Stuck:
        """Who has arrived at one collective of a group."""
        arrived: list[int] = []
        missing: list[int] = []
        unknown: list[int] = []
        completed: list[int] = []
        calls: dict[int, tuple[Call, ...]] = {}
        by_rank = self.progress[group]  # once: a group's hash is that of all its ranks
        for rank in self.members(group):
            progress = by_rank.get(rank)
            if progress is None or progress.enqueued is None:
                unknown.append(rank)
                continue
            (arrived if progress.enqueued >= number else missing).append(rank)
            if number in progress.calls:
                calls[rank] = tuple(progress.calls[number])
            is_over = number in progress.calls and all(call.finished for call in progress.calls[number])
            if is_over or (progress.completed is not None and progress.completed >= number):
                completed.append(rank)
        return Stuck(group, number, tuple(arrived), tuple(missing), tuple(unknown), tuple(completed), calls)

    def _groups_with_other_counts(self) -> set[str]:
        """Groups whose status disagrees with the recorded entries on any rank."""
        found = set()
        for rank, dump in self.dumps.items():
            for name, calls in self._calls[rank].items():
                latest = max(call.sequence for call in calls)
                if any(call.point_to_point for call in calls) or dump.last_enqueued.get(name, latest) != latest:
                    found.add(name)
        return found

    def _groups_that_may_be_over(self) -> set[str]:
        """Groups in which a rank waits for a call that others may have finished, since it does not need all ranks."""
        return {
            call.group
            for dump in self.dumps.values()
            for call in dump.calls
            if not call.finished and (call.point_to_point or call.operation in ROOTED)
        }

    def _add(self, rank: int, dump: RankDump) -> None:
        names = {*dump.groups, *(call.group for call in dump.calls), *dump.sequences}
        for name in names:
            group = self._identities[rank, name] = self._identity(name, rank, dump)
            progress = self.progress[group].setdefault(rank, Progress())
            for call in self._calls[rank].get(name, ()):
                if not call.point_to_point:
                    progress.calls[call.sequence].append(call)
                progress.enqueued = max(progress.enqueued or 0, call.sequence)
            self._add_status(progress, name, dump)

    def _add_status(self, progress: Progress, name: str, dump: RankDump) -> None:
        if name not in self._uncertain and name in dump.last_enqueued:
            progress.enqueued = max(progress.enqueued or 0, dump.last_enqueued[name])
            progress.completed = dump.last_completed.get(name)
        if progress.enqueued is None and dump.has_calls and not dump.only_active:
            # The recorder has all calls, or all recent ones: none of this group are among them.
            progress.enqueued = 0
        if progress.enqueued is None and dump.has_calls and name not in self._may_be_over:
            # A call that others still wait in needs every rank, so this rank has not finished it.
            progress.enqueued = 0
        if progress.enqueued is None and not dump.has_calls:
            progress.enqueued = dump.sequences.get(name)

    def group_of(self, rank: int, name: str) -> Group:
        """The group that a rank knows by a name."""
        return self._identities[rank, name]

    def _identity(self, name: str, rank: int, dump: RankDump) -> Group:
        group = dump.groups.get(name)
        if group is not None and group.ranks:
            return group
        for other in self.dumps.values():
            known = other.groups.get(name)
            if known is not None and rank in known.ranks:
                return known
        if name == "0" or (group is not None and group.description == "default_pg"):
            return Group(name, tuple(range(self.world_size)), "default_pg")
        return Group(name)


def _by_group(calls: Iterable[Call]) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.group].append(call)
    return found


def world_size_of(dumps: Mapping[int, RankDump]) -> int:
    """How many ranks the job has, as far as the dumps show."""
    sizes: Iterable[int] = (
        *(rank + 1 for rank in dumps),
        *(dump.world_size or 0 for dump in dumps.values()),
        *(rank + 1 for dump in dumps.values() for group in dump.groups.values() for rank in group.ranks),
    )
    return max(sizes, default=0)
