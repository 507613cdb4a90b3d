"""What scenarios gain: alone, and one after another in the order of what is still gained (a waterfall).

The gain of a scenario is the mean step without it less that with it, both replayed, given those before it. So the
gains of a waterfall add up to the difference of its first and last step, whatever the scenarios have in common.

In: a run that can be replayed, and scenarios. Out: `Gain` by scenario.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rankscope.whatif.run import LEAST_SHARE, ReplayedRun
from rankscope.whatif.scenarios import (
    COMPONENTS,
    WITHOUT,
    AsPeers,
    Balanced,
    GroupAsOthers,
    Overlapped,
    Scenario,
    Without,
    group_factors,
)

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


def candidates(run: ReplayedRun, late: Sequence[AsPeers]) -> list[Scenario]:
    """What could be different in a run: late ranks, groups that are slower than others, and what all ranks do.

    Args:
        late: ranks that are significantly late.
    """
    graph = run.graph
    found: list[Scenario] = list(late)
    slower = []
    for group, ranks in graph.group_ranks.items():
        saved = float((graph.transfer * (1 - group_factors(graph, group))).sum())
        if saved > 0:
            slower.append((-saved, ranks))
    found += [GroupAsOthers(ranks) for _, ranks in sorted(slower)[:_MOST_GROUPS]]
    every: list[Scenario] = [
        Overlapped(), *(Without(what) for what in WITHOUT), Balanced("ranks"), Balanced("stages")
    ]  # fmt: skip
    return run.answerable(found + every)


def waterfall(run: ReplayedRun, scenarios: Sequence[Scenario]) -> list[Gain]:
    """The gains of scenarios alone, and of those that gain most, given those before; in that order, then the others.

    Ranks and groups that are slower than others come first: what all ranks do is a bound that no job reaches. If no
    rank gains anything any more, but several do together, they are one scenario.
    """
    base, *alone = run.mean_steps([[], *([scenario] for scenario in scenarios)])
    fall = Waterfall(run, base)
    slower = [each for each in scenarios if isinstance(each, AsPeers | GroupAsOthers)]
    fall.add(slower)
    fall.add(fall.together([each for each in slower if isinstance(each, AsPeers)]), most=1)
    fall.add([each for each in scenarios if each not in slower])
    rest = [Gain(each, ns, base - ns) for each, ns in zip(scenarios, alone, strict=True) if not fall.has(each)]
    least = LEAST_SHARE * base
    rest = [gain for gain in rest if gain.scenario not in slower or gain.gain_alone_ns >= least]
    return _with_components(run, [*fall.gains, *sorted(rest, key=lambda gain: -gain.gain_alone_ns)])


@dataclass
class Waterfall:
    """Scenarios one after another, each the one that gains most by then.

    Attributes:
        run: the run.
        base: its mean step as replayed, ns.
        gains: what is in it.
    """

    run: ReplayedRun
    base: float
    gains: list[Gain] = field(default_factory=list)

    @property
    def chosen(self) -> list[Scenario]:
        """The scenarios in it, in their order."""
        return [gain.scenario for gain in self.gains]

    def has(self, scenario: Scenario) -> bool:
        """Whether a scenario is in it."""
        return scenario in self.chosen

    def add(self, scenarios: Sequence[Scenario], most: int = _MOST_ROUNDS) -> None:
        """Add those of some scenarios that gain at least `LEAST_SHARE` of the step, at most so many."""
        left = [each for each in scenarios if not self.has(each)]
        for _ in range(most):
            chosen = self.chosen
            (now,) = self.run.mean_steps([chosen])
            steps = self.run.known_steps([[*chosen, each] for each in left])
            after = [(step, n) for n, step in enumerate(steps) if step is not None]
            if not after:
                return
            step, best = min(after)
            if now - step < LEAST_SHARE * self.base:
                return
            scenario = left[best]
            left = [left[n] for _, n in after if n != best]
            (alone,) = self.run.mean_steps([[scenario]])
            self.gains.append(Gain(scenario, alone, self.base - alone, len(self.gains) + 1, step, now - step))

    def together(self, late: Sequence[AsPeers]) -> list[AsPeers]:
        """The first two, three, … of the late ranks that are not in it, as one scenario each."""
        left = [each for each in late if not self.has(each)]
        counts = range(2, min(len(left), _MOST_TOGETHER) + 1)
        return [
            AsPeers(tuple(sorted({rank for each in left[:count] for rank in each.ranks})), "", _steps_of(left[:count]))
            for count in counts
        ]


def _steps_of(late: Sequence[AsPeers]) -> tuple[int, ...]:
    """The steps of several; all if one is late in all."""
    if not all(each.steps for each in late):
        return ()
    return tuple(sorted({step for each in late for step in each.steps}))


def in_order(run: ReplayedRun, scenarios: Sequence[Scenario]) -> list[Gain]:
    """The gains of some scenarios alone, and one after another in the order given."""
    sets = [[], *([each] for each in scenarios), *(scenarios[: n + 1] for n in range(len(scenarios)))]
    base, *rest = run.mean_steps(sets)
    alone, after = rest[: len(scenarios)], rest[len(scenarios) :]
    before = [base, *after[:-1]]
    gains = [
        Gain(each, alone[n], base - alone[n], n + 1, after[n], before[n] - after[n]) for n, each in enumerate(scenarios)
    ]
    return _with_components(run, gains)


def _with_components(run: ReplayedRun, gains: Sequence[Gain]) -> list[Gain]:
    """The same with the component of ranks that gains most, given the scenarios before it."""
    chosen = [gain.scenario for gain in gains if gain.place]
    return [replace(gain, component=_component(run, gain.scenario, chosen[: max(gain.place - 1, 0)])) for gain in gains]


def _component(run: ReplayedRun, scenario: Scenario, given: Sequence[Scenario]) -> str:
    """Of ranks, the component that gains most alone; empty if none gains anything."""
    if not isinstance(scenario, AsPeers) or scenario.component:
        return ""
    base, *means = run.mean_steps([given, *([*given, replace(scenario, component=part)] for part in COMPONENTS)])
    most, component = max((base - mean, part) for mean, part in zip(means, COMPONENTS, strict=True))
    return component if most > LEAST_SHARE * LEAST_SHARE * base else ""
