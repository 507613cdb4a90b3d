"""The difference between two runs, or between ranks of one: `diff_runs`, in Python ``rankscope.diff``.

In: two runs, or two ranks. Out: a `Diff`. Each run becomes samples, one value per rank and step (`samples`). Their rows
are paired by name, or by the launching operator if names changed (`pairs`). Changes are compared with the spread over
steps (`rows`). What of the step's change is what, the replays of both runs tell (`savings`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from rankscope.engine.pipeline import Run, open_run
from rankscope.errors import ConfigError, RankscopeError
from rankscope.experiments.compare.rows import COLUMNS, by_section, compare
from rankscope.experiments.compare.samples import NEEDED, Samples, samples_of
from rankscope.experiments.compare.savings import savings
from rankscope.results import RESULT_SCHEMA_VERSION, Analysis, Finding, Result, incomplete_ranks, with_symptoms

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Diff:
    """What differs between two runs.

    Attributes:
        a: a description of the first run as JSON values.
        b: the second.
        frame: one row per compared item, with the columns `COLUMNS`.
        gained: findings that only the second has.
        lost: findings that only the first has.
        not_judged: why the section `savings` is empty; empty if it is not.
    """

    a: Mapping[str, Any]
    b: Mapping[str, Any]
    frame: pl.DataFrame
    gained: tuple[Finding, ...]
    lost: tuple[Finding, ...]
    not_judged: str = ""

    def section(self, name: str) -> pl.DataFrame:
        """The rows of one section, of `SECTIONS` in `rows`."""
        return self.frame.filter(pl.col("section") == name)

    def result(self) -> Result:
        """The diff as a `Result`, for code that writes results."""
        return Result(_ANALYSIS, self.frame, self.gained)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "schema_version": RESULT_SCHEMA_VERSION,
            "a": dict(self.a),
            "b": dict(self.b),
            "columns": {column.name: {"unit": column.unit, "doc": column.doc} for column in COLUMNS},
            "rows": self.result().finite().to_dicts(),
            "findings_gained": [finding.to_json() for finding in self.gained],
            "findings_lost": [finding.to_json() for finding in self.lost],
            "savings_not_judged": self.not_judged,
        }

    def _repr_html_(self) -> str:
        """The frame, in a notebook."""
        return self.frame._repr_html_()


def diff_runs(a: Run | Source, b: Run | Source | None = None, *, ranks: Sequence[int] | None = None) -> Diff:
    """Compare two runs, or two ranks of one.

    Args:
        a: the first run, or where its traces are.
        b: the second; None to compare two ranks of the first.
        ranks: with one run, the two ranks to compare; with two runs, the ranks to include of both.

    Raises:
        ConfigError: neither a second run nor two different ranks were given, or a rank has no trace.
        NoTracesError: there is nothing to read.
    """
    first = a if isinstance(a, Run) else open_run(a)
    if b is None:
        if ranks is None or len(ranks) != 2:
            raise ConfigError(
                "a diff needs two runs, or two ranks of one run", hint="name the second run, or two ranks: --ranks 0,1"
            )
        if ranks[0] == ranks[1]:
            raise ConfigError(
                f"rank {ranks[0]} was named twice: a rank does not differ from itself",
                hint="name two ranks: --ranks 0,1",
            )
        _check(first, ranks)
        samples, findings = _samples(first), first.diagnose()
        one, two = ranks
        about = first.about()
        # The figures of a finding about several ranks are those of the worst rank, not of the one compared.
        found = [[finding for finding in findings if finding.ranks == (rank,)] for rank in ranks]
        frame = compare(samples.of_ranks([one]), samples.of_ranks([two]))
        changed = _gained_and_lost(*found, with_ranks=False)
        return Diff({**about, "ranks": [one]}, {**about, "ranks": [two]}, frame, *changed, "both are ranks of one run")
    second = b if isinstance(b, Run) else open_run(b)
    for run in (first, second):
        _check(run, ranks or ())
    chosen = {id(run): sorted(set(ranks)) if ranks else _judged_ranks(run) for run in (first, second)}
    sides = [_samples(run).of_ranks(chosen[id(run)]) for run in (first, second)]
    changed = _gained_and_lost(first.diagnose(), second.diagnose(), with_ranks=True)
    abouts = [{**run.about(), "ranks": chosen[id(run)]} for run in (first, second)]
    saved, reason = savings(first, second, COLUMNS)
    frame = by_section(pl.concat([compare(sides[0], sides[1]), saved]))
    return Diff(abouts[0], abouts[1], frame, *changed, reason)


def _check(run: Run, ranks: Sequence[int]) -> None:
    missing = sorted(set(ranks) - set(run.ranks))
    if missing:
        raise ConfigError(
            f"there is no trace of rank {', '.join(map(str, missing))} in {run.name}",
            hint=f"it has the ranks {', '.join(map(str, run.ranks[:50]))}",
        )


def _samples(run: Run) -> Samples:
    frames = {"step_time": run.analyze("step_time")["step_time"].frame}
    for name in NEEDED:
        try:
            frames[name] = run.analyze(name)[name].frame
        except RankscopeError:
            # Not recorded, so not compared; the run's findings give the reason.
            continue
    return samples_of(frames)


def _judged_ranks(run: Run) -> list[int]:
    """The ranks that are compared by default: those with complete files, if there are any."""
    return sorted(set(run.ranks) - incomplete_ranks(run.traces)) or run.ranks


# Findings that depend on the rank: another straggler is another finding.
_PER_RANK = ("straggler", "missing-ranks", "rank-not-analyzed")


def _gained_and_lost(
    a: list[Finding], b: list[Finding], *, with_ranks: bool
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Findings that only the second has, and those that only the first has, by id and for some kinds by ranks too."""

    def key(finding: Finding) -> tuple[str, tuple[int, ...]]:
        return finding.id, finding.ranks if with_ranks and finding.id in _PER_RANK else ()

    # A finding that became the symptom of another one is not lost.
    before, after = ({key(finding) for finding in with_symptoms(findings)} for findings in (a, b))
    return tuple(f for f in b if key(f) not in before), tuple(f for f in a if key(f) not in after)


# Describes a diff's columns to code that writes results; no run can run it.
_ANALYSIS = Analysis(
    name="diff",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=lambda tables, inputs: pl.DataFrame(),
    across_ranks=lambda parts, inputs: (pl.DataFrame(), []),
)
