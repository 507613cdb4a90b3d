"""Reads the logs of a watched job incrementally: each look reads what was appended since the one before.

Logs are other people's files: the length of lines, what is decompressed, and what is kept are bounded, and a line that
is damaged, or not one of those in `rundir/watch_files.py`, is counted and left out.

In: a run directory. Out: for each rank its steps and collectives.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.errors import NoTracesError
from rankscope.rundir.fields import MAX_RANKS, Signed, Step, count, integer, items, mapping, read, text
from rankscope.rundir.ranges import parse_numbers
from rankscope.rundir.watch_files import (
    LOG_ENDING,
    SCHEMA_VERSION,
    SEGMENT_BYTES,
    WATCH_FOLDER,
    Header,
    LogName,
    Outcome,
    parse_log_name,
    segment_name,
)

KEPT_STEPS = 20_000
KEPT_CALLS = 100_000
ALL_STEPS = 1_000_000
"""Of many ranks, each has its share of this many steps …"""
ALL_CALLS = 2_000_000
"""… and of this many calls: some hundred bytes each."""
LEAST_STEPS = 500
LEAST_CALLS = 1000
KEPT_SAMPLES = 10_000
KEPT_NOTES = 100
KEPT_GAPS = 10_000
KEPT_OUTCOMES = 1000
CLOCK_SET_NS = 5_000_000
"""A clock that jumps by this much or more was set; by less, it was slewed."""
_MAX_LOGS = 100_000
_MAX_KINDS = 10_000
_MAX_PLACES = 1000
_MAX_FRAMES = 16
_MAX_LINE = 1 << 20
_MAX_SEGMENT = 16 * SEGMENT_BYTES
_EARLIER_SEGMENTS = 2
"""Complete segments that the first look reads, besides the current one."""
_ALL_FIRST_BYTES = 256 << 20
"""What the first look reads of all logs together: of many, the end of each, and what it refers to."""
_LEAST_FIRST_BYTES = 64 << 10
_DEFINITIONS = (b'{"kind"', b'{"group"', b'{"place"', b'{"note"', b'{"request"')
_READ_BYTES = 4 << 20
_GZIP = 31


Frames = tuple[tuple[str, int, str], ...]
"""File, line and function of each."""


@dataclass(frozen=True)
class StepLine:
    """One step of one rank; a phase is None if it is not known."""

    step: Step
    start_ns: Signed
    ns: int
    loading_ns: int | None = None
    forward_ns: int | None = None
    backward_ns: int | None = None
    optimizer_ns: int | None = None
    backward_end_ns: int | None = None
    profiled: bool = False
    running_us: tuple[int, ...] = ()
    """For how long the loop's thread ran before, in, and after the backward pass; the whole step without one."""
    ready_us: tuple[int, ...] = ()
    """Likewise, for how long it waited for a core; empty if it did not, or if that is not known."""
    gc_ns: int = 0
    """Of the step, Python collected garbage."""
    device_ns: int | None = None
    """On the device, as the phases below."""
    device_forward_ns: int | None = None
    device_backward_ns: int | None = None
    device_waiting_ns: int | None = None
    """After the backward pass, for its communication."""
    device_optimizer_ns: int | None = None
    device_unknown: bool = False
    """Whether the job uses a device on which the times of this step are not known."""


@dataclass(frozen=True)
class Kind:
    """A kind of collective."""

    group: str
    op: str
    dtype: str | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Call:
    """A collective that a rank has called.

    ``at_ns`` is when, on the rank's wall clock; ``device_ns``, how long its kernel ran, with its waiting for others.
    """

    at_ns: int
    kind: Kind
    sequence: int
    device_ns: int | None = None


@dataclass
class RankLog:
    """What was read of one rank's log.

    Attributes:
        header: of its current segment.
        steps: the latest, in order.
        calls: the latest, in order.
        groups: the ranks of each process group, as far as they are known.
        samples: the latest, each a step and the number of a place in `places`.
        places: in the job's code, by number: file, line and function of its frames, the innermost first.
        notes: the latest events, in words, each after a step.
        outcomes: by request, what became of it on this rank.
        missed: collectives that the job had no time to read.
        gaps: between which calls they were: the times of the calls before and after, ns.
        damaged: lines that could not be read.
        clock_set_at: the first step since the host's clock was set, with which times of earlier steps are not compared.
        ended: how the loop ended, ``finished`` or ``interrupted``; empty before.
        grew_at: when the file was last changed, seconds since 1970.
    """

    header: Header
    steps: deque[StepLine] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    calls: deque[Call] = field(default_factory=lambda: deque(maxlen=KEPT_CALLS))
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    places: dict[int, Frames] = field(default_factory=dict)
    notes: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=KEPT_NOTES))
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    missed: int = 0
    gaps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=KEPT_GAPS))
    damaged: int = 0
    clock_set_at: int = 0
    ended: str = ""
    grew_at: float = 0.0
    _kinds: dict[int, Kind] = field(default_factory=dict)

    @property
    def last_step(self) -> int | None:
        """The last complete step."""
        return self.steps[-1].step if self.steps else None

    def add(self, line: bytes) -> None:
        """Add a line."""
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            self.damaged += 1
            return
        fields = mapping(parsed)
        if "calls" in fields:
            self._add_calls(fields)
        elif "step" in fields and (step := read(StepLine, fields)) is not None:
            self._add_step(step)
        elif "samples" in fields:
            self._add_samples(fields["samples"])
        elif (number := count(fields.get("place"))) is not None:
            self._add_place(number, fields.get("frames"))
        elif (number := count(fields.get("kind"))) is not None and (kind := read(Kind, fields)) is not None:
            if len(self._kinds) < _MAX_KINDS:
                self._kinds[number] = kind
        elif (group := text(fields.get("group"))) is not None:
            self._add_group(group, text(fields.get("ranks")) or "")
        elif (note := text(fields.get("note"))) is not None:
            after = count(fields.get("slow_step"))
            self.notes.append((self.last_step or 0 if after is None else after, note[:500]))
            if (outcome := read(Outcome, fields)) is not None:
                self.outcomes[outcome.request] = outcome
                if len(self.outcomes) > KEPT_OUTCOMES:
                    del self.outcomes[next(iter(self.outcomes))]
        elif (ended := text(fields.get("ended"))) in ("finished", "interrupted"):
            self.ended = ended
        elif "schema_version" not in fields:
            self.damaged += 1

    def _add_step(self, step: StepLine) -> None:
        before = self.steps[-1] if self.steps else None
        if before is not None:
            if step.step <= before.step:
                return
            ahead = step.start_ns - (before.start_ns + before.ns)
            limit = max(CLOCK_SET_NS, (before.ns + step.ns) // 1000)  # clocks drift, or are slewed
            if ahead < -limit or (step.step == before.step + 1 and ahead > limit):
                self.clock_set_at = step.step
            if ahead < -limit:
                self._forget_calls()
        self.steps.append(step)

    def _forget_calls(self) -> None:
        """Those before the clock was set back: they seem to be of later steps."""
        self.calls.clear()
        self.gaps.clear()

    def _add_place(self, number: int, frames: object) -> None:
        if len(self.places) < _MAX_PLACES:
            self.places[number] = items(frames, _frame)[:_MAX_FRAMES]

    def _add_samples(self, samples: object) -> None:
        pairs = items(samples, lambda each: items(each, count))
        self.samples.extend((pair[0], pair[1]) for pair in pairs if len(pair) == 2)

    def _add_group(self, group: str, ranks: str) -> None:
        try:
            members = tuple(parse_numbers(ranks, MAX_RANKS)) if ranks else ()
        except ValueError:
            self.damaged += 1
            return
        if len(self.groups) < _MAX_KINDS:
            self.groups[group] = members

    def _add_calls(self, fields: dict[str, object]) -> None:
        base, calls = integer(fields.get("base_ns")), fields["calls"]
        if base is None or not isinstance(calls, list):
            self.damaged += 1
            return
        if missed := count(fields.get("missed")):
            self.missed += missed
            if self.calls:
                self.gaps.append((self.calls[-1].at_ns, base))
        for each in calls:
            if not isinstance(each, list) or len(each) not in (3, 4):
                self.damaged += 1
                continue
            kind, sequence, us = count(each[0]), count(each[1]), integer(each[2])
            known = self._kinds.get(kind) if kind is not None else None
            if known is None or sequence is None or us is None or abs(us) > 10**13:
                self.damaged += 1
                continue
            at_ns = base + 1000 * us
            if self.calls and at_ns < self.calls[-1].at_ns - CLOCK_SET_NS:
                self._forget_calls()
            device_us = count(each[3]) if len(each) == 4 else None
            self.calls.append(
                Call(at_ns, known, sequence, None if device_us is None else 1000 * min(device_us, 10**13))
            )


def _frame(value: object) -> tuple[str, int, str] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    file, line, function = text(value[0]), count(value[1]), text(value[2])
    return None if file is None or line is None or function is None else (file[:1000], line, function[:200])


class _LogFile:
    """One log and how far it has been read."""

    def __init__(self, folder: Path, name: LogName) -> None:
        self._folder, self._name = folder, name
        self.path = folder / f"{name.stem}{LOG_ENDING}"
        self._segment = -1
        self._offset = 0
        self._rest = b""
        self.log: RankLog | None = None

    def look(self, logs: int = 1) -> None:
        """Read what is new.

        Args:
            logs: how many logs share the memory and the time.
        """
        is_first = self.log is None
        try:
            with self.path.open("rb") as file:
                head = _header(file.readline(_MAX_LINE))
                if head is None:
                    return
                self._catch_up(head, logs)
                file.seek(self._offset)
                content = file.read(_READ_BYTES)
                if is_first:
                    self._offset += len(content)
                    self._add(_end_of(content, _first_bytes(logs)))
                    content = file.read(_READ_BYTES)
                while content:
                    self._offset += len(content)
                    self._add(content)
                    content = file.read(_READ_BYTES)
                if self.log is not None:
                    self.log.grew_at = os.fstat(file.fileno()).st_mtime
        except OSError:
            return  # it was replaced meanwhile, or is gone: the next look

    def _catch_up(self, head: Header, logs: int) -> None:
        """Read the segments that were completed since the last look, the last few of them."""
        if self.log is None:
            steps, calls = max(ALL_STEPS // logs, LEAST_STEPS), max(ALL_CALLS // logs, LEAST_CALLS)
            self.log = RankLog(head, deque(maxlen=min(steps, KEPT_STEPS)), deque(maxlen=min(calls, KEPT_CALLS)))
        if head.segment == self._segment:
            return
        is_first = self._segment < 0
        first = max(head.segment - _EARLIER_SEGMENTS, self._segment, 0)
        if is_first and self.path.stat().st_size >= _first_bytes(logs):
            first = head.segment
        for number in range(first, head.segment):
            skip = self._offset if number == self._segment else 0
            content = _unpacked(self._folder / segment_name(self._name.stem, number))
            self._add(_end_of(content[skip:], _first_bytes(logs)) if is_first else content[skip:])
            self._rest = b""
        self.log.header, self._segment, self._offset, self._rest = head, head.segment, 0, b""

    def _add(self, content: bytes) -> None:
        assert self.log is not None
        *lines, rest = (self._rest + content).split(b"\n")
        self._rest = rest if len(rest) <= _MAX_LINE else b""
        for line in lines:
            if line and len(line) <= _MAX_LINE:
                self.log.add(line)


class WatchLogs:
    """The logs of a run.

    Args:
        run_dir: its directory.

    Raises:
        NoTracesError: there is no such directory, or no log in it.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self._folder = Path(run_dir, WATCH_FOLDER)
        self._files: dict[tuple[str, str], _LogFile] = {}
        if not Path(run_dir).is_dir():
            hint = "check the spelling of the path"
            raise NoTracesError("there is no such directory", path=str(run_dir), hint=hint)
        self.look()
        if not self.logs():
            if why := self._why_unreadable():
                raise NoTracesError(f"the log of the watched job cannot be read: {why}", path=str(run_dir))
            raise NoTracesError(
                "no log of a watched job in this directory",
                path=str(run_dir),
                hint="was it started with --no-watch? The log begins with the first steps; until then `rankscope hang` "
                "explains what the ranks wait for",
            )

    def look(self) -> None:
        """Read what is new, of new logs too."""
        for folder, name in self._names():
            key = (str(folder), name.stem)
            if name.segment is None and key not in self._files and len(self._files) < _MAX_LOGS:
                self._files[key] = _LogFile(folder, name)
        for each in self._files.values():
            each.look(len(self._files))

    def logs(self) -> list[RankLog]:
        """All logs, of every attempt."""
        return [each.log for each in self._files.values() if each.log is not None]

    def latest(self) -> dict[int, RankLog]:
        """By rank, the log of the latest attempt; of several, the latest one."""
        logs = self.logs()
        run = max(logs, key=lambda log: log.header.began_ns).header.run_id if logs else None
        logs = [log for log in logs if log.header.run_id == run]
        attempt = max((log.header.restart_count for log in logs), default=0)
        found: dict[int, RankLog] = {}
        for log in sorted(logs, key=lambda log: log.header.began_ns):
            if log.header.restart_count == attempt:
                found[log.header.rank] = log
        return dict(sorted(found.items()))

    def attempts(self) -> int:
        """How many attempts of an elastic job have logs."""
        return len({log.header.restart_count for log in self.logs()})

    def _why_unreadable(self) -> str:
        """Why a log that is there cannot be read; empty if there is none, or it has no first line yet."""
        try:
            with os.scandir(self._folder):
                pass
            for each in self._files.values():
                with each.path.open("rb"):
                    pass
        except FileNotFoundError:
            return ""
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _names(self) -> Iterator[tuple[Path, LogName]]:
        for folder, folders, files in os.walk(self._folder):
            folders.sort()
            for file in sorted(files):
                if (name := parse_log_name(file)) is not None:
                    yield Path(folder), name


def _first_bytes(logs: int) -> int:
    """How much of each log the first look reads."""
    return max(_ALL_FIRST_BYTES // logs, _LEAST_FIRST_BYTES)


def _end_of(content: bytes, most: int) -> bytes:
    """The last lines, and of those before the ones that later lines refer to."""
    if len(content) <= most:
        return content
    whole = content.rfind(b"\n", 0, len(content) - most) + 1
    kept = [line for line in content[:whole].split(b"\n") if line.startswith(_DEFINITIONS)]
    return b"\n".join([*kept, content[whole:]])


def _header(line: bytes) -> Header | None:
    if not line.endswith(b"\n"):
        return None
    try:
        header = read(Header, json.loads(line))
    except (ValueError, RecursionError):
        return None
    return header if header is not None and header.schema_version <= SCHEMA_VERSION else None


def _unpacked(path: Path) -> bytes:
    """The content of a complete segment, as much as is sane; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            packed = file.read(_MAX_SEGMENT)
        return zlib.decompressobj(_GZIP).decompress(packed, _MAX_SEGMENT)
    except (OSError, zlib.error):
        return b""
