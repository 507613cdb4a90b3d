"""A run that can be replayed: its graph, its steps, how well the replay explains them, and what scenarios gain.

In: the rows of the analysis `segments`. Out: mean steps and gains, ns per step; or why the run is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import polars as pl

from rankscope.errors import ConfigError
from rankscope.rundir.plurals import counted
from rankscope.whatif.buckets import Buckets, regrouped
from rankscope.whatif.graph import Graph, graph_of
from rankscope.whatif.moments import INSTANTS
from rankscope.whatif.replay import Costs, replay
from rankscope.whatif.scenarios import Scenario, costs_of
from rankscope.whatif.step_times import Fidelity, Steps, fidelity

T = TypeVar("T", bound=Scenario)

LEAST_SHARE = 0.01
"""Of a step: a smaller gain is none."""


@dataclass(frozen=True)
class ReplayedRun:
    """A run as its replay has it.

    Attributes:
        graph: its segments.
        steps: the steps that are measured.
    """

    graph: Graph
    steps: Steps
    _graphs: dict[tuple[Scenario, ...], Graph] = field(default_factory=dict, compare=False, repr=False)
    _means: dict[tuple[Scenario, ...], float | ConfigError] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, segments: pl.DataFrame, measured: tuple[int | None, int | None] | None = None) -> ReplayedRun | None:
        """The run that these rows record; None if there is no step to replay.

        Args:
            segments: as the analysis of that name gives them.
            measured: the first and the last step that is measured, by number; None: no limit.
        """
        if segments.is_empty():
            return None
        roles = dict(segments.select("rank", "role").unique().iter_rows())
        graph = graph_of(segments.with_columns(pl.col(name) + pl.col("shift_ns") for name in INSTANTS), roles)
        steps = Steps.of(graph, _between(*(measured or (None, None))))
        return cls(graph, steps) if steps.index.size else None

    @cached_property
    def fidelity(self) -> Fidelity:
        """How well the replay explains the recorded steps."""
        return fidelity(self.graph, self.steps)

    @property
    def note(self) -> str | None:
        """What limits the answers; None for nothing."""
        notes = [self.fidelity.reason] if self.fidelity.reason else []
        if self.graph.dropped:
            notes.append(f"{counted(self.graph.dropped, 'wait')} left out that contradict the order of others")
        return "; ".join(notes) or None

    @property
    def step_ns(self) -> float:
        """The mean step as replayed, ns."""
        return float(self.fidelity.replayed.mean())

    def mean_steps(self, sets: Sequence[Sequence[Scenario]]) -> list[float]:
        """The mean step with each set of scenarios, ns.

        Raises:
            ConfigError: the run cannot tell.
        """
        means = []
        for mean in self._asked(sets):
            if isinstance(mean, ConfigError):
                raise mean
            means.append(mean)
        return means

    def known_steps(self, sets: Sequence[Sequence[Scenario]]) -> list[float | None]:
        """The same; None where the run cannot tell: with all ranks of a program fixed, none is left to compare with."""
        return [None if isinstance(mean, ConfigError) else mean for mean in self._asked(sets)]

    def _asked(self, sets: Sequence[Sequence[Scenario]]) -> list[float | ConfigError]:
        """The mean step with each set of scenarios, or why the run cannot tell; each is replayed once."""
        by_graph: dict[int, tuple[Graph, dict[tuple[Scenario, ...], Costs]]] = {}
        for key in dict.fromkeys(map(tuple, sets)):
            if key not in self._means:
                try:
                    graph, costs = self.changed(key)
                    by_graph.setdefault(id(graph), (graph, {}))[1][key] = costs
                except ConfigError as error:
                    self._means[key] = error
        for graph, costs_by_set in by_graph.values():
            replayed = replay(graph, list(costs_by_set.values()))
            means = self.steps.durations(graph, replayed.step_end).mean(axis=0)
            self._means.update(zip(costs_by_set, means.tolist(), strict=True))
        return [self._means[tuple(each)] for each in sets]

    def changed(self, scenarios: Sequence[Scenario]) -> tuple[Graph, Costs]:
        """What depends on what with some scenarios, and what its segments cost.

        Raises:
            ConfigError: the run cannot tell.
        """
        structure = tuple(each for each in scenarios if isinstance(each, Buckets))
        if structure not in self._graphs:
            self._graphs[structure] = regrouped(self.graph, structure)
        graph = self._graphs[structure]
        return graph, costs_of(graph, scenarios)

    def gain(self, scenarios: Sequence[Scenario], given: Sequence[Scenario] = ()) -> float | None:
        """By how much some scenarios shorten the mean step, given others, ns; None if the run cannot tell."""
        before, after = self.known_steps([given, [*given, *scenarios]])
        return None if before is None or after is None else before - after

    def answerable(self, scenarios: Sequence[T]) -> list[T]:
        """Of some scenarios those of which the run can tell what each would give alone."""
        means = self.known_steps([[each] for each in scenarios])
        return [each for each, mean in zip(scenarios, means, strict=True) if mean is not None]


def _between(first: int | None, last: int | None) -> Callable[[int], bool]:
    """Whether a step is between two numbers; None leaves a side open."""
    return lambda step: (first is None or step >= first) and (last is None or step <= last)
