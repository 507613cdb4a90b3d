"""Files that rankscope puts beside traces: JSON too, but no traces. By their names, and by how they begin."""

from __future__ import annotations

import re

from rankscope.rundir.names import RANKS_FOLDER

# How much of a file tells what it is.
HEAD_BYTES = 256

# What rankscope and its simulator put beside traces.
_BESIDE = re.compile(r"(run|truth|scaling)(\.\d+)?\.json", re.IGNORECASE)
# What `rankscope measure` leaves among them. A trace can be called `profiler.json`, too: these are looked at.
_OF_MEASUREMENTS = re.compile(
    r"(?:^|[/\\])(?:(?:overhead|buckets|binding|profiler|plan)\.json|measured[/\\]rank\d+\.json"
    r"|jobs[/\\][^/\\]+[/\\]settings\.json)$"
)
_RUN_MANIFEST = re.compile(r"run(\.\d+)?\.json")
_RANK_MANIFEST = re.compile(r"rank\d+(_restart\d+)?(\.\d+)?\.json")
_RANKS_OF = re.compile(r"ranks\d+-\d+")
_RANK_MANIFEST_PATH = re.compile(rf"(?:^|/){RANKS_FOLDER}/(?:{_RANKS_OF.pattern}/)?{_RANK_MANIFEST.pattern}$")
# Of a trace: Kineto's first keys, our own first key, an array.
_TRACE = re.compile(rb'\s*(?:\[|\{\s*"rankscope")')


def is_run_manifest(name: str) -> bool:
    """Whether a file is called as what describes a run."""
    return _RUN_MANIFEST.fullmatch(name) is not None


def is_beside(name: str) -> bool:
    """Whether a file is called as those that rankscope puts beside traces at the top of a run."""
    return _BESIDE.fullmatch(name) is not None


def is_rank_manifest_path(path: str) -> bool:
    """Whether a file is called, and lies, as what a rank says of itself; `is_manifest` tells whether it is that."""
    return _RANK_MANIFEST_PATH.search(path) is not None


def is_manifest(head: bytes) -> bool:
    """Whether a file in a folder called `ranks` is what a rank says, and not a trace that somebody has put there.

    Args:
        head: its first `HEAD_BYTES` bytes.
    """
    return head.lstrip().startswith(b"{") and b'"run_id"' in head and b'"schemaVersion"' not in head


def of_a_measurement(path: str) -> bool:
    """Whether a file that is no trace is called as those of `rankscope measure`, so that nobody need be told."""
    return _OF_MEASUREMENTS.search(path) is not None


def is_companion(path: str) -> bool:
    """Whether a file is called, and lies, as any of these."""
    return is_beside(path.rsplit("/", 1)[-1]) or is_rank_manifest_path(path) or of_a_measurement(path)


def begins_a_trace(head: bytes) -> bool:
    """Whether a file that is called as one of these is a trace all the same.

    Args:
        head: its first `HEAD_BYTES` bytes.
    """
    return any(key in head for key in (b'"traceEvents"', b'"schemaVersion"')) or _TRACE.match(head) is not None
