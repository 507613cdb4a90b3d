"""Offsets between the clocks of pairs of ranks, collected while collectives are matched.

In: offsets between two ranks, and the ranks' hosts. Out: the offset between any two ranks that they connect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.primitives.offset_estimation import OffsetEstimate

ONE_CLOCK = 1_000_000  # ns: traces of one host differ by less (by at most 70 µs in all known ones)

Links = dict[int, dict[int, int]]
"""By rank and other rank: the offset to add to the first one's clock to get the other's, ns."""


@dataclass
class ClockLinks:
    """The known offsets between ranks' clocks.

    Attributes:
        hosts: the host of each rank whose wall clock is recorded.
        links: all offsets found so far.
        named: those of them that come from groups named in the trace.
        astray: ranks that do not share the clock of their host.
    """

    hosts: Mapping[int, str]
    links: Links = field(default_factory=dict)
    named: Links = field(default_factory=dict)
    astray: set[int] = field(default_factory=set)

    def learn(self, reference: int, rank: int, offset: int, *, named: bool) -> None:
        """Record that a rank's clock plus an offset is the reference's; `named`: found with a group that has a name."""
        for links in (self.links, self.named) if named else (self.links,):
            links.setdefault(reference, {})[rank] = -offset
            links.setdefault(rank, {})[reference] = offset

    def offset(self, rank: int, reference: int, *, named: bool = False) -> int | None:
        """The offset to add to a rank's clock to get the reference's, through any ranks that link the two.

        Args:
            rank: the rank.
            reference: the other rank.
            named: use only offsets from groups with a name.
        """
        links = self.named if named else self.links
        offsets, todo = {rank: 0}, [rank]
        # Each rank's offset is that of the first way to it: no other way can change it.
        while reference not in offsets and todo:
            current = todo.pop()
            for neighbor, step in links.get(current, {}).items():
                if neighbor not in offsets:
                    offsets[neighbor] = offsets[current] + step
                    todo.append(neighbor)
        return offsets.get(reference)

    def share_clock(self, rank: int, reference: int, offset: int) -> bool:
        """Whether two ranks are on one host, and the offset is small enough for a shared clock."""
        if {rank, reference} & self.astray or abs(offset) > ONE_CLOCK:
            return False
        return rank in self.hosts and self.hosts[rank] == self.hosts.get(reference)

    def named_shift(self, rank: int, reference: int, estimate: OffsetEstimate) -> Int64:
        """The shift without offsets from unnamed communicators; ranks of one host share its clock."""
        known = self.offset(rank, reference, named=True)
        if known is not None:
            return estimate.shift - estimate.offset + known
        return np.zeros_like(estimate.shift) if self.share_clock(rank, reference, estimate.offset) else estimate.shift

    def copy_links(self) -> Links:
        """A copy of `links`, to restore later."""
        return {rank: dict(others) for rank, others in self.links.items()}
