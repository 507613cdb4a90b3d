"""The files of a watched job in its run directory: each rank's log, and requests to record.

::

    watch/rank3.jsonl                the latest lines of rank 3's log
    watch/rank3.000007.jsonl.gz      an earlier segment of it, complete
    watch/rank3_restart1.jsonl       the log of another attempt of an elastic job
    watch/requests/ID.request        a request to record, by `rankscope trigger`
    watch/requests/ID.answer         what became of it

A log is JSON Lines. The first line of each segment is a `Header`; every other line has one of the keys ``step`` (one
step, see `capture/watch/log.py`), ``kind`` (a kind of collective, by number), ``group`` (a process group), ``calls``
(collectives in the order in which this rank called them), ``place`` (frames of the job's code, by number), ``samples``
(in which step the loop was at which place), ``note`` (an event in words; with ``request``, an
`Outcome`) and ``ended`` (the last line: how the loop ended). A line without its newline is not complete yet.

In: a rank, or a request. Out: names of files, and their content as dataclasses.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.fields import Positive, Rank, Signed, Step, WorldSize, read
from rankscope.rundir.names import rank_folder

SCHEMA_VERSION = 1
WATCH_FOLDER = "watch"
REQUESTS_FOLDER = "requests"
SEGMENT_BYTES = 1 << 20
"""A segment is complete, and compressed, above this size."""
LOG_ENDING = ".jsonl"
SEGMENT_ENDING = ".jsonl.gz"
REQUEST_ENDING = ".request"
"""Not ``.json``: readers take that for traces."""
_LOG_NAME = re.compile(r"(rank(\d{1,9})(?:_restart(\d{1,9}))?(?:\.run(\d{1,6}))?)\.jsonl")
_SEGMENT_NAME = re.compile(r"(rank(\d{1,9})(?:_restart(\d{1,9}))?(?:\.run(\d{1,6}))?)\.(\d{6})\.jsonl\.gz")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MAX_REQUEST_BYTES = 65_536


@dataclass(frozen=True)
class Header:
    """The first line of a segment."""

    schema_version: Positive
    rank: Rank
    segment: int = 0
    """Counted from 0; the latest is in the file without a number."""
    run_id: str | None = None
    world_size: WorldSize | None = None
    host: str | None = None
    pid: int | None = None
    pid_namespace: str = ""
    """In which the process has this number; empty where that is not known."""
    restart_count: int = 0
    max_restarts: int = 0
    """How often torchrun starts the job again after a failure."""
    agent_pid: int | None = None
    """The process of torchrun's agent that does so on this host, numbered as `pid` is."""
    began_ns: Signed = 0
    """Wall clock of the start of the log, the same in all of its segments."""
    device: str | None = None
    """The kind of accelerator that the job uses; none on the CPU."""
    has_all_calls: bool = False
    """Whether the collectives that the rank calls are in its log, so that it calls none if there are none."""
    profiled: bool = True
    """Whether the rank records windows; else it keeps this log only, and has no manifest."""


@dataclass(frozen=True)
class LogName:
    """What the name of a log's file contains."""

    stem: str
    rank: int
    restart: int
    segment: int | None = None
    """None for the file that is being written."""


@dataclass(frozen=True)
class Request:
    """A request to record."""

    id: str
    steps: Positive
    ranks: str = "all"
    reason: str = ""
    """Why, in words."""
    automatic: bool = False
    """Whether the job itself made it, because a step was slow."""


@dataclass(frozen=True)
class Answer:
    """What became of a request."""

    id: str
    first_step: Step | None = None
    last_step: Step | None = None
    refused: str = ""
    """Why nothing is recorded; empty if it is."""
    at_step: Step | None = None
    """The step of the rank that answered, at that time."""
    tries: Positive = 1
    """How often the ranks have agreed on steps for it: again, where none were recorded."""
    script_profiler: str = ""
    """The script's own profiler, if it has one: what it records comes first."""
    waits: bool = False
    """Whether that one is recording: the request waits for its end."""
    restart_count: int = 0
    """Of the attempt of an elastic job that answers."""


@dataclass(frozen=True)
class Outcome:
    """What became of a request on one rank: a line of its log."""

    request: str
    """Its id."""
    state: str
    """``recorded``, ``again`` if it is tried again, or ``lost``."""
    first_step: Step
    last_step: Step
    reason: str = ""
    """Why it was not recorded."""
    note: str = ""
    """The same in words."""


def log_stem(rank: int, restart: int = 0, attempt: int = 0) -> str:
    """The name of a rank's log without its ending.

    Args:
        rank: the rank.
        restart: which attempt of an elastic job.
        attempt: from 1 on for another log of the same rank in the same directory.
    """
    return f"rank{rank}{f'_restart{restart}' if restart else ''}{f'.run{attempt + 1}' if attempt else ''}"


def log_folder(run_dir: str | Path, rank: int, world_size: int | None) -> Path:
    """Where a rank's log is."""
    return Path(run_dir, WATCH_FOLDER, rank_folder(rank, world_size))


def segment_name(stem: str, segment: int) -> str:
    """The name of a segment that is complete."""
    return f"{stem}.{segment:06d}{SEGMENT_ENDING}"


def parse_log_name(name: str) -> LogName | None:
    """The parts of the name of a log's file; None if it is none."""
    if match := _LOG_NAME.fullmatch(name):
        return LogName(match[1], int(match[2]), int(match[3] or 0))
    if match := _SEGMENT_NAME.fullmatch(name):
        return LogName(match[1], int(match[2]), int(match[3] or 0), int(match[5]))
    return None


def requests_folder(run_dir: str | Path) -> Path:
    """Where requests are."""
    return Path(run_dir, WATCH_FOLDER, REQUESTS_FOLDER)


def request_path(run_dir: str | Path, request_id: str) -> Path:
    """The file of a request."""
    return requests_folder(run_dir) / f"{request_id}{REQUEST_ENDING}"


def answer_path(run_dir: str | Path, request_id: str) -> Path:
    """The file of the answer to a request."""
    return requests_folder(run_dir) / f"{request_id}.answer"


def is_request_id(text: str) -> bool:
    """Whether this can be the id of a request, and so a part of a file's name."""
    return _ID.fullmatch(text) is not None


def write_request(run_dir: str | Path, request: Request) -> None:
    """Leave a request for the ranks of a job.

    Raises:
        OSError: the directory cannot be written.
    """
    write_atomic(request_path(run_dir, request.id), to_json(request))


def read_request(path: Path) -> Request | None:
    """A request; None if the file is missing or something else."""
    request = read(Request, _load(path))
    return request if request is not None and is_request_id(request.id) else None


def read_answer(path: Path) -> Answer | None:
    """An answer; None if the file is missing or something else."""
    return read(Answer, _load(path))


def request_from_json(text: str) -> Request | None:
    """A request from its JSON; None if it is something else."""
    request = read(Request, _parse(text))
    return request if request is not None and is_request_id(request.id) else None


def to_json(value: Header | Request | Answer | Outcome) -> str:
    """One line of JSON."""
    return json.dumps(asdict(value), separators=(",", ":"))


def _load(path: Path) -> object:
    try:
        with path.open("rb") as file:
            return _parse(file.read(_MAX_REQUEST_BYTES).decode("utf-8", "replace"))
    except OSError:
        return None


def _parse(text: str) -> object:
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed
