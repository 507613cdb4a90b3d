"""The files that a hung job leaves behind: one dump per rank, and one heartbeat per rank.

A dump, ``hang/rank3.json``, has what its rank was doing when it was written: Python stacks, process groups, the Flight
Recorder, the device. A heartbeat, ``hang/rank3.heartbeat.json``, is rewritten while the process lives, so that a rank
without a dump can be distinguished from a dead one. Both are untrusted when they are read.

In: facts about a rank, or JSON. Out: JSON, or dataclasses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from rankscope.rundir.fields import Positive, Rank, Signed, Step, WorldSize, read

HANG_FOLDER = "hang"
DUMP_FORMAT = "rankscope-hang-dump"
HEARTBEAT_FORMAT = "rankscope-heartbeat"
SCHEMA_VERSION = 1


def dump_name(rank: int) -> str:
    """The file name of a rank's dump."""
    return f"rank{rank}.json"


def heartbeat_name(rank: int) -> str:
    """The file name of a rank's heartbeat."""
    return f"rank{rank}.heartbeat.json"


@dataclass(frozen=True)
class Frame:
    """One frame of a Python stack."""

    file: str = ""
    line: int = 0
    function: str = ""
    text: str = ""
    """The source line, if it was read in time."""

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True)
class ThreadStack:
    """The Python stack of one thread, the innermost frame first."""

    frames: tuple[Frame, ...] = ()
    name: str = ""
    id: int = 0
    training: bool = False
    """Whether the training loop runs in it."""
    exception: str = ""
    """The exception that it is handling: ``ValueError: …``."""
    raised_at: Frame | None = None
    """Where that was raised."""


@dataclass(frozen=True)
class GroupState:
    """A process group that the rank is in."""

    name: str = ""
    description: str = ""
    ranks: tuple[Rank, ...] = ()
    sequence: int | None = None
    """How many operations this rank has started in the group, by torch's counter; point-to-point ones are counted."""
    backends: str = ""
    """As torch writes it: ``cuda:nccl``, ``cpu:gloo,cuda:nccl``; empty if it is not known."""


@dataclass(frozen=True)
class HangDump:
    """What one rank was doing."""

    format: str
    rank: Rank
    schema_version: Positive = SCHEMA_VERSION
    world_size: WorldSize | None = None
    host: str = ""
    pid: int | None = None
    pid_namespace: str = ""
    """In which the process has this number; empty where that is not known."""
    run_id: str = ""
    """Empty if the ranks have agreed on none."""
    began_ns: Signed = 0
    """Wall clock of the start of this watch of the rank; 0 if it is not known."""
    restart_count: int = 0
    time_ns: Signed = 0
    """Wall clock, nanoseconds since 1970."""
    reason: str = ""
    """Why it was written."""
    step: Step | None = None
    phase: str = ""
    """Where in its step the rank is, as the job reports it."""
    since_step_ns: int | None = None
    """Time since the last step ended."""
    threads: tuple[ThreadStack, ...] = ()
    uncaught: str = ""
    """The exception that ended the main thread, if one did."""
    signal: str = ""
    """The signal that ended the process, if one did."""
    groups: tuple[GroupState, ...] = ()
    flight_recorder: Mapping[str, object] = field(default_factory=dict)
    """As torch dumps it: ``entries``, ``pg_config``, ``pg_status``."""
    device: Mapping[str, object] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    """Parts that could not be recorded, and why."""

    def to_json(self) -> str:
        """As the file has it."""
        return json.dumps(asdict(self), separators=(",", ":"), default=str)

    @classmethod
    def from_json(cls, raw: object) -> HangDump | None:
        """Read one; None if it is not a dump of a known rank."""
        dump = read(cls, raw)
        return dump if dump is not None and dump.format == DUMP_FORMAT else None


@dataclass(frozen=True)
class Heartbeat:
    """The latest sign of life of one rank."""

    format: str
    rank: Rank
    time_ns: Signed = 0
    """When it was written: wall clock, nanoseconds since 1970."""
    interval_ns: int = 0
    """How often it is rewritten."""
    world_size: WorldSize | None = None
    host: str = ""
    pid: int | None = None
    pid_namespace: str = ""
    """In which the process has this number; empty where that is not known."""
    run_id: str = ""
    """Empty if the ranks have agreed on none."""
    began_ns: Signed = 0
    """Wall clock of the start of this watch of the rank; 0 if it is not known."""
    restart_count: int = 0
    step: Step | None = None
    ended: bool = False
    """Whether the training loop or the process has ended normally; no more heartbeats follow."""
    exception: str = ""
    """The exception that ended it."""
    signal: str = ""
    """The signal that ended it; SIGINT for Ctrl-C."""
    ranks: str = ""
    """Which ranks are watched, as ``--ranks`` has it; empty if that is not known."""

    def to_json(self) -> str:
        """As the file has it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, raw: object) -> Heartbeat | None:
        """Read one; None if it is not a heartbeat of a known rank."""
        heartbeat = read(cls, raw)
        return heartbeat if heartbeat is not None and heartbeat.format == HEARTBEAT_FORMAT else None
