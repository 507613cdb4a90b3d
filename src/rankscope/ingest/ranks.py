"""Assign a rank to each trace of a run.

In: each trace's metadata and path. Out: the traces of each rank, in time order. The first source that gives a rank is
used, and recorded as `TraceInfo.rank_source`:

1. ``metadata``: what `rankscope.Profiler` wrote into the trace.
2. ``distributedInfo``: what PyTorch wrote into it.
3. ``name``: the file's name (``rank3.json.gz``; `rundir.names` lists the patterns).
4. ``folder``: the name of its directory (``rank_3/trace.json``, ``3/trace.json``), unless such numbers count something
   else: one process has traces in several of them, or several processes recorded into one at the same time.
5. ``order``: the next free rank, in the order of the names. All traces of one process get the same rank.

Two traces of a rank that overlap in time contradict each other: the first by name is read.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath

from rankscope.ingest.discover import natural
from rankscope.ingest.run_findings import folders_not_ranks, rank_conflict, ranks_guessed, server_traces
from rankscope.results import Finding
from rankscope.rundir.fields import rank as valid_rank
from rankscope.rundir.names import TraceName, parse_trace_name
from rankscope.store.trace_info import TraceInfo


def rank_of(embedded: int | None, distributed: Mapping[str, object], name: TraceName) -> tuple[int | None, str]:
    """The rank of one trace, and its source (`none` if none gives it)."""
    for source, rank in (
        ("metadata", embedded),
        ("distributedInfo", distributed.get("rank")),
        ("folder" if name.pattern == "folder" else "name", name.rank),
    ):
        if (valid := valid_rank(rank)) is not None:
            return valid, source
    return None, "none"


def assign_ranks(infos: Sequence[TraceInfo]) -> tuple[dict[int, list[TraceInfo]], list[Finding]]:
    """The traces of each rank in time order, and findings about what was inferred or left out.

    Server processes, which are not ranks (vLLM's frontend), are left out.
    """
    findings: list[Finding] = []
    servers = [info for info in infos if info.rank is None and parse_trace_name(info.path).pattern == "frontend"]
    if servers and len(servers) < len(infos):
        left_out = {info.path for info in servers}
        infos = [info for info in infos if info.path not in left_out]
        findings.append(server_traces(servers))
    windows: dict[int, _Windows] = {}
    unknown: list[_Windows] = []
    of_process: dict[tuple[int, str | None], list[_Windows]] = {}
    for info in sorted(infos, key=_order):
        if info.rank is None:
            # Traces of one process, by pid and host, that were recorded at other times are its windows.
            known: list[_Windows] = []
            if info.pid is not None and info.start_ns is not None:
                known = of_process.setdefault((info.pid, info.host), known)
            process = next((candidate for candidate in known if candidate.rival(info) is None), None)
            if process is None:
                process = _Windows()
                known.append(process)
                unknown.append(process)
            process.add(info)
            continue
        on_rank = windows.setdefault(info.rank, _Windows())
        rival = on_rank.rival(info)
        if rival is not None:
            findings.append(rank_conflict(rival, info))
        else:
            on_rank.add(info)
    ranks = {rank: on_rank.infos for rank, on_rank in windows.items()}
    free = (rank for rank in range(len(infos) + max(ranks, default=-1) + 1) if rank not in ranks)
    guessed = dict(zip(free, (process.infos for process in unknown), strict=False))
    for rank, files in guessed.items():
        ranks[rank] = [replace(info, rank=rank, rank_source="order") for info in files]
    if guessed and len(infos) > 1:
        findings.append(ranks_guessed(guessed))
    for files in ranks.values():
        # A memory snapshot has no time: put it after the traces, so that these keep their numbers.
        files.sort(key=lambda info: (info.is_snapshot, info.host_start_ns))
    return dict(sorted(ranks.items())), findings


def _order(info: TraceInfo) -> tuple[int, int, tuple[object, ...]]:
    """Sort key: the name; for traces with mesh coordinates but no rank (SGLang) these first, with TP innermost."""
    if info.rank is not None:
        return 0, 0, natural(info.path)
    return info.mesh.get("pp", 0), info.mesh.get("dp", 0), natural(info.path)


class _Windows:
    """Traces of one process, of which no two overlap in time.

    Attributes:
        infos: the traces, in the order in which they were added.
    """

    def __init__(self) -> None:
        self.infos: list[TraceInfo] = []
        self._in_time: list[TraceInfo] = []

    def rival(self, info: TraceInfo) -> TraceInfo | None:
        """A trace of this process that overlaps `info` in time."""
        # A trace that does not overlap its neighbors in time overlaps no other.
        at = bisect_left(self._in_time, _span(info), key=_span)
        return next((other for other in self._in_time[max(at - 1, 0) : at + 1] if other.overlaps(info)), None)

    def add(self, info: TraceInfo) -> None:
        """Add a trace that overlaps none of these; one without ranges covers no time."""
        self.infos.append(info)
        if info.start_ns is not None and info.end_ns is not None:
            insort(self._in_time, info, key=_span)


def _span(info: TraceInfo) -> tuple[int, int]:
    return info.host_start_ns, info.host_end_ns


def without_numbered_folders(infos: Sequence[TraceInfo]) -> tuple[list[TraceInfo], list[Finding]]:
    """The traces, with ranks from directory names dropped if these numbers count steps, epochs or attempts instead."""
    folders: dict[PurePath, list[TraceInfo]] = {}
    processes: dict[tuple[int, str | None], list[TraceInfo]] = {}
    for info in infos:
        folder = PurePath(info.path.replace("\\", "/")).parent
        if info.rank_source == "folder" and folder.name.isdigit():
            folders.setdefault(folder, []).append(info)
            if info.pid is not None:
                processes.setdefault((info.pid, info.host), []).append(info)
    if any(len({info.rank for info in together}) > 1 and _in_turn(together) for together in processes.values()):
        why = "one process has traces in several"
    elif any(
        one.pid != other.pid and one.overlaps(other) for together in folders.values() for one, other in _pairs(together)
    ):
        why = "several processes recorded into one at the same time"
    else:
        return list(infos), []
    numbered = {info.path: info for together in folders.values() for info in together}
    kept = [replace(info, rank=None, rank_source="none") if info.path in numbered else info for info in infos]
    return kept, [folders_not_ranks(list(numbered), why)]


def _in_turn(infos: Sequence[TraceInfo]) -> bool:
    """Whether traces follow one another, as those of one process must."""
    return all(one.shares_thread(other) and not one.overlaps(other) for one, other in _pairs(infos))


def _pairs(infos: Sequence[TraceInfo]) -> Iterator[tuple[TraceInfo, TraceInfo]]:
    """Each trace and the next one in time."""
    return pairwise(sorted(infos, key=lambda info: info.host_start_ns))
