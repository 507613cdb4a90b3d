"""One finding for one cause: merges findings about the same time, and counts no time twice.

In: findings as rules and analyses state them, results of analyses, and the run's replay. Out: the causes, the most
costly first, each with its symptoms.

1. What a finding saves is a scenario of the replay (`whatif`): of late ranks and slow groups that they are like the
   others; of any other finding that the parts of a step which it is about (`Rule.parts`) take no time, on all ranks.
   A rule's own figure is a bound, and so is that gain: the finding saves no more than either.
2. Late ranks and slow groups come first. Which findings can be effects of which others is declared (`effects`). A
   finding is a symptom of such a cause if, given the cause's scenario, less than half of its saving is left, and less
   than a warning. What is left is no more than it gains given that scenario. A finding about the cause's ranks alone,
   and about the same time, leaves what the other ranks usually have of it.
3. Savings are counted in the order of the findings: each at most what its scenario and those before it gain together
   after the causes, less what is counted already, none below 1 % of a step, and all together at most a step. What a
   finding would save alone is then part of its evidence.

Where the run cannot be replayed, savings are the rules' own bounds, and nothing limits them but the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import polars as pl

from rankscope.answers.diagnosis.effects import OF_ANALYSES, SLOW_GROUP, STALL, STRAGGLER, Declared
from rankscope.answers.diagnosis.rank_costs import RankCosts, rank_costs
from rankscope.answers.diagnosis.step_costs import INFO_SHARE, WARNING_SHARE, severity_of, step_of
from rankscope.primitives.stragglers.causes import class_of
from rankscope.results import Effect, Evidence, Finding, Inputs, Rule, StepPart, by_severity, worst_of
from rankscope.whatif.options import scenarios_of
from rankscope.whatif.run import ReplayedRun
from rankscope.whatif.scenarios import Balanced, GroupAsOthers, Overlapped, Scenario, Without

COVERED = 0.5
"""Of a finding's saving: a cause that accounts for less leaves the finding on its own."""
ON_ITS_OWN = "potential saving on its own"
_SAME = 0.99
"""Of a saving: if at least this share of it is counted, what it would be alone is not evidence."""
_NS = 1e-3  # more than floating point loses of a nanosecond

_NO_TIME: Mapping[StepPart, tuple[Scenario, ...]] = {
    "compute": (Without("compute"),),
    "communication": (Overlapped(),),
    "copies": (Without("copies"),),
    "data": (Without("data_loading"),),
    "host": (Without("launches"), Without("allocation"), Without("synchronization")),
}
_SCENARIOS: Mapping[str, tuple[Scenario, ...]] = {
    "imbalance": (Balanced("ranks"),),
    "mesh-imbalance": (Balanced("ranks"),),
    "memory_retries": (Without("allocation"),),
    "synchronizing_calls": (Without("synchronization"),),
}
"""By id: what is different without what a finding is about, where that is less than a part of a step."""


@dataclass
class _Stated:
    """A finding, and what would be different without it.

    Attributes:
        kind: its id; of a straggler with its cause.
        costs: by rank, as its rule has them.
        scenarios: what would be different; empty: not known.
        left: what causes leave of its saving, ns.
    """

    finding: Finding
    kind: str
    declared: Declared
    costs: RankCosts
    scenarios: tuple[Scenario, ...]
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = float(self.finding.saving_ns or 0)

    @property
    def is_first(self) -> bool:
        """Whether it is a late rank or a slow group: its scenario says what is like the others."""
        return self.finding.id in (STRAGGLER, STALL, SLOW_GROUP)


@dataclass(frozen=True)
class _Merge:
    """That a finding is a symptom, and of what."""

    cause: _Stated
    effect: Effect


@dataclass(frozen=True)
class _Gains:
    """What scenarios gain in the replay; without one, nothing is known to limit a saving."""

    run: ReplayedRun | None

    def at_most(self, saving: float, scenarios: Sequence[Scenario], given: Sequence[Scenario] = ()) -> float:
        """A saving, and no more than some scenarios gain, ns per step."""
        gain = self.run.gain(scenarios, given) if self.run is not None and scenarios else None
        return saving if gain is None else min(saving, max(gain, 0.0))

    def options(self, scenarios: Sequence[Scenario]) -> tuple[str, ...]:
        """Those of which the run can tell what they would give, as options of `rankscope whatif`."""
        answerable = self.run.answerable(scenarios) if self.run is not None else []
        return tuple(each.option for each in answerable if each.option)


def merge(
    findings: Sequence[Finding], rules: Iterable[Rule], inputs: Inputs, step: int | None, run: ReplayedRun | None
) -> list[Finding]:
    """The causes among findings, by severity and cost, with their symptoms; savings add up to a step at most.

    Args:
        findings: as they are stated.
        rules: declare parts of a step, and causes.
        inputs: results of the analyses that were made.
        step: the step time, ns; None if it is not known: nothing is merged or limited then.
        run: its replay; None if that does not explain the steps.
    """
    if step is None:
        return by_severity(findings)
    declared = {**OF_ANALYSES, **{rule.name: Declared(rule.parts, rule.symptom_of) for rule in rules}}
    times = inputs.results.get("step_time", pl.DataFrame(schema={"rank": pl.Int64}))
    gains, ranks = _Gains(run), frozenset(times["rank"].drop_nulls())
    stated = [
        _straggler(each, inputs, step) if each.id in (STRAGGLER, STALL) else _stated(each, declared, inputs, ranks)
        for each in findings
    ]
    for each in stated:
        each.finding = replace(each.finding, scenarios=gains.options(each.scenarios))
        if not each.is_first:
            each.left = gains.at_most(each.left, each.scenarios)
    merged = {id(each): found for each in stated if (found := _cause_of(each, stated, gains, step)) is not None}
    symptoms: dict[int, list[Finding]] = {}
    for each in stated:
        link = merged.get(id(each))
        if link is not None:
            root = _root(link.cause, merged)
            # What is the cause's own time needs the cause's advice: balancing work speeds up no slow device.
            advice = "" if link.effect.same else each.finding.advice
            symptom = replace(each.finding, because=link.effect.why, advice=advice)
            symptoms.setdefault(id(root), []).append(symptom)
    leading = [each for each in stated if id(each) not in merged]
    for each in leading:
        each.finding = _beside_causes(each, step)
        below = by_severity(symptoms.get(id(each), []))
        severity = worst_of([each.finding.severity, *(one.severity for one in below)])
        each.finding = replace(each.finding, severity=severity, symptoms=tuple(below))
    order = by_severity([each.finding for each in leading])
    place = {id(finding): at for at, finding in enumerate(order)}
    return _counted(sorted(leading, key=lambda each: place[id(each.finding)]), gains, step)


def _stated(finding: Finding, declared: Mapping[str, Declared], inputs: Inputs, ranks: frozenset[int]) -> _Stated:
    about = declared.get(finding.id, Declared())
    costs = rank_costs(finding, inputs, ranks)
    if finding.id == SLOW_GROUP:
        return _Stated(finding, finding.id, about, costs, (GroupAsOthers(finding.ranks),))
    parts = tuple(scenario for part in about.parts for scenario in _NO_TIME[part])
    return _Stated(finding, finding.id, about, costs, _SCENARIOS.get(finding.id, parts))


def _straggler(finding: Finding, inputs: Inputs, step: int) -> _Stated:
    """Late ranks: their scenario stands in the result of `stragglers`. They are as severe as what they cost."""
    if finding.id == STRAGGLER and finding.severity != "error":
        severity = severity_of(finding.weight_ns, step_of(finding, step)[0]) or "info"
        finding = replace(finding, severity=severity)
    frame = inputs.results.get("stragglers", pl.DataFrame(schema={"rank": pl.Int64, "cause": pl.String}))
    rows = frame.filter(pl.col("rank").is_in(list(finding.ranks)))
    causes, fix = (rows[name].drop_nulls().to_list() if name in rows.columns else [] for name in ("cause", "fix"))
    kind = f"{STRAGGLER}:{class_of(causes[0] if causes else 'unclear')}"
    costs = RankCosts(dict.fromkeys(finding.ranks, float(finding.saving_ns or 0)), is_mean=False)
    return _Stated(finding, kind, Declared(), costs, tuple(scenarios_of({"fix": fix[0]})) if fix else ())


def _cause_of(each: _Stated, stated: Sequence[_Stated], gains: _Gains, step: int) -> _Merge | None:
    """The cause that a finding is a symptom of; what declared causes leave of it otherwise is its `left`."""
    total = each.left
    best: tuple[float, _Merge] | None = None
    left_by_all = total
    for effect in each.declared.symptom_of:
        causes = [one for one in stated if one is not each and _is_of(one, effect)]
        if not causes:
            continue
        first = _first(causes, each)
        if not each.finding.saving_ns:
            # Without a saving there is nothing to add up: it is about the same ranks, or it is not a symptom.
            ranks = {rank for one in causes for rank in one.finding.ranks}
            if effect.same and each.finding.ranks and set(each.finding.ranks) <= ranks:
                return _Merge(first, effect)
            continue
        left = _left(each, causes, effect, gains)
        few = left <= (1 - COVERED) * each.finding.saving_ns and left < WARNING_SHARE * step
        if few and (best is None or left < best[0]):
            best = (left, _Merge(first, effect))
        left_by_all = min(left_by_all, left)
    each.left = left_by_all
    return best[1] if best is not None else None


def _is_of(one: _Stated, effect: Effect) -> bool:
    return effect.of in (one.kind, one.kind.partition(":")[0])


def _first(causes: Sequence[_Stated], each: _Stated) -> _Stated:
    """Of several causes the one on the rank that the finding costs most, else the most costly."""
    worst = max(each.costs.by_rank, key=lambda rank: each.costs.by_rank[rank], default=None)
    return max(causes, key=lambda one: (worst in one.finding.ranks, one.finding.weight_ns))


def _left(each: _Stated, causes: Sequence[_Stated], effect: Effect, gains: _Gains) -> float:
    """What causes of one kind leave of a finding's saving."""
    given = _given(causes)
    left = each.left
    own = {rank for one in causes for rank in one.finding.ranks}
    if effect.same and own.issuperset(each.finding.ranks):
        costs = each.costs.by_rank
        usual = median(others) if (others := [cost for rank, cost in costs.items() if rank not in own]) else 0.0
        rest = {rank: min(cost, usual) if rank in own else cost for rank, cost in costs.items()}
        left = min(left, each.costs.total(rest))
    if set(given) & set(each.scenarios):
        # Both are about one part of the step: it is there once.
        return max(left - max(one.left for one in causes), 0.0)
    return gains.at_most(left, each.scenarios, given)


def _given(causes: Iterable[_Stated]) -> list[Scenario]:
    """What is different without some causes, each once."""
    return list(dict.fromkeys(scenario for one in causes for scenario in one.scenarios))


def _root(cause: _Stated, merged: Mapping[int, _Merge]) -> _Stated:
    """The cause of a cause's cause: symptoms are one level deep."""
    seen = {id(cause)}
    while (link := merged.get(id(cause))) is not None and id(link.cause) not in seen:
        cause = link.cause
        seen.add(id(cause))
    return cause


def _beside_causes(each: _Stated, step: int) -> Finding:
    """A finding that saves less than its rule knows: it is as severe as that."""
    left = math.floor(each.left + _NS)
    if not each.finding.saving_ns or left >= each.finding.saving_ns:
        return each.finding
    severity = severity_of(left, step_of(each.finding, step)[0]) or "info"
    limited = _limited(each.finding, left)
    return limited if worst_of([severity, limited.severity]) == severity else replace(limited, severity=severity)


def _counted(leading: Sequence[_Stated], gains: _Gains, step: int) -> list[Finding]:
    """The findings with what each of them adds to the savings of those before it."""
    first = _given(each for each in leading if each.is_first)
    others: list[tuple[tuple[Scenario, ...], float]] = []
    promised = 0.0
    found = []
    for each in leading:
        if not each.finding.saving_ns:
            found.append(each.finding)
            continue
        whole = step_of(each.finding, step)[0]
        counted = min(float(each.finding.saving_ns), max(0.0, whole - promised))
        if not each.is_first:
            # With all findings before it, and with those that are about the same parts.
            for before in (others, [one for one in others if one[0] == each.scenarios]):
                shared = sum(ns for _, ns in before)
                union = dict.fromkeys([scenario for one in before for scenario in one[0]] + list(each.scenarios))
                counted = max(min(counted, gains.at_most(counted + shared, list(union), first) - shared), 0.0)
        if counted < INFO_SHARE * whole:
            counted = 0.0
        if not each.is_first:
            others.append((each.scenarios, counted))
        promised += counted
        found.append(_limited(each.finding, math.floor(counted + _NS)))
    return found


def _limited(finding: Finding, counted: int) -> Finding:
    """The finding with what it adds; the saving on its own is then evidence, unless both are practically the same."""
    if finding.saving_ns is None or counted >= finding.saving_ns:
        return finding
    limited = replace(finding, saving_ns=counted or None)
    if counted >= _SAME * finding.saving_ns or any(each.name == ON_ITS_OWN for each in finding.evidence):
        return limited
    alone = Evidence(ON_ITS_OWN, finding.saving_ns, "ns")
    return replace(limited, evidence=(*finding.evidence, alone))
