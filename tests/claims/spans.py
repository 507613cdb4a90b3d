"""Sets of time in plain Python: sorted lists of (start, end) in ns that do not touch."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable

Span = tuple[int, int]


def union(*sets: Iterable[Span]) -> list[Span]:
    """Where any of them is open."""
    found: list[Span] = []
    for start, end in sorted(span for spans in sets for span in spans if span[1] > span[0]):
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def length(spans: Iterable[Span]) -> int:
    """Of a union."""
    return sum(end - start for start, end in spans)


def clipped(spans: list[Span], start: int, end: int) -> list[Span]:
    """The part of a union inside a window."""
    place = max(bisect.bisect_right(spans, (start, start)) - 1, 0)
    found = []
    while place < len(spans) and spans[place][0] < end:
        low, high = max(spans[place][0], start), min(spans[place][1], end)
        if high > low:
            found.append((low, high))
        place += 1
    return found


def within(spans: list[Span], start: int, end: int) -> int:
    """How much of a window a union covers."""
    return length(clipped(spans, start, end))


def less(spans: list[Span], others: list[Span]) -> list[Span]:
    """A union without another."""
    found = []
    for start, end in spans:
        at = start
        for low, high in clipped(others, start, end):
            if low > at:
                found.append((at, low))
            at = high
        if end > at:
            found.append((at, end))
    return found


def common(spans: list[Span], others: list[Span]) -> list[Span]:
    """Where both are open."""
    return [piece for start, end in spans for piece in clipped(others, start, end)]


def between(spans: list[Span]) -> list[Span]:
    """The gaps of a union."""
    return [(a[1], b[0]) for a, b in itertools.pairwise(spans)]
