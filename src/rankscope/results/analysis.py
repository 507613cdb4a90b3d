"""The contracts of an analysis and a rule: what they declare, what goes in, and what comes out (`Inputs`, `Result`)."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal, TypeVar

import polars as pl

from rankscope.errors import ConfigError
from rankscope.primitives.stragglers.step_log import StepLog
from rankscope.results.compressed_frames import Frames, StoredFrame, blocks_of, loaded
from rankscope.results.failures import FAILURES
from rankscope.results.finding import Evidence, Finding
from rankscope.results.frames import finite, schema_of, stored_ranks
from rankscope.results.headline import Headline
from rankscope.results.parameters import Options, Parameter, Parameters, Value
from rankscope.rundir.left_out import LeftOut
from rankscope.rundir.manifest import RankManifest
from rankscope.rundir.plurals import counted, plural
from rankscope.rundir.ranges import as_ranges
from rankscope.store.part_cache import Part
from rankscope.store.schema import Column
from rankscope.store.trace_info import TraceInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")
Ask = Callable[[str, Collection[int]], pl.DataFrame]

RESULT_SCHEMA_VERSION = 1
_RANKS_SHOWN = 8
_BY = "_by_"
ENTIRE_RECORDING = "entire recording"
"""Of figures that include what is recorded outside of steps."""


@dataclass(frozen=True)
class Inputs:
    """What an analysis or a rule gets besides the tables.

    Attributes:
        options: the user's choices.
        traces: the trace files: the rank's in `per_rank` (one per window), the run's in `across_ranks`.
        results: frames of the required analyses, by name; in `per_rank` only the rank's rows of frames with a ``rank``
            column.
        rank: the rank, in `per_rank`.
        world_size: the number of ranks in the job, if recorded.
        parameters: a value for each of the analysis's parameters.
        capture: each rank's capture manifest, in `across_ranks` and for rules; empty without manifests.
        left_out: ranks that were not to be recorded; None if all were.
        log: what the job's step log says of stragglers, in `across_ranks` of an analysis that reads it; None without
            one.
        ask: computes the rows that some ranks have of an analysis without `across_ranks`, in `across_ranks`.
        file_time: converts an instant on the run's clock, ns, to the clock of one of the rank's files, given by index,
            in `per_rank` of an analysis that was given an instant.
        shared: what analyses of one rank, or of all ranks, share by `once`.
    """

    options: Options
    traces: Sequence[TraceInfo]
    results: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    rank: int = -1
    world_size: int | None = None
    parameters: Parameters = field(default_factory=dict)
    capture: Sequence[RankManifest] = ()
    left_out: LeftOut | None = None
    log: StepLog | None = None
    ask: Ask | None = field(default=None, compare=False, repr=False)
    file_time: Callable[[int, int], int] | None = field(default=None, compare=False, repr=False)
    shared: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    def columns(self, name: str, *columns: str, where: pl.Expr | None = None) -> pl.DataFrame:
        """Some columns of a required analysis's result, and the rows of a condition on them: of a large one, the others
        take no memory."""
        if isinstance(self.results, Frames):
            return self.results.columns(name, *columns, where=where)
        return loaded(self.results[name], *columns, where=where)

    def blocks(self, name: str, *columns: str) -> Iterator[pl.DataFrame]:
        """Some columns of a required analysis's result, some rows at a time."""
        results = self.results
        return results.blocks(name, *columns) if isinstance(results, Frames) else blocks_of(results[name], *columns)

    def rows_of(self, name: str, ranks: Collection[int]) -> pl.DataFrame | None:
        """The rows of some ranks that another analysis has: only these are computed. None where nobody can compute
        them, as for parts that are kept without their traces.

        Args:
            name: of an analysis that concatenates the parts of ranks.
            ranks: whose.
        """
        return self.ask(name, ranks) if self.ask is not None else None

    def distinct(self, name: str, *columns: str) -> pl.DataFrame:
        """The distinct values of some columns of a required analysis's result, each where it is first."""
        parts = [block.unique(maintain_order=True) for block in self.blocks(name, *columns)]
        return parts[0] if len(parts) == 1 else pl.concat(parts).unique(maintain_order=True)

    def once(self, what: str, make: Callable[[], T]) -> T:
        """An intermediate result that several analyses need, from the first that needs it.

        Args:
            what: its name. It may depend on the tables of the files in `traces` and on `options` only.
        """
        key = what, *(trace.path for trace in self.traces)
        if key not in self.shared:
            self.shared[key] = make()
        found: T = self.shared[key]
        return found


Tables = Mapping[str, pl.DataFrame]
PerRank = Callable[[Tables, Inputs], Part]
# The parts come from the same analysis's `per_rank`, so only the analysis knows whether they are frames or mappings.
AcrossRanks = Callable[[Sequence[Any], Inputs], "tuple[StoredFrame, list[Finding]]"]


def _no_rows(tables: Tables, inputs: Inputs) -> Part:
    return pl.DataFrame()


@dataclass(frozen=True)
class Bars:
    """A chart above an analysis's table on the page: its rows as named bars, the longest first.

    Attributes:
        name: the column with the bars' names.
        value: the column with their lengths.
        title: the chart's title: "Kernels by duration".
    """

    name: str
    value: str
    title: str


@dataclass(frozen=True)
class Analysis:
    """A question about a run, and how to compute the answer.

    Attributes:
        name: the name in commands and methods; also its module's name. ``_by_`` is in names of views only.
        doc: the module's docstring: title in the first line, then caption, formula and source.
        columns: the result's columns, in order.
        reads: the tables that it needs, each with its columns. Each table also has a ``window`` column: the index of
            the row's file among the rank's files. With ``is_collective`` of device_events comes their ``category``
            (`primitives.activity.with_category`).
        requires: analyses whose results it needs.
        per_rank: maps one rank's tables to a small frame, or to several by name; called if it `reads` any table.
        across_ranks: reduces the ranks' parts, in rank order, to the result's frame and findings; None to concatenate
            their frames.
        parameters: its options; both functions find the values in `Inputs.parameters`. Required analyses always run
            with the defaults.
        needs_rows_of: tables without which a rank has no rows: if all are empty, `per_rank` is not called.
        reads_more: expensive columns that it needs in addition to `reads` for some parameters.
        headline: gives the answer in one sentence from the result's frame; None if there is none.
        of_all_ranks: whether its headline is about ranks with incomplete files too.
        has_findings: whether `across_ranks` may give findings: `rankscope findings` then includes it.
        reads_log: whether `across_ranks` reads the job's step log.
        in_report: whether its table is in the report.
        on_page: whether `serve` computes its table for the page.
        shown_empty: whether the report shows it even without rows. The report and the page begin with these.
        charts: charts above its table on the page and in the report.
        whole_recording: whether its figures include what is recorded outside of steps. All others are of the recorded
            steps, or have a row for each step or event: then title and headline say that.
        views: the same with other rows and columns, chosen by its parameter ``by``: `NAME_by_VALUE` is the view's name,
            by which other analyses and rules require it, and SQL and the page show it.

    Raises:
        ValueError: a chart names a column that is not declared, or a view has a name of another form.
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
    of_all_ranks: bool = False
    has_findings: bool = False
    reads_log: bool = False
    in_report: bool = True
    on_page: bool = True
    shown_empty: bool = False
    charts: tuple[Bars, ...] = ()
    whole_recording: bool = False
    views: tuple[Analysis, ...] = ()

    def __post_init__(self) -> None:
        for view in self.views:
            if not view.name.startswith(f"{self.name}{_BY}"):
                raise ValueError(f"a view of the analysis {self.name} has the name {view.name}")
        known = {column.name for column in self.columns}
        for name in (name for chart in self.charts for name in (chart.name, chart.value) if name not in known):
            raise ValueError(
                f"a chart of the analysis {self.name} names the column {name!r}, which it does not declare"
            )

    def view(self, given: Parameters) -> tuple[Analysis, Parameters]:
        """The view that ``by`` chooses, else the analysis itself, and the parameters for it."""
        chosen = f"{self.name}{_BY}{given.get('by')}"
        view = next((view for view in self.views if view.name == chosen), None)
        return (self, given) if view is None else (view, {name: each for name, each in given.items() if name != "by"})

    @property
    def page(self) -> str:
        """The analysis whose page in the docs describes it: of a view, the one that it is a view of."""
        return self.name.partition(_BY)[0]

    @property
    def usage(self) -> str:
        """How the command line names it: `memory --by step` for the view ``memory_by_step``."""
        return self.name.replace(_BY, " --by ")

    def part_of(self, tables: Tables, inputs: Inputs) -> Part:
        """One rank's part, from its tables."""
        if self.needs_rows_of and all(tables[name].is_empty() for name in self.needs_rows_of):
            return pl.DataFrame(schema=schema_of(self.columns))
        return self.per_rank(tables, inputs)

    def reduce(self, parts: Sequence[Part], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
        """The result's frame and findings, from the ranks' parts."""
        frame, findings = self.reduce_stored(parts, inputs)
        return loaded(frame), findings

    def reduce_stored(self, parts: Sequence[Part], inputs: Inputs) -> tuple[StoredFrame, list[Finding]]:
        """The same with a frame that may be compressed."""
        if self.across_ranks is not None:
            return self.across_ranks(parts, inputs)
        return stored_ranks(parts, self.columns), []

    def wants(self, chosen: Parameters) -> dict[str, tuple[str, ...]]:
        """The tables and columns that it needs for a choice of parameters."""
        wanted = dict(self.reads)
        for table, columns in (self.reads_more(chosen) if self.reads_more is not None else {}).items():
            wanted[table] = tuple(dict.fromkeys((*wanted.get(table, ()), *columns)))
        return wanted

    def choose(self, given: Parameters | None = None) -> dict[str, Value]:
        """A value for each parameter, in their order: the given one, else the default.

        Raises:
            ConfigError: there is no such parameter, or the value is not valid.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given or ():
            if name not in known:
                hint = f"it has: {', '.join(known)}" if known else "it has no options"
                raise ConfigError(f"{self.name} has no option {name!r}", hint=hint)
        return {name: parameter.read((given or {}).get(name)) for name, parameter in known.items()}

    @property
    def title(self) -> str:
        """The first line of the doc, without the full stop, and whether it is of more than the steps."""
        title = inspect.cleandoc(self.doc).split("\n", 1)[0].rstrip(".")
        return f"{title} ({ENTIRE_RECORDING})" if self.whole_recording else title

    @property
    def instants(self) -> list[str]:
        """The columns that hold points in time on the clock of the row's file."""
        return [column.name for column in self.columns if column.instant]


StepPart = Literal["compute", "communication", "copies", "data", "host"]
"""A part of a rank's step in `step_time`: compute, exposed communication, exposed copies, waiting for data, and the
rest, in which the device is idle for another reason."""


@dataclass(frozen=True)
class Effect:
    """A cause of which a finding can be a symptom, if their times agree.

    Attributes:
        of: the id of the cause's finding; ``straggler:slow_host`` for stragglers with this cause only.
        why: the relation as a phrase: `waiting for this rank`.
        same: whether the symptom is the cause's own time on the cause's ranks, as far as it exceeds that of the other
            ranks. Otherwise the cause explains only as much as both together exceed the ranks' time in that part.
    """

    of: str
    why: str
    same: bool = False


@dataclass(frozen=True)
class Rule:
    """A common problem of runs, and how to find it in results.

    Attributes:
        name: its module's name, and the id of its findings.
        doc: the module's docstring: title in the first line, then when it fires, and what its saving means.
        requires: analyses whose results it reads. A failed one is missing: the rule uses the others.
        find: maps those results, in `Inputs`, to findings.
        parts: the parts of a step that its saving is taken from, in this order; empty if unknown.
        symptom_of: causes of which its findings can be symptoms.
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
        rows: the frame, perhaps compressed.
        incomplete: ranks with incomplete files: they are in the frame, but not in the headline.
    """

    analysis: Analysis
    rows: StoredFrame
    findings: tuple[Finding, ...] = ()
    incomplete: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """The analysis's name."""
        return self.analysis.name

    @property
    def frame(self) -> pl.DataFrame:
        """All rows and columns; a large frame is decompressed at each use."""
        return loaded(self.rows)

    def columns(self, *columns: str) -> pl.DataFrame:
        """Some columns: of a large frame, the others take no memory."""
        return loaded(self.rows, *columns)

    @property
    def headline(self) -> Headline | None:
        """The answer in one sentence; None if the analysis has none for this run."""
        if self.analysis.headline is None:
            return None
        try:
            headline = self.analysis.headline(self._compared(self.frame))
        except FAILURES:
            # It may be another package's, and its table must still be shown.
            logger.exception("the headline of %s failed", self.name)
            return None
        # A sentence with a null (say, a name that the trace lacks) or a NaN would be wrong.
        complete = headline is not None and all(
            isinstance(e.value, str) or (e.value is not None and math.isfinite(e.value)) for e in headline.values
        )
        if headline is None or not complete:
            return None
        if self.analysis.whole_recording:
            headline = replace(headline, text=f"{headline.text.removesuffix('.')} ({ENTIRE_RECORDING}).")
        return self._with_ranks_left_out(headline)

    def _with_ranks_left_out(self, headline: Headline) -> Headline:
        """The sentence with the ranks that it is not about."""
        frame = self.frame
        if self._compared(frame) is frame:
            return headline
        ranks = sorted(self.incomplete & set(frame["rank"].to_list()))
        if not ranks:
            return headline
        shown = as_ranges(ranks) if len(ranks) <= _RANKS_SHOWN else counted(len(ranks), "rank")
        noun = "" if len(ranks) > _RANKS_SHOWN else plural("rank", len(ranks)) + " "
        text = f"{headline.text.removesuffix('.')} (without {noun}{{left_out}}: incomplete)."
        return replace(headline, text=text, values=(*headline.values, Evidence("left_out", shown)))

    def _compared(self, frame: pl.DataFrame) -> pl.DataFrame:
        if self.analysis.of_all_ranks or not self.incomplete or "rank" not in frame.columns:
            return frame
        complete = frame.filter(~pl.col("rank").is_in(list(self.incomplete)))
        return complete if complete.height else frame

    def finite(self) -> pl.DataFrame:
        """The frame for files (`finite`)."""
        return finite(self.frame)

    def to_json(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object for other programs: rows as objects with the column names.

        ``headline`` is present if the analysis has headlines, and null if there is none for this run.
        """
        headline = self.headline
        entry = {"headline": headline.to_json() if headline else None} if self.analysis.headline else {}
        return {
            "schema_version": RESULT_SCHEMA_VERSION,
            "analysis": self.name,
            "run": dict(run),
            **entry,
            "columns": {column.name: {"unit": column.unit, "doc": column.doc} for column in self.analysis.columns},
            "rows": self.finite().to_dicts(),
            "findings": [finding.to_json() for finding in self.findings],
        }

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows as an Arrow stream (the PyCapsule interface), as pyarrow, nanoarrow and DuckDB take it."""
        return self.frame.__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """The frame with the analysis's title, in a notebook."""
        units = {column.name: column.unit for column in self.analysis.columns if column.unit not in ("", "count")}
        in_units = ", ".join(f"{name} in {unit}" for name, unit in units.items() if not name.endswith(f"_{unit}"))
        head = f"<p><b>{escape(self.analysis.title)}</b>{f' ({escape(in_units)})' if in_units else ''}</p>"
        return head + self.frame._repr_html_()
