"""When a trace was recorded, by which process, and what two traces' words about that say of one another."""

from __future__ import annotations

import re
from pathlib import PurePath

from rankscope.store.trace_info import TraceInfo

_RANK_IN_NAME = re.compile(r"[-_.]?(?:rank|worker)[-_]?\d+(?:-of-\d+)?|\d+-of-\d+", re.IGNORECASE)
_ENDING = re.compile(
    r"(\.pt)?([._-]?(chrome[-_])?trace|\.memory)?(\.json|\.tar|\.tgz|\.zip|\.gz|\.zstd?|\.pickle)+$", re.IGNORECASE
)


def start_of(info: TraceInfo) -> int:
    """Its first instant on the host's clock, ns."""
    return info.base_time_ns + (info.start_ns or 0)


def end_of(info: TraceInfo) -> int:
    """Its last instant on the host's clock, ns."""
    return info.base_time_ns + (info.end_ns or info.start_ns or 0)


def gap_between(one: TraceInfo, other: TraceInfo) -> int | None:
    """Time between two windows, ns; None where one has none, negative where they overlap."""
    if one.start_ns is None or other.start_ns is None:
        return None
    return max(start_of(one), start_of(other)) - min(end_of(one), end_of(other))


def same_time(one: TraceInfo, other: TraceInfo) -> bool:
    """Whether two windows overlap. A file without a range covers no time: it must not keep one that has some from being
    read."""
    if one.start_ns is None or other.start_ns is None or one.end_ns is None or other.end_ns is None:
        return False
    return start_of(one) < end_of(other) and start_of(other) < end_of(one)


def begins_again(one: TraceInfo, other: TraceInfo) -> bool:
    """Whether the later of two windows that do not overlap has steps that the earlier one had, or has passed."""
    first, last = sorted((one, other), key=start_of)
    gap = gap_between(one, other)
    return (
        gap is not None
        and gap > 0
        and first.last_step is not None
        and last.first_step is not None
        and last.first_step <= first.last_step
    )


def one_process(one: TraceInfo, other: TraceInfo) -> bool:
    """Whether two files with the same pid are of one process: the threads beside the main one live on."""
    if one.pid is None or other.pid is None:
        return False
    mine, others = ({*info.threads} - {info.pid} for info in (one, other))
    return not mine or not others or not mine.isdisjoint(others)


def is_snapshot(info: TraceInfo) -> bool:
    """Whether a file is a memory snapshot, which has no time."""
    return any(kind.startswith("snapshot ") for kind in info.counts)


def stem(path: str) -> str:
    """A file's name without its rank and endings."""
    return _RANK_IN_NAME.sub("", _ENDING.sub("", PurePath(path).name))
