"""Stretches of a program as text with holes, and how the holes are filled.

The text of a stretch is the same for every rank of a stage and every step; what differs are numbers. So a piece holds
one ``%``-format string and, for each hole, which number goes there; writing is one gather in numpy and one ``%``.
Only where events are left out (lost, outside the window) is the text put together event by event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.simulate.cells import DEVICE_START, MOMENTS, Cell
from rankscope.simulate.jitter import I64, Bool
from rankscope.simulate.layout import Layout
from rankscope.simulate.program import Program

_MARK = re.compile(r"\x01([tdevcqs])([0-9,]*)\x01")
RANK_MARK = re.compile("(\x02[^\x02]*\x02)")
_SECTIONS = 3

# Kinds of hole: which block of the pool its number is in.
_US, _NS, _LENGTH_US, _LENGTH_NS, _EXTERNAL, _EVENT, _CORRELATION, _SEQUENCE, _STEP = range(9)
_ID_KINDS = {"e": _EXTERNAL, "v": _EVENT, "c": _CORRELATION, "q": _SEQUENCE, "s": _STEP}

LOSS_CLASSES = ("", "operator", "launch", "kernel", "collective", "other")


@dataclass(frozen=True)
class Compiled:
    """One section of a cell."""

    texts: tuple[str, ...]
    """One for each event."""
    holes: I64
    """(kind, number within the cell) of every hole."""
    holes_of: I64
    """How many holes each event has."""
    start: I64
    """The moment at which each event begins."""
    length: I64
    """(start, end) moments of the event's duration; flows have none and say (0, 0)."""
    on_device: Bool
    loses: I64
    names: tuple[str, ...]


def compile_cell(cell: Cell, layout: Layout) -> tuple[Compiled, ...]:
    """The sections of a cell."""
    sections = []
    for section in range(_SECTIONS):
        events = [e for e in cell.events if e.section == section]
        texts, holes, holes_of, lengths = [], [], [], []
        for number, event in enumerate(events):
            text, found = parse_marks(layout.event(event), number)
            texts.append(text)
            holes.extend(found)
            holes_of.append(len(found))
            lengths.append((event.start, event.end))
        sections.append(
            Compiled(
                tuple(texts),
                np.array(holes, dtype=np.int64).reshape(-1, 2),
                np.array(holes_of, dtype=np.int64),
                np.array([e.start for e in events], dtype=np.int64),
                np.array(lengths, dtype=np.int64).reshape(-1, 2),
                np.array([e.on_device for e in events], dtype=np.bool_),
                np.array([LOSS_CLASSES.index(e.loses) for e in events], dtype=np.int64),
                tuple(e.name for e in events),
            )
        )
    return tuple(sections)


def parse_marks(text: str, number: int) -> tuple[str, list[tuple[int, int]]]:
    """A text with marks as a format string, and its holes; a duration is that of event ``number``."""
    holes: list[tuple[int, int]] = []

    def fill(match: re.Match[str]) -> str:
        kind, value = match[1], match[2]
        if kind == "t":
            holes.extend([(_US, int(value)), (_NS, int(value))])
            return "%d.%03d"
        if kind == "d":
            holes.extend([(_LENGTH_US, number), (_LENGTH_NS, number)])
            return "%d.%03d"
        holes.append((_ID_KINDS[kind], int(value or 0)))
        return "%d"

    return _MARK.sub(fill, text.replace("%", "%%")), holes


@dataclass(frozen=True)
class Bases:
    """What a step's ids count from."""

    external: int
    correlation: int
    sequence: int
    step: int


class Section:
    """One section of a piece, for every rank of the stage."""

    def __init__(self, rows: I64, cells: Sequence[Compiled], program: Program) -> None:
        self.texts = [text for cell in cells for text in cell.texts]
        self.names = [name for cell in cells for name in cell.names]
        counts = np.array([len(cell.texts) for cell in cells], dtype=np.int64)
        self.count = int(counts.sum())
        if not self.count:
            return
        local = np.arange(len(cells))
        self.event_row = np.repeat(local, counts)
        self.start = np.concatenate([cell.start for cell in cells]) + self.event_row * MOMENTS
        lengths = np.concatenate([cell.length for cell in cells]) + self.event_row[:, None] * MOMENTS
        self.from_moment, self.to_moment = lengths[:, 0], lengths[:, 1]
        self.on_device = np.concatenate([cell.on_device for cell in cells])
        self.loses = np.concatenate([cell.loses for cell in cells])
        self.holes_of = np.concatenate([cell.holes_of for cell in cells])
        self.hole_start = np.concatenate([[0], np.cumsum(self.holes_of)])
        holes = np.concatenate([cell.holes for cell in cells])
        hole_counts = np.array([len(cell.holes) for cell in cells], dtype=np.int64)
        row = np.repeat(local, hole_counts)
        first_event = np.cumsum(counts) - counts
        kind, number = holes[:, 0], holes[:, 1]
        times = len(rows) * MOMENTS
        # Where a hole's number is: its block, its row's share of that block, its place in the share.
        self.hole = np.select(
            [kind == _US, kind == _NS, kind == _LENGTH_US, kind == _LENGTH_NS],
            [
                row * MOMENTS + number,
                times + row * MOMENTS + number,
                2 * times + first_event[row] + number,
                2 * times + self.count + first_event[row] + number,
            ],
            default=0,
        )
        is_id = kind >= _EXTERNAL
        ids = 2 * times + 2 * self.count
        self.hole[is_id] = ids + np.arange(int(is_id.sum()))
        share = np.select(
            [kind == _EXTERNAL, kind == _EVENT, kind == _CORRELATION, kind == _SEQUENCE],
            [
                program.external[rows][row],
                program.external[rows][row],
                program.correlation[rows][row],
                program.sequences[rows][row],
            ],
            default=0,
        )
        self.id_kind = kind[is_id]
        self.id_number = np.where(kind == _STEP, 0, share + number)[is_id]

    def parts(self) -> list[str]:
        """The whole text, cut at the marks for what is the same throughout a rank's file: every second part is one."""
        return RANK_MARK.split("".join(self.texts))

    def fill(self, template: str, recorded: I64, bases: Bases, keep: Bool | None, replace: dict[str, str]) -> str:
        """The section's text: ``recorded`` has each moment as the rank's clock had it, less the file's base."""
        flat = recorded.ravel()
        length = flat[self.to_moment] - flat[self.from_moment]
        base = np.array(
            [0, 0, 0, 0, bases.external, bases.external, bases.correlation, bases.sequence, bases.step], dtype=np.int64
        )
        us, length_us = flat // 1000, length // 1000
        pool = np.concatenate(
            [us, flat - us * 1000, length_us, length - length_us * 1000, self.id_number + base[self.id_kind]]
        )
        if keep is None:
            return template % tuple(pool[self.hole].tolist())
        kept = np.flatnonzero(keep)
        if not len(kept):
            return ""
        holes = self.hole[np.repeat(keep, self.holes_of)]
        text = "".join([self.texts[i] for i in kept]) % tuple(pool[holes].tolist())
        return RANK_MARK.sub(lambda match: replace[match[0]], text)


class Piece:
    """Some items of a program, as text."""

    def __init__(self, program: Program, rows: I64, compiled: dict[Cell, tuple[Compiled, ...]]) -> None:
        self.rows = rows
        self._program, self._compiled = program, compiled
        self._sections: dict[int, Section] = {}

    def section(self, number: int) -> Section:
        """One section, made when it is first asked for."""
        if number not in self._sections:
            cells = [self._compiled[self._program.rows[row]][number] for row in self.rows.tolist()]
            self._sections[number] = Section(self.rows, cells, self._program)
        return self._sections[number]


def kept_in_window(section: Section, moments: I64, launch: I64, begin: int, end: int) -> Bool:
    """Which events of a section were recorded between two moments of true time.

    A host event counts by its start. Device work counts if it runs after the beginning and was launched before the
    end: the profiler waits for the device when it stops.
    """
    flat = moments.ravel()
    started = flat[section.start]
    launched = launch[section.event_row]
    host: Bool = (started >= begin) & (started < end)
    device_start = flat[section.event_row * MOMENTS + DEVICE_START]
    device: Bool = (device_start >= begin) & (launched < end)
    return np.where(section.on_device, device, host)
