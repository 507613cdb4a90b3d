"""One finding for one cause: merges findings about the same time, and counts no time twice.

In: findings as rules and analyses state them, and results of analyses. Out: the causes, the most costly first, each
with its symptoms.

1. The mean step of each rank has five parts (`step_time`): compute, exposed communication, exposed copies, waiting for
   data, and the rest. Every finding with a saving takes it from some of them, on some ranks (`rank_costs`).
2. The cost of a finding is its saving. The cost of a straggler is its saving, or the time per step that another rank
   waits for it without computing, whichever is larger. Severity follows from cost.
3. Which findings can be causes of which others is declared (`effects`). A finding is a symptom of such a cause if the
   cause explains at least half of its cost and the rest would be less than a warning. What a cause explains is
   determined on each rank, in one of two ways:
   - both are about the same time: the finding's cost there beyond its median on the other ranks, if the cause's cost
     there is at least half of that; otherwise, as much as the cause's cost;
   - there is no room for both: the amount by which the two together exceed what the rank has of that part.
   A finding that is explained in part keeps the rest as its saving and its cost.
4. Causes share the time, the most costly first: the saving of each is at most what the ones before it leave of its
   parts, none below 1 % of a step, and all savings together are at most a step (the mean one if a share of it is
   among them). What a finding would save alone is then part of its evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import polars as pl

from rankscope.diagnosis.effects import OF_ANALYSES, PARTS_OF_CAUSE, STALL, STRAGGLER, Declared
from rankscope.diagnosis.rank_costs import RankCosts, exposed_waits, rank_costs
from rankscope.diagnosis.step_costs import INFO_SHARE, WARNING_SHARE, severity_of, step_of
from rankscope.primitives.stragglers.causes import class_of
from rankscope.results import Effect, Evidence, Finding, Inputs, Rule, StepPart, by_severity, worst_of

COVERED = 0.5
"""Of a finding's cost: a cause that accounts for less leaves the finding on its own."""
ON_ITS_OWN = "potential saving on its own"
_SAME = 0.99
"""Of a saving: if at least this share of it is counted, what it would be alone is not evidence."""
_NS = 1e-3  # more than floating point loses of a nanosecond

_COLUMNS: Mapping[StepPart, tuple[str, ...]] = {
    "compute": ("compute_ns",),
    "communication": ("exposed_communication_ns",),
    "copies": ("exposed_memcpy_ns", "exposed_memset_ns"),
    "data": ("data_loading_ns",),
    "host": ("runtime_ns", "host_op_ns", "other_ns"),
}
Parts = dict[StepPart, float]


@dataclass
class _Stated:
    """A finding, and the time that it is about.

    Attributes:
        kind: its id; of a straggler with its cause.
        costs: by rank.
        taken: by rank, what of which part it takes.
        own: by rank, what it takes where it originates: of a straggler only its own ranks.
    """

    finding: Finding
    kind: str
    declared: Declared
    costs: RankCosts
    taken: dict[int, Parts]
    own: dict[int, float]
    rest: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Merge:
    """That a finding is a symptom, and of what."""

    cause: _Stated
    effect: Effect


def merge(findings: Sequence[Finding], rules: Iterable[Rule], inputs: Inputs, step: int | None) -> list[Finding]:
    """The causes among findings, by severity and cost, with their symptoms; savings add up to a step at most.

    Args:
        findings: as they are stated.
        rules: declare parts of a step, and causes.
        inputs: results of the analyses that were made.
        step: the step time, ns; None if it is not known: nothing is merged or limited then.
    """
    if step is None:
        return by_severity(findings)
    declared = {**OF_ANALYSES, **{rule.name: Declared(rule.parts, rule.symptom_of) for rule in rules}}
    capacity = _capacity(inputs)
    stated = [_stated(each, declared, capacity, inputs, step) for each in findings]
    _share_waits([each for each in stated if each.finding.id in (STRAGGLER, STALL)], exposed_waits(inputs))
    merged = {id(each): found for each in stated if (found := _cause_of(each, stated, capacity, step)) is not None}
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
    return _counted(sorted(leading, key=lambda each: place[id(each.finding)]), capacity, step)


def _capacity(inputs: Inputs) -> dict[int, Parts]:
    """What each rank's mean step has of each part, ns."""
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty():
        return {}
    means = frame.group_by("rank").agg(
        pl.sum_horizontal(pl.col(name).mean() for name in columns).alias(part) for part, columns in _COLUMNS.items()
    )
    rows = means.drop_nulls("rank").sort("rank").iter_rows(named=True)
    return {int(row["rank"]): {part: float(row[part] or 0) for part in _COLUMNS} for row in rows}


def _stated(
    finding: Finding, declared: Mapping[str, Declared], capacity: Mapping[int, Parts], inputs: Inputs, step: int
) -> _Stated:
    if finding.id in (STRAGGLER, STALL):
        return _straggler(finding, capacity, inputs, step)
    about = declared.get(finding.id, Declared())
    costs = rank_costs(finding, inputs, frozenset(capacity))
    taken = {rank: _spread(cost, about.parts, capacity.get(rank, {})) for rank, cost in costs.by_rank.items()}
    own = {rank: cost for rank, cost in costs.by_rank.items() if not finding.ranks or rank in finding.ranks}
    return _Stated(finding, finding.id, about, costs, taken, own)


def _straggler(finding: Finding, capacity: Mapping[int, Parts], inputs: Inputs, step: int) -> _Stated:
    """A straggler's time: on its ranks what makes it late, on the others the communication in which they wait."""
    rows = _straggler_rows(finding, inputs)
    cause = next((row["cause"] for row in rows.values() if row["cause"] is not None), "unclear")
    saving = float(finding.saving_ns or 0)
    own = {rank: float((rows[rank]["cause_ns"] if rank in rows else None) or saving) for rank in finding.ranks}
    parts = PARTS_OF_CAUSE.get(class_of(cause), ())
    waited = max(((row["waited_ns"] or 0) / max(row["steps"] or 0, 1) for row in rows.values()), default=0.0)
    waits = {rank: min(waited, most) for rank, most in exposed_waits(inputs).items() if rank not in own}
    taken = {
        rank: _spread(own[rank], parts, has) if rank in own else _spread(waits.get(rank, 0.0), ("communication",), has)
        for rank, has in capacity.items()
    }
    if finding.id == STALL:
        # It happened once: it costs the steps to come nothing.
        shown = finding
    else:
        step, _ = step_of(finding, step)
        cost = min(round(max(saving, *waits.values(), 0.0)), step)
        severity = finding.severity if finding.severity == "error" else severity_of(cost, step) or "info"
        shown = replace(finding, severity=severity, cost_ns=cost or None)
    costs = RankCosts(dict.fromkeys(finding.ranks, saving), is_mean=False)
    return _Stated(shown, f"{STRAGGLER}:{class_of(cause)}", Declared(parts), costs, taken, own)


def _share_waits(stragglers: Sequence[_Stated], possible: Mapping[int, float]) -> None:
    """Several stragglers together make no rank wait for longer than it waits at all."""
    for rank, most in possible.items():
        waits = [each.taken[rank] for each in stragglers if rank in each.taken and rank not in each.own]
        total = sum(parts.get("communication", 0.0) for parts in waits)
        for parts in waits if total > most else ():
            parts["communication"] *= most / total


def _straggler_rows(finding: Finding, inputs: Inputs) -> dict[int, dict[str, Any]]:
    frame = inputs.results.get("stragglers")
    if frame is None or frame.is_empty():
        return {}
    rows = frame.filter(pl.col("rank").is_in(list(finding.ranks)) & pl.col("step").is_null())
    return {int(row["rank"]): row for row in rows.iter_rows(named=True)}


def _spread(amount: float, parts: Iterable[StepPart], has: Mapping[StepPart, float]) -> Parts:
    """An amount over parts, in their order, as far as the rank has them."""
    found: Parts = {}
    for part in parts:
        found[part] = min(amount, has.get(part, 0.0))
        amount -= found[part]
    return found


def _cause_of(each: _Stated, stated: Sequence[_Stated], capacity: Mapping[int, Parts], step: int) -> _Merge | None:
    """The cause that a finding is a symptom of; what declared causes leave of it otherwise is its `rest`."""
    total = each.costs.total()
    best: tuple[float, _Merge] | None = None
    each.rest = dict(each.costs.by_rank)
    for effect in each.declared.symptom_of:
        causes = [one for one in stated if one is not each and _is_of(one, effect)]
        if not causes:
            continue
        first = _first(causes, each)
        if not total:
            # Without a saving there is nothing to add up: it is about the same ranks, or it is not a symptom.
            ranks = {rank for one in causes for rank in one.own}
            if effect.same and each.finding.ranks and set(each.finding.ranks) <= ranks:
                return _Merge(first, effect)
            continue
        rest = _left(each, causes, effect, capacity)
        left = each.costs.total(rest)
        if left <= (1 - COVERED) * total and left < WARNING_SHARE * step and (best is None or left < best[0]):
            best = (left, _Merge(first, effect))
        each.rest = {rank: min(cost, rest[rank]) for rank, cost in each.rest.items()}
    return best[1] if best is not None else None


def _is_of(one: _Stated, effect: Effect) -> bool:
    return effect.of in (one.kind, one.kind.partition(":")[0])


def _first(causes: Sequence[_Stated], each: _Stated) -> _Stated:
    """Of several causes the one on the rank that the finding costs most, else the most costly."""
    worst = max(each.costs.by_rank, key=lambda rank: each.costs.by_rank[rank], default=None)
    return max(causes, key=lambda one: (worst in one.own, one.finding.weight_ns))


def _left(each: _Stated, causes: Sequence[_Stated], effect: Effect, capacity: Mapping[int, Parts]) -> dict[int, float]:
    """What causes of one kind leave of a finding's costs, by rank."""
    costs = each.costs.by_rank
    own: dict[int, float] = {}
    for one in causes:
        for rank, amount in one.own.items():
            own[rank] = max(own.get(rank, 0.0), amount)
    others = [costs.get(rank, 0.0) for rank in capacity if rank not in own]
    usual = median(others) if others else 0.0
    rest = {}
    for rank, cost in costs.items():
        if effect.same:
            beyond, amount = max(0.0, cost - usual), own.get(rank, 0.0)
            shared = beyond if amount >= COVERED * beyond else amount
        else:
            has = capacity.get(rank, {})
            room = sum(has.get(part, 0.0) for part in each.declared.parts)
            taken = sum(one.taken.get(rank, {}).get(part, 0.0) for one in causes for part in each.declared.parts)
            shared = min(cost, taken, max(0.0, cost + taken - room))
        rest[rank] = cost - shared
    return rest


def _root(cause: _Stated, merged: Mapping[int, _Merge]) -> _Stated:
    """The cause of a cause's cause: symptoms are one level deep."""
    seen = {id(cause)}
    while (link := merged.get(id(cause))) is not None and id(link.cause) not in seen:
        cause = link.cause
        seen.add(id(cause))
    return cause


def _beside_causes(each: _Stated, step: int) -> Finding:
    """A finding that causes account for in part: it saves what is left, and is as severe as that."""
    left = math.floor(each.costs.total(each.rest) + _NS)
    if not each.finding.saving_ns or left >= each.finding.saving_ns:
        return each.finding
    severity = severity_of(left, step_of(each.finding, step)[0]) or "info"
    limited = _limited(each.finding, left)
    return limited if worst_of([severity, limited.severity]) == severity else replace(limited, severity=severity)


def _counted(leading: Sequence[_Stated], capacity: Mapping[int, Parts], step: int) -> list[Finding]:
    """The findings with what each of them adds to the savings of those before it."""
    remaining = {rank: dict(parts) for rank, parts in capacity.items()}
    promised = 0.0
    found = []
    for each in leading:
        saving = each.finding.saving_ns
        if not saving:
            found.append(each.finding)
            continue
        counted = min(float(saving), max(0.0, step_of(each.finding, step)[0] - promised))
        if each.kind.partition(":")[0] != STRAGGLER and each.declared.parts:
            room = {
                rank: sum(remaining[rank][part] for part in each.declared.parts) if rank in remaining else cost
                for rank, cost in each.rest.items()
            }
            counted = min(counted, each.costs.total({rank: min(cost, room[rank]) for rank, cost in each.rest.items()}))
        for rank, parts in each.taken.items():
            for part, amount in parts.items():
                if rank in remaining:
                    remaining[rank][part] = max(0.0, remaining[rank][part] - amount)
        if counted < INFO_SHARE * step_of(each.finding, step)[0]:
            counted = 0.0
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
