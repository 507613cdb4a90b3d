"""The state of matching: the rows of all ranks, matches so far, clocks, doubts.

In: encoded rows (`rankscope.primitives.communicators`). Out: the state that `rankscope.primitives.matching` fills.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.primitives.clock_links import ClockLinks, Links
from rankscope.primitives.intervals import Int64
from rankscope.primitives.offset_estimation import Timeline

METHODS = ("none", "sequence", "step", "clock", "order", "votes")


@dataclass(frozen=True)
class Doubt:
    """Ranks with two equally likely positions in a group.

    Attributes:
        group: the group's label.
        ranks: the ranks in doubt.
        apart_ns: the difference of the two likeliest offsets of the first of them.
        evidence: the evidence for the one that was chosen, nats.
        rival: the evidence for the other.
        row: one of the group's rows.
    """

    group: str
    ranks: tuple[int, ...]
    apart_ns: int
    evidence: float
    rival: float
    row: int


class LabeledColumn:
    """A column of rows that is kept once per label: it takes no memory per row.

    Args:
        values: by label.
        label: by row, its label.
        plus: by row, what is added.
    """

    def __init__(
        self, values: npt.NDArray[Any], label: npt.NDArray[np.integer], plus: npt.NDArray[Any] | None = None
    ) -> None:
        self._values, self._label, self._plus = values, label, plus

    def __getitem__(self, rows: Any) -> Any:
        found = self._values[self._label[rows]]
        return found if self._plus is None else found + self._plus[rows]

    def max(self) -> Any:
        """The largest of its values, which all have rows."""
        return self._values.max()


Column = npt.NDArray[Any] | LabeledColumn


class MatchingState:
    """Rows and their matches so far; matching functions write into `match`, `method` and `communicator`.

    Args:
        column: by row the columns of `encode_communicators`; labels may be integers of any size.
        group: gives the label of a row's group.
        hosts: the hosts of ranks, as far as they are known.

    Attributes:
        match: by row the number of the event, −1 if it has none yet.
        method: by row an index into `METHODS`.
        events: the number of event numbers in use.
        doubts: ambiguous matches.
        disagreeing: rows whose kind or size differs from that of most ranks.
        unplaced: by group, the ranks whose ends agree with no other rank's.
        clocks: offsets between ranks.
    """

    def __init__(self, column: Mapping[str, Column], group: Callable[[int], str], hosts: Mapping[int, str]) -> None:
        self.rank, self.start, self.end = column["rank"], column["start_ns"], column["end_ns"]
        self.communicator: npt.NDArray[Any] = np.array(column["communicator"][:])
        self.kind, self.full = column["kind"], column["full"]
        self.step, self.recorded, self.one_sided = column["step"], column["recorded"], column["one_sided"]
        self.uneven, self.p2p = column["uneven"], column["p2p"]
        self.stream, self.group = column["stream"], group
        self.unnamed = column["unnamed"]
        self.on_host = column["on_host"]
        self.match: Int64 = np.full(self.communicator.size, -1, dtype=np.int64)
        self.method: npt.NDArray[np.int8] = np.zeros(self.communicator.size, dtype=np.int8)
        self.events = 0
        self.doubts: list[Doubt] = []
        self.disagreeing = 0
        self.unplaced: list[tuple[str, tuple[int, ...]]] = []
        self.clocks = ClockLinks(hosts)

    def in_launch_order(self, rows: Int64) -> Int64:
        """Rows of one rank and communicator in the order in which they were launched, the same on all ranks.

        A stream runs kernels in that order, so it is the order of their ends. Gloo's threads run collectives at the
        same time, and they end in any order: there a thread begins the next collective of the queue, so it is the order
        of their starts.
        """
        by = self.start if self.on_host[rows].all() else self.end
        return rows[np.argsort(by[rows], kind="stable")]

    def timeline(self, rows: Int64, shift: Int64 | None = None) -> Timeline:
        """Rows of one rank as a timeline, their times moved by `shift` (ns).

        An event that ends before one that was launched earlier ends with that one: the ends of a timeline are in order.
        """
        shift_ns = np.zeros(rows.size, dtype=np.int64) if shift is None else shift
        return Timeline(
            np.maximum.accumulate(self.end[rows] + shift_ns),
            self.kind[rows].astype(np.int64),
            self.full[rows].astype(np.int64),
            self.step[rows],
            self.one_sided[rows],
            self.uneven[rows],
            self.start[rows] + shift_ns,
        )

    def ranks(self, rows: Int64) -> set[int]:
        """The ranks of rows."""
        return set(np.unique(self.rank[rows]).tolist())

    def mark(self, rows: Int64) -> tuple[Int64, int, int, Links]:
        """The state that `reset` needs to undo the matches of rows."""
        return self.communicator[rows].copy(), len(self.doubts), len(self.unplaced), self.clocks.copy_links()

    def reset(self, rows: Int64, mark: tuple[Int64, int, int, Links]) -> None:
        """Undo the matches of rows since `mark`."""
        self.match[rows], self.method[rows] = -1, 0
        self.communicator[rows], doubts, unplaced, self.clocks.links = mark
        del self.doubts[doubts:], self.unplaced[unplaced:]

    def numbered(self) -> Int64:
        """By row the number of the event, in the order of first ends; −1 for events of fewer than two ranks."""
        matched = self.match >= 0
        first = np.full(self.events, np.iinfo(np.int64).max)
        np.minimum.at(first, self.match[matched], self.end[matched])
        partners = np.bincount(self.match[matched], minlength=self.events) > 1
        order = np.argsort(np.where(partners, first, np.iinfo(np.int64).max), kind="stable")
        number = np.empty(self.events, dtype=np.int64)
        number[order] = np.arange(self.events)
        kept = matched & partners[np.maximum(self.match, 0)] if self.events else matched
        self.method[~kept] = 0
        return np.where(kept, number[np.maximum(self.match, 0)] if self.events else -1, -1).astype(np.int64)
