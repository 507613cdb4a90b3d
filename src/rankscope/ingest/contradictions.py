"""Where the files of one run contradict one another, or themselves, over ranks.

The traces' own words are believed, in the order that `identify` describes; what spoke against them is told, for a wrong
rank makes wrong numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from rankscope.results import Evidence, Finding
from rankscope.rundir.names import parse_trace_name
from rankscope.rundir.plurals import counted, plural
from rankscope.store.trace_info import TraceInfo

_MOST = 16


def contradictions(members: Mapping[int, Sequence[TraceInfo]]) -> list[Finding]:
    """Names that say another rank than their files, world sizes that differ, ranks beyond the job's size."""
    infos = [info for files in members.values() for info in files]
    return [*_misnamed(infos), *_sizes(infos), *_beyond(members, infos)]


def _misnamed(infos: Sequence[TraceInfo]) -> list[Finding]:
    found = []
    for info in infos:
        name = parse_trace_name(info.path)
        if info.rank_source in ("metadata", "distributedInfo") and name.names_rank and name.rank != info.rank:
            found.append((info, name.rank))
    if not found:
        return []
    return [
        Finding(
            id="rank-contradicted",
            severity="warning",
            title=f"{counted(len(found), 'trace')} {plural('is', len(found), 'are')} named for another rank than "
            f"{plural('it says it is', len(found), 'they say they are')} of: what is said inside is taken",
            ranks=tuple(sorted({info.rank for info, _ in found if info.rank is not None})),
            evidence=tuple(
                Evidence(PurePath(info.path).name, f"rank {info.rank} by its {info.rank_source}, {rank} by its name")
                for info, rank in found[:_MOST]
            ),
            advice="Were files renamed, or are the names' numbers those of something else?",
        )
    ]


def _sizes(infos: Sequence[TraceInfo]) -> list[Finding]:
    sizes = Counter(info.world_size for info in infos if info.world_size)
    if len(sizes) < 2:
        return []
    told = " and ".join(map(str, sorted(sizes)))
    lesser = {info.rank for info in infos if info.rank is not None and info.world_size not in (None, max(sizes))}
    return [
        Finding(
            id="world-size-differs",
            severity="warning",
            title=f"traces of this run tell of jobs of {told} ranks: the greatest is taken",
            ranks=tuple(sorted(lesser)),
            evidence=tuple(Evidence(f"{size} ranks", sizes[size], "traces") for size in sorted(sizes)[:_MOST]),
            advice="Did the job change its size, or are these two runs?",
        )
    ]


def _beyond(members: Mapping[int, Sequence[TraceInfo]], infos: Sequence[TraceInfo]) -> list[Finding]:
    size = max((info.world_size for info in infos if info.world_size), default=None)
    beyond = [] if size is None else [rank for rank in members if rank >= size]
    if not beyond:
        return []
    return [
        Finding(
            id="rank-beyond",
            severity="warning",
            title=f"{counted(len(beyond), 'rank')} {plural('is', len(beyond), 'are')} beyond the job's size, "
            f"which the traces say is {size}",
            ranks=tuple(sorted(beyond)),
            evidence=tuple(
                Evidence(f"rank {rank} by its {members[rank][0].rank_source}", members[rank][0].path)
                for rank in sorted(beyond)[:_MOST]
            ),
            advice="Is it a file of another run, or does its name's number mean something else?",
        )
    ]
