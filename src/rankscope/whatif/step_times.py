"""Step times of a replay, and how well it reproduces those that were recorded.

In: a graph and a replay. Out: each step's duration by scenario, their mean, and the replay's error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.whatif.graph import C, E, Float, Graph
from rankscope.whatif.replay import Costs, Replayed, replay

LARGEST_ERROR = 0.05
"""A replay that is further off says nothing about the run."""


@dataclass(frozen=True)
class Steps:
    """The steps of a run whose duration is known: from the end of the step before to its own end, over all ranks.

    The first step of a file begins before the recording does: it counts only if there is no other. A file without
    steps is one itself only if no file has any.

    Attributes:
        index: of each an index into `Graph.step_names`.
        before: the step before it; −1 for the beginning of the file.
        begin: when its file begins, ns.
    """

    index: Int64
    before: Int64
    begin: Float

    @classmethod
    def of(cls, graph: Graph, chosen: Callable[[int], bool] = lambda step: True) -> Steps:
        """The steps that most ranks recorded.

        Args:
            chosen: whether a step, by number, is to be measured.
        """
        ends = np.flatnonzero(graph.kind == E)
        windows = graph.lines.window[graph.line[ends]]
        is_marked = np.array([number >= 0 for _, number in graph.step_names])
        counts = is_marked if is_marked.any() else ~is_marked
        index, before, begin = [], [], []
        for window in np.unique(graph.lines.window):
            mine = windows == window
            step, count = np.unique(graph.step[ends[mine]], return_counts=True)
            lines = graph.lines.window == window
            usual = [each for each in step[(step >= 0) & (2 * count >= lines.sum())].tolist() if counts[each]]
            first = float(graph.lines.begin[lines].min())
            pairs = list(pairwise(usual)) or [(-1, step) for step in usual]
            for earlier, later in pairs:
                if chosen(graph.step_names[later][1]):
                    index.append(later)
                    before.append(earlier)
                    begin.append(first)
        return cls(np.array(index, dtype=np.int64), np.array(before, dtype=np.int64), np.array(begin))

    def durations(self, graph: Graph, step_end: Float) -> Float:
        """(steps, scenarios) the duration of each step, from when each rank finished it."""
        nodes = np.flatnonzero(graph.kind == E)
        ends = np.full((len(graph.step_names), step_end.shape[1]), -np.inf)
        known = graph.step[nodes] >= 0
        np.maximum.at(ends, graph.step[nodes[known]], step_end[known])
        begin = np.where(self.before[:, None] >= 0, ends[np.maximum(self.before, 0)], self.begin[:, None])
        duration: Float = ends[self.index] - begin
        return duration


@dataclass(frozen=True)
class Fidelity:
    """How well the replay reproduces the run.

    Attributes:
        recorded: each step's duration, ns.
        replayed: the same of the replay.
        reason: which rank and stretch the replay explains least, if its error is large; empty otherwise.
    """

    recorded: Float
    replayed: Float
    reason: str

    @property
    def recorded_ns(self) -> float:
        """The mean recorded step."""
        return float(self.recorded.mean())

    @property
    def error(self) -> float:
        """|replayed / recorded − 1| of the mean step."""
        return abs(float(self.replayed.mean()) / self.recorded_ns - 1) if self.recorded_ns > 0 else float("inf")

    @property
    def errors(self) -> Float:
        """The same of each step."""
        error: Float = np.abs(self.replayed / np.maximum(self.recorded, 1) - 1)
        return error

    @property
    def explained(self) -> float:
        """The share of the step that the replay explains."""
        return max(1 - self.error, 0.0)

    @property
    def is_judged(self) -> bool:
        """Whether the replay may say what a change would save."""
        return self.error <= LARGEST_ERROR


def fidelity(graph: Graph, steps: Steps) -> Fidelity:
    """Replay a run as recorded, and compare."""
    replayed = replay(graph, [Costs.recorded(graph)])
    ends = np.flatnonzero(graph.kind == E)
    recorded = steps.durations(graph, graph.recorded.end[ends][:, None])[:, 0]
    again = steps.durations(graph, replayed.step_end)[:, 0]
    found = Fidelity(recorded, again, "")
    return found if found.is_judged else Fidelity(recorded, again, _least_explained(graph, replayed, steps))


def _least_explained(graph: Graph, replayed: Replayed, steps: Steps) -> str:
    """The rank and step in which the replay drifts away from the recording most, from one collective to the next."""
    nodes = np.flatnonzero(graph.kind == C)
    off = replayed.arrival[:, 0] - graph.recorded.start[nodes]
    order = np.lexsort((graph.recorded.start[nodes], graph.line[nodes]))
    nodes, off = nodes[order], off[order]
    drift = np.abs(np.diff(off, prepend=0))
    drift[np.flatnonzero(np.diff(graph.line[nodes], prepend=-1))] = 0
    drift[~np.isin(graph.step[nodes], steps.index)] = 0
    if not drift.size or not drift.any():
        return "no collective shows where"
    worst = int(np.argmax(drift))
    node = nodes[worst]
    step = graph.step_names[graph.step[node]][1]
    where = f"of step {step}" if step >= 0 else ""
    way = "longer" if off[worst] < off[worst - 1] else "shorter"
    return (
        f"on rank {graph.lines.rank[graph.line[node]]} a stretch {where} took {drift[worst] / 1e6:.1f} ms {way} than "
        "its work and its launches explain"
    )
