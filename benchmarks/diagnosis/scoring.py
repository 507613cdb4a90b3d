"""Scores diagnoses: compares the findings of a job with the faults that it had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankscope.primitives.stragglers.causes import class_of
from rankscope.results import Finding

# The cost of a fault as a share of a step: the bins of the tables.
BINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 10.0)
ACCUSING = ("straggler", "slow-network", "stall")


@dataclass(frozen=True)
class Done:
    """A fault of a job.

    Attributes:
        ranks: whom it strikes; any of them is the right one to name.
        causes: the verdicts that fit.
        cost: what it costs, as a share of an undisturbed step.
        kind: what to list it under.
        when: in how many of the recorded steps: `2 of 6 steps`.
        stall: whether it comes once, and must be named so.
        error: the standard error of the local time in as many steps (`replay.standard_error`), as a share of a step;
            None: not known. A fault that costs less than three of it is counted with all others, and apart.
    """

    ranks: frozenset[int]
    causes: tuple[str, ...]
    cost: float
    kind: str
    when: str = ""
    stall: bool = False
    error: float | None = None

    @property
    def in_the_noise(self) -> bool:
        """Whether it costs less than three standard errors."""
        return self.error is not None and self.cost < 3 * self.error


@dataclass(frozen=True)
class Said:
    """A straggler finding: the ranks, the cause, the potential saving per step, ns; whether it is a single stall."""

    ranks: frozenset[int]
    cause: str
    saving_ns: int
    stall: bool = False


@dataclass(frozen=True)
class Case:
    """A job with its faults and findings, the most important first.

    `steps`: the number of recorded steps; `confirmed`: of a clean run, whether the kernel's
    account says that the accused rank had to wait for its core; None if there is none.
    """

    name: str
    done: tuple[Done, ...]
    said: tuple[Said, ...]
    note: str = ""
    seconds: float = 0.0
    steps: int = 0
    confirmed: bool | None = None


def said_of(findings: Sequence[Finding]) -> tuple[Said, ...]:
    """The straggler findings of a run, whatever their severity."""
    said = []
    for finding in findings:
        if finding.id in ACCUSING and finding.ranks:
            labels = [each.name for each in finding.evidence if each.name.startswith("cause: ")]
            cause = class_of(labels[0].removeprefix("cause: ").replace(" ", "_")) if labels else "slow_network"
            said.append(Said(frozenset(finding.ranks), cause, finding.saving_ns or 0, finding.id == "stall"))
    return tuple(sorted(said, key=lambda each: -each.saving_ns))


@dataclass(frozen=True)
class Verdict:
    """The score of a fault: whether its rank is among as many first findings as there are faults; and the cause."""

    case: Case
    done: Done
    rank: bool
    cause: bool


def verdicts(case: Case) -> list[Verdict]:
    """One score for each fault of a job. A stall saves nothing, and is looked for among the stalls."""
    found = []
    for done in case.done:
        among = [said for said in case.said if said.stall] if done.stall else case.said
        hits = [said for said in among[: len(case.done)] if said.ranks <= done.ranks]
        found.append(Verdict(case, done, bool(hits), any(hit.cause in done.causes for hit in hits)))
    return found


def table(cases: Sequence[Case], by: Callable[[Done], str] | None = None, least: float = 0.0) -> list[str]:
    """Lines of Markdown: number, rank right, cause right, by the cost of the fault or another key."""
    rows: dict[str, list[Verdict]] = {}
    for case in cases:
        for verdict in verdicts(case):
            if verdict.done.cost >= least:
                rows.setdefault(_bin(verdict.done.cost) if by is None else by(verdict.done), []).append(verdict)
    order = sorted(rows) if by is not None else [name for name in map(_label, range(len(BINS) - 1)) if name in rows]
    lines = ["| | faults | rank right | cause right |", "|---|---|---|---|"]
    for name in order:
        each = rows[name]
        lines.append(f"| {name} | {len(each)} | {_share(each, 'rank')} | {_share(each, 'cause')} |")
    return lines


def table_by_set(cases: Sequence[Case], least: float = 0.05) -> list[str]:
    """The same by the first word of a case's name."""
    rows: dict[str, list[Verdict]] = {}
    for case in cases:
        rows.setdefault(case.name.split()[0], []).extend(v for v in verdicts(case) if v.done.cost >= least)
    return [
        "| set | faults | rank right | cause right |",
        "|---|---|---|---|",
        *(f"| {n} | {len(each)} | {_share(each, 'rank')} | {_share(each, 'cause')} |" for n, each in rows.items()),
    ]


def clean_by_steps(cases: Sequence[Case]) -> list[str]:
    """Lines of Markdown: clean runs by number of steps, and how many have a straggler finding."""
    lines = ["| steps | clean runs | with an accusation |", "|---|---|---|"]
    for steps in sorted({case.steps for case in cases}):
        clean = [case for case in cases if case.steps == steps and not case.done]
        if clean:
            lines.append(f"| {steps} | {len(clean)} | {sum(map(_accuses, clean))} |")
    return lines


def summary(cases: Sequence[Case], least: float = 0.05) -> list[str]:
    """The figures that are compared with the aims."""
    clean = [case for case in cases if not case.done]
    dear = [v for case in cases for v in verdicts(case) if v.done.cost >= least]
    accusations = [(said, case) for case in cases for said in case.said if not said.stall]
    fair = sum(any(said.ranks <= done.ranks for done in case.done) for said, case in accusations)
    lines = [
        f"- faults that cost {least:.0%} of a step or more: {len(dear)}; rank right {_share(dear, 'rank')}, "
        f"cause right {_share(dear, 'cause')}"
    ]
    apart = [v for v in dear if v.done.in_the_noise]
    if apart:
        lines.append(
            f"- of these, less than three standard errors of the local time: {len(apart)}; rank right "
            f"{_share(apart, 'rank')}, cause right {_share(apart, 'cause')}"
        )
    if accusations:
        lines.append(
            f"- accusations: {len(accusations)}, of a rank that something was done to: {_part(fair, len(accusations))}"
        )
    if clean:
        known = [case.confirmed for case in clean if _accuses(case) and case.confirmed is not None]
        confirmed = f", which the kernel confirms in {sum(known)} of {len(known)}" if known else ""
        accused = _part(sum(map(_accuses, clean)), len(clean))
        lines.append(
            f"- clean runs: {len(clean)}; with an accusation: {accused}{confirmed}; "
            f"with a stall: {_part(sum(any(said.stall for said in case.said) for case in clean), len(clean))}"
        )
    return lines


def misses(cases: Sequence[Case], least: float = 0.05) -> list[str]:
    """Where it failed."""
    lines = []
    for case in cases:
        said = (
            "; ".join(f"{sorted(s.ranks)[:4]} {s.cause} {s.saving_ns / 1e3:.0f} µs" for s in case.said[:3]) or "nobody"
        )
        if not case.done and _accuses(case):
            lines.append(f"  {case.name} clean, but: {said}{' (confirmed)' if case.confirmed else ''} [{case.note}]")
        lines += [
            f"  {case.name} {v.done.kind} on {sorted(v.done.ranks)[:4]} ({v.done.cost:.1%}): {said} [{case.note}]"
            for v in verdicts(case)
            if v.done.cost >= least and not (v.rank and v.cause)
        ]
    return lines


def _accuses(case: Case) -> bool:
    """Whether it names a straggler; a stall is one step in which a rank was late, whatever the reason."""
    return any(not said.stall for said in case.said)


def _bin(cost: float) -> str:
    return _label(max(i for i in range(len(BINS) - 1) if cost >= BINS[i] or i == 0))


def _label(index: int) -> str:
    low, high = BINS[index], BINS[index + 1]
    return f"from {low:.0%}" if high > 1 else f"{low:.0%}–{high:.0%}"


def _share(each: Sequence[Verdict], what: str) -> str:
    return _part(sum(getattr(v, what) for v in each), len(each))


def _part(good: int, of: int) -> str:
    return f"{100 * good / of:.1f} % ({good})" if of else "–"
