"""Group decoded events by phase and category.

In: events. Out: the rows of each group, by first appearance of its category, then of its phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from rankscope.ingest import event_types as ev
from rankscope.primitives.intervals import Int64

T = TypeVar("T")


def grouped(events: list[ev.Event]) -> dict[tuple[str | None, str | None], Int64]:
    """The rows of the events of each phase and category."""
    category, categories = _numbered([event.cat for event in events])
    phase, phases = _numbered([event.ph for event in events])
    return _by_both(category, categories, phase, phases)


def _by_both(
    category: Int64, categories: Sequence[str | None], phase: Int64, phases: Sequence[str | None]
) -> dict[tuple[str | None, str | None], Int64]:
    both = category * len(phases) + phase
    present = np.flatnonzero(np.bincount(both)).tolist()
    return {
        (phases[number % len(phases)], categories[number // len(phases)]): np.flatnonzero(both == number)
        for number in present
    }


def _numbered(values: list[T]) -> tuple[Int64, list[T]]:
    """Each value as the number of its first appearance, and the values by number."""
    distinct = list(dict.fromkeys(values))
    numbers = {value: number for number, value in enumerate(distinct)}
    return np.fromiter(map(numbers.__getitem__, values), dtype=np.int64, count=len(values)), distinct
