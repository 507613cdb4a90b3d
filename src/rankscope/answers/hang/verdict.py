"""The verdict on a hang: which group, which collective, which ranks, where they are, and why.

In: the parts that the other modules of this package found. Out: dataclasses for the terminal, JSON and other code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rankscope.answers.hang.causes import Cause
from rankscope.rundir.hang_dump import Frame

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class HungCollective:
    """A collective, or a send or receive, that does not complete."""

    group: str
    """Its name in torch."""
    description: str
    group_ranks: tuple[int, ...]
    sequence: int
    """Its number in the group; of a send or receive, its number among those of its rank in the group."""
    operation: str
    """Empty if it is not recorded."""
    arrived: tuple[int, ...]
    """Ranks that have called it."""
    missing: tuple[int, ...]
    """Ranks that have not, by their dumps."""
    unknown: tuple[int, ...]
    """Ranks of the group without a dump, or with one that does not show it."""
    elements: int | None = None
    """Elements of its input on a rank that is in it."""
    dtype: str | None = None
    called_at: Frame | None = None
    """Where a rank that is in it called it."""


@dataclass(frozen=True)
class CollectiveVariant:
    """What some ranks called where the others called something else."""

    ranks: tuple[int, ...]
    operation: str
    elements: int
    dtype: str | None
    called_at: Frame | None


@dataclass(frozen=True)
class RankVerdict:
    """One rank: where it is, and why it is there."""

    rank: int
    cause: Cause
    """``communication`` for a rank that waits for others."""
    evidence: str
    host: str = ""
    place: Frame | None = None
    """In the job's code."""
    stack: tuple[Frame, ...] = ()
    """Of the training loop, the innermost frame first; empty if not recorded."""
    step: int | None = None
    phase: str = ""
    waits_in: HungCollective | None = None
    waits_for: tuple[int, ...] = ()


@dataclass(frozen=True)
class WaitInCycle:
    """One rank of a deadlock: it waits in a collective for the next rank of the cycle."""

    rank: int
    waits_for: int
    collective: HungCollective


@dataclass(frozen=True)
class HangVerdict:
    """What is known about a hang."""

    found: bool
    """Whether the dumps show a hang."""
    cause: Cause
    summary: str
    """One sentence."""
    culprits: tuple[int, ...] = ()
    """The ranks where the hang begins; empty if it is not known."""
    collective: HungCollective | None = None
    """Where the other ranks wait for them."""
    ranks: tuple[RankVerdict, ...] = ()
    """All ranks with any information, the culprits first."""
    cycle: tuple[WaitInCycle, ...] = ()
    """Of a deadlock."""
    variants: tuple[CollectiveVariant, ...] = ()
    """Of a mismatch."""
    mismatch: str = ""
    """What differs: ``operation``, ``dtype`` or ``size``."""
    over: bool = False
    """Whether all ranks with a dump have made steps since: the job went on."""
    ended_by: str = ""
    """The signal that ended the job from outside, if one did; then it did not hang."""
    world_size: int = 0
    dumps: int = 0
    """Ranks with a dump."""
    without_dump: tuple[int, ...] = ()
    advice: tuple[str, ...] = ()
    """What to record next time to find out what is unknown."""
    problems: tuple[str, ...] = ()
    """Files that could not be read, and why."""
    notes: tuple[str, ...] = ()
    """What was inferred or left out."""

    def to_json(self) -> Mapping[str, object]:
        """As JSON values."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}
