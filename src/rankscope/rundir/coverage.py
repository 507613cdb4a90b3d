"""Which windows of steps a run lacks: those that ranks report as lost, and those that only some ranks have.

In: manifests of ranks, or the spans of their traces. Out: windows, with ranks and reasons.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from rankscope.rundir.manifest import LostWindow, RankManifest

Span = tuple[int, int]
"""First and last step of a trace, both inclusive."""
KEPT = "the trace is kept as "
"""In the reason of a trace that the run directory could not take, before its path."""
_NUMBER = re.compile(r"\d+")


def kept_trace(reason: str | None) -> str | None:
    """The path of a trace that the run directory could not take, from the reason; ``None`` if it is another reason."""
    _, kept, rest = (reason or "").partition(KEPT)
    return rest.partition(": rankscope gather")[0] if kept else None


@dataclass(frozen=True)
class LostGroup:
    """Windows that were lost for one reason, numbers in it aside: ranks report the same one with other numbers."""

    entries: tuple[tuple[int, LostWindow], ...]
    """Each rank's, with the rank."""
    windows: int
    """How many windows these are: one that several ranks report is one."""

    @property
    def reason(self) -> str:
        """As the first rank has it."""
        return self.entries[0][1].reason or "no reason given"

    @property
    def is_kept(self) -> bool:
        """Whether the traces are kept elsewhere, as the reason says."""
        return kept_trace(self.reason) is not None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that report it."""
        return tuple(sorted({rank for rank, _ in self.entries}))


@dataclass(frozen=True)
class Gap:
    """Steps that only some ranks recorded."""

    first: int
    last: int
    recorded: tuple[int, ...]
    """The ranks that have a trace of some of them."""
    lacking: tuple[int, ...]
    """The ranks that have none."""


def lost_by_reason(manifests: Sequence[RankManifest], kind: Literal["skipped", "failed"]) -> list[LostGroup]:
    """The windows that ranks could not record (``skipped``) or not write (``failed``)."""
    entries: dict[str, list[tuple[int, LostWindow]]] = {}
    counts: dict[str, dict[tuple[object, ...], Counter[int]]] = {}
    for manifest in manifests:
        rank = manifest.rank or 0
        for window in manifest.skipped if kind == "skipped" else manifest.failed:
            alike = _NUMBER.sub("#", window.reason)
            entries.setdefault(alike, []).append((rank, window))
            place = (manifest.restart_count, window.first_step, window.last_step)
            # A rank may report one window twice: two profilers in one process each count from 0.
            counts.setdefault(alike, {}).setdefault(place, Counter())[rank] += 1
    return [
        LostGroup(tuple(own), sum(max(of_rank.values()) for of_rank in counts[alike].values()))
        for alike, own in entries.items()
    ]


def other_warnings(manifests: Sequence[RankManifest]) -> dict[str, tuple[int, ...]]:
    """What capture warned of besides lost windows, and the ranks that did."""
    ranks_of: dict[str, set[int]] = {}
    for manifest in manifests:
        reasons = [window.reason for window in (*manifest.failed, *manifest.skipped) if window.reason]
        for text in manifest.warnings:
            if not any(reason in text for reason in reasons):
                ranks_of.setdefault(text, set()).add(manifest.rank or 0)
    return {text: tuple(sorted(ranks)) for text, ranks in ranks_of.items()}


def gaps(spans_of: Mapping[int, Sequence[Span]], most: int = 16) -> list[Gap]:
    """Steps that only some of these ranks recorded, in order; of overlapping windows, one is enough.

    Args:
        spans_of: the traces of each rank.
        most: how many to look for.
    """
    # Mostly all ranks have the same windows: what follows is done once for them.
    ranks_of: dict[tuple[Span, ...], list[int]] = {}
    for rank, spans in spans_of.items():
        ranks_of.setdefault(tuple(sorted(set(spans))), []).append(rank)
    if len(ranks_of) < 2:
        return []
    # By group: the first steps of the windows, and the greatest last step up to each.
    reach = {own: ([a for a, _ in own], [*accumulate((b for _, b in own), max)]) for own in ranks_of}
    found: list[Gap] = []
    for first, last in sorted({span for own in ranks_of for span in own}):
        has: list[int] = []
        lacks: list[int] = []
        for own, (firsts, lasts) in reach.items():
            before = bisect_right(firsts, last)
            (has if before and lasts[before - 1] >= first else lacks).extend(ranks_of[own])
        if lacks and not any(sorted(lacks) == [*each.lacking] and each.first <= first <= each.last for each in found):
            found.append(Gap(first, last, tuple(sorted(has)), tuple(sorted(lacks))))
            if len(found) == most:
                break
    return found
