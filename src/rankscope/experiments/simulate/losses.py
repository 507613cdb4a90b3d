"""Choose the events that a file loses, before it is written, so that they are spread evenly over it.

In: the number of events, and what to lose. Out: the indices of the lost ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.experiments.simulate.events import LOSABLE_AS
from rankscope.experiments.simulate.jitter import I64, Chance
from rankscope.experiments.simulate.job import Lost

Place = tuple[int, int, int]
"""The position of a batch of events in a file: section, step, and its number within the step."""

Outline = Callable[[], Iterator[tuple[Place, I64]]]
"""Iterates over a file's batches in order: the place of each, and for each event the kind that it can be lost as."""


@dataclass(frozen=True)
class LostEvent:
    """An event that a file lacks."""

    rank: int
    step: int
    name: str
    as_what: str
    ts: str
    """As the file would have had it, in microseconds."""


def choose_lost(wishes: Sequence[Lost], rank: int, seed: int, outline: Outline) -> dict[Place, set[int]]:
    """The events that one rank's file lacks: by batch, their indices in it."""
    chosen: dict[Place, set[int]] = {}
    for index, lost in enumerate(wishes):
        key = Chance(seed).keys(f"lost {index}", 0, rank)
        least: list[tuple[int, Place, int]] = []
        counter = 0
        for place, lost_as in outline():
            losable = lost_as > 0 if lost.what == "any" else lost_as == LOSABLE_AS.index(lost.what)
            eligible = np.flatnonzero(losable)
            bits = Chance.hashes(key, counter + np.arange(len(eligible)))
            counter += len(eligible)
            if lost.fraction > 0:
                dropped = eligible[bits < np.uint64(int(lost.fraction * (2**64 - 1)))]
                chosen.setdefault(place, set()).update(dropped.tolist())
            for i in np.argsort(bits)[: lost.count].tolist():
                entry = (-int(bits[i]), place, int(eligible[i]))
                (heapq.heappush if len(least) < lost.count else heapq.heappushpop)(least, entry)
        for _, place, event in least:
            chosen.setdefault(place, set()).add(event)
    return chosen
