"""Findings about a run, with the numbers as evidence.

In: facts with evidence. Out: findings, in order of severity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
NOT_ANALYZED = "rank-not-analyzed"
"""The id of findings about a rank that was read, but that an analysis could not use."""
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Evidence:
    """A number, or a name, that a finding is based on."""

    name: str
    value: int | float | str
    unit: str = ""


@dataclass(frozen=True)
class Anchor:
    """The event at which something can be seen, and events of other ranks to compare it with.

    Attributes:
        rank: the rank.
        window: index of the rank's trace file, from 0.
        start_ns: when the event starts, on that file's clock.
        end_ns: when it ends; of a collective that ran as several kernels, when the last one does.
        name: the event's name, as recorded.
        reason: what is to be seen there, in a sentence without names from traces.
        since_ns: where the idle gap begins that the event ends; None if it ends none.
        peers: the same on other ranks, those that show it best first.
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
        own = {name: getattr(self, name) for name in names}
        if self.since_ns is not None:
            own["since_ns"] = self.since_ns
        if self.compared:
            own["compared"] = list(self.compared)
        return {**own, "peers": [peer.to_json() for peer in self.peers]} if self.peers else own


@dataclass(frozen=True)
class Finding:
    """Something that a person should know about a run, with its evidence.

    Attributes:
        id: the kind of finding: stable, in kebab case.
        saving_ns: upper bound of what fixing it saves, in nanoseconds per step; None if it is not about time.
        all_clear: whether it reports the absence of a problem: shown with its analysis, not among the run's findings.
        cost_ns: what it costs per step, where that is more than can be saved: findings are ordered by it; None: the
            saving.
        symptoms: findings about the same time, which this one causes or contains. Their savings are not added.
        because: of a symptom, why it is one.
        anchor: the event at which it can be seen; None if it is not about events, or no event stands out.
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
            "symptoms": [each.to_json() for each in self.symptoms],
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
    return [each for finding in findings for each in (finding, *finding.symptoms)]


def each_once(findings: Iterable[Finding]) -> list[Finding]:
    """Findings without repetitions; what kept a rank out of several analyses is one finding, which names them all."""
    lost: dict[tuple[object, ...], Finding] = {}
    found: dict[Finding, None] = {}
    for finding in findings:
        if finding.id != NOT_ANALYZED or not finding.evidence:
            found[finding] = None
            continue
        *reason, analyses = finding.evidence
        key = (finding.ranks, *reason)
        names = {*str(analyses.value).split(", ")}
        if key in lost:
            names |= {*str(lost[key].evidence[-1].value).split(", ")}
        listed = ", ".join(sorted(names))
        title = finding.title.replace(str(analyses.value), listed, 1)
        lost[key] = replace(finding, title=title, evidence=(*reason, replace(analyses, value=listed)))
    return [*found, *lost.values()]
