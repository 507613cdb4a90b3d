"""Metadata of one trace file, kept with its tables: its rank and run, when it was recorded, what could not be read.

In: metadata. Out: the same as JSON, and comparisons of two traces.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

from rankscope.store.account import Account

# Smaller times count from the host's start, not from 1970.
_YEAR_2001_NS = 10**18

# Kineto's `Iteration Start`, `Record Window End` and the span around all.
_PROFILER_MARKS = ("i None", "X Trace")
_MOST_MARKS = 4

_MAX_SHARED = 1 << 16
_LEAST_RANGE = 3

_CONTAINER_PIDS = 1000
"""Smaller process ids are reused: a container numbers its processes from 1, at each start of a job."""


@dataclass(frozen=True, slots=True)  # of thousands of ranks, dictionaries of attributes are half of the memory
class TraceInfo:
    """One trace file, without its events.

    Attributes:
        path: the file: absolute in the cache, as given by the user in a run.
        rank: its rank; None if unknown.
        rank_source: where the rank is from: `metadata`, `distributedInfo`, `name`, `folder`, `order`, `none`.
        run_id: the id of its run; None if the trace has none.
        boot_id: the id of its host's boot; None if the trace has none.
        first_step: the first `ProfilerStep#` in it; in a run, except incomplete ones.
        last_step: the last.
        step_work: what its steps hold, as in `primitives.incomplete_steps`; empty in a run, where it has been judged.
        incomplete_steps: steps that hold no iteration: their fields as in `primitives.incomplete_steps`. Known only in
            a run, as they are judged by all files of the rank.
        start_ns: the first instant of its events, on the trace's clock.
        end_ns: the last.
        base_time_ns: `baseTimeNanoseconds`: the host's wall clock minus the trace's clock.
        counts: events by `phase category`.
        lost_events: events that could not be read.
        lost_bytes: bytes that could not be read.
        repaired: pieces of invalid JSON that were repaired.
        truncated: whether the file ends before its events do.
        lost_metadata: whether some of the metadata could not be read.
        checksum: whether the file fails the checksum of its compression.
        reason: the first problem with it.
        odd: counts of oddities that did not prevent reading.
        recorded: which of `STACKS`, `SHAPES` and `MEMORY` the profiler recorded, as far as events have them.
        account: what became of its events.
        others: further traces in the same archive, which were not read.
        groups: process groups: name, description, ranks.
        devices: devices: id, name, total memory, multiprocessors.
        pid: the process that recorded most host events.
        threads: the threads of that process with most events.
    """

    path: str
    rank: int | None = None
    rank_source: str = "none"
    world_size: int | None = None
    local_rank: int | None = None
    restart_count: int = 0
    run_id: str | None = None
    host: str | None = None
    boot_id: str | None = None
    launcher: str | None = None
    backend: str | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int | None = None
    step_work: Mapping[str, Any] = field(default_factory=dict)
    incomplete_steps: tuple[Mapping[str, int], ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None
    base_time_ns: int = 0
    json_bytes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    lost_events: int = 0
    lost_bytes: int = 0
    repaired: int = 0
    truncated: bool = False
    lost_metadata: bool = False
    checksum: bool = False
    reason: str | None = None
    odd: Mapping[str, int] = field(default_factory=dict)
    recorded: tuple[str, ...] = ()
    account: Account = field(default_factory=Account)
    others: int = 0
    groups: tuple[Mapping[str, Any], ...] = ()
    devices: tuple[Mapping[str, Any], ...] = ()
    pid: int | None = None
    threads: tuple[int, ...] = ()

    @property
    def machine(self) -> str | None:
        """What tells its host from others: the boot id, which containers share with their host, or else its name."""
        return self.boot_id or self.host

    @property
    def is_snapshot(self) -> bool:
        """Whether the file is a memory snapshot, which has no time."""
        return any(kind.startswith("snapshot ") for kind in self.counts)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was recorded: the file has metadata and the marks of the profiler's own start and end."""
        if self.is_snapshot or self.start_ns is not None:
            return False
        rest = {kind: number for kind, number in self.counts.items() if not kind.startswith("M ")}
        return all(kind in _PROFILER_MARKS and number <= _MOST_MARKS for kind, number in rest.items())

    @property
    def is_incomplete(self) -> bool:
        """Whether it ends too early or lost events: missing events would look like idle time."""
        return self.truncated or self.lost_events > 0 or not self.account.is_clean

    @property
    def device(self) -> str | None:
        """The name of the first device."""
        return next((device["name"] for device in self.devices if device.get("name")), None)

    @property
    def host_start_ns(self) -> int:
        """The first instant of its events on the host's clock."""
        return self.base_time_ns + (self.start_ns or 0)

    @property
    def host_end_ns(self) -> int:
        """The last instant of its events on the host's clock."""
        return self.base_time_ns + (self.end_ns or self.start_ns or 0)

    def gap_to(self, other: TraceInfo) -> int | None:
        """Time between two traces, ns; negative if they overlap, None if one has no events with a time."""
        if self.start_ns is None or other.start_ns is None:
            return None
        return max(self.host_start_ns, other.host_start_ns) - min(self.host_end_ns, other.host_end_ns)

    def overlaps(self, other: TraceInfo) -> bool:
        """Whether two traces were recorded at the same time. One without ranges covers no time."""
        if None in (self.start_ns, self.end_ns, other.start_ns, other.end_ns):
            return False
        return self.host_start_ns < other.host_end_ns and other.host_start_ns < self.host_end_ns

    def steps_begin_again(self, other: TraceInfo) -> bool:
        """Whether the later of two traces that do not overlap starts at or before the earlier one's last step."""
        first, last = sorted((self, other), key=lambda info: info.host_start_ns)
        if first.last_step is None or last.first_step is None or (first.gap_to(last) or 0) <= 0:
            return False
        return last.first_step <= first.last_step

    def shares_thread(self, other: TraceInfo) -> bool:
        """Whether both traces have a thread in common besides the main one, as far as they list threads."""
        if self.pid is None or other.pid is None:
            return False
        own_threads, other_threads = self._other_threads(), other._other_threads()
        return (
            self.certainly_one_process(other)
            or not own_threads
            or not other_threads
            or not own_threads.isdisjoint(other_threads)
        )

    def certainly_one_process(self, other: TraceInfo) -> bool:
        """Whether both traces are surely of one process: by its id, which for small ids needs a thread besides the main
        one in both, as containers reuse them."""
        if self.pid is None or self.pid != other.pid or (self.host and other.host and self.host != other.host):
            return False
        return self.pid >= _CONTAINER_PIDS or bool(self._other_threads() & other._other_threads())

    def _other_threads(self) -> set[int]:
        return {*self.threads} - {self.pid or 0}

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"account": self.account.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TraceInfo:
        """The reverse of `to_json`.

        Raises:
            TypeError: it is the object of another version.
        """
        fields = dict(values)
        for name in ("groups", "devices", "threads", "incomplete_steps", "recorded"):
            fields[name] = tuple(fields.get(name, ()))
        fields["account"] = Account.from_json(fields.get("account", {}))
        fields["groups"] = tuple(map(_shared, fields["groups"]))
        fields["devices"] = tuple(map(_shared, fields["devices"]))
        for name in ("counts", "mesh"):
            fields[name] = {sys.intern(key): value for key, value in fields.get(name, {}).items()}
        for name, value in fields.items():
            if type(value) is str and name != "path":
                fields[name] = sys.intern(value)  # the same for many ranks: host, run, launcher
        return cls(**fields)

    def __reduce__(self) -> tuple[Callable[[Mapping[str, Any]], TraceInfo], tuple[Mapping[str, Any]]]:
        """Pickle it with the ranks of its groups in few bytes, and share equal groups in the process that reads it."""
        return _from_pickle, (self.to_json() | {"groups": [_with_range(group) for group in self.groups]},)


def _from_pickle(values: Mapping[str, Any]) -> TraceInfo:
    return TraceInfo.from_json(values)


def _with_range(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """A process group with its ranks as a range if they are one: the list of all ranks grows with the job."""
    ranks = group.get("ranks")
    if not isinstance(ranks, list) or len(ranks) < _LEAST_RANGE or not all(type(rank) is int for rank in ranks):
        return group
    step = ranks[1] - ranks[0]
    found = range(ranks[0], ranks[0] + step * len(ranks), step) if step else None
    return {**group, "ranks": found} if found is not None and ranks == list(found) else group


_known: dict[str, Mapping[str, Any]] = {}


def _shared(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """A process group or a device, the same object for all ranks that list it: each lists all ranks of its job."""
    if len(_known) > _MAX_SHARED:
        _known.clear()
    key = repr(_with_range(described))
    if key not in _known:
        ranks = described.get("ranks")
        _known[key] = {**described, "ranks": list(ranks)} if isinstance(ranks, range) else described
    return _known[key]


def utc(nanoseconds: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """An instant of a host's clock as text; empty if the clock counts from the host's start, as in older traces."""
    if nanoseconds < _YEAR_2001_NS:
        return ""
    return datetime.fromtimestamp(nanoseconds // 10**9, timezone.utc).strftime(form)
