"""Several runs in one place that no run id tells apart, told apart by what their files say of processes and clocks.

Without ids, a run is one process a rank, all of one job. Two files cannot be of one run if they name different world
sizes or backends; or if they are of one rank, and of different processes (another pid, host or device), or the steps
begin again in a process that shares no thread with the one before (containers give the same pids anew). Windows of one
process stay together, however far apart: a schedule may wait for hours. Which ranks' processes belong together is told
by time: the ranks of a job record at the same steps; then by folder and name. Where nothing speaks against it, all is
one run.

Files that carry one id are of one run unless a rank's windows are of two processes and its steps begin again, or both
record at once: an id that was given by hand is given to each start of the job. A restart that torchrun counts is no
second run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import chain, islice, pairwise
from pathlib import PurePath
from statistics import median

from rankscope.ingest.discover import natural
from rankscope.ingest.windows import begins_again, end_of, gap_between, one_process, same_time, start_of, stem
from rankscope.results import Evidence, Finding
from rankscope.store.trace_info import TraceInfo

# Clocks of a job's hosts agree within this; windows of different jobs rarely do.
SLACK_NS = 60 * 10**9
# Ranks of one job whose windows lie further apart than this were hardly recorded together.
APART_NS = 600 * 10**9
# A re-run settles in two or three rounds; more would be turning in circles.
_ROUNDS = 4
# Files of a run that another is held against: ranks of a job record at the same time.
_SOME = 16
# Before this, a clock counts from the host's start.
_YEAR_2001 = 10**18


@dataclass
class Separated:
    """One of several runs.

    Attributes:
        label: what to call it, None where it is the only one.
        why: what keeps it apart from the others.
        doubts: what speaks against its files being of one run.
    """

    label: str | None = None
    why: str = ""
    doubts: list[str] = field(default_factory=list)
    files: dict[str, TraceInfo] = field(default_factory=dict)
    ranks: dict[int | None, dict[str, TraceInfo]] = field(default_factory=dict)

    @property
    def id(self) -> str | None:
        """The id that its files carry."""
        return next((info.run_id for info in self.files.values()), None)

    @property
    def infos(self) -> list[TraceInfo]:
        """Its files."""
        return list(self.files.values())

    @property
    def known(self) -> list[int]:
        """The ranks that its files name."""
        return sorted(rank for rank in self.ranks if rank is not None)

    def add(self, info: TraceInfo) -> None:
        """Take a file in."""
        self.files[info.path] = info
        self.ranks.setdefault(info.rank, {})[info.path] = info

    def remove(self, info: TraceInfo) -> None:
        """Let a file go."""
        del self.files[info.path], self.ranks[info.rank][info.path]
        if not self.ranks[info.rank]:
            del self.ranks[info.rank]

    def rivals(self, info: TraceInfo) -> Iterable[TraceInfo]:
        """The files that may speak against another: those of its rank, all where one says no rank, and one more."""
        if info.rank is None:
            return self.files.values()
        silent = self.ranks.get(None, {}).values()
        return chain(self.ranks.get(info.rank, {}).values(), silent, islice(self.files.values(), 1))


def separate_runs(infos: Sequence[TraceInfo]) -> list[Separated]:
    """The runs that files are of which carry no run id, or all the same one.

    The oldest run is first; there is one where nothing speaks against it.
    """
    ordered = sorted(infos, key=lambda info: (info.start_ns is None, start_of(info), natural(info.path)))
    runs = _sorted_into(ordered, strict=False)
    if len(runs) > 1:
        runs = _sorted_into(ordered, strict=True)
    for _ in range(_ROUNDS if len(runs) > 1 else 0):
        # A file was put to what was there by then; a run that began later may suit it better.
        moved = [info for info in ordered if _settle(info, runs)]
        if not moved:
            break
    runs = [run for run in runs if run.files]
    if len(runs) > 1:
        runs = _whole_folders(infos) or runs
    elif runs and runs[0].id is None:
        runs = _by_folder(runs[0])
    runs.sort(key=lambda run: min(map(start_of, run.infos)))
    for run in runs:
        if run.id is None:
            run.doubts += _doubts(run)
    if len(runs) > 1:
        for run, label in zip(runs, _labels(runs), strict=True):
            run.label = label
    return runs


def how_apart(runs: Sequence[Separated]) -> str:
    """How runs were told apart, to end a message with."""
    reasons = list(dict.fromkeys(run.why for run in runs if run.why))
    if len(runs) < 2 or not reasons:
        return ""
    which = "without an id" if runs[0].id is None else f"with the id {runs[0].id}"
    return f" (those {which} are told apart by {'; '.join(reasons[:3])})"


def told_apart(runs: Sequence[Separated], chosen: str | None) -> list[Finding]:
    """How the runs were told apart, and what is doubtful about the chosen one."""
    findings = []
    (run,) = [run for run in runs if run.label == chosen]
    if len(runs) > 1:
        findings.append(
            Finding(
                id="runs-told-apart",
                severity="info",
                title=f"{len(runs)} runs {'without run ids' if run.id is None else f'with the id {run.id}'} lie here: "
                f"this is {chosen}, "
                f"kept apart from the others by its {'processes' if run.why == '' else run.why}",
                ranks=tuple(run.known),
                evidence=tuple(Evidence(each.label or "", len(each.infos), "traces") for each in runs[:16]),
                advice="rankscope.Profiler writes a run id into each trace; else give each run a directory of its own."
                if run.id is None
                else "Leave the run id to rankscope, or give each start of the job another one, and another directory.",
            )
        )
    findings += [
        Finding(
            id="run-doubtful",
            severity="warning",
            title=f"These traces may be of more than one run: {doubt}",
            ranks=tuple(run.known),
            evidence=tuple(Evidence("file", info.path) for info in run.infos[:4]),
            advice="If they are, open each run's files by themselves.",
        )
        for doubt in run.doubts
    ]
    return findings


def contradiction(one: TraceInfo, other: TraceInfo) -> str | None:
    """Why two files cannot be of one run, in a few words; None where they can."""
    if one.run_id is not None and one.run_id == other.run_id:
        return _another_start(one, other)
    if _differ(one.world_size, other.world_size):
        return f"world size ({one.world_size} and {other.world_size})"
    if _differ(one.backend, other.backend):
        return f"backend ({one.backend} and {other.backend})"
    if one.rank is None or other.rank is None:
        return _far_apart(one, other)
    if one.rank != other.rank:
        return None
    place = f"of rank {one.rank}"
    if _differ(one.pid, other.pid):
        return f"process {place} ({one.pid} and {other.pid})"
    if _differ(one.host, other.host):
        return f"host {place} ({one.host} and {other.host})"
    devices = [next((d.get("name") for d in info.devices if d.get("name")), None) for info in (one, other)]
    if _differ(*devices):
        return f"device {place} ({devices[0]} and {devices[1]})"
    if begins_again(one, other) and not one_process(one, other):
        return f"steps {place}, which begin again in another process"
    return None


def _another_start(one: TraceInfo, other: TraceInfo) -> str | None:
    # A job that was started again goes on at a later step, torchrun counts its restarts, and a job's size may change.
    if one.rank is None or one.rank != other.rank or one.restart_count != other.restart_count:
        return None
    place = f"of rank {one.rank}"
    if _differ(one.pid, other.pid) and (begins_again(one, other) or same_time(one, other)):
        return f"process {place} ({one.pid} and {other.pid}), where the steps begin again"
    if begins_again(one, other) and not one_process(one, other):
        return f"steps {place}, which begin again in another process"
    return None


def _differ(one: object, other: object) -> bool:
    return bool(one) and bool(other) and one != other


def _far_apart(one: TraceInfo, other: TraceInfo) -> str | None:
    # Without a rank it may be another rank of the job, which records at the same time, or another job.
    if one.pid is None or other.pid is None or (one.pid == other.pid and not _differ(one.host, other.host)):
        return None
    gap = gap_between(one, other)
    longest = max((info.end_ns or 0) - (info.start_ns or 0) for info in (one, other))
    return f"time ({gap // 10**9} s apart)" if gap is not None and gap > SLACK_NS + longest else None


def _sorted_into(ordered: Sequence[TraceInfo], *, strict: bool) -> list[Separated]:
    """Runs, each file in the one that suits it best.

    Args:
        strict: there are several runs for certain: a process that recorded at another time than all of a run is not
            of it, though its rank is free there.
    """
    runs: list[Separated] = []
    for info in ordered:
        near = [run for run in runs if not strict or _near(info, run)]
        reason = _place(info, near)
        if reason is not None:
            runs.append(Separated(why=reason if near or not runs else "time"))
            runs[-1].add(info)
    return runs


def _near(info: TraceInfo, run: Separated) -> bool:
    """Whether a run has a window of the same process, or one of about the same time."""
    if any(info.pid is not None and other.pid == info.pid for other in run.ranks.get(info.rank, {}).values()):
        return True
    some = [*islice(run.files.values(), _SOME), *islice(reversed(run.files.values()), _SOME)]
    gaps = [gap_between(info, other) for other in some]
    return any(gap is None or gap <= APART_NS for gap in gaps)


def _place(info: TraceInfo, runs: Sequence[Separated]) -> str | None:
    """Put a file into the run that suits it best; why it suits none."""
    why = "" if not runs else "processes"
    fitting = []
    for run in runs:
        reason = next((found for rival in run.rivals(info) if (found := contradiction(info, rival))), None)
        if reason is None:
            fitting.append(run)
        else:
            why = reason
    if not fitting:
        return why
    (fitting[0] if len(fitting) == 1 else min(fitting, key=lambda run: _strangeness(info, run))).add(info)
    return None


def _settle(info: TraceInfo, runs: Sequence[Separated]) -> bool:
    """Whether a file moved to another run."""
    (at,) = [run for run in runs if info.path in run.files]
    if len(at.files) == 1:
        return False
    at.remove(info)
    if _place(info, [run for run in runs if run.files and _near(info, run)]) is not None:
        at.add(info)
    return info.path not in at.files


def _strangeness(info: TraceInfo, run: Separated) -> tuple[bool, int, int, int]:
    """How little a file suits a run: of no process of it, far in time, far in folder and name."""
    others = run.ranks.get(info.rank, {}).values()
    same = info.pid is not None and any(other.pid == info.pid for other in others)
    some = list(islice(run.files.values(), _SOME))
    times = [start_of(each) for each in some if each.start_ns is not None]
    gap = abs(start_of(info) - int(median(times))) if times and info.start_ns is not None else 0
    return not same, gap // SLACK_NS, -max(_likeness(info.path, other.path) for other in some), gap


def _likeness(one: str, other: str) -> int:
    """Folders that two paths have in common from the top, and whether their names differ by the rank alone."""
    mine, others = PurePath(one).parts[:-1], PurePath(other).parts[:-1]
    shared = next((at for at, (a, b) in enumerate(zip(mine, others, strict=False)) if a != b), len(mine))
    return 2 * shared + (stem(one) == stem(other))


def _whole_folders(infos: Sequence[TraceInfo]) -> list[Separated]:
    """The folders as runs, where each has all ranks of a job and no process of another: no clock needs to say more."""
    folders: dict[PurePath, Separated] = {}
    seen: dict[tuple[int | None, int | None], PurePath] = {}
    for info in infos:
        folder = PurePath(info.path).parent
        if seen.setdefault((info.rank, info.pid), folder) != folder:
            return []
        folders.setdefault(folder, Separated(why="folder")).add(info)
    parts = list(folders.values())
    for part in parts:
        sizes = {info.world_size for info in part.infos}
        if len(sizes) > 1 or set(part.ranks) != set(range(sizes.pop() or 0)) or not part.known:
            return []
        if any(contradiction(*pair) for rank in part.known for pair in pairwise(part.ranks[rank].values())):
            return []
    return parts if len(parts) > 1 else []


def _by_folder(run: Separated) -> list[Separated]:
    """One run, or, where files of one rank cover the same time, those of each folder if that resolves all."""
    if not any(_overlap(run.ranks[rank].values()) for rank in run.known):
        return [run]
    folders: dict[str, Separated] = {}
    for info in run.infos:
        folders.setdefault(str(PurePath(info.path).parent), Separated(why="folder")).add(info)
    parts = list(folders.values())
    whole = len(parts) > 1 and all(len(part.known) > 1 for part in parts)
    if not whole or any(_overlap(part.ranks[rank].values()) for part in parts for rank in part.known):
        return [run]
    return parts


def _overlap(files: Iterable[TraceInfo]) -> bool:
    timed = sorted((info for info in files if info.start_ns is not None), key=start_of)
    return any(end_of(one) > start_of(two) for one, two in pairwise(timed))


def _doubts(run: Separated) -> list[str]:
    said = []
    by_rank = {rank: sorted(run.ranks[rank].values(), key=start_of) for rank in run.known}
    again = [rank for rank, files in by_rank.items() if any(begins_again(*pair) for pair in pairwise(files))]
    if again:
        said.append(f"the steps of rank {again[0]} begin again, in a process with the same id")
    spans = [(start_of(files[0]), max(map(end_of, files))) for files in by_rank.values()]
    if len(spans) > 1 and all(info.start_ns is not None for info in run.infos):
        gap = max(start for start, _ in spans) - min(end for _, end in spans)
        if gap > APART_NS:
            said.append(f"{gap // 10**9} s lie between one rank's last window and another's first")
    return said


def _labels(runs: Sequence[Separated]) -> list[str]:
    """What to call runs: their folder, what is common to their names, when they began, else their number.

    Those with one id are mostly the same job time and again, and named by when they began.
    """
    folders = [{PurePath(info.path).parent for info in run.infos} for run in runs]
    top = _shared([folder for each in folders for folder in each])
    within = [_shared(sorted(each)).relative_to(top).as_posix() if each else "" for each in folders]
    stems = [_only({stem(info.path) for info in run.infos}) for run in runs]
    began = [_when(min(map(start_of, run.infos))) for run in runs]
    # Windows may lie in folders of their own, in each of which every run has one (`iteration_10/replica_0/`).
    parts = [set[str].intersection(*(set(folder.parts) for folder in each)) for each in folders]
    common = set[str].intersection(*parts)
    apart = [_only(each - common) for each in parts]
    ways = (within, apart, stems, began) if runs[0].id is None else (began, within, apart, stems)
    labels = []
    for number, own in enumerate(zip(*ways, strict=True)):
        unique = (name for name, all_of in zip(own, ways, strict=True) if all_of.count(name) == 1)
        labels.append(next((name for name in unique if name not in ("", ".")), f"run{number + 1}"))
    return labels if len(set(labels)) == len(labels) else [f"run{number + 1}" for number in range(len(runs))]


def _shared(folders: Sequence[PurePath]) -> PurePath:
    shared = folders[0]
    for folder in folders[1:]:
        while shared != folder and shared not in folder.parents and shared != shared.parent:
            shared = shared.parent
    return shared


def _only(names: set[str]) -> str:
    return names.pop() if len(names) == 1 else ""


def _when(nanoseconds: int) -> str:
    if nanoseconds < _YEAR_2001:
        return ""
    return f"{datetime.fromtimestamp(nanoseconds // 10**9, timezone.utc):%Y%m%dT%H%M%S}"
