"""Files that a rank rewrites: which of two states is the later one.

Manifests, the log of a watch and what a hung job leaves change while the job runs; every other file of a run is written
once. Requests to a watched job concern only the running job: they are not gathered.

In: two files of one path. Out: which to keep.
"""

from __future__ import annotations

import json
from pathlib import Path

from rankscope.rundir.fields import read
from rankscope.rundir.hang_dump import HANG_FOLDER, HangDump, Heartbeat
from rankscope.rundir.manifest import read_rank_manifest
from rankscope.rundir.names import RANKS_FOLDER
from rankscope.rundir.watch_files import LOG_ENDING, REQUESTS_FOLDER, WATCH_FOLDER, Header

_COMPARED_BYTES = 1 << 20


def is_gathered(path: str) -> bool:
    """Whether a file is a part of the run."""
    return not path.startswith(f"{WATCH_FOLDER}/{REQUESTS_FOLDER}/")


def changes(path: str) -> bool:
    """Whether a file is written again while its rank runs."""
    folder = path.split("/", 1)[0]
    return folder in (RANKS_FOLDER, HANG_FOLDER) or (folder == WATCH_FOLDER and path.endswith(LOG_ENDING))


def later(new: Path, old: Path, path: str) -> bool | None:
    """Whether ``new`` is a later state of the file than ``old``; None if they are not states of the same file.

    Args:
        new, old: the two.
        path: where they are in the run directory.
    """
    folder = path.split("/", 1)[0]
    if folder == RANKS_FOLDER:
        return _later_manifest(new, old) or None
    if folder == WATCH_FOLDER:
        return _later_log(new, old)
    return _later_dump(new, old)


def _later_manifest(staged: Path, target: Path) -> bool:
    new, old = read_rank_manifest(staged), read_rank_manifest(target)
    if new is None or old is None or new.run_id is None:
        return False
    process = [(m.run_id, m.rank, m.host, m.pid, m.restart_count) for m in (new, old)]
    grown = (new.steps or 0) >= (old.steps or 0) and len(new.written) + new.rotated >= len(old.written) + old.rotated
    return process[0] == process[1] and grown and (new.state != "running" or old.state == "running")


def _later_log(new: Path, old: Path) -> bool | None:
    """A log grows, and begins again with the next segment."""
    heads = [_header(each) for each in (new, old)]
    if heads[0] is None or heads[1] is None:
        return None
    process = [(head.run_id, head.rank, head.host, head.pid, head.began_ns) for head in heads if head is not None]
    if process[0] != process[1]:
        return None
    if heads[0].segment != heads[1].segment:
        return heads[0].segment > heads[1].segment
    longer, shorter = sorted((new, old), key=lambda each: -each.stat().st_size)
    return longer == new if _begins_with(longer, shorter) else None


def _header(path: Path) -> Header | None:
    try:
        with path.open("rb") as file:
            return read(Header, json.loads(file.readline(_COMPARED_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None


def _begins_with(longer: Path, shorter: Path) -> bool:
    with longer.open("rb") as one, shorter.open("rb") as other:
        while block := other.read(_COMPARED_BYTES):
            if one.read(len(block)) != block:
                return False
    return True


def _later_dump(new: Path, old: Path) -> bool | None:
    """Of a rank, the dump or heartbeat of the latest attempt: a restart may have moved it to another host."""
    states = [_dump(each) for each in (new, old)]
    if states[0] is None or states[1] is None or type(states[0]) is not type(states[1]):
        return None
    return (states[0].restart_count, states[0].time_ns) > (states[1].restart_count, states[1].time_ns)


def _dump(path: Path) -> HangDump | Heartbeat | None:
    try:
        raw: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return HangDump.from_json(raw) or Heartbeat.from_json(raw)
