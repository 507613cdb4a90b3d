"""A run that is kept for questions: what a step would take with some scenarios, and that step as lanes.

In: a run that can be replayed; scenarios. Out: `Prediction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rankscope.whatif.buckets import Buckets
from rankscope.whatif.gains import candidates
from rankscope.whatif.graph import E
from rankscope.whatif.lanes import Lanes, ranks_that_differ, step_lanes, step_span, typical_step
from rankscope.whatif.replay import Costs, clocks
from rankscope.whatif.run import ReplayedRun
from rankscope.whatif.scenarios import AsPeers, Network, Scenario


@dataclass(frozen=True)
class Prediction:
    """One step as recorded and as replayed with some scenarios.

    Attributes:
        step_ns: the mean step with them, replayed.
        ranks: whose lanes these are.
        recorded: the step's lanes as recorded.
        replayed: the same with the scenarios; as recorded where there is none.
    """

    step_ns: float
    ranks: Sequence[int]
    recorded: Lanes
    replayed: Lanes


@dataclass(frozen=True)
class Predictions:
    """A run that is asked.

    Attributes:
        run: as its replay has it.
    """

    run: ReplayedRun

    @cached_property
    def typical(self) -> int:
        """The place in `steps` of the step that is shown: the one nearest to the median."""
        return typical_step(self.run.graph, self.run.steps)

    @property
    def shown_step(self) -> int:
        """Its number; −1 where steps are not marked."""
        return self.run.graph.step_names[int(self.run.steps.index[self.typical])][1]

    @cached_property
    def applicable(self) -> list[Scenario]:
        """Scenarios of which the run can tell what they would give, but for those of ranks."""
        network: list[Scenario] = [Network(2), Buckets(2)]
        return [*self.run.answerable(network), *candidates(self.run, ())]

    @cached_property
    def comparable_ranks(self) -> list[int]:
        """Ranks with peers: another rank runs the same program."""
        lines = self.run.graph.lines
        programs, number = np.unique(np.stack([lines.role, lines.window]), axis=1, return_inverse=True)
        several = np.bincount(number.reshape(-1), minlength=programs.shape[1])[number.reshape(-1)] > 1
        alone = np.unique(lines.rank[~several])
        return [int(rank) for rank in np.unique(lines.rank) if rank not in alone]

    @property
    def all_ranks(self) -> list[int]:
        """The ranks that are replayed."""
        return [int(rank) for rank in np.unique(self.run.graph.lines.rank)]

    def predict(self, scenarios: Sequence[Scenario], named: Sequence[int] = ()) -> Prediction:
        """What the mean step would take, and one step as lanes.

        Args:
            scenarios: all at once.
            named: ranks whose lanes are shown first, besides those that the scenarios name.

        Raises:
            ConfigError: the run cannot tell.
        """
        graph, steps, place = self.run.graph, self.run.steps, self.typical
        fixed = [rank for each in scenarios if isinstance(each, AsPeers) for rank in each.ranks]
        changed, costs = self.run.changed(scenarios)
        before = step_span(graph, steps, place, graph.recorded)
        ranks = ranks_that_differ(graph, before, [*fixed, *named])
        recorded = step_lanes(graph, Costs.recorded(graph), graph.recorded, before, ranks)
        after = clocks(changed, costs)
        mean = steps.durations(changed, after.end[changed.kind == E][:, None]).mean()
        replayed = step_lanes(changed, costs, after, step_span(changed, steps, place, after), ranks)
        return Prediction(float(mean), ranks, recorded, replayed)
