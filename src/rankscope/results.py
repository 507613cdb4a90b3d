"""What an analysis is, and what it gives: a table with units, and findings.

An analysis is a file in `rankscope.analyses` (or a module that another package names under the entry point
``rankscope.analyses``) with an `Analysis` called ``analysis``. Its docstring is its help text, its caption on the page
and its page in the docs. It is pure: `per_rank` maps one rank's tables to a small frame on any worker, `across_ranks`
reduces those frames to the result. It reads and writes nothing else.
"""

from __future__ import annotations

import inspect
import logging
import math
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, Literal, TypeVar

import polars as pl

from rankscope.errors import ConfigError
from rankscope.primitives.steps import host_steps, launched_in, started_in
from rankscope.rundir.manifest import RankManifest
from rankscope.store.info import TraceInfo

logger = logging.getLogger(__name__)

RESULT_SCHEMA_VERSION = 1

Severity = Literal["error", "warning", "info"]
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Column:
    """One column of a result: name, unit (`ns`, `bytes`, `ratio`, `count`, `GB/s`, … or none) and meaning."""

    name: str
    unit: str
    doc: str


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


@dataclass(frozen=True)
class Headline:
    """An analysis's answer in one sentence, with its numbers apart, so that whoever shows it writes them its own way.

    Attributes:
        text: the sentence; ``{name}`` stands where a value does.
        values: these, with their units. Names out of traces stand here, never in the text.
    """

    text: str
    values: tuple[Evidence, ...] = ()

    @classmethod
    def of(cls, text: str, /, **values: tuple[int | float | str, str]) -> Headline:
        """One from values by name, each with its unit."""
        return cls(text, tuple(Evidence(name, value, unit) for name, (value, unit) in values.items()))

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"text": self.text, "values": [{"name": e.name, "value": e.value, "unit": e.unit} for e in self.values]}


def greatest(frame: pl.DataFrame, column: str) -> dict[str, Any] | None:
    """The row with the greatest value, the first of several; None where no value is above 0."""
    rows = frame.filter(pl.col(column) > 0).sort(column, descending=True, maintain_order=True)
    return rows.row(0, named=True) if rows.height else None


def total_of(frame: pl.DataFrame, column: str) -> int:
    """The sum of a column of whole numbers; 0 where nothing is known."""
    return int(frame[column].sum())


def over_ranks(frame: pl.DataFrame) -> str:
    """What to say of a sum: of which ranks, where it is of several."""
    return " over all ranks" if frame["rank"].n_unique() > 1 else ""


def by_weight(findings: Sequence[Finding]) -> list[Finding]:
    """Errors first, then by what mending saves, then as they came."""
    return sorted(findings, key=lambda f: (_SEVERITIES.index(f.severity), -(f.saving_ns or 0)))


@dataclass(frozen=True)
class Options:
    """What a user may choose about how numbers are made.

    Attributes:
        steps: the first and last step to look at, both included; None on either side leaves it open.
        communication: a regular expression of further kernel names that are communication.
    """

    steps: tuple[int | None, int | None] | None = None
    communication: str | None = None

    def keeps(self, step: pl.Expr) -> pl.Expr:
        """Whether a step number is among the chosen."""
        first, last = self.steps or (None, None)
        kept = step.is_not_null()
        if first is not None:
            kept = kept & (step >= first)
        if last is not None:
            kept = kept & (step <= last)
        return kept


Value = str | int | bool | None


@dataclass(frozen=True)
class Parameter:
    """What a user may choose of one analysis alone: `rankscope analyze NAME --match REGEX`, ``run.NAME(match=…)``.

    Attributes:
        name: in snake case; the command line writes it with dashes.
        doc: what it does, for help and docs.
        kind: `text`, `regex` (checked, to be used case aside), `number` (whole, not negative), or `flag` (off unless
            given).
        default: what holds where nothing is given; for a flag False.
        choices: the texts that may be given; empty for any.
    """

    name: str
    doc: str
    kind: Literal["text", "regex", "number", "flag"] = "text"
    default: Value = None
    choices: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """How the command line takes it: ``--by name|shape``, ``--match REGEX``."""
        takes = "|".join(self.choices) or {"regex": "REGEX", "number": "N", "flag": ""}.get(self.kind, "TEXT")
        return f"--{self.name.replace('_', '-')} {takes}".rstrip()

    def read(self, given: Value) -> Value:
        """A value as given, by a program or as text on a command line, as one of the parameter's kind.

        Raises:
            ConfigError: it is none.
        """
        if given is None:
            return self.default
        if self.kind == "flag":
            return given not in (False, "false", "0", "")
        if self.kind == "number":
            if not str(given).isdecimal():
                raise ConfigError(f"{self.name}: {given!r} is no number", hint="give a whole number, 0 or more")
            return int(given)
        text = str(given)
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self.name} cannot be {text!r}", hint=f"choose from: {', '.join(self.choices)}")
        if self.kind == "regex":
            try:
                re.compile(text)
                # The engine that searches the names knows no look-around, nor references back.
                pl.Series([""]).str.contains(text)
            except (re.error, pl.exceptions.ComputeError) as error:
                reason = str(error).splitlines()[-1]
                raise ConfigError(
                    f"{self.name}: {text!r} is no regular expression that can be used: {reason}",
                    hint="write one without look-around and without references back",
                ) from error
        return text


Parameters = Mapping[str, Value]


@dataclass(frozen=True)
class Inputs:
    """What an analysis knows beside the tables.

    Attributes:
        options: the user's choices.
        traces: the trace files: of the rank in `per_rank` (one a window), of the run in `across_ranks`.
        results: frames of the analyses that it requires, by name; in `per_rank` the rank's own rows of those that have
            a ``rank`` column.
        rank: the rank at hand, in `per_rank`.
        world_size: ranks in the job, if any file says so.
        parameters: a value for each of the analysis's own parameters.
        capture: what each rank said of its capture, in `across_ranks` and for rules; empty without manifests.
    """

    options: Options
    traces: Sequence[TraceInfo]
    results: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    rank: int = -1
    world_size: int | None = None
    parameters: Parameters = field(default_factory=dict)
    capture: Sequence[RankManifest] = ()


Tables = Mapping[str, pl.DataFrame]
PerRank = Callable[[Tables, Inputs], pl.DataFrame]
AcrossRanks = Callable[[Sequence[pl.DataFrame], Inputs], "tuple[pl.DataFrame, list[Finding]]"]


@dataclass(frozen=True)
class Analysis:
    """One question, and how it is answered.

    Attributes:
        name: what users call it; also its module's name.
        doc: the module's docstring: title in the first line, then caption, formula and source.
        columns: the result's columns, in order.
        reads: tables it wants, each with the columns it wants of it. Each comes with a ``window`` column: which of the
            rank's files the row is from.
        requires: analyses whose results it wants.
        per_rank: one rank's tables to a small frame.
        across_ranks: those frames, in the order of ranks, to the result's frame and findings.
        parameters: what a user may choose of it; both functions find the values in `Inputs.parameters`. What another
            analysis requires is always made with the defaults.
        reads_more: what it wants of the tables beyond `reads` for these parameters, where that is much.
        headline: its answer in one sentence, from the result's frame; None where that holds none.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    per_rank: PerRank
    across_ranks: AcrossRanks
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    reads_more: Callable[[Parameters], Mapping[str, tuple[str, ...]]] | None = None
    headline: Callable[[pl.DataFrame], Headline | None] | None = None

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
                hint = f"it has: {', '.join(known)}" if known else "it has none of its own"
                raise ConfigError(f"{self.name} has no option {name!r}", hint=hint)
        return {name: parameter.read((given or {}).get(name)) for name, parameter in known.items()}

    @property
    def title(self) -> str:
        """The first line of the doc, without the full stop."""
        return inspect.cleandoc(self.doc).split("\n", 1)[0].rstrip(".")


@dataclass(frozen=True)
class Rule:
    """Something that is often wrong with a run, and how to see it in results.

    Attributes:
        name: what it is about; also its module's name, and the id of its findings.
        doc: the module's docstring: title in the first line, then when it speaks, and what its saving means.
        requires: analyses whose results it reads. One that cannot be made is not there: the rule says what it can.
        find: those results, in `Inputs`, to findings.
    """

    name: str
    doc: str
    requires: tuple[str, ...]
    find: Callable[[Inputs], list[Finding]]

    @property
    def title(self) -> str:
        """The first line of the doc, without the full stop."""
        return inspect.cleandoc(self.doc).split("\n", 1)[0].rstrip(".")


@dataclass(frozen=True)
class Result:
    """An analysis's answer: the frame, what its columns mean, and what to know about it."""

    analysis: Analysis
    frame: pl.DataFrame
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """The analysis's name."""
        return self.analysis.name

    @property
    def headline(self) -> Headline | None:
        """The answer in one sentence; None where the analysis has none to give."""
        if self.analysis.headline is None:
            return None
        try:
            found = self.analysis.headline(self.frame)
        except Exception:
            # Perhaps another package's: its table must not go with its sentence.
            logger.exception("the headline of %s failed", self.name)
            return None
        # What the trace leaves out (a name, say) or what is no number leaves a sentence without its subject.
        told = found is not None and all(
            isinstance(e.value, str) or (e.value is not None and math.isfinite(e.value)) for e in found.values
        )
        return found if told else None

    def finite(self) -> pl.DataFrame:
        """The frame as files carry it: what is no number (NaN, infinity: a trace may hold them) is null."""
        floats = [name for name, dtype in self.frame.schema.items() if dtype.is_float()]
        return self.frame.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name)) for name in floats)

    def to_json(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that other programs read: rows as objects with the column names.

        ``headline`` is there where the analysis answers in a sentence; null where this run gives it nothing to say.
        """
        headline = self.headline
        said = {"headline": headline.to_json() if headline else None} if self.analysis.headline else {}
        return {
            "schema_version": RESULT_SCHEMA_VERSION,
            "analysis": self.name,
            "run": dict(run),
            **said,
            "columns": {column.name: {"unit": column.unit, "doc": column.doc} for column in self.analysis.columns},
            "rows": self.finite().to_dicts(),
            "findings": [finding.to_json() for finding in self.findings],
        }

    def _repr_html_(self) -> str:
        """The frame with the analysis's title, in a notebook."""
        units = {column.name: column.unit for column in self.analysis.columns if column.unit}
        told = ", ".join(f"{name} in {unit}" for name, unit in units.items() if not name.endswith(f"_{unit}"))
        head = f"<p><b>{escape(self.analysis.title)}</b>{f' ({escape(told)})' if told else ''}</p>"
        return head + self.frame._repr_html_()


Named = TypeVar("Named", Analysis, Rule)


def discovered(package: str, kind: type[Named], points: Iterable[EntryPoint]) -> dict[str, Named]:
    """The analyses or rules of a package's files by name, then those of other packages' entry points.

    A module of another package cannot take the name of one that is here, and one that cannot be loaded is warned of: it
    must not keep the others from being used.

    Args:
        package: whose files are looked through, each for one called as its kind is: ``analysis``, ``rule``.
        kind: `Analysis` or `Rule`.
        points: the entry points.
    """
    word = kind.__name__.lower()
    found: dict[str, Named] = {}
    for module in sorted(pkgutil.iter_modules(import_module(package).__path__), key=lambda module: module.name):
        own = getattr(import_module(f"{package}.{module.name}"), word, None)
        if isinstance(own, kind):
            found[own.name] = own
    for point in points:
        try:
            loaded = point.load()
        except Exception as error:
            warnings.warn(f"the {word} {point.name} of {point.value} cannot be loaded: {error}", stacklevel=3)
            continue
        theirs = getattr(loaded, word, loaded)
        if isinstance(theirs, kind):
            found.setdefault(theirs.name, theirs)
    return found


def by_window(tables: Tables, inputs: Inputs) -> list[Tables]:
    """A rank's tables apart for each of its files, in the order of the files: their clocks may differ.

    A file without any row has its place in the list, so that the place says which file it is.
    """
    if len(inputs.traces) == 1:
        return [tables]
    windows = range(len(inputs.traces))
    return [{name: frame.filter(pl.col("window") == window) for name, frame in tables.items()} for window in windows]


def chosen_starts(frame: pl.DataFrame, annotations: pl.DataFrame, inputs: Inputs) -> pl.Series:
    """Whether each row starts in the chosen steps (`--steps`); all do where none were chosen.

    Args:
        frame: start_ns.
        annotations: start_ns, end_ns, on_device, step.
    """
    if inputs.options.steps is None:
        every: pl.Series = pl.Series([True], dtype=pl.Boolean).new_from_index(0, frame.height)
        return every
    keep = inputs.options.keeps(pl.col("step"))
    return pl.Series(started_in(frame["start_ns"].to_numpy(), host_steps(annotations), keep))


def chosen_launches(device: pl.DataFrame, annotations: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    """The device events that the chosen steps (`--steps`) launched; all where none were chosen.

    Args:
        device: launch_ns and any others.
        annotations: start_ns, end_ns, on_device, step.
    """
    if inputs.options.steps is None:
        return device
    return launched_in(device, host_steps(annotations), inputs.options.keeps(pl.col("step")))


def steps_by_window(
    tables: Tables, inputs: Inputs, columns: Sequence[Column], of_window: Callable[[Tables, Inputs], pl.DataFrame]
) -> pl.DataFrame:
    """A rank's rows of the chosen steps, window by window: the map of an analysis whose rows are of a step.

    Args:
        columns: the result's, ``rank`` and ``window`` among them.
        of_window: as for `rows_by_window`; its rows have a ``step``.
    """

    def of_chosen(window: Tables, own: Inputs) -> pl.DataFrame:
        made = of_window(window, own)
        return made if own.options.steps is None else made.filter(own.options.keeps(pl.col("step")))

    return rows_by_window(tables, inputs, columns, of_chosen)


def rows_by_window(
    tables: Tables, inputs: Inputs, columns: Sequence[Column], of_window: Callable[[Tables, Inputs], pl.DataFrame]
) -> pl.DataFrame:
    """A rank's rows, window by window: the map of an analysis that looks at each of a rank's files by itself.

    Args:
        columns: the result's, ``rank`` and ``window`` among them.
        of_window: one window's tables, and the inputs with that file alone, to its rows, without rank and window.
    """
    parts = []
    for number, window in enumerate(by_window(tables, inputs)):
        own = replace(inputs, traces=inputs.traces[number : number + 1])
        parts.append(
            of_window(window, own).with_columns(
                pl.lit(inputs.rank, pl.Int64).alias("rank"), pl.lit(number, pl.Int64).alias("window")
            )
        )
    return concat_ranks(parts, columns)


def concat_ranks(parts: Sequence[pl.DataFrame], columns: Sequence[Column]) -> pl.DataFrame:
    """The ranks' frames below one another, with the result's columns: the reduce of an analysis without more to do.

    Parts without rows may have columns of any type, or none: they count only where there is nothing else.
    """
    full = [part for part in parts if part.height] or [part for part in parts if part.width][:1]
    frame = pl.concat(full, how="vertical_relaxed") if full else pl.DataFrame(schema=[c.name for c in columns])
    return frame.select(column.name for column in columns)
