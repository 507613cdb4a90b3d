"""Findings about a run, with the numbers as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Evidence:
    """A number, or a name, that a finding is based on."""

    name: str
    value: int | float | str
    unit: str = ""


@dataclass(frozen=True)
class Finding:
    """Something that a person should know about a run, with its evidence.

    Attributes:
        id: the kind of finding: stable, in kebab case.
        saving_ns: upper bound of what fixing it saves, in nanoseconds per step; None if it is not about time.
        all_clear: whether it reports the absence of a problem: shown with its analysis, not among the run's findings.
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
        }


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """Errors first, then warnings; within a severity by saving, the largest first."""
    return sorted(findings, key=lambda f: (_SEVERITIES.index(f.severity), -(f.saving_ns or 0)))
