"""Group traces into runs.

In: the metadata of each trace (`TraceInfo`). Out: the traces of each run, by the run's name. The rule:

1. Traces with the same run id are one run. `rankscope.Profiler` writes the id into every trace.
2. Traces without an id are one run too, unless they contradict each other: a rank has two processes, world sizes or
   backends differ, or traces that name no rank were recorded more than a minute apart.
3. Contradicting traces are split by directory: by the sub-directories of their common directory, else by each trace's
   own directory (torchtitan's ``iteration_10/replica_0``); a part that still contradicts itself is split again.
4. Within one directory they are split by file name without the rank (``slow.rank0.json``, ``fast.rank0.json``), else by
   time (a log directory of TensorBoard's handler): a run ends before a rank's next process begins.
5. Traces with one id are split in the same way if a rank has two processes that record the same steps or at the same
   time: ``torchrun --rdzv-id=100`` gives one id to every start of a job. A restart is not a second run.
6. A trace that lost its id joins the run in its directory, if there is exactly one. A memory snapshot, which never has
   an id, joins the nearest run.

If that gives several runs, the user must choose: `run_selection.choose_run` lists them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import PurePath

from rankscope.ingest.discover import natural
from rankscope.ingest.run_findings import adopted_traces, doubtful_run, one_of_several_runs
from rankscope.results import Finding
from rankscope.rundir.names import split_process
from rankscope.store.trace_info import TraceInfo, utc

Name = str | None
"""The name of a run: its id, else its label among several; None for the only run, if it has no id."""

Process = list[TraceInfo]
"""The traces of one process of a job, in time order."""

NAMELESS = "(no id)"
# The clocks of a job's hosts agree within this.
_SLACK_NS = 60 * 10**9
_RANK_IN_NAME = re.compile(r"[-_.]?(?:rank|worker)[-_]?\[?\d+\]?(?:-of-\d+)?|\d+-of-\d+", re.IGNORECASE)
_ENDING = re.compile(
    r"(\.pt)?([._-]?(chrome[-_])?trace|\.memory)?(\.json|\.tar|\.tgz|\.zip|\.gz|\.zstd?|\.pickle)+$", re.IGNORECASE
)


@dataclass
class Grouping:
    """Traces by run.

    Attributes:
        runs: the traces of each run.
        findings: findings about how each run's traces were grouped.
        reasons: why traces without an id, or with the same id, are several runs.
    """

    runs: dict[Name, list[TraceInfo]] = field(default_factory=dict)
    findings: dict[Name, list[Finding]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Part:
    """Processes, in the order in which they began to record, and the directory and file names they were split by."""

    processes: Sequence[Process]
    names: tuple[str, ...] = ()

    @property
    def infos(self) -> list[TraceInfo]:
        return [info for process in self.processes for info in process]

    @property
    def label(self) -> str:
        """The names it was split by, else when it began; empty if its clock has no date."""
        return "/".join(filter(None, self.names)) or utc(self.processes[0][0].host_start_ns, "%Y%m%dT%H%M%S")

    def split(self, key: Callable[[TraceInfo], str]) -> list[_Part]:
        """Split by a key. If the traces of one process have several keys, there is one part."""
        parts: dict[str, list[Process]] = {}
        for process in self.processes:
            name, *others = {key(info) for info in process}
            if others:
                return [self]
            parts.setdefault(name, []).append(process)
        return [_Part(processes, (*self.names, name)) for name, processes in parts.items()]


def with_lost_base_times(infos: Sequence[TraceInfo]) -> list[TraceInfo]:
    """The traces; one that is cut before its `baseTimeNanoseconds` with that of the others, if they have the same.

    Kineto subtracts one moment from the times of all ranks, and some versions write it after the events. Without it,
    a window would be one of 1970: the first of its rank, with collectives that match no others.
    """
    bases = {info.base_time_ns for info in infos if info.base_time_ns}
    if len(bases) != 1:
        return list(infos)
    (base,) = bases

    def with_base(info: TraceInfo) -> TraceInfo:
        is_cut = info.truncated or info.lost_metadata
        # Older files have none, and times since 1970.
        if not is_cut or info.base_time_ns or utc(info.start_ns or 0):
            return info
        odd = {**info.odd, "baseTimeNanoseconds, taken from the other files": 1}
        return replace(info, base_time_ns=base, odd=odd)

    return [with_base(info) for info in infos]


def group_by_run(infos: Sequence[TraceInfo]) -> Grouping:
    """The traces of each run."""
    grouping = Grouping()
    by_id: dict[str | None, list[TraceInfo]] = {}
    for info in infos:
        if not info.is_snapshot:
            by_id.setdefault(info.run_id, []).append(info)
    without_id = by_id.pop(None, [])
    for run_id, with_id in by_id.items():
        _add(grouping, with_id, run_id)
    remaining = _join_runs_by_folder(without_id, grouping)
    if remaining:
        _add(grouping, remaining, None)
    for info in infos:
        if info.is_snapshot:
            name = max(grouping.runs, key=lambda name: _nearness(info, grouping.runs[name]), default=None)
            grouping.runs.setdefault(name, []).append(info)
    return grouping


def _add(grouping: Grouping, infos: Sequence[TraceInfo], run_id: str | None) -> None:
    """Add traces with the same id, or with none, as one run or as several."""
    everything = _Part(_processes(infos))
    contradiction = _contradiction(everything.processes)
    if contradiction is None:
        grouping.runs[run_id] = everything.infos
        grouping.findings[run_id] = doubtful_run(everything.processes) if run_id is None else []
        return
    why = contradiction[2]
    parts = sorted(_split(everything), key=lambda part: part.processes[0][0].host_start_ns)
    count = Counter(part.label for part in parts)
    labels = [
        part.label if part.label and count[part.label] == 1 else f"run{number}"
        for number, part in enumerate(parts, start=1)
    ]
    grouping.reasons.append(f"those {'without a run id' if run_id is None else f'with the run id {run_id}'} have {why}")
    for label, part in zip(labels, parts, strict=True):
        name = label if run_id is None else f"{run_id}:{label}"
        name = f"{name} {NAMELESS}" if name in grouping.runs else name
        grouping.runs[name] = part.infos
        sizes = {other: len(part.infos) for other, part in zip(labels, parts, strict=True)}
        grouping.findings[name] = [one_of_several_runs(part.infos, label, sizes, why)]
        if run_id is None:
            grouping.findings[name] += doubtful_run(part.processes)


# -- processes ----------------------------------------------------------------------------------------------------


def _processes(infos: Iterable[TraceInfo]) -> list[Process]:
    """The traces by process, in the order in which the processes began to record."""
    processes: list[Process] = []
    by_rank: dict[tuple[object, ...], list[Process]] = {}
    for info in sorted(infos, key=lambda info: (info.start_ns is None, info.host_start_ns, natural(info.path))):
        key = (info.rank,) if info.rank is not None else (None, info.path if info.pid is None else info.pid)
        of_rank = by_rank.setdefault(key, [])
        process = next(
            (candidate for candidate in of_rank if _continues(candidate[0], info) and _continues(candidate[-1], info)),
            None,
        )
        if process is None:
            process = []
            of_rank.append(process)
            processes.append(process)
        process.append(info)
    return processes


def _continues(earlier: TraceInfo, later: TraceInfo) -> bool:
    """Whether two traces of a rank can come from one process; with an id, from one start of the job."""
    overlap, again = earlier.overlaps(later), earlier.steps_begin_again(later)
    # In a container each start of a job may have the same pid, but not the same threads.
    restarted = again and not earlier.shares_thread(later)
    if earlier.run_id is not None:
        # A restarted job continues at a later step, and torchrun counts its restarts.
        second_start = restarted or ((overlap or again) and _differ(earlier.pid, later.pid))
        return earlier.restart_count != later.restart_count or not second_start
    if restarted or (overlap and earlier.rank is None):
        return False
    if (overlap or again) and _folder_of(earlier.path) != _folder_of(later.path):
        return False
    facts = ((info.pid, info.host, info.world_size, info.backend, info.device) for info in (earlier, later))
    return not any(_differ(*pair) for pair in zip(*facts, strict=True))


@lru_cache(maxsize=1 << 16)
def _folder_of(path: str) -> PurePath:
    # Each trace is compared with others of its rank: parsing paths was most of the time.
    return PurePath(path).parent


def _contradiction(processes: Sequence[Process]) -> tuple[int, int, str] | None:
    """The first two processes that cannot be of one run, as indices, and why."""
    first_of_rank: dict[int, int] = {}
    last_with: dict[str, int] = {}
    for index, process in enumerate(processes):
        info = process[0]
        for fact in ("world_size", "backend") if info.run_id is None else ():
            value = getattr(info, fact)
            before = getattr(processes[last_with.get(fact, index)][0], fact)
            if _differ(value, before):
                return last_with[fact], index, f"two {fact.replace('_', ' ')}s ({before} and {value})"
            if value:
                last_with[fact] = index
        if info.rank is not None and (first := first_of_rank.setdefault(info.rank, index)) != index:
            pids = f" ({processes[first][0].pid} and {info.pid})" if _differ(info.pid, processes[first][0].pid) else ""
            return first, index, f"two processes of rank {info.rank}{pids}"
        if index and info.run_id is None and all(_far_apart(other, info) for other in processes[index - 1]):
            return index - 1, index, "no rank, and were recorded at different times"
    return None


def _far_apart(one: TraceInfo, other: TraceInfo) -> bool:
    """Whether two processes, of which one names no rank, recorded too far apart to be two ranks of one job."""
    gap = one.gap_to(other)
    if gap is None or None in (one.pid, other.pid) or None not in (one.rank, other.rank):
        return False
    longest = max((info.end_ns or 0) - (info.start_ns or 0) for info in (one, other))
    return (one.pid != other.pid or _differ(one.host, other.host)) and gap > _SLACK_NS + longest


def _differ(one: object, other: object) -> bool:
    return bool(one) and bool(other) and one != other


# -- splitting ----------------------------------------------------------------------------------------------------


def _split(part: _Part) -> list[_Part]:
    """Split until no part contradicts itself."""
    if _contradiction(part.processes) is None:
        return [part]
    depth = _shared_depth(part.infos)
    folders = part.split(lambda info: "".join(PurePath(info.path).parent.parts[depth : depth + 1]))
    leaves = part.split(lambda info: PurePath(info.path).parent.name)
    stems = part.split(_stem)
    for parts in (folders, leaves):
        if len(parts) > 1 and all(_contradiction(sub.processes) is None for sub in parts):
            return parts
    if len(folders) > 1:
        return [sub for folder in folders for sub in _split(folder)]
    if 1 < len(stems) < len(part.processes) and all(_contradiction(sub.processes) is None for sub in stems):
        return stems
    return _split_by_time(part)


def _split_by_time(part: _Part) -> list[_Part]:
    """Split at the longest pause between two processes that contradict each other."""
    runs, rest = [], list(part.processes)
    while contradiction := _contradiction(rest):
        starts = [process[0].host_start_ns for process in rest]
        cut = max(
            range(contradiction[0] + 1, contradiction[1] + 1), key=lambda index: starts[index] - starts[index - 1]
        )
        runs.append(rest[:cut])
        rest = rest[cut:]
    stems = [{_stem(info) for process in run for info in process} for run in [*runs, rest]]
    names = [stem.pop() if len(stem) == 1 else "" for stem in stems]
    return [
        _Part(run, (*part.names, name if name and names.count(name) == 1 else _Part(run).label))
        for run, name in zip([*runs, rest], names, strict=True)
    ]


def _stem(info: TraceInfo) -> str:
    """A file's name without its rank and endings; empty if the trace has an id, as the name then counts windows."""
    return (
        ""
        if info.run_id
        else _RANK_IN_NAME.sub("", _ENDING.sub("", PurePath(split_process(info.path)[0]).name)).strip(" ._-")
    )


def _shared_depth(infos: Iterable[TraceInfo]) -> int:
    """How many leading directories all paths have in common."""
    levels = zip(*{PurePath(info.path).parent.parts for info in infos}, strict=False)
    return sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))


# -- traces without an id, where others have one ------------------------------------------------------------------


def _join_runs_by_folder(infos: Iterable[TraceInfo], grouping: Grouping) -> list[TraceInfo]:
    """Add traces that lost their metadata to the only run in their directory; returns the other traces."""
    names_in: dict[PurePath, set[Name]] = {}
    for name, run in grouping.runs.items():
        for info in run:
            names_in.setdefault(PurePath(info.path).parent, set()).add(name)
    remaining: list[TraceInfo] = []
    joined: dict[Name, list[TraceInfo]] = {}
    for info in infos:
        name, *others = names_in.get(PurePath(info.path).parent, (None,))
        if name is not None and not others and _fits(info, grouping.runs[name]):
            joined.setdefault(name, []).append(info)
        else:
            remaining.append(info)
    for name, traces in joined.items():
        grouping.runs[name] += traces
        grouping.findings[name].append(adopted_traces(traces, str(name)))
    return remaining


def _fits(info: TraceInfo, run: Sequence[TraceInfo]) -> bool:
    """Whether a trace can belong to a run: other ranks recorded at the same time, and its own rank did not."""
    if info.rank is None or any(_differ(info.world_size, other.world_size) for other in run):
        return False
    if info.start_ns is None:
        return all(other.rank != info.rank for other in run)
    recording = {other.rank for other in run if other.overlaps(info)}
    return bool(recording) and info.rank not in recording


def _nearness(info: TraceInfo, run: Sequence[TraceInfo]) -> tuple[int, bool, int]:
    """A sort key: common directories, whether the run has the file's rank, and the start of the run."""
    depth = max(_shared_depth([info, other]) for other in run)
    return depth, any(other.rank == info.rank for other in run), min(other.host_start_ns for other in run)
