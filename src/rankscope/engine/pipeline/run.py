"""A run: its description, its results, and every analysis as a method.

In: paths or URLs of traces (`open_run`). Out: a `Run`, which reads them when a result is requested.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from rankscope.analyses import all_analyses, get_analysis
from rankscope.answers.diagnosis.engine import attempt, diagnose
from rankscope.answers.diagnosis.rules import all_rules
from rankscope.answers.diagnosis.verdict import Diagnosis
from rankscope.engine.pipeline.clock import clock_of
from rankscope.engine.pipeline.graph import Kept, levels, run_level
from rankscope.engine.pipeline.load import Loaded, load_run, location_of
from rankscope.engine.pipeline.sql import SqlMethods
from rankscope.engine.pipeline.tasks import AnalysisKey, Progress, Tasks, analysis_key, with_rank
from rankscope.errors import ConfigError
from rankscope.ingest.discover import Found, find_traces
from rankscope.ingest.event_types import DEVICE_KINDS
from rankscope.ingest.run_selection import KnownRun
from rankscope.ingest.runs import NAMELESS
from rankscope.results import NOT_ANALYZED, Finding, Inputs, Options, Parameters, Result, by_severity, each_once
from rankscope.results.compressed_frames import Frames
from rankscope.results.replays import SEGMENTS, replayed
from rankscope.rundir.manifest import RunManifest
from rankscope.rundir.plurals import counted, listed
from rankscope.store.account import SKIPPED_SHARE
from rankscope.store.trace_info import TraceInfo
from rankscope.whatif.run import ReplayedRun

T = TypeVar("T")

# Step numbers that a run's description lists: a damaged trace may contain any range of them.
MAX_STEPS = 10_000
_PROFILER = "rankscope's Profiler"

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@runtime_checkable
class HasRunDir(Protocol):
    """The result of a job: anything with a run directory."""

    @property
    def run_dir(self) -> str | os.PathLike[str]:
        """Where its traces are."""
        ...


def parse_steps(text: str | None) -> tuple[int | None, int | None] | None:
    """`10:12` (both included), `10:`, `:12` or `10` as a range of steps.

    Raises:
        ConfigError: it has none of these forms.
    """
    if text is None or text.strip() in ("", ":"):
        return None
    first, colon, last = text.partition(":")
    try:
        low = int(first) if first.strip() else None
        high = (int(last) if last.strip() else None) if colon else low
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a range of steps", hint="write 10:12 (both included), 10:, :12, or 10"
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
        source: a directory, a trace, a glob, a URL (``s3://…``), several of these, or the result of `rankscope.launch`.
        more: further sources of the same run: another host's directory.
        run_id: which run, if there are several: the start of its id, its directory, or ``latest``.
        steps: only these steps: ``"10:12"`` (both included), ``"10:"``, ``":12"``, ``"10"``.
        communication: a regular expression of further kernel names that are communication.
        executor: where tasks run: ``processes``, ``serial``, ``dask``, ``dask:ADDRESS`` or ``mpi``.
        workers: the number of tasks at once; None for one per core.
        progress: called with the progress of the work.

    Raises:
        NoTracesError: there is no such path, or no trace in it.
        ConfigError: an option is not valid.
    """
    chosen = parse_steps(steps) if isinstance(steps, str) else steps
    _check_pattern(communication)
    options = Options(steps=chosen, communication=communication)
    first = source.run_dir if isinstance(source, HasRunDir) else source
    sources = [
        path for paths in (first, *more) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)
    ]
    return Run(find_traces(sources), options, run_id, executor, workers, progress)


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from error


class Run(SqlMethods):
    """The traces of one run. Every analysis is a method: ``run.device_time()`` returns a Polars frame.

    Use `open_run` (``rankscope.open``) to make one. The files are read when the first result is requested, or by
    `load`.
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
        self._previous_files: frozenset[str] = frozenset()
        self._tasks = Tasks(executor, workers, progress)
        self._results: dict[AnalysisKey, Result] = {}
        self._kept = Kept()
        self._diagnosis: Diagnosis | None = None
        self._lost: list[Finding] = []

    # -- description --------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Where the traces are: the directory, else the first file."""
        return location_of(self._found)

    @property
    def name(self) -> str:
        """A name for it: that of the directory, the first if there are several."""
        path = self.path if "://" in self.path else str(Path(self.path).resolve())
        name = re.split(r"[/\\]", path.rstrip("/"))[-1] or path
        others = len(self._found.folders) - 1
        name = f"{name} and {others} more" if others > 0 else name
        label = self.loaded.label
        return f"{name}: {label}" if label else name

    @property
    def ranks(self) -> list[int]:
        """The ranks whose traces were read."""
        return list(self.loaded.ranks)

    @property
    def traces(self) -> list[TraceInfo]:
        """The metadata of each file that was read."""
        return self.loaded.infos

    @property
    def run_id(self) -> str | None:
        """The id of the run, if the traces have one."""
        return self.loaded.run_id

    @property
    def manifest(self) -> RunManifest | None:
        """The manifest of the run (`run.json`, written by rank 0), if there is one."""
        return self.loaded.manifest

    @property
    def world_size(self) -> int | None:
        """The number of ranks in the job according to the traces; None if unknown."""
        return self.loaded.world_size

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the job without a trace that should have one, if the job's size is known."""
        on_purpose = self.loaded.left_out.ranks if self.loaded.left_out is not None else ()
        return sorted(set(range(self.world_size or 0)) - set(self.loaded.ranks) - set(on_purpose))

    @property
    def findings(self) -> list[Finding]:
        """Findings, the most severe first: about the files and from `diagnose`, else from the analyses so far.

        Only results with default parameters count: with others, an analysis would repeat its findings in other words.
        """
        stated = [finding for result in self.results.values() for finding in result.findings if not finding.all_clear]
        if self._diagnosis is None:
            return by_severity(each_once([*self.loaded.findings, *self._lost, *stated]))
        # An analysis that the diagnosis does not need may fail, or lack a rank.
        more = [finding for finding in self._lost if finding not in self._diagnosis.stated]
        more += [finding for finding in stated if finding.id == NOT_ANALYZED]
        return by_severity(each_once([*self.loaded.findings, *self._diagnosis.findings, *more]))

    def about(self) -> dict[str, Any]:
        """A description of the run as JSON values, as it is in results."""
        infos = self.loaded.infos
        spans = [(info.first_step, info.last_step) for info in infos]
        steps = {
            step
            for first, last in spans
            if first is not None and last is not None
            for step in range(first, min(last, first + MAX_STEPS) + 1)
        }
        devices = sorted({info.device for info in infos if info.device})
        return {
            "id": self.run_id,
            "name": self.name,
            "path": self.path,
            "command": list(self.manifest.command) if self.manifest else None,
            "world_size": self.world_size,
            "ranks": self.ranks,
            "missing_ranks": self.missing_ranks,
            "hosts": sorted({info.host for info in infos if info.host}),
            # Traces without device names are of CPU jobs only if no device ran anything.
            "devices": devices or ([] if any(map(_may_have_device, infos)) else ["CPU"]),
            "steps": sorted(steps)[:MAX_STEPS],
        }

    @property
    def written_by(self) -> list[str]:
        """The tools that wrote the traces, with versions if recorded; PyTorch's own profiler does not name itself."""
        tools = set()
        for info in self.loaded.infos:
            if info.launcher == "simulate":
                tools.add("rankscope simulate")
            elif info.run_id is not None or info.rank_source == "metadata":
                tools.add(_PROFILER)
            else:
                tools.add("PyTorch's profiler, without rankscope")
        versions = self.manifest.versions if self.manifest else {}
        used = listed([f"{name} {versions[name]}" for name in ("rankscope", "torch") if versions.get(name)])
        return sorted(tools) + ([used] if used and _PROFILER in tools else [])

    # -- reading ------------------------------------------------------------------------------------------------

    @cached_property
    def loaded(self) -> Loaded:
        """The run's files, read from the cache or now."""
        return load_run(self._found, self._wanted_run, self._options, self._tasks, self._previous_files)

    def load(self) -> Run:
        """Read the files now.

        Raises:
            NoTracesError: none of them is a trace that can be read.
            RunSelectionError: they belong to several runs, and none was chosen.
        """
        _ = self.loaded
        return self

    # -- analyses -----------------------------------------------------------------------------------------------

    def analyze(self, *names: str, parameters: Mapping[str, Parameters] | None = None) -> dict[str, Result]:
        """The results of analyses by name.

        Args:
            names: which.
            parameters: by name of the analysis, values of its parameters; the others keep their defaults.

        Raises:
            AnalysisError: there is no analysis with such a name, or one cannot be computed.
            ConfigError: an analysis has no such parameter, or the value is not valid.
        """
        given = {name.replace("-", "_"): values for name, values in (parameters or {}).items()}
        keys = {(known := name.replace("-", "_")): analysis_key(known, given.get(known)) for name in names}
        chosen = {key[0]: key for key in keys.values()}
        graph = levels(list(chosen))
        has_instants = any(
            parameter.kind == "instant" and dict(values)[parameter.name] is not None
            for name, values in chosen.values()
            for parameter in get_analysis(name).parameters
        )
        clocks = clock_of(self).ranks if has_instants else None
        required = {needed for level in graph for name in level for needed in get_analysis(name).requires}
        with self._tasks.keep_workers():
            for level in graph:
                # Required results use the defaults, whatever else was requested.
                wanted = dict.fromkeys(analysis_key(name) for name in level if name in required)
                wanted |= dict.fromkeys(chosen[name] for name in level if name in chosen)
                todo = [key for key in wanted if key not in self._results]
                if todo:
                    self._results |= run_level(
                        todo, self.loaded, self._options, self._results, self._tasks, self._kept, clocks
                    )
        return {name: self._results[key] for name, key in keys.items()}

    def attempt(self, *names: str, parameters: Mapping[str, Parameters] | None = None) -> dict[str, Result]:
        """The results of the analyses that can be computed; findings give the reasons for the others."""
        results, lost = attempt(names, lambda *some: self.analyze(*some, parameters=parameters))
        self._lost += [finding for finding in lost if finding not in self._lost]
        return results

    def diagnose(self) -> list[Finding]:
        """Run all rules and return all findings about the files and the run, the most severe first, with symptoms.

        They do not depend on what was requested before.
        """
        return by_severity([*self.loaded.findings, *self.diagnosis().findings])

    def diagnosis(self) -> Diagnosis:
        """The merged findings of all rules, the headline, and what cannot be judged; computed once."""
        if self._diagnosis is None:
            with_findings = [name for name, analysis in all_analyses().items() if analysis.has_findings]
            self._diagnosis = diagnose(all_rules().values(), with_findings, self.analyze, self._inputs)
        return self._diagnosis

    def replayed(self) -> ReplayedRun | None:
        """The run as its replay has it; None if there is no step to replay.

        Raises:
            AnalysisError: what it needs cannot be computed.
        """
        segments = self.analyze(SEGMENTS)[SEGMENTS]
        return replayed(replace(self._inputs, results=Frames({SEGMENTS: segments.rows})))

    @property
    def _inputs(self) -> Inputs:
        """What code that is about all ranks gets, without results."""
        loaded = self.loaded
        return Inputs(
            self._options, tuple(loaded.infos), world_size=self.world_size, capture=loaded.rank_manifests,
            left_out=loaded.left_out, shared=self._kept.shared,
        )  # fmt: skip

    # -- for reports and the page ---------------------------------------------------------------------------------

    @property
    def results(self) -> dict[str, Result]:
        """The results so far, by name, with their default parameters."""
        return {key[0]: result for key, result in list(self._results.items()) if key == analysis_key(key[0])}

    @property
    def options(self) -> Options:
        """The user's choices."""
        return self._options

    def other_run(self, known: KnownRun, progress: Progress | None = None) -> Run:
        """Another run among the files (`loaded.known_runs`)."""
        tasks = self._tasks
        return Run(self._found, self._options, known.name or NAMELESS, tasks.executor, tasks.workers, progress)

    def with_all_steps(self) -> Run:
        """The same run with all its steps."""
        tasks = self._tasks
        options = replace(self._options, steps=None)
        return Run(self._found, options, self._wanted_run, tasks.executor, tasks.workers, tasks.progress)

    def reopen(self, found: Found, progress: Progress | None = None) -> Run:
        """The same run with the current files: those with its id, else the run of the files that it had.

        Args:
            found: the files.
            progress: called with the progress of the work.
        """
        tasks = self._tasks
        wanted = self.run_id or self._wanted_run
        run = Run(found, self._options, wanted, tasks.executor, tasks.workers, progress)
        if self.run_id is None or self.loaded.chosen != self.run_id:
            run._previous_files = frozenset(info.path for info in self.loaded.infos)
        return run

    def keep_workers(self) -> AbstractContextManager[None]:
        """Keep the workers between calls in this block."""
        return self._tasks.keep_workers()

    def map_ranks(
        self,
        what: str,
        task: Callable[..., T],
        arguments: Mapping[int, tuple[Any, ...]],
        on_progress: Callable[[int, T | BaseException], None] = lambda rank, outcome: None,
    ) -> dict[int, T | BaseException]:
        """Run a task for each rank on the executor; outcomes by rank, errors among them.

        Args:
            what: the activity, for the progress.
            task: a function of a module, called on any worker.
            arguments: the task's arguments for each rank.
            on_progress: called with each outcome as it arrives, and with failures at the end.
        """
        ranks = list(arguments)
        outcomes = self._tasks.run(
            what,
            sum(info.json_bytes for info in self.loaded.infos if info.rank in arguments) // 8,
            with_rank,
            [(task, rank, arguments[rank]) for rank in ranks],
            lambda outcome: None if isinstance(outcome, BaseException) else on_progress(*outcome),
        )
        by_rank: dict[int, T | BaseException] = {}
        for rank, outcome in zip(ranks, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                by_rank[rank] = outcome
                on_progress(rank, outcome)
            else:
                by_rank[rank] = outcome[1]
        return by_rank

    to_html: ClassVar[Callable[[Run], str] | None] = None
    """The HTML of a run in a notebook. `rankscope.open` sets it: the report is a layer above this one."""

    def _repr_html_(self) -> str | None:
        """The run's overview for a notebook; reads the files if needed."""
        return None if Run.to_html is None else Run.to_html(self)

    def __repr__(self) -> str:
        return f"<rankscope.Run {self.path}: {counted(len(self._found.traces), 'trace')}>"


def _may_have_device(info: TraceInfo) -> bool:
    if info.account.unknown_share >= SKIPPED_SHARE or info.account.lacks_device:
        return True  # in what was not read
    return info.is_snapshot or any(kind.partition(" ")[2].lower() in DEVICE_KINDS for kind in info.counts)
