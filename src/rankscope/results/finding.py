"""What is to be known about a run, with the numbers it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Evidence:
    """A number that a finding rests on."""

    name: str
    value: int | float | str
    unit: str = ""


@dataclass(frozen=True)
class Finding:
    """Something that a person should know, with the numbers it rests on.

    Attributes:
        id: what kind of finding it is, stable, in kebab case.
        saving_ns: nanoseconds a step that mending it would save at most; None where that is not a matter of time.
        well: whether it says that all is well: told with its own analysis, not among what is found in a run.
    """

    id: str
    severity: Severity
    title: str
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    saving_ns: int | None = None
    advice: str = ""
    well: bool = False

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


def by_weight(findings: Sequence[Finding]) -> list[Finding]:
    """Errors first, then by what mending saves, then as they came."""
    return sorted(findings, key=lambda f: (_SEVERITIES.index(f.severity), -(f.saving_ns or 0)))
