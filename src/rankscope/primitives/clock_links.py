"""Offsets between the clocks of pairs of ranks, learned while collectives are matched.

In: offsets found between two ranks, and the ranks' hosts. Out: the offset between any two ranks that they link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.primitives.offset_estimation import OffsetEstimate

ONE_CLOCK = 1_000_000  # ns: traces of one host differ by less (by at most 70 µs in all that we know)

Links = dict[int, dict[int, int]]
"""By rank and other rank: what to add to the first one's clock to have the other's, ns."""


@dataclass
class ClockLinks:
    """What is known about the ranks' clocks.

    Attributes:
        hosts: of the ranks whose wall clock is recorded, the host.
        links: all offsets found so far.
        named: those of them that rest on groups that the trace names.
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
        """What to add to a rank's clock to have the reference's, through whatever ranks link the two.

        Args:
            rank: the rank.
            reference: the other.
            named: use only what rests on groups with a name.
        """
        links = self.named if named else self.links
        reached, todo = {rank: 0}, [rank]
        while todo:
            here = todo.pop()
            if here == reference:
                return reached[here]
            for there, step in links.get(here, {}).items():
                if there not in reached:
                    reached[there] = reached[here] + step
                    todo.append(there)
        return None

    def share_clock(self, rank: int, reference: int, offset: int) -> bool:
        """Whether two ranks are on one host, and an offset does not contradict that they share its clock."""
        if {rank, reference} & self.astray or abs(offset) > ONE_CLOCK:
            return False
        return rank in self.hosts and self.hosts[rank] == self.hosts.get(reference)

    def named_shift(self, rank: int, reference: int, found: OffsetEstimate) -> Int64:
        """The shift without what rests on unnamed communicators; ranks of one host share its clock."""
        known = self.offset(rank, reference, named=True)
        if known is not None:
            return found.shift - found.offset + known
        return np.zeros_like(found.shift) if self.share_clock(rank, reference, found.offset) else found.shift

    def copy_links(self) -> Links:
        """A copy of `links`, to return to."""
        return {rank: dict(others) for rank, others in self.links.items()}
