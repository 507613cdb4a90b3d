"""Turn cells into trace events: a table of the events of a program's cells, and their text, made from arrays.

In: the cells of a program, and arrays of times. Out: a table of events, and the text of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.experiments.simulate.cells import SECTIONS, CellEvent, Id
from rankscope.experiments.simulate.identity import RankIdentity
from rankscope.experiments.simulate.jitter import I64, Bool
from rankscope.experiments.simulate.kineto import SLOT, Flow, Layout, Span
from rankscope.experiments.simulate.program import Program

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


class EventText(NamedTuple):
    """A cell's event as a rank writes it: its text without ids and times."""

    name: str
    text: str
    """A template for ``%`` with a flow's id and time, or a range's start, duration and ids."""
    ids: tuple[Id, ...]
    is_flow: bool


def event_text(event: CellEvent, rank: RankIdentity, layout: Layout) -> EventText:
    """The text of a cell's event in a rank's file; it is encoded once, not in each use."""
    pid, tid = (rank.device, event.thread) if isinstance(event.thread, int) else (rank.pid, rank.thread(event.thread))
    name = event.name if isinstance(event.name, str) else event.name(rank)
    ids = tuple(value for value in event.args.values() if isinstance(value, Id))
    if event.phase != "X":
        return EventText(name, layout.slotted(Flow(event.phase, SLOT, pid, tid, SLOT, name)), ids, True)
    args = {key: SLOT if isinstance(v, Id) else v(rank) if callable(v) else v for key, v in event.args.items()}
    return EventText(name, layout.slotted(Span(event.category, name, pid, tid, SLOT, SLOT, args)), ids, False)


def fill(events: Iterable[EventText], ts: Sequence[str], dur: Sequence[str], ids: Sequence[Sequence[int]]) -> list[str]:
    """The text of events at given times; ``ids`` has for each counter the first id that each event's cell takes."""
    texts = []
    for i, (_, text, cell_ids, is_flow) in enumerate(events):
        numbers = [ids[counter][i] + number for counter, number in cell_ids]
        texts.append(text % (*numbers, ts[i]) if is_flow else text % (ts[i], dur[i], *numbers))
    return texts
