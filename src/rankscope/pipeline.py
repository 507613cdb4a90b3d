"""From files to results: ingest every trace, then run the analyses' graph. The only caller of executors.

`open_run` finds the traces of a run; nothing is read until a number is wanted. Then each file is one task, and each
rank's share of the analyses another; only small frames come back, and no process ever holds all ranks. What fails is
a finding, and the rest goes on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import polars as pl

from rankscope.analyses import all_analyses, get_analysis
from rankscope.errors import (
    AnalysisError,
    ConfigError,
    NotATraceError,
    NoTracesError,
    RankscopeError,
)
from rankscope.executors import run_tasks
from rankscope.ingest.discover import Found, find_traces
from rankscope.ingest.identify import assign_ranks
from rankscope.ingest.kinds import DEVICE_KINDS
from rankscope.ingest.losses import losses_of, missing_ranks, not_analyzed, said, unreadable
from rankscope.ingest.runs import NAMELESS, KnownRun, check_steps, choose_run, known_runs
from rankscope.ingest.task import find_ingested, ingest_trace
from rankscope.results import Analysis, Finding, Inputs, Options, Result, by_weight
from rankscope.rundir.manifest import RunManifest, read_run_manifest
from rankscope.store.cache import CachedTrace, DamagedTablesError
from rankscope.store.info import TraceInfo

T = TypeVar("T")

# Step numbers that a run's description lists. A number in a trace can be anything, and so can a span of them.
MAX_STEPS = 10_000

# Below this much to read, starting workers takes longer than the reading.
SMALL_BYTES = 2 << 20

Progress = Callable[[str, int, int, int], None]
"""Told after each task: what is being done, tasks done, tasks in all, bytes of JSON read so far."""

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@runtime_checkable
class HasRunDir(Protocol):
    """What a job leaves behind: something with a run directory."""

    @property
    def run_dir(self) -> str | os.PathLike[str]:
        """Where its traces are."""
        ...


def parse_steps(text: str | None) -> tuple[int | None, int | None] | None:
    """`10:12` (both included), `10:`, `:12` or `10` as a range of steps.

    Raises:
        ConfigError: it is none of these.
    """
    if text is None or text.strip() in ("", ":"):
        return None
    first, colon, last = text.partition(":")
    try:
        low = int(first) if first.strip() else None
        high = (int(last) if last.strip() else None) if colon else low
    except ValueError:
        raise ConfigError(
            f"{text!r} is no range of steps", hint="write 10:12 (both included), 10:, :12, or 10"
        ) from None
    if low is not None and high is not None and high < low:
        raise ConfigError(f"the range of steps {text!r} ends before it begins", hint="write the smaller number first")
    return low, high


def open_run(
    source: Source | HasRunDir,
    *more: Source,
    run_id: str | None = None,
    steps: str | tuple[int | None, int | None] | None = None,
    communication: str | None = None,
    executor: str = "processes",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Run:
    """Open the traces of a run.

    Args:
        source: a directory, a trace, a glob, a URL (``s3://…``), several of these, or what `rankscope.launch` gave.
        more: further sources of the same run: another host's directory.
        run_id: which run, where the sources hold several: the start of its id, or ``latest``.
        steps: look at these steps alone: ``"10:12"`` (both included), ``"10:"``, ``":12"``, ``"10"``.
        communication: a regular expression of further kernel names that are communication.
        executor: where tasks run: ``processes`` or ``serial``.
        workers: how many at once; None for as many as there are cores.
        progress: is told how far the work is.

    Raises:
        NoTracesError: there is no such path, or no trace in it.
        ConfigError: an option that cannot be meant.
    """
    chosen = parse_steps(steps) if isinstance(steps, str) else steps
    _check_pattern(communication)
    options = Options(steps=chosen, communication=communication)
    meant = source.run_dir if isinstance(source, HasRunDir) else source
    sources = [path for each in (meant, *more) for path in ([each] if isinstance(each, str | os.PathLike) else each)]
    return Run(find_traces(sources), options, run_id, executor, workers, progress)


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from error


@dataclass(frozen=True)
class Loaded:
    """What reading the files of a run gave: the tables of each rank, and what was not as it should be."""

    ranks: Mapping[int, Sequence[CachedTrace]]
    findings: tuple[Finding, ...]
    run_id: str | None

    @property
    def infos(self) -> list[TraceInfo]:
        """Every file's own words, in the order of ranks."""
        return [trace.info for traces in self.ranks.values() for trace in traces]


class Run:
    """The traces of one run. Every analysis is a method: ``run.device_time()`` gives a Polars frame.

    Use `open_run` (``rankscope.open``) to make one. Reading happens when the first number is wanted, or by `load`.
    """

    def __init__(
        self,
        found: Found,
        options: Options,
        run_id: str | None = None,
        executor: str = "processes",
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._found = found
        self._options = options
        self._wanted_run = run_id
        self._executor = executor
        self._workers = workers
        self._progress = progress
        self._results: dict[str, Result] = {}
        self._known: tuple[KnownRun, ...] = ()

    # -- what the run is ----------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Where the traces are: the directory, else the first file."""
        return self._found.folders[0] if self._found.folders else self._found.traces[0]

    @property
    def name(self) -> str:
        """What to call it: the name of the directory, of the first where there are several."""
        path = self.path if "://" in self.path else str(Path(self.path).resolve())
        name = re.split(r"[/\\]", path.rstrip("/"))[-1] or path
        others = len(self._found.folders) - 1
        return f"{name} and {others} more" if others > 0 else name

    @property
    def ranks(self) -> list[int]:
        """The ranks whose traces were read."""
        return list(self.loaded.ranks)

    @property
    def traces(self) -> list[TraceInfo]:
        """What each file that was read says of itself."""
        return self.loaded.infos

    @property
    def run_id(self) -> str | None:
        """The id of the run, if the traces carry one."""
        return self.loaded.run_id

    @cached_property
    def manifest(self) -> RunManifest | None:
        """What rank 0 wrote of the run (`run.json`), if it is there."""
        return self._manifest_of(self.run_id)

    def _manifest_of(self, run_id: str | None) -> RunManifest | None:
        for folder in self._found.folders if run_id is not None else ():
            for file in sorted(Path(folder).rglob("run*.json")):
                manifest = read_run_manifest(file)
                if manifest is not None and manifest.run_id == run_id:
                    return manifest
        return None

    @property
    def world_size(self) -> int | None:
        """Ranks in the job, as the traces say; None where none does."""
        sizes = [info.world_size for info in self.loaded.infos if info.world_size]
        return max(sizes, default=None)

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the job of which there is no trace, as far as the job's size is known."""
        return sorted(set(range(self.world_size or 0)) - set(self.loaded.ranks))

    @property
    def findings(self) -> list[Finding]:
        """What is to be known, weightiest first: of the files, and of the analyses that ran so far."""
        found = [*self.loaded.findings]
        for result in self._results.values():
            # What kept a rank out of several analyses is told by each of them.
            found += [finding for finding in result.findings if finding not in found]
        return by_weight(found)

    def about(self) -> dict[str, Any]:
        """The run in a few JSON values, as results carry it."""
        infos = self.loaded.infos
        spans = [(info.first_step, info.last_step) for info in infos]
        steps = {
            step
            for first, last in spans
            if first is not None and last is not None
            for step in range(first, min(last, first + MAX_STEPS) + 1)
        }
        used = {(info.rank, device["name"]) for info in infos for device in info.devices[:1] if device.get("name")}
        return {
            "id": self.run_id,
            "name": self.name,
            "path": self.path,
            "command": list(self.manifest.command) if self.manifest else None,
            "world_size": self.world_size,
            "ranks": self.ranks,
            "missing_ranks": self.missing_ranks,
            "hosts": sorted({info.host for info in infos if info.host}),
            # Without a name it is the CPU only if no device did anything.
            "devices": sorted({name for _, name in used}) or ([] if any(map(_ran_on_device, infos)) else ["CPU"]),
            "steps": sorted(steps)[:MAX_STEPS],
        }

    # -- reading ------------------------------------------------------------------------------------------------

    @cached_property
    def loaded(self) -> Loaded:
        """The run's files, read: from the cache, or now."""
        return self._load()

    def load(self) -> Run:
        """Read the files now.

        Raises:
            NoTracesError: none of them is a trace that can be read.
            RunSelectionError: they are of several runs, and none was chosen.
        """
        _ = self.loaded
        return self

    def _load(self) -> Loaded:
        paths = self._found.traces
        cached = {path: found for path in paths if (found := find_ingested(path)) is not None}
        # What was read before is found at once: no worker is started to find it.
        unread = [path for path in paths if path not in cached]
        read = self._run_tasks("reading", _size_of(unread), ingest_trace, [(path,) for path in unread])
        outcomes = list(map({**cached, **dict(zip(unread, read, strict=True))}.__getitem__, paths))
        traces: list[CachedTrace] = []
        failures: list[tuple[str, BaseException]] = []
        for path, outcome in zip(paths, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                failures.append((path, outcome))
            else:
                traces.append(CachedTrace(outcome.folder, replace(outcome.info, path=path)))
        if not traces:
            raise self._nothing(failures)
        named = self._found.named
        findings = [
            unreadable(path, error) for path, error in failures if named or not isinstance(error, NotATraceError)
        ]
        if not named:
            findings += [unreadable(path, e, beside=True) for path, e in failures if isinstance(e, NotATraceError)]
        self._known = known_runs([trace.info for trace in traces])
        run_id = choose_run([trace.info for trace in traces], self._wanted_run, self.path)
        traces = [trace for trace in traces if trace.info.run_id == run_id]
        folders = {trace.info.path: trace for trace in traces}
        members, conflicts = assign_ranks([trace.info for trace in traces])
        findings += conflicts
        ranks = {
            rank: [CachedTrace(folders[info.path].folder, info) for info in infos] for rank, infos in members.items()
        }
        infos = [info for files in members.values() for info in files]
        findings += losses_of(infos)
        manifest = self._manifest_of(run_id)
        findings += missing_ranks(infos, manifest.ranks if manifest is not None else None)
        check_steps(infos, self._options.steps)
        return Loaded(ranks, tuple(findings), run_id)

    def _nothing(self, failures: Sequence[tuple[str, BaseException]]) -> RankscopeError:
        if len(failures) == 1 and isinstance(failures[0][1], RankscopeError):
            return failures[0][1]
        first = failures[0][1]
        reason = first.what if isinstance(first, RankscopeError) else str(first)
        return NoTracesError(
            f"none of {len(failures)} files is a trace that can be read; the first, "
            f"{Path(failures[0][0]).name}: {reason}",
            path=self.path,
            hint="rankscope reads the JSON traces of torch.profiler, plain or compressed",
        )

    # -- analyses -----------------------------------------------------------------------------------------------

    def analyze(self, *names: str) -> dict[str, Result]:
        """The results of analyses, and of those that they require, by name.

        Raises:
            AnalysisError: there is none of such a name, or one cannot be computed.
        """
        wanted = [get_analysis(name).name for name in names]
        for level in _levels(wanted):
            todo = [name for name in level if name not in self._results]
            if todo:
                self._run_level([get_analysis(name) for name in todo])
        return {name: self._results[name] for name in wanted}

    def _run_level(self, analyses: Sequence[Analysis]) -> None:
        required = {name for analysis in analyses for name in analysis.requires}
        results = {name: self._results[name].frame for name in required}
        mapped = [analysis for analysis in analyses if analysis.reads]
        ranks = self.loaded.ranks
        names = [analysis.name for analysis in mapped]
        parts: dict[str, list[pl.DataFrame]] = {name: [] for name in names}
        lost: list[Finding] = []
        if mapped:
            tasks = [(names, rank, tuple(traces), self._options, self.world_size) for rank, traces in ranks.items()]
            size = sum(info.json_bytes for info in self.loaded.infos) // 8
            own = _by_rank(results)
            outcomes = self._run_tasks("analysing", size, _analyze_rank, [(*task, own(task[1])) for task in tasks])
            failures = {r: o for r, o in zip(ranks, outcomes, strict=True) if isinstance(o, BaseException)}
            if len(failures) == len(ranks):
                rank, error = next(iter(failures.items()))
                raise AnalysisError(
                    f"rank {rank}: {', '.join(names)}: {said(error)}", path=ranks[rank][0].info.path
                ) from error
            lost += [not_analyzed(rank, ranks[rank][0].info.path, names, error) for rank, error in failures.items()]
            for outcome in outcomes:
                if not isinstance(outcome, BaseException):
                    for name in names:
                        parts[name].append(outcome[name])
        inputs = Inputs(self._options, tuple(self.loaded.infos), results, world_size=self.world_size)
        for analysis in analyses:
            frame, findings = analysis.across_ranks(parts.get(analysis.name, []), inputs)
            told = lost if analysis.name in names else []
            self._results[analysis.name] = Result(analysis, frame, (*told, *findings))

    @property
    def results(self) -> dict[str, Result]:
        """The results so far, by name."""
        return dict(self._results)

    @property
    def options(self) -> Options:
        """The user's choices."""
        return self._options

    @property
    def known_runs(self) -> tuple[KnownRun, ...]:
        """The runs whose traces are among the files, as far as they were read; this one among them."""
        return self._known

    def other(self, run_id: str | None, progress: Progress | None = None) -> Run:
        """Another run of those whose traces are among the files."""
        return Run(self._found, self._options, run_id or NAMELESS, self._executor, self._workers, progress)

    def map_ranks(
        self,
        what: str,
        task: Callable[..., T],
        arguments: Mapping[int, tuple[Any, ...]],
        told: Callable[[int, T | BaseException], None] = lambda rank, outcome: None,
    ) -> dict[int, T | BaseException]:
        """Run a task for each rank where tasks run; outcomes by rank, errors among them.

        Args:
            what: what is being done, for the progress.
            task: a function of a module, called on any worker.
            arguments: of each rank, what the task is called with; the rank itself is no part of it.
            told: is told each outcome as it comes.
        """
        ranks = list(arguments)
        size = sum(info.json_bytes for info in self.loaded.infos if info.rank in arguments) // 8
        outcomes = self._run_tasks(
            what,
            size,
            _of_rank,
            [(task, rank, arguments[rank]) for rank in ranks],
            lambda outcome: told(*outcome) if isinstance(outcome, tuple) else None,
        )
        found = {rank: o[1] if isinstance(o, tuple) else o for rank, o in zip(ranks, outcomes, strict=True)}
        for rank, outcome in found.items():
            if isinstance(outcome, BaseException):
                told(rank, outcome)
        return found

    def __getattr__(self, name: str) -> Callable[[], pl.DataFrame]:
        if name.startswith("_") or name not in all_analyses():
            raise AttributeError(f"a run has no attribute and no analysis {name!r}")
        return lambda: self.analyze(name)[name].frame

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *all_analyses()]

    def __repr__(self) -> str:
        return f"<rankscope.Run {self.path}: {len(self._found.traces)} traces>"

    # -- tasks --------------------------------------------------------------------------------------------------

    def _run_tasks(
        self,
        what: str,
        size: int,
        task: Callable[..., T],
        arguments: Sequence[tuple[Any, ...]],
        each: Callable[[T | BaseException], None] = lambda outcome: None,
    ) -> list[T | BaseException]:
        """Run a task for each tuple of arguments; outcomes in their order, errors among them."""
        total = len(arguments)
        small = self._executor == "processes" and self._workers is None and (total < 2 or size < SMALL_BYTES)
        done, read = 0, 0

        def told(outcome: T | BaseException) -> None:
            nonlocal done, read
            done += 1
            read += outcome.info.json_bytes if isinstance(outcome, CachedTrace) else 0
            each(outcome)
            self._tell(what, done, total, read)

        self._tell(what, 0, total, 0)
        return run_tasks("serial" if small else self._executor, self._workers, task, arguments, told)

    def _tell(self, what: str, done: int, total: int, read: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total, read)


def _of_rank(task: Callable[..., T], rank: int, arguments: tuple[Any, ...]) -> tuple[int, T]:
    return rank, task(*arguments)


def _ran_on_device(info: TraceInfo) -> bool:
    return any(kind.partition(" ")[2].lower() in DEVICE_KINDS for kind in info.counts)


def _size_of(paths: Sequence[str]) -> int:
    """Bytes on disk; files that cannot be looked at count for nothing, URLs for much."""
    total = 0
    for path in paths:
        if "://" in path:
            total += SMALL_BYTES
            continue
        try:
            total += Path(path).stat().st_size
        except OSError:
            continue
    return total * 8  # traces are mostly compressed, some ten times


def _levels(names: Sequence[str]) -> list[list[str]]:
    """The analyses and what they require, in levels: each needs only what is before it.

    Raises:
        AnalysisError: they require each other in a circle.
    """
    depth: dict[str, int] = {}

    def visit(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            raise AnalysisError(f"analyses require each other: {' → '.join((*above, name))}")
        if name not in depth:
            required = get_analysis(name).requires
            depth[name] = 1 + max((visit(each, (*above, name)) for each in required), default=-1)
        return depth[name]

    for name in names:
        visit(name, ())
    return [[name for name in depth if depth[name] == level] for level in range(max(depth.values(), default=-1) + 1)]


def _by_rank(results: Mapping[str, pl.DataFrame]) -> Callable[[int], dict[str, pl.DataFrame]]:
    """A rank's own rows of results, for its task: all ranks' rows to each would be quadratic in ranks."""
    parts = {
        name: frame.partition_by("rank", as_dict=True) for name, frame in results.items() if "rank" in frame.columns
    }

    def of_rank(rank: int) -> dict[str, pl.DataFrame]:
        own = {name: frames.get((rank,), results[name].clear()) for name, frames in parts.items()}
        return {name: own.get(name, frame) for name, frame in results.items()}

    return of_rank


def _analyze_rank(
    names: Sequence[str],
    rank: int,
    traces: Sequence[CachedTrace],
    options: Options,
    world_size: int | None,
    results: Mapping[str, pl.DataFrame],
) -> dict[str, pl.DataFrame]:
    """The task of a worker: one rank's share of some analyses that read tables."""
    analyses = [get_analysis(name) for name in names]
    wanted: dict[str, set[str]] = {}
    for analysis in analyses:
        for table, columns in analysis.reads.items():
            wanted.setdefault(table, set()).update(columns)
    try:
        tables = _load_tables(traces, wanted)
    except DamagedTablesError:
        # The cache's disk may lose what it held; the trace is still there.
        tables = _load_tables([ingest_trace(trace.info.path, anew=True) for trace in traces], wanted)
    inputs = Inputs(options, tuple(trace.info for trace in traces), results, rank, world_size)
    return {
        analysis.name: analysis.per_rank(
            {table: tables[table].select(*columns, "window") for table, columns in analysis.reads.items()}, inputs
        )
        for analysis in analyses
    }


def _load_tables(traces: Sequence[CachedTrace], wanted: Mapping[str, set[str]]) -> dict[str, pl.DataFrame]:
    """The wanted columns of a rank's tables, its files below one another."""
    return {
        table: pl.concat(
            trace.load(table, sorted(columns)).with_columns(pl.lit(number, pl.Int16).alias("window"))
            for number, trace in enumerate(traces)
        )
        for table, columns in wanted.items()
    }
