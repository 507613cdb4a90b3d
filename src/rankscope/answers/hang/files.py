"""Find the files that a hung job has left, and read each by its kind.

Known are rankscope's own dumps and heartbeats, dumps of the Flight Recorder (pickle or JSON), the stacks that
``torch.distributed.debug`` writes, and logs of the NCCL and RCCL Inspector. In a directory, files that are none of
these are skipped; a file that looks like one and cannot be read is a problem that is reported, and costs no other file.
Pickles are read by an interpreter that can call nothing.

In: paths. Out: dumps, heartbeats, and the problems with files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.answers.hang.flight_recorder import is_flight_recorder, read_flight_recorder
from rankscope.answers.hang.inspector import MARKS as INSPECTOR_MARKS
from rankscope.answers.hang.inspector import Completed, is_inspector_log, read_inspector_log
from rankscope.answers.hang.records import Group, RankDump
from rankscope.answers.hang.stacks_text import SECTION, stacks_by_rank
from rankscope.errors import RankscopeError
from rankscope.ingest.unpickle import UnpickleError, unpickle
from rankscope.rundir.hang_dump import DUMP_FORMAT, HEARTBEAT_FORMAT, GroupState, HangDump, Heartbeat

MAX_BYTES = 512 << 20
MAX_FILES = 200_000
_HEAD = 64 << 10
# The value of TORCH_NCCL_DEBUG_INFO_TEMP_FILE with the rank, or any name that users have given the dumps.
_DUMP_NAME = re.compile(r".*(?:_dump|nccl_trace|fr_trace|comm_lib_trace|flight_recorder).*", re.IGNORECASE)
_OTHER_FILES = re.compile(r".*\.(?:gz|zst|zstd|tgz|tar|zip|parquet|arrow|pt|pth|safetensors|bin|py|so)", re.IGNORECASE)
_PICKLE_MARKS = (b"pg_config", b"pg_status", b"nccl_version", b"comm_lib_version")
_JSON_MARKS = (
    *INSPECTOR_MARKS,
    *(mark.encode() for mark in (DUMP_FORMAT, HEARTBEAT_FORMAT)),
    b'"pg_config"',
    b'"pg_status"',
)
_TRACE_MARKS = (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"')


class NoDumpsError(RankscopeError):
    """There are no dumps to read."""


@dataclass
class Found:
    """What was read.

    Attributes:
        dumps: one or several for a rank.
        heartbeats: of the ranks that wrote one.
        completed: collectives that logs of the Inspector have.
        problems: files that could not be read, and why.
    """

    dumps: list[RankDump] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    completed: list[Completed] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_dumps(paths: Sequence[str | os.PathLike[str]]) -> Found:
    """Read all dumps in files and directories.

    Raises:
        NoDumpsError: a path does not exist, or there is no dump in any.
    """
    found = Found()
    for named in paths:
        path = Path(named)
        if path.is_dir():
            for file in _files(path):
                if _looks_like_dump(file, found):
                    _read(file, found)
        elif path.exists():
            _read(path, found)
        else:
            raise NoDumpsError("there is no such file or directory", path=path, hint="check the spelling of the path")
    if not found.dumps and not found.heartbeats and not found.completed:
        problems = f": {'; '.join(found.problems[:3])}" if found.problems else ""
        raise NoDumpsError(
            f"no dump of a hung job here{problems}",
            path=os.fspath(paths[0]) if paths else None,
            hint="record one: rankscope.HangWatch in the job, TORCH_NCCL_DUMP_ON_TIMEOUT=1 with "
            "TORCH_FR_BUFFER_SIZE=2000, or torch.distributed.debug; see docs/hang.md",
        )
    return found


def _files(folder: Path) -> Iterator[Path]:
    seen = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            seen += 1
            if seen > MAX_FILES:
                return
            if not name.startswith("."):
                yield Path(root, name)


def _looks_like_dump(path: Path, found: Found) -> bool:
    if _OTHER_FILES.fullmatch(path.name) or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        if _DUMP_NAME.fullmatch(path.name):
            found.problems.append(f"{path}: {error.strerror}")
        return False
    if head[:1] == b"\x80":
        return any(mark in head for mark in _PICKLE_MARKS) or (
            bool(_DUMP_NAME.fullmatch(path.name)) and b"segments" not in head
        )
    if head.lstrip()[:1] == b"{":
        own = path.parent.name == "hang" and path.name.startswith("rank")
        return own or (any(mark in head for mark in _JSON_MARKS) and not any(mark in head for mark in _TRACE_MARKS))
    if path.suffix in ("", ".txt", ".log") and SECTION.search(head.decode("utf-8", "replace")):
        return True
    return path.suffix in ("", ".pickle", ".pkl") and bool(_DUMP_NAME.fullmatch(path.name))


def _read(path: Path, found: Found) -> None:
    """One file; a problem if it cannot be read."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"{size:,} bytes, more than the {MAX_BYTES:,} that a dump may have")
        if size == 0:
            raise ValueError("the file is empty: the rank may have died while writing it")
        data = path.read_bytes()
        if is_inspector_log(data):
            found.completed += read_inspector_log(data)
            return
        for part in _parse(data, str(path)):
            if isinstance(part, Heartbeat):
                found.heartbeats.append(part)
            else:
                found.dumps.append(part)
    except OSError as error:
        found.problems.append(f"{path}: {error.strerror}")
    except (UnpickleError, ValueError, RecursionError, MemoryError) as error:
        found.problems.append(f"{path}: {str(error) or type(error).__name__}")


def _parse(data: bytes, source: str) -> Iterable[RankDump | Heartbeat]:
    """What a file holds.

    Raises:
        ValueError: the file is of an unknown kind, or damaged.
    """
    start = data.lstrip()[:1]
    if start == b"{":
        value: object = json.loads(data)
    elif start == b"\x80":
        value = unpickle(data)
    else:
        stacks = stacks_by_rank(data.decode("utf-8", "replace"))
        if not stacks:
            raise ValueError("not a dump of the Flight Recorder, and no stacks of torch.distributed.debug")
        return [RankDump(source, rank, threads=threads) for rank, threads in stacks.items()]
    if isinstance(value, dict) and value.get("format") == HEARTBEAT_FORMAT:
        beat = Heartbeat.from_json(value)
        if beat is None:
            raise ValueError("a heartbeat without a valid rank")
        return [beat]
    if isinstance(value, dict) and value.get("format") == DUMP_FORMAT:
        dump = HangDump.from_json(value)
        if dump is None:
            raise ValueError("a dump without a valid rank")
        return [_own_dump(dump, source)]
    if is_flight_recorder(value):
        return [read_flight_recorder(value, source)]
    raise ValueError("not a dump of the Flight Recorder")


def _own_dump(dump: HangDump, source: str) -> RankDump:
    """A dump that rankscope wrote. Its own groups have the names and ranks that Gloo's Flight Recorder lacks."""
    recorder = read_flight_recorder(dump.flight_recorder, source)
    own = {group.name: _group(group) for group in dump.groups if group.name}
    return RankDump(
        source=source,
        rank=dump.rank,
        host=dump.host,
        restart_count=dump.restart_count,
        run_id=dump.run_id,
        began_ns=dump.began_ns,
        time_ns=dump.time_ns,
        world_size=dump.world_size,
        groups={**recorder.groups, **own},
        calls=recorder.calls,
        has_calls=bool(recorder.calls),
        only_active=recorder.only_active,
        last_enqueued=recorder.last_enqueued,
        last_completed=recorder.last_completed,
        by_backend=recorder.by_backend,
        nccl_groups=recorder.nccl_groups,
        sequences={group.name: group.sequence for group in dump.groups if group.sequence is not None},
        threads=dump.threads,
        has_no_device=not dump.device and "device" not in dump.failed,
        step=dump.step,
        phase=dump.phase,
        since_step_ns=dump.since_step_ns,
        reason=dump.reason,
        uncaught=dump.uncaught,
        signal=dump.signal,
    )


def _group(state: GroupState) -> Group:
    backends = frozenset(each.rpartition(":")[2] for each in state.backends.split(",") if each)
    return Group(state.name, state.ranks, state.description, backends)
