"""Recognize the JSON files that rankscope writes next to traces, by name and first bytes.

In: a file's name and its first bytes. Out: whether it is one of them.
"""

from __future__ import annotations

import re

from rankscope.rundir.hang_dump import DUMP_FORMAT, HEARTBEAT_FORMAT
from rankscope.rundir.names import RANKS_FOLDER

# Enough of a file to recognize it.
HEAD_BYTES = 256

# What rankscope and its simulator write next to traces.
_NEXT_TO_TRACES = re.compile(r"(run|truth|scaling)(\.\d+)?\.json", re.IGNORECASE)
# What `rankscope measure`, the watch for hangs and `rankscope simulate` write. A trace may be called `profiler.json`
# too, so these files are opened.
_RESULT_FILE = re.compile(
    r"(?:^|[/\\])(?:(?:overhead|buckets|binding|profiler|plan)\.json|measured[/\\]rank\d+\.json"
    r"|hang[/\\]rank\d+(?:\.heartbeat)?\.json"
    r"|truth[/\\]rank\d+\.json"
    r"|jobs[/\\][^/\\]+[/\\]settings\.json)$"
)
_RUN_MANIFEST = re.compile(r"run(\.\d+)?\.json")
_RANK_MANIFEST = re.compile(r"rank\d+(_restart\d+)?(\.\d+)?\.json")
_RANK_RANGE_FOLDER = re.compile(r"ranks\d+-\d+")
_RANK_MANIFEST_PATH = re.compile(rf"(?:^|/){RANKS_FOLDER}/(?:{_RANK_RANGE_FOLDER.pattern}/)?{_RANK_MANIFEST.pattern}$")
# How a trace begins: an array, or rankscope's own key; Kineto's first keys are looked for separately.
_TRACE_START = re.compile(rb'\s*(?:\[|\{\s*"rankscope")')
# How a rank's dump of a hang, its heartbeat and its simulated truth begin.
_RESULT_START = re.compile(rb'\s*\{\s*"(?:format|schema)"\s*:\s*"rankscope[-.]')


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


def is_result_file(path: str) -> bool:
    """Whether a file has the path of a result of `rankscope measure`, a dump of a hang, or a simulated rank's truth,
    which need no finding."""
    return _RESULT_FILE.search(path) is not None


def starts_a_result(head: bytes) -> bool:
    """Whether a file that may be such a result is one: it names its format, so it needs no reader to be recognized.

    Args:
        head: its first `HEAD_BYTES` bytes.
    """
    return _RESULT_START.match(head) is not None


def is_hang_dump(head: bytes) -> bool:
    """Whether such a result is a rank's dump or heartbeat of a hang.

    Args:
        head: its first `HEAD_BYTES` bytes.
    """
    return starts_a_result(head) and any(name.encode() in head for name in (DUMP_FORMAT, HEARTBEAT_FORMAT))


def is_run_file(path: str) -> bool:
    """Whether a file has the path of a manifest or another file that rankscope writes next to traces."""
    return is_run_file_name(path.rsplit("/", 1)[-1]) or is_rank_manifest_path(path) or is_result_file(path)


def starts_a_trace(head: bytes) -> bool:
    """Whether the content is a trace, whatever the file's path.

    Args:
        head: its first `HEAD_BYTES` bytes.
    """
    return any(key in head for key in (b'"traceEvents"', b'"schemaVersion"')) or _TRACE_START.match(head) is not None
