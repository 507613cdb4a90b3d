"""Which run each trace is of.

In: what each trace says about itself (`TraceInfo`). Out: the traces of each run, by the run's name. The rule:

1. Traces with the same run id are one run. `rankscope.Profiler` writes the id into every trace.
2. Traces without an id are one run too, unless they contradict each other: a rank has two processes, world sizes or
   backends differ, or traces that name no rank were recorded more than a minute apart.
3. Contradicting traces are divided by directory: by the sub-directories of the one that holds them all, else by the
   directory that each is in (torchtitan's ``iteration_10/replica_0``); again while a directory holds a contradiction.
4. In one directory they are divided by file name without the rank (``slow.rank0.json``, ``fast.rank0.json``), else by
   time (a log directory of TensorBoard's handler): a run ends before a rank's next process begins.
5. Traces with one id are divided in the same way if a rank has two processes that record the same steps or at the
   same time: ``torchrun --rdzv-id=100`` gives one id to every start of a job. A restart is not a second run.
6. A trace that lost its id is of the only run in its directory. A memory snapshot, which has none, is of the nearest.

If that gives several runs, the user must choose: `run_selection.choose_run` lists them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from pathlib import PurePath

from rankscope.ingest.discover import natural
from rankscope.ingest.run_findings import adopted_traces, divided_runs, doubtful_run
from rankscope.results import Finding
from rankscope.store.trace_info import TraceInfo, utc

Name = str | None
"""What a run is called: its id, or what divides it from others; None for the only run, if it has no id."""

Process = list[TraceInfo]
"""The traces of one process of a job, in the order of time."""

NAMELESS = "(no id)"
# The clocks of a job's hosts agree within this.
_SLACK_NS = 60 * 10**9
_RANK_IN_NAME = re.compile(r"[-_.]?(?:rank|worker)[-_]?\d+(?:-of-\d+)?|\d+-of-\d+", re.IGNORECASE)
_ENDING = re.compile(
    r"(\.pt)?([._-]?(chrome[-_])?trace|\.memory)?(\.json|\.tar|\.tgz|\.zip|\.gz|\.zstd?|\.pickle)+$", re.IGNORECASE
)


@dataclass
class Grouping:
    """Traces by run.

    Attributes:
        runs: the traces of each run.
        findings: what to report about how each run's traces were found.
        reasons: why traces without an id, or with the same id, are of several runs.
    """

    runs: dict[Name, list[TraceInfo]] = field(default_factory=dict)
    findings: dict[Name, list[Finding]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Part:
    """Some processes, in the order in which they began to record, and the names of what divides them from others."""

    processes: Sequence[Process]
    names: tuple[str, ...] = ()

    @property
    def infos(self) -> list[TraceInfo]:
        return [info for process in self.processes for info in process]

    @property
    def label(self) -> str:
        """What divides it from others, else when it began, as far as its clock says."""
        return "/".join(filter(None, self.names)) or utc(self.processes[0][0].host_start_ns, "%Y%m%dT%H%M%S")

    def split(self, key: Callable[[TraceInfo], str]) -> list[_Part]:
        """Parts by a key that all traces of a process share; undivided where those of some process do not."""
        parts: dict[str, list[Process]] = {}
        for process in self.processes:
            name, *others = {key(info) for info in process}
            if others:
                return [self]
            parts.setdefault(name, []).append(process)
        return [_Part(own, (*self.names, name)) for name, own in parts.items()]


def group_by_run(infos: Sequence[TraceInfo]) -> Grouping:
    """Sort traces into runs."""
    grouping = Grouping()
    by_id: dict[str | None, list[TraceInfo]] = {}
    for info in infos:
        if not info.is_snapshot:
            by_id.setdefault(info.run_id, []).append(info)
    without_id = by_id.pop(None, [])
    for run_id, own in by_id.items():
        _add(grouping, own, run_id)
    left = _adopt(without_id, grouping)
    if left:
        _add(grouping, left, None)
    for info in infos:
        if info.is_snapshot:
            name = max(grouping.runs, key=lambda name: _nearness(info, grouping.runs[name]), default=None)
            grouping.runs.setdefault(name, []).append(info)
    return grouping


def _add(grouping: Grouping, infos: Sequence[TraceInfo], run_id: str | None) -> None:
    """Divide traces with the same id, or with none, and add the runs."""
    everything = _Part(_processes(infos))
    contradiction = _contradiction(everything.processes)
    if contradiction is None:
        grouping.runs[run_id] = everything.infos
        grouping.findings[run_id] = doubtful_run(everything.processes) if run_id is None else []
        return
    why = contradiction[2]
    parts = sorted(_divide(everything), key=lambda part: part.processes[0][0].host_start_ns)
    count = Counter(part.label for part in parts)
    labels = [
        part.label if part.label and count[part.label] == 1 else f"run{at}" for at, part in enumerate(parts, start=1)
    ]
    grouping.reasons.append(f"those {'without a run id' if run_id is None else f'with the run id {run_id}'} have {why}")
    for label, part in zip(labels, parts, strict=True):
        name = label if run_id is None else f"{run_id}:{label}"
        name = f"{name} {NAMELESS}" if name in grouping.runs else name
        grouping.runs[name] = part.infos
        sizes = {other: len(part.infos) for other, part in zip(labels, parts, strict=True)}
        grouping.findings[name] = [divided_runs(part.infos, label, sizes, why)]
        if run_id is None:
            grouping.findings[name] += doubtful_run(part.processes)


# -- processes ----------------------------------------------------------------------------------------------------


def _processes(infos: Iterable[TraceInfo]) -> list[Process]:
    """The traces by process, in the order in which the processes began to record."""
    processes: list[Process] = []
    of_rank: dict[tuple[object, ...], list[Process]] = {}
    for info in sorted(infos, key=lambda info: (info.start_ns is None, info.host_start_ns, natural(info.path))):
        key = (info.rank,) if info.rank is not None else (None, info.path if info.pid is None else info.pid)
        own = of_rank.setdefault(key, [])
        process = next((each for each in own if _continues(each[0], info) and _continues(each[-1], info)), None)
        if process is None:
            process = []
            own.append(process)
            processes.append(process)
        process.append(info)
    return processes


def _continues(one: TraceInfo, later: TraceInfo) -> bool:
    """Whether two traces of a rank can be of one process; with an id, of one start of the job."""
    overlap, again = one.overlaps(later), one.steps_begin_again(later)
    # In a container each start of a job may have the same pid, but not the same threads.
    restarted = again and not one.shares_thread(later)
    if one.run_id is not None:
        # A restarted job continues at a later step, and torchrun counts its restarts.
        twice = restarted or ((overlap or again) and _differ(one.pid, later.pid))
        return one.restart_count != later.restart_count or not twice
    if restarted or (overlap and one.rank is None):
        return False
    if (overlap or again) and _folder_of(one.path) != _folder_of(later.path):
        return False
    facts = ((info.pid, info.host, info.world_size, info.backend, info.device) for info in (one, later))
    return not any(_differ(*pair) for pair in zip(*facts, strict=True))


@lru_cache(maxsize=1 << 16)
def _folder_of(path: str) -> PurePath:
    # Each trace is compared with others of its rank: parsing paths was most of the time.
    return PurePath(path).parent


def _contradiction(processes: Sequence[Process]) -> tuple[int, int, str] | None:
    """The first two processes that cannot be of one run, by their places in the order of time, and why."""
    of_rank: dict[int, int] = {}
    last_with: dict[str, int] = {}
    for at, process in enumerate(processes):
        info = process[0]
        for fact in ("world_size", "backend") if info.run_id is None else ():
            value = getattr(info, fact)
            before = getattr(processes[last_with.get(fact, at)][0], fact)
            if _differ(value, before):
                return last_with[fact], at, f"two {fact.replace('_', ' ')}s ({before} and {value})"
            if value:
                last_with[fact] = at
        if info.rank is not None and (place := of_rank.setdefault(info.rank, at)) != at:
            pids = f" ({processes[place][0].pid} and {info.pid})" if _differ(info.pid, processes[place][0].pid) else ""
            return place, at, f"two processes of rank {info.rank}{pids}"
        if at and info.run_id is None and all(_far_apart(other, info) for other in processes[at - 1]):
            return at - 1, at, "no rank, and were recorded at different times"
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


# -- dividing -----------------------------------------------------------------------------------------------------


def _divide(part: _Part) -> list[_Part]:
    """Parts without a contradiction."""
    if _contradiction(part.processes) is None:
        return [part]
    depth = _shared_depth(part.infos)
    folders = part.split(lambda info: "".join(PurePath(info.path).parent.parts[depth : depth + 1]))
    leaves = part.split(lambda info: PurePath(info.path).parent.name)
    stems = part.split(_stem)
    for parts in (folders, leaves):
        if len(parts) > 1 and all(_contradiction(each.processes) is None for each in parts):
            return parts
    if len(folders) > 1:
        return [each for folder in folders for each in _divide(folder)]
    if 1 < len(stems) < len(part.processes) and all(_contradiction(each.processes) is None for each in stems):
        return stems
    return _divide_by_time(part)


def _divide_by_time(part: _Part) -> list[_Part]:
    """Runs one after another, cut at the longest pause between two processes that contradict each other."""
    runs, rest = [], list(part.processes)
    while found := _contradiction(rest):
        starts = [process[0].host_start_ns for process in rest]
        cut = max(range(found[0] + 1, found[1] + 1), key=lambda at: starts[at] - starts[at - 1])
        runs.append(rest[:cut])
        rest = rest[cut:]
    stems = [{_stem(info) for process in run for info in process} for run in [*runs, rest]]
    names = [own.pop() if len(own) == 1 else "" for own in stems]
    return [
        _Part(run, (*part.names, name if name and names.count(name) == 1 else _Part(run).label))
        for run, name in zip([*runs, rest], names, strict=True)
    ]


def _stem(info: TraceInfo) -> str:
    """A file's name without its rank and endings; empty where the trace has an id: its name only counts windows."""
    return "" if info.run_id else _RANK_IN_NAME.sub("", _ENDING.sub("", PurePath(info.path).name)).strip(" ._-")


def _shared_depth(infos: Iterable[TraceInfo]) -> int:
    """How many directories the paths of all traces begin with."""
    levels = zip(*{PurePath(info.path).parent.parts for info in infos}, strict=False)
    return sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))


# -- traces without an id, where others have one ------------------------------------------------------------------


def _adopt(infos: Iterable[TraceInfo], grouping: Grouping) -> list[TraceInfo]:
    """Give traces that lost their id with their metadata to the run in their directory; those that are left."""
    names_in: dict[PurePath, set[Name]] = {}
    for name, own in grouping.runs.items():
        for info in own:
            names_in.setdefault(PurePath(info.path).parent, set()).add(name)
    left: list[TraceInfo] = []
    adopted: dict[Name, list[TraceInfo]] = {}
    for info in infos:
        name, *others = names_in.get(PurePath(info.path).parent, (None,))
        if name is not None and not others and _fits(info, grouping.runs[name]):
            adopted.setdefault(name, []).append(info)
        else:
            left.append(info)
    for name, own in adopted.items():
        grouping.runs[name] += own
        grouping.findings[name].append(adopted_traces(own, str(name)))
    return left


def _fits(info: TraceInfo, run: Sequence[TraceInfo]) -> bool:
    """Whether a trace can be of a run: of a rank that did not record at its time, when others did."""
    if info.rank is None or any(_differ(info.world_size, other.world_size) for other in run):
        return False
    if info.start_ns is None:
        return all(other.rank != info.rank for other in run)
    at_once = {other.rank for other in run if other.overlaps(info)}
    return bool(at_once) and info.rank not in at_once


def _nearness(info: TraceInfo, run: Sequence[TraceInfo]) -> tuple[int, bool, int]:
    """How near a file is to a run: by directories in common, whether the run has its rank, how late the run began."""
    depth = max(_shared_depth([info, other]) for other in run)
    return depth, any(other.rank == info.rank for other in run), min(other.host_start_ns for other in run)
