"""Logs of the NCCL and RCCL Inspector: JSON Lines with the collectives that a rank has completed.

Each line has a ``header`` (communicator, the rank in it, its size), ``metadata`` (host, process, time) and
``coll_perf`` (operation, number in the communicator, size), as NCCL documents them for its plugin ``inspector``, which
RCCL has too.
A collective that hangs is never in it. The logs show how far each rank has come in each communicator: a rank whose
latest completed collective precedes that of the others is behind. The plugin writes snapshots, so a small difference
may only be one of time.

In: the bytes of a log. Out: the latest completed collective by communicator and rank, and sentences on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rankscope.rundir.fields import count, mapping, text
from rankscope.rundir.ranges import as_ranges

MARKS = (b'"inspector_output_format_version"', b'"coll_perf"')
_MAX_LINE = 1 << 20
_MOST_NOTES = 20


@dataclass(frozen=True)
class Completed:
    """The latest collective that a rank has completed in a communicator."""

    communicator: str
    rank: int
    """In the communicator."""
    size: int
    """Of the communicator, in ranks."""
    sequence: int
    operation: str
    bytes: int | None
    host: str
    pid: int | None
    at_us: int
    """When the line was written, microseconds since 1970."""


def is_inspector_log(data: bytes) -> bool:
    """Whether this is such a log, by its beginning."""
    return data.lstrip()[:1] == b"{" and all(mark in data for mark in MARKS)


def read_inspector_log(data: bytes) -> list[Completed]:
    """The latest completed collective of each communicator and rank in a log.

    Raises:
        ValueError: there is none.
    """
    latest: dict[tuple[str, int], Completed] = {}
    for line in data.splitlines():
        found = _completed(line) if len(line) <= _MAX_LINE else None
        if found is not None:
            known = latest.get((found.communicator, found.rank))
            if known is None or found.sequence >= known.sequence:
                latest[found.communicator, found.rank] = found
    if not latest:
        raise ValueError("no completed collective in this log of the Inspector")
    return list(latest.values())


def _completed(line: bytes) -> Completed | None:
    try:
        parsed = mapping(json.loads(line))
    except (ValueError, RecursionError):
        return None  # the last line of a process that was killed
    header, about, performance = (mapping(parsed.get(name)) for name in ("header", "metadata", "coll_perf"))
    communicator = text(header.get("comm_name")) or text(header.get("id"))
    rank, size = count(header.get("rank")), count(header.get("n_ranks"))
    sequence, operation = count(performance.get("coll_sn")), text(performance.get("coll"))
    if not communicator or rank is None or not size or sequence is None or not operation:
        return None
    return Completed(
        communicator,
        rank,
        size,
        sequence,
        operation,
        count(performance.get("coll_msg_size_bytes")),
        text(about.get("hostname")) or "",
        count(about.get("pid")),
        count(about.get("dump_timestamp_us")) or 0,
    )


def notes_on(completed: Iterable[Completed]) -> list[str]:
    """How far the ranks have come in each communicator; those in which a rank is behind come first."""
    by_communicator: dict[str, dict[int, Completed]] = {}
    for each in completed:
        ranks = by_communicator.setdefault(each.communicator, {})
        if each.rank not in ranks or each.at_us >= ranks[each.rank].at_us:
            ranks[each.rank] = each
    uneven = sorted(by_communicator, key=lambda name: (len(_levels(by_communicator[name])) < 2, name))
    return [note for name in uneven for note in _notes(name, by_communicator[name])][:_MOST_NOTES]


def _levels(ranks: dict[int, Completed]) -> dict[int, list[int]]:
    """The ranks by the number of their latest completed collective, the highest first."""
    found: dict[int, list[int]] = {}
    for rank, each in sorted(ranks.items()):
        found.setdefault(each.sequence, []).append(rank)
    return dict(sorted(found.items(), reverse=True))


def _notes(name: str, ranks: dict[int, Completed]) -> Iterator[str]:
    levels, size = _levels(ranks), max(each.size for each in ranks.values())
    top = next(iter(levels))
    last = ranks[levels[top][0]]
    amount = f", {last.bytes:,} bytes" if last.bytes is not None else ""
    where = f"Inspector: communicator {name} of {size} ranks"
    called = f"{last.operation} {top}{amount}"
    yield f"{where}: the last completed collective is {called}, on its ranks {as_ranges(levels[top])}"
    for sequence, behind in levels.items():
        if sequence != top:
            yield f"{where}: its ranks {as_ranges(behind)} have completed {top - sequence} fewer, up to {sequence}"
    if missing := sorted(set(range(min(size, 1 << 20))) - set(ranks)):
        yield f"{where}: no log of its ranks {as_ranges(missing)}"
