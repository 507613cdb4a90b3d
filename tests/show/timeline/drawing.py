"""A timeline drawn in plain Python, event by event and bin by bin: slow, simple, and nothing of rankscope in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Drawn:
    """An event of a lane: ns on the run's clock."""

    start: int
    end: int
    category: int


@dataclass
class Bin:
    """What lies in a bin."""

    count: int = 0
    busy: dict[int, int] = field(default_factory=dict)
    covers: dict[int, int] = field(default_factory=dict)


def union(spans: Iterable[tuple[int, int]]) -> int:
    """How much time some spans cover together."""
    total, reach = 0, None
    for start, end in sorted(spans):
        begin = start if reach is None else max(start, reach)
        if end > begin:
            total += end - begin
        reach = end if reach is None else max(reach, end)
    return total


def draw(events: Sequence[Drawn], width: int, first: int, bins: int) -> dict[int, Bin]:
    """The bins of a window in which anything is: each event against each bin it can touch."""
    found: dict[int, Bin] = defaultdict(Bin)
    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for row, event in enumerate(events):
        low = max(event.start // width, first)
        high = min(max((event.end - 1) // width, event.start // width), first + bins - 1)
        for number in range(low, high + 1):
            edge = number * width
            start, end = max(event.start, edge), min(event.end, edge + width)
            found[number].covers[row] = end - start
            found[number].count += edge <= event.start < edge + width
            spans[number, event.category].append((start, end))
    for (number, category), parts in spans.items():
        if length := union(parts):
            found[number].busy[category] = length
    return dict(found)


def touching(events: Sequence[Drawn], from_ns: int, to_ns: int) -> list[int]:
    """Rows of the events that touch a window; one without duration touches where it is."""
    return [
        row
        for row, event in enumerate(events)
        if event.start < to_ns and (event.end > from_ns or event.start >= from_ns)
    ]
