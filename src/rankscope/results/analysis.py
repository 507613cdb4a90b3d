"""The contracts of an analysis and a rule: what they declare, what goes in, and what comes out."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

import polars as pl

from rankscope.errors import ConfigError
from rankscope.results.failures import FAILURES
from rankscope.results.finding import Finding
from rankscope.results.frames import concat_ranks, schema_of
from rankscope.results.headline import Headline
from rankscope.results.parameters import Options, Parameter, Parameters, Value
from rankscope.rundir.manifest import RankManifest
from rankscope.store.part_cache import Part
from rankscope.store.schema import Column
from rankscope.store.trace_info import TraceInfo

logger = logging.getLogger(__name__)

RESULT_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Inputs:
    """What an analysis or a rule gets besides the tables.

    Attributes:
        options: the user's choices.
        traces: the trace files: of the rank in `per_rank` (one a window), of the run in `across_ranks`.
        results: frames of the analyses that it requires, by name; in `per_rank` the rank's own rows of those that have
            a ``rank`` column.
        rank: the rank at hand, in `per_rank`.
        world_size: the number of ranks in the job, if recorded.
        parameters: a value for each of the analysis's own parameters.
        capture: each rank's manifest of its capture, in `across_ranks` and for rules; empty without manifests.
    """

    options: Options
    traces: Sequence[TraceInfo]
    results: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    rank: int = -1
    world_size: int | None = None
    parameters: Parameters = field(default_factory=dict)
    capture: Sequence[RankManifest] = ()


Tables = Mapping[str, pl.DataFrame]
PerRank = Callable[[Tables, Inputs], Part]
# The parts are what the same analysis's `per_rank` gives, so only it knows whether they are frames or mappings.
AcrossRanks = Callable[[Sequence[Any], Inputs], "tuple[pl.DataFrame, list[Finding]]"]


def _no_rows(tables: Tables, inputs: Inputs) -> Part:
    return pl.DataFrame()


@dataclass(frozen=True)
class Bars:
    """A chart above an analysis's table on the page: its rows as named bars, the longest first.

    Attributes:
        name: the column with the bars' names.
        value: the column with their lengths.
        title: what the chart shows, in a few words: "Kernels by duration".
    """

    name: str
    value: str
    title: str


@dataclass(frozen=True)
class Analysis:
    """A question about a run, and how its answer is computed.

    Attributes:
        name: the name in commands and methods; also its module's name.
        doc: the module's docstring: title in the first line, then caption, formula and source.
        columns: the result's columns, in order.
        reads: the tables that it needs, each with its columns. Each table also has a ``window`` column: which of the
            rank's files the row is from.
        requires: analyses whose results it needs.
        per_rank: one rank's tables to a small frame, or to several by name; called if it `reads` any table.
        across_ranks: from the ranks' parts, in the order of ranks, to the result's frame and findings; None to
            concatenate their frames.
        parameters: its options; both functions find the values in `Inputs.parameters`. Required analyses are always
            run with the defaults.
        needs_rows_of: tables without which a rank has no rows: if all of them are empty, `per_rank` is not called.
        reads_more: columns that it needs in addition to `reads` for these parameters, if they are expensive.
        headline: its answer in one sentence, from the result's frame; None if it has no answer.
        has_findings: whether `across_ranks` may give findings: `rankscope findings` then includes it.
        in_report: whether its table is in the report.
        on_page: whether `serve` computes its table for the page.
        shown_empty: whether the report shows it even if it has no rows. The report and the page begin with these.
        charts: charts above its table on the page and in the report.

    Raises:
        ValueError: a chart names a column that is not declared.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    per_rank: PerRank = _no_rows
    across_ranks: AcrossRanks | None = None
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    needs_rows_of: tuple[str, ...] = ()
    reads_more: Callable[[Parameters], Mapping[str, tuple[str, ...]]] | None = None
    headline: Callable[[pl.DataFrame], Headline | None] | None = None
    has_findings: bool = False
    in_report: bool = True
    on_page: bool = True
    shown_empty: bool = False
    charts: tuple[Bars, ...] = ()

    def __post_init__(self) -> None:
        known = {column.name for column in self.columns}
        for name in (name for chart in self.charts for name in (chart.name, chart.value) if name not in known):
            raise ValueError(
                f"a chart of the analysis {self.name} names the column {name!r}, which it does not declare"
            )

    def part_of(self, tables: Tables, inputs: Inputs) -> Part:
        """One rank's part, from its tables."""
        if self.needs_rows_of and all(tables[name].is_empty() for name in self.needs_rows_of):
            return pl.DataFrame(schema=schema_of(self.columns))
        return self.per_rank(tables, inputs)

    def reduce(self, parts: Sequence[Part], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
        """The result's frame and findings, from what the ranks gave."""
        if self.across_ranks is not None:
            return self.across_ranks(parts, inputs)
        return concat_ranks([part for part in parts if isinstance(part, pl.DataFrame)], self.columns), []

    def wants(self, chosen: Parameters) -> dict[str, tuple[str, ...]]:
        """The tables and columns that it wants for a choice of parameters."""
        wanted = dict(self.reads)
        for table, columns in (self.reads_more(chosen) if self.reads_more is not None else {}).items():
            wanted[table] = tuple(dict.fromkeys((*wanted.get(table, ()), *columns)))
        return wanted

    def choose(self, given: Parameters | None = None) -> dict[str, Value]:
        """A value for each parameter, in their order: as given, else the default.

        Raises:
            ConfigError: there is no such parameter, or it cannot have such a value.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given or ():
            if name not in known:
                hint = f"it has: {', '.join(known)}" if known else "it has no options"
                raise ConfigError(f"{self.name} has no option {name!r}", hint=hint)
        return {name: parameter.read((given or {}).get(name)) for name, parameter in known.items()}

    @property
    def title(self) -> str:
        """The first line of the doc, without the full stop."""
        return inspect.cleandoc(self.doc).split("\n", 1)[0].rstrip(".")

    @property
    def instants(self) -> list[str]:
        """The columns that hold points in time on the clock of the row's file."""
        return [column.name for column in self.columns if column.instant]


StepPart = Literal["compute", "communication", "copies", "data", "host"]
"""A part of a rank's step, as `step_time` divides it: compute, exposed communication, exposed copies, waiting for data,
and the rest, in which the device is idle for another reason."""


@dataclass(frozen=True)
class Effect:
    """A cause that a finding can be a symptom of, if their times agree.

    Attributes:
        of: the id of the cause's finding; ``straggler:slow_host`` for stragglers with this cause only.
        why: the relation as a phrase: `waiting for this rank`.
        same: whether it is the same time on the cause's ranks, as far as it exceeds what it is on the other ranks.
            Otherwise only as much of it is the cause's as both together exceed what the ranks have of that part.
    """

    of: str
    why: str
    same: bool = False


@dataclass(frozen=True)
class Rule:
    """A common problem of runs, and how to find it in results.

    Attributes:
        name: what it is about; also its module's name, and the id of its findings.
        doc: the module's docstring: title in the first line, then when it fires, and what its saving means.
        requires: analyses whose results it reads. One that failed is missing: the rule uses the others.
        find: those results, in `Inputs`, to findings.
        parts: the parts of a step that its saving is taken from, the first one first; empty: not known.
        symptom_of: the causes that its findings can be symptoms of.
    """

    name: str
    doc: str
    requires: tuple[str, ...]
    find: Callable[[Inputs], list[Finding]]
    parts: tuple[StepPart, ...] = ()
    symptom_of: tuple[Effect, ...] = ()

    @property
    def title(self) -> str:
        """The first line of the doc, without the full stop."""
        return inspect.cleandoc(self.doc).split("\n", 1)[0].rstrip(".")


@dataclass(frozen=True)
class Result:
    """An analysis's answer: the frame, the meaning of its columns, and findings.

    Attributes:
        incomplete: ranks whose files are incomplete: they are in the frame, but the headline compares the others.
    """

    analysis: Analysis
    frame: pl.DataFrame
    findings: tuple[Finding, ...] = ()
    incomplete: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """The analysis's name."""
        return self.analysis.name

    @property
    def headline(self) -> Headline | None:
        """The answer in one sentence; None if the analysis has none for this run."""
        if self.analysis.headline is None:
            return None
        try:
            found = self.analysis.headline(self._compared)
        except FAILURES:
            # It may be another package's: its table must still be shown.
            logger.exception("the headline of %s failed", self.name)
            return None
        # A sentence with a null (a name that the trace leaves out, say) or a NaN would be wrong.
        complete = found is not None and all(
            isinstance(e.value, str) or (e.value is not None and math.isfinite(e.value)) for e in found.values
        )
        return found if complete else None

    @property
    def _compared(self) -> pl.DataFrame:
        if not self.incomplete or "rank" not in self.frame.columns:
            return self.frame
        complete = self.frame.filter(~pl.col("rank").is_in(list(self.incomplete)))
        return complete if complete.height else self.frame

    def finite(self) -> pl.DataFrame:
        """The frame as it is written to files: NaN and infinity, which traces may contain, become null."""
        floats = [name for name, dtype in self.frame.schema.items() if dtype.is_float()]
        return self.frame.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name)) for name in floats)

    def to_json(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that other programs read: rows as objects with the column names.

        ``headline`` is there if the analysis has headlines; null if there is none for this run.
        """
        headline = self.headline
        answer = {"headline": headline.to_json() if headline else None} if self.analysis.headline else {}
        return {
            "schema_version": RESULT_SCHEMA_VERSION,
            "analysis": self.name,
            "run": dict(run),
            **answer,
            "columns": {column.name: {"unit": column.unit, "doc": column.doc} for column in self.analysis.columns},
            "rows": self.finite().to_dicts(),
            "findings": [finding.to_json() for finding in self.findings],
        }

    def _repr_html_(self) -> str:
        """The frame with the analysis's title, in a notebook."""
        units = {column.name: column.unit for column in self.analysis.columns if column.unit not in ("", "count")}
        in_units = ", ".join(f"{name} in {unit}" for name, unit in units.items() if not name.endswith(f"_{unit}"))
        head = f"<p><b>{escape(self.analysis.title)}</b>{f' ({escape(in_units)})' if in_units else ''}</p>"
        return head + self.frame._repr_html_()
