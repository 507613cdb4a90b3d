"""What recurs costs: per step on average, also where only some steps have it. Rules whose figures are means share this.

In: results of analyses, as totals of files or one row per step. Out: costs of the mean step, with their severity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import SLOW_GROUP, STRAGGLER
from rankscope.answers.diagnosis.step_costs import (
    AGAIN,
    MEAN_STEP,
    WARNING_SHARE,
    StepWords,
    Worst,
    average_step,
    mean_step_ns,
    on_worst_rank,
    per_step,
    severity_of,
    step_counts,
    step_ns,
    step_of,
    within_available,
    worst_rank,
)
from rankscope.results import Evidence, Finding, Inputs, Severity

_SAME_STEP = 0.05
"""Of the median step: a mean one that differs by less is the same to a reader."""


def recurs(times: pl.Expr, steps: pl.Expr) -> pl.Expr:
    """Whether something happens in at least half of a rank's steps, or in two: it can be expected in later ones.

    Args:
        times: in how many steps it happens.
        steps: how many there are.
    """
    return (2 * times >= steps) | (times >= AGAIN)


def in_some_steps(times: pl.Expr, steps: pl.Expr) -> pl.Expr:
    """Whether something recurs, but in fewer than half of a rank's steps: the median has none of it. As `recurs`."""
    return recurs(times, steps) & (2 * times < steps)


@dataclass(frozen=True)
class Cost:
    """What something costs in the mean step, or in the recorded span of files without steps.

    Attributes:
        worst: the rank with the most, and its saving.
        step_ns: the step that the saving is a part of.
        unit: phrases for that step.
        rows: what was counted.
        by_rank: its total divided by the number of steps, ns, the largest first.
    """

    worst: Worst
    step_ns: int
    unit: StepWords
    rows: pl.DataFrame
    by_rank: Mapping[int, int]

    @property
    def share(self) -> str:
        """The saving relative to the step, as a phrase."""
        return self.unit.share(self.worst.saving_ns, self.step_ns)

    @property
    def length(self) -> Evidence:
        """The step's length, which the share refers to."""
        return Evidence(self.unit.length, self.step_ns, "ns")


def cost_of(rows: pl.DataFrame, column: str, columns: Sequence[str], inputs: Inputs) -> Cost | None:
    """What something that recurs costs per step; None if it is too little for a finding.

    A total divided by the number of steps is a mean, so it is compared with the mean of the same steps: the median step
    may have less of it, or none.

    Args:
        rows: rank; steps: in how many it happens, 0 if the trace has none; and the column: totals of files, ns.
        column: its name.
        columns: of `step_time`: what the saving is taken from.
    """
    step, unit = average_step(inputs)
    if step is None:
        return None
    count = pl.col("rank").replace_strict(step_counts(inputs), default=0, return_dtype=pl.Int64)
    counted = rows.filter((pl.col("steps") == 0) | recurs(pl.col("steps"), count))
    by_rank = per_step(counted, column, inputs)
    worst = worst_rank(within_available(by_rank, columns, inputs), step)
    return None if worst is None else Cost(worst, step, unit, counted, by_rank)


@dataclass(frozen=True)
class Bursts:
    """What some steps cost, but not most: workers that are too slow, for instance, deliver in bursts.

    Attributes:
        rank: the rank with the most.
        ranks: all ranks with such steps.
        steps: the rank's expensive steps, by number.
        of: how many steps it has.
        total_ns: what they cost together.
        saving_ns: the same per step of all, ns.
        severity: of that.
        step_ns: the mean step, which the saving is a part of.
    """

    rank: int
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    of: int
    total_ns: int
    saving_ns: int
    severity: Severity
    step_ns: int

    def finding(
        self, rule: str, what: str, evidence: Sequence[Evidence], reason: str, advice: str, inputs: Inputs
    ) -> list[Finding]:
        """A rule's one finding about these steps.

        Args:
            rule: its name.
            what: what happens, as the title begins: `The job waits for data`.
            evidence: what the steps cost; the saving and the step follow.
            reason: of the event that the finding leads to (`evidence_events`).
            advice: what to do.
            inputs: the results.
        """
        saving = Evidence("mean over all steps", self.saving_ns, "ns")
        return [
            Finding(
                rule,
                self.severity,
                f"{what} in {len(self.steps)} of {self.of} steps{on_worst_rank(inputs, self.rank, self.ranks)}",
                ranks=self.ranks,
                steps=self.steps,
                evidence=(*evidence, saving, Evidence(MEAN_STEP.length, self.step_ns, "ns")),
                saving_ns=self.saving_ns,
                anchor=event_anchor(inputs, reason, self.rank, steps=self.steps),
                advice=advice,
            )
        ]


def in_bursts(frame: pl.DataFrame, column: str, inputs: Inputs) -> Bursts | None:
    """What at most half of a rank's steps cost, but two or more: a part of the mean step. None if too little.

    In exactly half, the median lies between a step that has the cost and one that has not: no step is like it.

    Args:
        frame: rank, step and the column, one row per step.
        column: ns. From 5 % of the median step on, a step is expensive.
    """
    median, mean = step_ns(inputs), mean_step_ns(inputs)
    if median is None or mean is None:
        return None
    slow = frame.filter(pl.col("step").is_not_null() & (pl.col(column) >= WARNING_SHARE * median))
    often = slow.group_by("rank").agg(pl.len().alias("times"), pl.col(column).sum().alias("total"))
    rows = often.join(frame.group_by("rank").agg(pl.len().alias("of")), on="rank")
    few = (pl.col("times") >= AGAIN) & (2 * pl.col("times") <= pl.col("of"))
    rows = rows.filter(few).sort("total", "rank", descending=[True, False])
    if rows.is_empty():
        return None
    worst = rows.row(0, named=True)
    saving = round(worst["total"] / worst["of"])
    severity = severity_of(saving, mean)
    if severity is None:
        return None
    steps = slow.filter(pl.col("rank") == worst["rank"])["step"].sort().to_list()
    ranks = tuple(rows["rank"].sort().to_list())
    return Bursts(worst["rank"], ranks, tuple(steps), worst["of"], worst["total"], saving, severity, mean)


def of_mean_step(finding: Finding, inputs: Inputs) -> Finding:
    """A finding that an analysis states, with the mean step as evidence if its saving is a part of that.

    The replay's gain is that of the mean step: where this differs from the median one, shares refer to it.

    Args:
        inputs: with the result of `step_time`.
    """
    mean, median = mean_step_ns(inputs), step_ns(inputs)
    if finding.id not in (STRAGGLER, SLOW_GROUP) or not finding.saving_ns or mean is None or median is None:
        return finding
    if abs(mean - median) < _SAME_STEP * median:
        return finding
    return replace(finding, evidence=(*finding.evidence, Evidence(MEAN_STEP.length, mean, "ns")))


def larger_share(usually: list[Finding], in_some: list[Finding], step: int) -> list[Finding]:
    """Of a rule's finding about usual steps and the one about some, what is the larger share of its step, in percent.

    If they are the same, the one about some: it says which steps.

    Args:
        usually: about the median step; no finding or one.
        in_some: about the mean step; no finding or one.
        step: the median step, ns.
    """

    def percent(findings: list[Finding]) -> int:
        return round(100 * sum((each.saving_ns or 0) / step_of(each, step)[0] for each in findings))

    return max(in_some, usually, key=percent)
