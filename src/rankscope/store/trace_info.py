"""What one trace file says about itself and what was lost of it: kept beside its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class TraceInfo:
    """One trace file, without its events.

    Attributes:
        path: the file: absolute in the cache, as it was given in a run.
        rank: its rank; what says so is `rank_source` (`metadata`, `distributedInfo`, `name`, `folder`); None unknown.
        run_id: the run it belongs to, as far as it says.
        first_step: the first `ProfilerStep#` in it.
        last_step: the last.
        start_ns: the first instant of its events, on its own clock.
        end_ns: the last.
        base_time_ns: `baseTimeNanoseconds`: added to its clock it gives the host's wall clock.
        counts: events by `phase category`.
        lost_events: events that could not be read.
        lost_bytes: bytes that could not be read.
        repaired: pieces that were mended before they could be read.
        truncated: whether it ends before its events do.
        lost_metadata: whether some of what stands beside the events could not be read.
        checksum: whether its packing's checksum is that of something else.
        reason: what was wrong with it, first.
        odd: counts of oddities that were read all the same.
        others: further traces in the same archive, which were not read.
        groups: process groups: name, description, ranks.
        devices: devices: id, name, total memory, multiprocessors.
        pid: the process that recorded it, by its host events.
        threads: the threads of these.
    """

    path: str
    rank: int | None = None
    rank_source: str = "none"
    world_size: int | None = None
    local_rank: int | None = None
    restart_count: int = 0
    run_id: str | None = None
    host: str | None = None
    launcher: str | None = None
    backend: str | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int | None = None
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
    others: int = 0
    groups: tuple[Mapping[str, Any], ...] = ()
    devices: tuple[Mapping[str, Any], ...] = ()
    pid: int | None = None
    threads: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TraceInfo:
        """The reverse of `to_json`.

        Raises:
            TypeError: it is the object of another version.
        """
        made = dict(found)
        made["groups"] = tuple(made.get("groups", ()))
        made["devices"] = tuple(made.get("devices", ()))
        made["threads"] = tuple(made.get("threads", ()))
        return cls(**made)
