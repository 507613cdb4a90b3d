"""Which rank each dump belongs to.

Rankscope's dumps contain their rank. Those of the Flight Recorder do not: torch puts the rank at the end of the file's
name, where it is lost if files are renamed after hosts. But a dump contains the groups of its rank, and often only one
rank is in all of them; the remaining ones are found by elimination. The content takes precedence over the name.

Several dumps of one rank are joined: the stacks may be in one file and the calls in another. Where a run was restarted,
only the latest attempt counts.

In: dumps as they were read. Out: one dump per rank, and notes on what was inferred or left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rankscope.answers.hang.flight_recorder import both_backends
from rankscope.answers.hang.records import RankDump

T = TypeVar("T")
_LAST_NUMBER = re.compile(r"(\d{1,7})(?:\.[A-Za-z]+)*$")
_RANK = re.compile(r"rank[_-]?(\d{1,7})", re.IGNORECASE)


def assign_ranks(dumps: Iterable[RankDump]) -> tuple[dict[int, RankDump], list[str]]:
    """One dump per rank, in the order of the ranks.

    Returns:
        the dumps, and notes for the user.
    """
    notes: list[str] = []
    dumps = _latest_attempt(list(dumps), notes)
    known = [dump for dump in dumps if dump.rank is not None]
    unknown = [dump for dump in dumps if dump.rank is None]
    known += _by_content_and_name(unknown, {dump.rank for dump in known if dump.rank is not None}, notes)
    found: dict[int, RankDump] = {}
    for dump in known:
        assert dump.rank is not None
        found[dump.rank] = _joined(found[dump.rank], dump) if dump.rank in found else dump
    return dict(sorted(found.items())), notes


def _latest_attempt(dumps: list[RankDump], notes: list[str]) -> list[RankDump]:
    attempts = {dump.restart_count for dump in dumps if dump.time_ns}
    if len(attempts) < 2:
        return dumps
    latest = max(attempts)
    kept = [dump for dump in dumps if not dump.time_ns or dump.restart_count == latest]
    notes.append(f"{len(dumps) - len(kept)} dumps of earlier attempts of the job were left out")
    return kept


def _by_content_and_name(dumps: list[RankDump], taken: set[int], notes: list[str]) -> list[RankDump]:
    """Give each dump a rank, as far as content, elimination and file names do."""
    named = _names(dumps)
    left: dict[int, set[int]] = {}
    found: dict[int, int] = {}
    for index, dump in enumerate(dumps):
        by_name, possible = named.get(index), set(dump.candidates)
        if len(possible) == 1:
            found[index] = next(iter(possible))
            if by_name is not None and by_name != found[index] and _has_rank_in_name(dump.source):
                notes.append(f"{dump.source}: by its groups this is rank {found[index]}, not {by_name}")
        elif by_name is not None and (not possible or by_name in possible):
            found[index] = by_name
        else:
            left[index] = possible
    _eliminate(left, found, taken)
    for index in left:
        notes.append(
            f"{dumps[index].source}: its rank is in neither the name nor the content; it was left out. "
            "Rename it so that its name ends in the rank"
        )
    return [dumps[index].with_rank(rank) for index, rank in sorted(found.items())]


def _names(dumps: list[RankDump]) -> dict[int, int]:
    """The ranks that the file names end in, if they can be ranks: all different, and small enough."""
    numbers = {index: number for index, dump in enumerate(dumps) if (number := _number(dump.source)) is not None}
    size = max((max(group.ranks) + 1 for dump in dumps for group in dump.groups.values()), default=None)
    if len(set(numbers.values())) < len(numbers):
        # The same number twice: local ranks, or parts of host names. Names that contain "rank" still count.
        numbers = {i: n for i, n in numbers.items() if _has_rank_in_name(dumps[i].source)}
        if len(set(numbers.values())) < len(numbers):
            return {}
    return {i: n for i, n in numbers.items() if size is None or n < size}


def _number(source: str) -> int | None:
    name = Path(source).name
    match = _RANK.search(name) or _LAST_NUMBER.search(name)
    return int(match[1]) if match else None


def _has_rank_in_name(source: str) -> bool:
    return bool(_RANK.search(Path(source).name)) or bool(re.search(r"_dump_\d+$", source))


def _eliminate(left: dict[int, set[int]], found: dict[int, int], taken: set[int]) -> None:
    """Repeatedly assign dumps for which only one rank remains."""
    while True:
        used = taken | set(found.values())
        single = next(((i, possible - used) for i, possible in left.items() if len(possible - used) == 1), None)
        if single is None:
            return
        index, ranks = single
        found[index] = next(iter(ranks))
        del left[index]


def _joined(one: RankDump, other: RankDump) -> RankDump:
    """Two dumps of one rank: each part from the one that has more of it."""
    first, second = (one, other) if one.time_ns >= other.time_ns else (other, one)
    backends = [{call.backend for call in dump.calls} for dump in (first, second)]
    if backends[0] & backends[1]:
        calls = max((first, second), key=lambda dump: len(dump.calls))
    else:
        calls = both_backends(first, second)
    return replace(
        first,
        host=first.host or second.host,
        world_size=first.world_size or second.world_size,
        groups=_merged(second.groups, first.groups),
        calls=calls.calls,
        has_calls=first.has_calls or second.has_calls,
        only_active=calls.only_active,
        last_enqueued=_merged(second.last_enqueued, first.last_enqueued),
        last_completed=_merged(second.last_completed, first.last_completed),
        by_backend=_merged(second.by_backend, first.by_backend),
        nccl_groups=first.nccl_groups | second.nccl_groups,
        sequences=_merged(second.sequences, first.sequences),
        threads=first.threads or second.threads,
        has_no_device=first.has_no_device or second.has_no_device,
        step=first.step if first.step is not None else second.step,
        phase=first.phase or second.phase,
        uncaught=first.uncaught or second.uncaught,
        signal=first.signal or second.signal,
    )


def _merged(below: Mapping[str, T], above: Mapping[str, T]) -> dict[str, T]:
    return {**below, **above}
