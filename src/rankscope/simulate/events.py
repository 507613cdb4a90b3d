"""From cells to trace events: the events of a program's cells as a table, and lists of structs made from arrays.

In: the cells of a program, and arrays of times. Out: tables and structs of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from rankscope.simulate.cells import SECTIONS, CellEvent, Id
from rankscope.simulate.identity import RankIdentity
from rankscope.simulate.jitter import I64, Bool
from rankscope.simulate.kineto import Flow, Span
from rankscope.simulate.program import Program

LOSABLE_AS = ("", "operator", "launch", "kernel", "collective", "other")


class EventTable:
    """All events of a program's cells, by section and cell; the same for every rank of a stage."""

    def __init__(self, program: Program) -> None:
        cells = [[[e for e in cell.events if e.section == section] for cell in program.cells] for section in SECTIONS]
        self.events: list[CellEvent] = [event for section in cells for cell in section for event in cell]
        self._count: I64 = np.array([[len(cell) for cell in section] for section in cells], dtype=np.int64)
        self._first: I64 = (np.cumsum(self._count) - self._count.ravel()).reshape(self._count.shape)
        self.start: I64 = np.array([e.start for e in self.events], dtype=np.int64)
        self.end: I64 = np.array([e.end for e in self.events], dtype=np.int64)
        self.on_device: Bool = np.array([e.on_device for e in self.events], dtype=np.bool_)
        self.lost_as: I64 = np.array([LOSABLE_AS.index(e.lost_as) for e in self.events], dtype=np.int64)

    def of(self, section: int, cells: I64) -> tuple[I64, I64]:
        """The events of a section that ``cells`` write: (index into the table, index into ``cells``) of each."""
        count = self._count[section, cells]
        row = np.repeat(np.arange(len(cells)), count)
        within = np.arange(len(row)) - (np.cumsum(count) - count)[row]
        return self._first[section, cells][row] + within, row


class Prototype(NamedTuple):
    """A cell's event as a rank writes it, but for its times and ids."""

    event: Span | Flow
    ids: tuple[tuple[str, Id], ...]
    """The arguments that are ids; of a flow its own id."""


def prototype(event: CellEvent, rank: RankIdentity) -> Prototype:
    """A cell's event with everything that is the same throughout a rank's file."""
    pid, tid = (rank.device, event.thread) if isinstance(event.thread, int) else (rank.pid, rank.thread(event.thread))
    name = event.name if isinstance(event.name, str) else event.name(rank)
    ids = tuple((key, value) for key, value in event.args.items() if isinstance(value, Id))
    if event.phase != "X":
        return Prototype(Flow(event.phase, 0, pid, tid, "", name), ids)
    args = {key: value(rank) if callable(value) else value for key, value in event.args.items()}
    for key, value in args.items():
        if isinstance(value, (list, tuple)) and not isinstance(value, Id):
            args[key] = msgspec.Raw(msgspec.json.encode(value))  # once, not in each use
    return Prototype(Span(event.category, name, pid, tid, "", "", args), ids)


def make(
    prototypes: Iterable[Prototype], ts: Sequence[str], dur: Sequence[str], ids: Sequence[Sequence[int]]
) -> list[Span | Flow]:
    """Events at given times; ``ids`` has for each counter the first id that each event's cell takes."""
    events: list[Span | Flow] = []
    for i, (event, keys) in enumerate(prototypes):
        if isinstance(event, Flow):
            ((_, (counter, number)),) = keys
            events.append(Flow(event.ph, ids[counter][i] + number, event.pid, event.tid, ts[i], event.name))
        else:
            args = event.args.copy()
            for key, (counter, number) in keys:
                args[key] = ids[counter][i] + number
            events.append(Span(event.cat, event.name, event.pid, event.tid, ts[i], dur[i], args))
    return events
