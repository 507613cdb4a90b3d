"""Jobs that are known as plain graphs: operations with durations and what each needs, as ByteDance published them.

Operations of a group wait for one another, some on all replicas, and then transfer. Every operation is a collective of
the replay with one member; before those of a group there is one of all members, without duration. So the replay of
these jobs is that of recorded runs, and their published slowdowns are a check of it.

Source: ByteDance, Understanding Stragglers in Large Model Training Using What-if Analysis (OSDI 2025), and its
StragglerAnalysis. The ideal duration of a type of operation is the mean over all its operations, replicas and steps,
for transfers the median. S is the mean step by the mean step of which every operation is ideal; S of a part is the
same where that part alone is as recorded.

In: arrays. Out: step times, and slowdowns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.whatif.graph import NEVER, Bool, C, Clocks, E, Float, Graph, Lines, in_order
from rankscope.whatif.replay import Costs, replay

_PER_SECOND = 1e9


@dataclass(frozen=True)
class PlainGraph:
    """A job.

    Attributes:
        duration: (operations, replicas, steps) s, of operations without a group.
        transfer: (operations, replicas, steps) s, of operations with a group.
        needs_start: the first of each operation's entries in `needs`, and the number of entries at the end.
        needs: operations that have to end before one starts.
        group: a number that operations which wait for one another have in common; −1 for none.
        over_replicas: whether they wait on all replicas.
        kind: the type of each operation.
        stage: its pipeline stage.
        transfers: whether its ideal duration is the median of its type, not the mean.
    """

    duration: Float
    transfer: Float
    needs_start: Int64
    needs: Int64
    group: Int64
    over_replicas: Bool
    kind: Any
    stage: Int64
    transfers: Bool

    @classmethod
    def read(cls, path: Path) -> PlainGraph:
        """Read one from a file of arrays."""
        with np.load(path, allow_pickle=False) as file:
            return cls(
                file["duration"], file["transfer"], file["deps_ptr"].astype(np.int64), file["deps"].astype(np.int64),
                file["group"].astype(np.int64), file["dp_sync"], file["optype"], file["stage"].astype(np.int64),
                file["collective"],
            )  # fmt: skip

    @cached_property
    def recorded(self) -> Float:
        """(operations, replicas, steps) what each operation took, s."""
        return np.where((self.group >= 0)[:, None, None], self.transfer, self.duration)

    @cached_property
    def ideal(self) -> Float:
        """The same if all operations of a type took equally long."""
        found = np.empty_like(self.recorded)
        for kind in np.unique(self.kind):
            same = self.kind == kind
            usual = np.median if self.transfers[same].any() else np.mean
            found[same] = usual(self.recorded[same])
        return found

    def step_times(self, durations: Float) -> Float:
        """(steps,) how long each step takes with these durations of operations, s."""
        ends = replay(self.graph, self._costs(durations)).step_end[0]
        times: Float = ends / _PER_SECOND
        return times

    def slowdown(self, as_recorded: Bool | None = None) -> float:
        """S, the mean step by the ideal one; of a part if it is given.

        Args:
            as_recorded: (operations, replicas) which are as recorded; all by default.
        """
        durations = self.recorded
        if as_recorded is not None:
            durations = np.where(as_recorded[:, :, None], self.recorded, self.ideal)
        return float(self.step_times(durations).mean() / self._ideal_step)

    @cached_property
    def _ideal_step(self) -> float:
        return float(self.step_times(self.ideal).mean())

    @cached_property
    def _order(self) -> list[tuple[int, bool]]:
        """The operations, and where those of groups meet (True), in an order in which each is after what it needs."""
        members: dict[int, list[int]] = {}
        for operation, group in enumerate(self.group.tolist()):
            if group >= 0:
                members.setdefault(group, []).append(operation)
        following: list[list[int]] = [[] for _ in self.group]
        for operation in range(self.group.size):
            for needed in self._needed(operation):
                following[needed].append(operation)
        waiting = np.diff(self.needs_start).tolist()
        missing = {group: len(operations) for group, operations in members.items()}
        ready = [operation for operation, count in enumerate(waiting) if not count]
        order: list[tuple[int, bool]] = []
        while ready:
            operation = ready.pop()
            group, runs = int(self.group[operation]), [operation]
            if group >= 0:
                order.append((operation, True))
                missing[group] -= 1
                runs = members[group] if not missing[group] else []
            for each in runs:
                order.append((each, False))
                for later in following[each]:
                    waiting[later] -= 1
                    if not waiting[later]:
                        ready.append(later)
        return order

    def _needed(self, operation: int) -> list[int]:
        needed: list[int] = self.needs[self.needs_start[operation] : self.needs_start[operation + 1]].tolist()
        return needed

    @cached_property
    def graph(self) -> Graph:
        """The job as the graph of a replay: a line for each operation and replica."""
        replicas, order = self.recorded.shape[1], self._order
        position = {entry: n for n, entry in enumerate(order)}
        count = len(order) * replicas
        replica = np.tile(np.arange(replicas), len(order))
        needs: list[int] = []
        start = [0]
        collective: dict[tuple[str, int, int], int] = {}
        which = []
        for operation, meets in order:
            in_group = bool(self.group[operation] >= 0)
            needed = [(each, False) for each in self._needed(operation)]
            needed = [(operation, True)] if in_group and not meets else needed
            for number in range(replicas):
                key = ("operation", operation, number)
                if meets:
                    key = ("group", int(self.group[operation]), -1 if self.over_replicas[operation] else number)
                needs += [position[entry] * replicas + number for entry in needed]
                start.append(len(needs))
                which.append(collective.setdefault(key, len(collective)))
        needs += range(count)  # the step ends with the last operation
        start.append(len(needs))
        nodes, zeros = count + 1, np.zeros(count + 1)
        numbers, nothing = np.zeros(nodes, np.int64), np.zeros(nodes, np.bool_)
        lines = Lines(np.append(replica, 0), numbers, numbers, zeros, nothing)
        size = len(collective)
        return in_order(
            Graph(
                lines=lines, line=np.arange(nodes), kind=np.append(np.full(count, C), E), level=np.array([0, nodes]),
                host=np.zeros((nodes, 1)), device=np.zeros((nodes, 1)), path_host=np.zeros((nodes, 1, 1)),
                path_device=np.zeros((nodes, 1, 1)), path_latency=np.full((nodes, 1), NEVER),
                latency=zeros, delay=zeros, wake=zeros,
                after_device=nothing, allocates=nothing,
                need_start=np.array(start), needs=np.array(needs, dtype=np.int64),
                collective=np.append(np.array(which), -1), skew=zeros, transfer=np.zeros(size),
                program=np.arange(size), reduced=np.zeros(size), group=np.full(size, -1),
                step=np.append(np.full(count, -1), 0), place=np.full(nodes, -1), step_names=((0, 0),),
                recorded=Clocks(zeros, zeros, zeros, zeros, zeros),
            )
        )  # fmt: skip

    def _costs(self, durations: Float) -> list[Costs]:
        """The costs of each step: those of the operations, and nothing else."""
        graph, base = self.graph, Costs.recorded(self.graph)
        replicas = self.recorded.shape[1]
        operation = np.array([-1 if meets else each for each, meets in self._order])
        found = []
        of_operation = np.flatnonzero(operation >= 0)
        rows = (of_operation[:, None] * replicas + np.arange(replicas)).ravel()
        collective = np.empty(graph.line.size, dtype=np.int64)
        collective[graph.line] = graph.collective  # a line is a node
        number = collective[rows]
        for step in range(durations.shape[2]):
            transfer = np.zeros(graph.transfer.size)
            transfer[number] = durations[operation[of_operation], :, step].ravel() * _PER_SECOND
            found.append(Costs(base.host, base.device, transfer, base.overlapped, base.skew, base.waits))
        return found
