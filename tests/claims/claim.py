"""A finding as a claim: each of its numbers is taken, compared with what the raw events give, and none may be left."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rankscope.results import Evidence, Finding

MEAN_STEP = "mean step time (slowest rank)"
NS = 1.5
"""Sums are exact; means and medians are rounded once, and shares of them once more."""


def number_in(text: str) -> float:
    """A number as titles write it, with commas between thousands."""
    return float(text.replace(",", ""))


class FalseClaimError(AssertionError):
    """What a finding says is not what the trace has."""


@dataclass
class Claim:
    """A finding, and the evidence that no check has looked at yet."""

    finding: Finding
    left: list[Evidence] = field(init=False)
    of_mean: bool = field(init=False)
    """Whether it is a part of the mean step: a total of files, or what fewer than half of the steps have."""

    def __post_init__(self) -> None:
        self.left = list(self.finding.evidence)
        self.of_mean = any(each.name == MEAN_STEP for each in self.left)

    def require(self, holds: object, why: str) -> None:
        if not holds:
            raise FalseClaimError(f"{self.finding.id}: {why}\n  “{self.finding.title}” {self.finding.evidence}")

    def has(self, name: str) -> bool:
        return any(each.name.startswith(name) for each in self.left)

    def take(self, name: str) -> Evidence:
        """The first piece of evidence whose name begins so."""
        for each in self.left:
            if each.name.startswith(name):
                self.left.remove(each)
                return each
        raise FalseClaimError(f"{self.finding.id}: no evidence “{name}…”, there is {[e.name for e in self.left]}")

    def number(self, name: str) -> float:
        value = self.take(name).value
        self.require(isinstance(value, int | float), f"“{name}” is {value!r}")
        assert not isinstance(value, str)
        return float(value)

    def is_near(self, name: str, wanted: float, *, within: float = NS, relative: float = 1e-6) -> float:
        """Take a number that must be what was recomputed."""
        found = self.number(name)
        self.same(found, wanted, f"“{name}”", within=within, relative=relative)
        return found

    def same(self, found: float, wanted: float, what: str, *, within: float = NS, relative: float = 1e-6) -> None:
        room = max(within, relative * abs(wanted))
        self.require(abs(found - wanted) <= room, f"{what} is {found:.10g}, recomputed {wanted:.10g} (±{room:.3g})")

    def is_ranks(self, wanted: object) -> None:
        self.require(
            self.finding.ranks == tuple(sorted(wanted)),
            f"ranks {self.finding.ranks}, recomputed {wanted}",
        )

    def share(self, step: float) -> None:
        """The title's share of a step is that of the saving."""
        saving = self.finding.saving_ns or 0
        if found := re.search(r"(\d+) % of (a|the) (step|mean step|recorded span)", self.finding.title):
            self.same(float(found[1]), 100 * saving / step, "the title's share", within=0.51)
            self.require((found[3] == "mean step") == self.of_mean, "the title and its evidence are of different steps")
        else:
            self.require(False, "the title gives no share of a step")

    def named_rank(self) -> int | None:
        """The rank that the title says is the worst."""
        found = re.search(r"on rank (\d+)(?: \(worst of (\d+) ranks\))?$", self.finding.title)
        if found and found[2]:
            self.require(int(found[2]) == len(self.finding.ranks), "the title has another number of ranks")
        return int(found[1]) if found else None

    def close(self) -> None:
        """No number is left that nobody recomputed."""
        self.require(not self.left, f"evidence that nothing recomputes: {[each.name for each in self.left]}")
