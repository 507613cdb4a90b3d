"""What scenarios gain: alone, and one after another in the order of what is still gained (a waterfall).

The gain of a scenario is the mean step without it less that with it, both replayed, given those before it. So the
gains of a waterfall add up to the difference of its first and last step, whatever the scenarios have in common.

In: a graph and scenarios. Out: `Gain` by scenario.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rankscope.errors import ConfigError
from rankscope.whatif.graph import Float, Graph
from rankscope.whatif.replay import replay
from rankscope.whatif.scenarios import (
    COMPONENTS,
    WITHOUT,
    AsPeers,
    Balanced,
    GroupAsOthers,
    Overlapped,
    Scenario,
    Without,
    costs_of,
    excess_by_rank,
    group_factors,
    group_ranks,
)
from rankscope.whatif.step_times import Steps

LEAST_SHARE = 0.01
"""Of a step: a smaller gain ends the waterfall."""
_MOST_RANKS = 16
_MOST_GROUPS = 8
_MOST_ROUNDS = 12
_MOST_TOGETHER = 8


@dataclass(frozen=True)
class Gain:
    """What a scenario gains; ns per step.

    Attributes:
        scenario: the scenario.
        alone_ns: the step with it alone.
        gain_alone_ns: by how much that is shorter than the recorded one.
        place: its place in the waterfall, from 1; 0 if it is not in it.
        step_ns: the step with it and those before it; None if it is not in the waterfall.
        gain_ns: by how much that is shorter than without it.
        component: of ranks, the component that gains most after those before it; empty if there is no gain.
    """

    scenario: Scenario
    alone_ns: float
    gain_alone_ns: float
    place: int = 0
    step_ns: float | None = None
    gain_ns: float | None = None
    component: str = ""


def mean_steps(graph: Graph, steps: Steps, sets: Sequence[Sequence[Scenario]]) -> Float:
    """The mean step with each set of scenarios, ns."""
    replayed = replay(graph, [costs_of(graph, scenarios) for scenarios in sets])
    mean: Float = steps.durations(graph, replayed.step_end).mean(axis=0)
    return mean


def candidates(graph: Graph, late: Collection[int] | None = None) -> list[Scenario]:
    """What could be different in a run: ranks and groups that are slower than others, and what all ranks do.

    Args:
        late: ranks that are significantly late; None: all that are slower than their peers, be it by chance.
    """
    excess = sorted(excess_by_rank(graph).items(), key=lambda item: (-item[1], item[0]))
    excess = [(rank, ns) for rank, ns in excess if late is None or rank in late]
    found: list[Scenario] = [AsPeers((rank,)) for rank, ns in excess[:_MOST_RANKS] if ns > 0]
    slower = []
    for group, ranks in group_ranks(graph).items():
        saved = float((graph.transfer * (1 - group_factors(graph, group))).sum())
        if saved > 0:
            slower.append((-saved, ranks))
    found += [GroupAsOthers(ranks) for _, ranks in sorted(slower)[:_MOST_GROUPS]]
    every: list[Scenario] = [
        Overlapped(), *(Without(what) for what in WITHOUT), Balanced("ranks"), Balanced("stages")
    ]  # fmt: skip
    return found + [scenario for scenario in every if _applies(graph, [scenario])]


def _applies(graph: Graph, scenarios: Sequence[Scenario]) -> bool:
    """Whether the run can tell: with all ranks of a program fixed, none is left to compare with."""
    try:
        costs_of(graph, scenarios)
    except ConfigError:
        return False
    return True


def waterfall(graph: Graph, steps: Steps, scenarios: Sequence[Scenario]) -> list[Gain]:
    """The gains of scenarios alone, and of those that gain most, given those before; in that order, then the others.

    Ranks and groups that are slower than others come first: what all ranks do is a bound that no job reaches. If no
    rank gains anything any more, but several do together, they are one scenario.
    """
    base, *alone = mean_steps(graph, steps, [[], *([scenario] for scenario in scenarios)])
    fall = _Waterfall(graph, steps, float(base), dict(zip(scenarios, map(float, alone), strict=True)))
    slower = [each for each in scenarios if isinstance(each, AsPeers | GroupAsOthers)]
    fall.add(slower)
    ranks = [each.ranks[0] for each in slower if isinstance(each, AsPeers) and not fall.has(each)]
    fall.add([AsPeers(tuple(sorted(ranks[:count]))) for count in range(2, min(len(ranks), _MOST_TOGETHER) + 1)], most=1)
    fall.add([each for each in scenarios if each not in slower])
    rest = [Gain(each, step, fall.base - step) for each, step in fall.alone.items() if not fall.has(each)]
    least = LEAST_SHARE * fall.base
    rest = [gain for gain in rest if gain.scenario not in slower or gain.gain_alone_ns >= least]
    rest = [gain for gain in rest if gain.scenario in scenarios]
    return _with_components(graph, steps, fall.base, [*fall.gains, *sorted(rest, key=lambda gain: -gain.gain_alone_ns)])


@dataclass
class _Waterfall:
    """Scenarios one after another, each the one that gains most by then."""

    graph: Graph
    steps: Steps
    base: float
    alone: dict[Scenario, float]
    gains: list[Gain] = field(default_factory=list)

    def has(self, scenario: Scenario) -> bool:
        return any(gain.scenario == scenario for gain in self.gains)

    def add(self, scenarios: Sequence[Scenario], most: int = _MOST_ROUNDS) -> None:
        """Add those of some scenarios that gain at least `LEAST_SHARE` of the step, at most so many."""
        left = list(scenarios)
        for _ in range(most):
            chosen = [gain.scenario for gain in self.gains]
            now = self.gains[-1].step_ns if self.gains else self.base
            left = [each for each in left if _applies(self.graph, [*chosen, each])]
            if not left or now is None:
                return
            after = mean_steps(self.graph, self.steps, [[*chosen, each] for each in left])
            best = int(np.argmin(after))
            scenario, step = left.pop(best), float(after[best])
            if now - step < LEAST_SHARE * self.base:
                return
            if scenario not in self.alone:
                self.alone[scenario] = float(mean_steps(self.graph, self.steps, [[scenario]])[0])
            alone = self.alone[scenario]
            self.gains.append(Gain(scenario, alone, self.base - alone, len(self.gains) + 1, step, now - step))


def in_order(graph: Graph, steps: Steps, scenarios: Sequence[Scenario]) -> list[Gain]:
    """The gains of some scenarios alone, and one after another in the order given."""
    sets = [[], *([each] for each in scenarios), *(scenarios[: n + 1] for n in range(len(scenarios)))]
    base, *rest = mean_steps(graph, steps, sets)
    alone, after = rest[: len(scenarios)], rest[len(scenarios) :]
    before = [base, *after[:-1]]
    gains = [
        Gain(each, alone[n], base - alone[n], n + 1, after[n], before[n] - after[n]) for n, each in enumerate(scenarios)
    ]
    return _with_components(graph, steps, base, gains)


def _with_components(graph: Graph, steps: Steps, base: float, gains: Sequence[Gain]) -> list[Gain]:
    """The same with the component of ranks that gains most, given the scenarios before it."""
    asked: list[tuple[int, str, list[Scenario]]] = []
    for n, gain in enumerate(gains):
        if isinstance(gain.scenario, AsPeers) and not gain.scenario.component:
            before = [earlier.scenario for earlier in gains[:n]] if gain.place else []
            ranks, chosen = gain.scenario.ranks, gain.scenario.steps
            asked += [(n, component, [*before, AsPeers(ranks, component, chosen)]) for component in COMPONENTS]
    found = list(gains)
    best = dict.fromkeys((n for n, *_ in asked), LEAST_SHARE * LEAST_SHARE * base)
    if asked:
        means = mean_steps(graph, steps, [scenarios for *_, scenarios in asked])
        for (n, component, _), mean in zip(asked, means, strict=True):
            step, gained = gains[n].step_ns, gains[n].gain_ns
            saved = (base if step is None or gained is None else step + gained) - float(mean)
            if saved > best[n]:
                best[n], found[n] = saved, replace(found[n], component=component)
    return found
