"""Read the files of a run: one task per trace, then the run and the rank of each.

In: discovered files. Out: `Loaded`, with the tables of each rank and findings about the files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from rankscope.engine.pipeline.step_log import read_step_log
from rankscope.engine.pipeline.tasks import SMALL_BYTES, Tasks
from rankscope.errors import NotATraceError, NoTracesError, RankscopeError, without_credentials
from rankscope.ingest import native
from rankscope.ingest.discover import Found
from rankscope.ingest.findings import (
    incomplete_steps,
    links_not_followed,
    losses_of,
    merged_trace,
    not_traces,
    unreadable,
)
from rankscope.ingest.manifests import capture_findings, read_manifests, window_gaps, without_withdrawn
from rankscope.ingest.ranks import assign_ranks, without_numbered_folders
from rankscope.ingest.run_files import is_result_file
from rankscope.ingest.run_findings import contradicted_ranks, missing_ranks, restarted_ranks
from rankscope.ingest.run_selection import KnownRun, check_steps, choose_run, known_runs
from rankscope.ingest.runs import group_by_run, with_lost_base_times
from rankscope.ingest.source import is_url
from rankscope.ingest.task import find_ingested, ingest_trace
from rankscope.ingest.trace_metadata import without_incomplete_steps
from rankscope.primitives.stragglers.step_log import StepLog
from rankscope.results import Finding, Options
from rankscope.rundir.left_out import LeftOut, left_out
from rankscope.rundir.manifest import RankManifest, RunManifest
from rankscope.rundir.names import split_process
from rankscope.store.cache import CachedTrace, CacheWriteError
from rankscope.store.part_cache import inputs_digest
from rankscope.store.trace_info import TraceInfo


@dataclass(frozen=True)
class Loaded:
    """The files of a run after reading: the tables of each rank, and findings about the files.

    Attributes:
        label: the run's name for display if the files belong to several runs; None otherwise.
        manifest: the run's manifest, written by rank 0, if there is one.
        rank_manifests: the manifest of each rank's capture.
        known_runs: all runs with traces among the files, including this one.
        chosen: the name of this run among them.
        folders: the directories that were given.
        left_out: ranks that were not to be recorded; None if all were.
    """

    ranks: Mapping[int, Sequence[CachedTrace]]
    findings: tuple[Finding, ...]
    run_id: str | None
    label: str | None = None
    manifest: RunManifest | None = None
    rank_manifests: tuple[RankManifest, ...] = ()
    known_runs: tuple[KnownRun, ...] = ()
    chosen: str | None = None
    folders: tuple[str, ...] = ()
    left_out: LeftOut | None = None

    @cached_property
    def log(self) -> StepLog | None:
        """What the run's step log says of stragglers; None without one."""
        return read_step_log(self.folders, self.run_id)

    def of_ranks(self, ranks: Collection[int]) -> Loaded:
        """The same run with the files of some ranks."""
        return replace(self, ranks={rank: traces for rank, traces in self.ranks.items() if rank in ranks})

    @cached_property
    def infos(self) -> list[TraceInfo]:
        """The metadata of every file, in the order of ranks."""
        return [trace.info for traces in self.ranks.values() for trace in traces]

    @cached_property
    def world_size(self) -> int | None:
        """The number of ranks in the job according to the traces; None if unknown."""
        return max((info.world_size for info in self.infos if info.world_size), default=None)

    @cached_property
    def rank_digests(self) -> dict[int, bytes]:
        """By rank, a digest of what a rank's parts of analyses depend on, without the options."""
        return {
            rank: inputs_digest([trace.info for trace in traces], rank, self.world_size)
            for rank, traces in self.ranks.items()
        }

    @cached_property
    def digest(self) -> bytes:
        """A digest of all ranks' inputs."""
        return inputs_digest(self.rank_digests, self.rank_manifests, self.left_out)


def load_run(
    found: Found, wanted: str | None, options: Options, tasks: Tasks, previous: Collection[str] = ()
) -> Loaded:
    """Read the files, or take their tables from the cache.

    Args:
        wanted: which run, if there are several: the start of its id, or ``latest``.
        previous: files of a run that is loaded again: the run that has any of them is chosen.

    Raises:
        NoTracesError: none of them is a trace that can be read.
        RunSelectionError: they belong to several runs, and none was chosen.
        ConfigError: the chosen reader is not there.
    """
    paths, root = found.traces, _common_directory(found)
    cached = {path: trace for path in paths if (trace := find_ingested(path, found.objects.get(path))) is not None}
    # Cached files do not need a worker.
    todo = [path for path in paths if path not in cached]
    if todo:
        native.wanted()  # a wrong choice of the reader is one error, not one for each file
    arguments = [(_absolute(path), found.objects.get(path)) for path in todo]
    read = tasks.run("reading", _size_of(todo), ingest_trace, arguments)
    by_path: dict[str, CachedTrace | BaseException] = {**cached, **dict(zip(todo, read, strict=True))}
    outcomes = [by_path[path] for path in paths]
    traces: list[CachedTrace] = []
    failures: list[tuple[str, BaseException]] = []
    for path, outcome in zip(map(without_credentials, paths), outcomes, strict=True):
        if isinstance(outcome, BaseException):
            failures.append((path, outcome))
        else:
            traces.append(CachedTrace(outcome.place, replace(outcome.info, path=path)))
    if not traces:
        raise _nothing(failures, root)
    findings = [
        unreadable(path, error) for path, error in failures if found.named or not isinstance(error, NotATraceError)
    ]
    if not found.named:
        others = [(path, e) for path, e in failures if isinstance(e, NotATraceError) and not is_result_file(path)]
        findings += not_traces(others)
    findings += [unreadable(error.path or root, error) for error in found.denied]
    findings += links_not_followed(found.unfollowed)
    findings += [merged_trace(path) for path in found.doubled]
    all_infos, numbered = without_numbered_folders(with_lost_base_times([trace.info for trace in traces]))
    grouping = group_by_run(all_infos)
    runs = grouping.runs
    kept = [name for name, infos in runs.items() if any(info.path in previous for info in infos)]
    chosen = kept[0] if len(kept) == 1 else choose_run(runs, wanted, root, grouping.reasons)
    infos = runs[chosen]
    run_id = next((info.run_id for info in infos if info.run_id is not None), None)
    run_paths = {info.path for info in infos}
    findings += [finding for finding in numbered if any(path in run_paths for path in _files_of(finding))]
    findings += grouping.findings.get(chosen, ())
    places = {trace.info.path: trace.place for trace in traces}
    members, conflicts = assign_ranks(infos)
    findings += conflicts
    manifest, manifests, unread = read_manifests(found.run_manifests, found.rank_manifests, run_id)
    members, withdrawn = without_withdrawn(members, manifests)
    members = {rank: without_incomplete_steps(files) for rank, files in members.items()}
    ranks = {rank: [CachedTrace(places[info.path], info) for info in files] for rank, files in members.items()}
    infos = [info for files in members.values() for info in files]
    findings += [*losses_of(infos), *incomplete_steps(infos), *contradicted_ranks(members), *restarted_ranks(infos)]
    findings += [*unread, *capture_findings(manifests, found.traces, found.folders), *withdrawn, *window_gaps(members)]
    size = max((info.world_size for info in infos if info.world_size), default=0)
    on_purpose = left_out(size, ranks, manifest, manifests)
    findings += missing_ranks(infos, size, on_purpose)
    check_steps(infos, options.steps)
    all_runs = known_runs(runs, root)
    label = next(run.label for run in all_runs if run.name == chosen) if len(all_runs) > 1 else None
    folders = tuple(found.folders)
    return Loaded(
        ranks, tuple(findings), run_id, label, manifest, tuple(manifests), all_runs, chosen, folders, on_purpose
    )


def _absolute(path: str) -> str:
    """The absolute path: workers may have another current directory."""
    return path if is_url(path) else str(Path(path).absolute())


def location_of(found: Found) -> str:
    """Where the traces are: the directory, else the first file."""
    if found.folders:
        return found.folders[0]
    first = found.traces[0]
    return without_credentials(split_process(first)[0] if len(found.traces) > 1 else first)


def _common_directory(found: Found) -> str:
    """The directory that holds all that was searched or named; where the first trace is if there is none."""
    if len(found.folders) + len(found.traces) == 1:
        return location_of(found)
    places = {*found.folders, *map(os.path.dirname, found.traces)}
    # URLs, and relative paths next to absolute ones, have no directory in common.
    if any(map(is_url, places)) or len(set(map(os.path.isabs, places))) > 1:
        return location_of(found)
    return os.path.commonpath(places) or os.curdir


def _files_of(finding: Finding) -> list[str]:
    return [str(evidence.value) for evidence in finding.evidence if evidence.name == "file"]


def _nothing(failures: Sequence[tuple[str, BaseException]], where: str) -> RankscopeError:
    if len(failures) == 1 and isinstance(failures[0][1], RankscopeError):
        return failures[0][1]
    for _, error in failures:
        if isinstance(error, CacheWriteError):
            return error
    first = failures[0][1]
    reason = first.what if isinstance(first, RankscopeError) else str(first)
    return NoTracesError(
        f"none of {len(failures)} files is a trace that can be read; the first, {Path(failures[0][0]).name}: {reason}",
        path=where,
        hint="rankscope reads the JSON traces of torch.profiler, plain or compressed",
    )


def _size_of(paths: Sequence[str]) -> int:
    """Bytes on disk; unreadable files count as 0, URLs as large."""
    total = 0
    for path in paths:
        if "://" in path:
            total += SMALL_BYTES
            continue
        try:
            total += Path(split_process(path)[0]).stat().st_size
        except OSError:
            continue
    return total * 8  # traces are mostly compressed, some ten times
