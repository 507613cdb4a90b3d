"""Findings about a run, with the numbers as evidence.

In: facts with evidence. Out: findings, in order of severity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
NOT_ANALYZED = "rank-not-analyzed"
"""The id of findings about a rank that was read, but that an analysis could not process."""
TOGETHER_WITH = "as late: something is gained only if these ranks are fixed too"
"""Evidence of a late rank that gains nothing alone; its cost is what they gain together."""
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Evidence:
    """A number, or a name, that a finding is based on."""

    name: str
    value: int | float | str
    unit: str = ""


@dataclass(frozen=True)
class Anchor:
    """The event that shows a finding best, and events of other ranks to compare it with.

    Attributes:
        rank: the rank.
        window: index of the rank's trace file, from 0.
        start_ns: when the event starts, on that file's clock.
        end_ns: when it ends; for a collective of several kernels, when the last one ends.
        name: the event's name, as recorded.
        reason: what it shows, in a sentence without names from traces.
        since_ns: the start of the idle gap that the event ends; None if it ends none.
        peers: the same on other ranks, the clearest first.
        compared: ranks without such an event, to compare it with.
    """

    rank: int
    window: int
    start_ns: int
    end_ns: int
    name: str
    reason: str
    peers: tuple[Anchor, ...] = ()
    since_ns: int | None = None
    compared: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        names = ("rank", "window", "start_ns", "end_ns", "name", "reason")
        fields = {name: getattr(self, name) for name in names}
        if self.since_ns is not None:
            fields["since_ns"] = self.since_ns
        if self.compared:
            fields["compared"] = list(self.compared)
        if self.peers:
            fields["peers"] = [peer.to_json() for peer in self.peers]
        return fields


@dataclass(frozen=True)
class Finding:
    """Something that the user should know about a run, with its evidence.

    Attributes:
        id: the kind of finding: stable, in kebab case.
        saving_ns: upper bound of what fixing it saves, in nanoseconds per step; None if it is not about time.
        all_clear: whether it reports the absence of a problem: shown with its analysis, not among the run's findings.
        cost_ns: its cost per step, by which findings are sorted, if that is more than the saving; None: the saving.
        symptoms: findings about the same time, which this one causes or contains. Their savings are not added.
        because: why it is a symptom, if it is one.
        anchor: the event that shows it best; None if it is not about events, or no event stands out.
        scenarios: what a step would take without what it is about, as options of `rankscope whatif`; empty if the run
            cannot tell.
    """

    id: str
    severity: Severity
    title: str
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    saving_ns: int | None = None
    advice: str = ""
    all_clear: bool = False
    cost_ns: int | None = None
    symptoms: tuple[Finding, ...] = ()
    because: str = ""
    anchor: Anchor | None = None
    scenarios: tuple[str, ...] = ()

    @property
    def weight_ns(self) -> int:
        """What it costs per step, else what it would save, ns; 0 if it is not about time."""
        return self.cost_ns or self.saving_ns or 0

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "id": self.id,
            "severity": self.severity,
            "title": self.title,
            "ranks": list(self.ranks),
            "steps": list(self.steps),
            "evidence": [{"name": e.name, "value": e.value, "unit": e.unit} for e in self.evidence],
            "saving_ns": self.saving_ns,
            "advice": self.advice,
            "cost_ns": self.cost_ns,
            "because": self.because,
            "scenarios": list(self.scenarios),
            "symptoms": [symptom.to_json() for symptom in self.symptoms],
            **({} if self.anchor is None else {"anchor": self.anchor.to_json()}),
        }


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """Errors first, then warnings; within a severity by cost, the largest first."""
    return sorted(findings, key=lambda f: (_SEVERITIES.index(f.severity), -f.weight_ns))


def worst_of(severities: Iterable[Severity]) -> Severity:
    """The most severe.

    Args:
        severities: at least one.
    """
    return min(severities, key=_SEVERITIES.index)


def with_symptoms(findings: Iterable[Finding]) -> list[Finding]:
    """Findings, each followed by its symptoms."""
    return [item for finding in findings for item in (finding, *finding.symptoms)]


def each_once(findings: Iterable[Finding]) -> list[Finding]:
    """Findings without repetitions. If one reason excluded a rank from several analyses, one finding names them all."""
    not_analyzed: dict[tuple[object, ...], Finding] = {}
    others: dict[Finding, None] = {}
    for finding in findings:
        if finding.id != NOT_ANALYZED or not finding.evidence:
            others[finding] = None
            continue
        *reason, analyses = finding.evidence
        key = (finding.ranks, *reason)
        names = {*str(analyses.value).split(", ")}
        if key in not_analyzed:
            names |= {*str(not_analyzed[key].evidence[-1].value).split(", ")}
        listed = ", ".join(sorted(names))
        title = finding.title.replace(str(analyses.value), listed, 1)
        not_analyzed[key] = replace(finding, title=title, evidence=(*reason, replace(analyses, value=listed)))
    return [*others, *not_analyzed.values()]
