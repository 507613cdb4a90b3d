"""Files that rankscope writes next to traces: JSON, but not traces. Recognized by name and by how they begin.

In: a file's name and its first bytes. Out: whether it is one of them.
"""

from __future__ import annotations

import re

from rankscope.rundir.names import RANKS_FOLDER

# So much of a file is enough to recognize it.
HEAD_BYTES = 256

# What rankscope and its simulator write next to traces.
_NEXT_TO_TRACES = re.compile(r"(run|truth|scaling)(\.\d+)?\.json", re.IGNORECASE)
# What `rankscope measure` writes among them. A trace can be called `profiler.json` too: these are opened.
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
    """Whether a file has the name of a run manifest."""
    return _RUN_MANIFEST.fullmatch(name) is not None


def is_run_file_name(name: str) -> bool:
    """Whether a file has a name that rankscope uses at the top of a run directory."""
    return _NEXT_TO_TRACES.fullmatch(name) is not None


def is_rank_manifest_path(path: str) -> bool:
    """Whether a file has the path of a rank's manifest; `is_manifest` checks its content."""
    return _RANK_MANIFEST_PATH.search(path) is not None


def is_manifest(head: bytes) -> bool:
    """Whether a file in a directory `ranks` is a rank's manifest, and not a trace.

    Args:
        head: its first `HEAD_BYTES` bytes.
    """
    return head.lstrip().startswith(b"{") and b'"run_id"' in head and b'"schemaVersion"' not in head


def is_measurement_file(path: str) -> bool:
    """Whether a file has the path of a result of `rankscope measure`, which needs no finding."""
    return _OF_MEASUREMENTS.search(path) is not None


def is_run_file(path: str) -> bool:
    """Whether a file has the path of any of these."""
    return is_run_file_name(path.rsplit("/", 1)[-1]) or is_rank_manifest_path(path) or is_measurement_file(path)


def starts_a_trace(head: bytes) -> bool:
    """Whether a file with such a path is a trace nevertheless.

    Args:
        head: its first `HEAD_BYTES` bytes.
    """
    return any(key in head for key in (b'"traceEvents"', b'"schemaVersion"')) or _TRACE.match(head) is not None
