"""What one rank's dumps say, whichever tool wrote them: groups, recorded calls, stacks.

In: values of dumps. Out: dataclasses that the other modules of this package work on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rankscope.rundir.hang_dump import Frame, ThreadStack


@dataclass(frozen=True)
class Group:
    """A process group. Torch may give two groups the same name, so that its ranks belong to its identity."""

    name: str
    ranks: tuple[int, ...] = ()
    """Global ranks, in the order of the group's own ranks; empty if not known."""
    description: str = field(default="", compare=False)
    backends: frozenset[str] = field(default=frozenset(), compare=False)
    """``nccl``, ``gloo``; empty if not known."""


@dataclass(frozen=True)
class Call:
    """A call that the Flight Recorder has."""

    group: str
    sequence: int
    """The number of the collective in its group; that of the latest one for a point-to-point call."""
    operation: str
    """Without its backend: ``all_reduce``, ``_all_gather_base``, ``send``."""
    finished: bool = False
    pair_sequence: int = 0
    """The number of a point-to-point call among those of its rank in the group."""
    peer: int | None = None
    """Rank in the group at the other end of a point-to-point call."""
    own: int | None = None
    """Rank in the group of the caller, if a point-to-point call names it."""
    record: int = 0
    """Its position among the rank's calls."""
    created_ns: int = 0
    started: bool = False
    backend: str = ""
    """``nccl``, ``gloo``; each counts the collectives of a group by itself."""
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    on_host: bool = False
    """Whether torch has not handed it to the device yet: it is in the call, or has left it after an exception."""
    recorded: bool = True
    """False for one that follows from the group's counter and the stack alone."""

    @property
    def elements(self) -> int:
        """Elements of the input."""
        return sum(math.prod(shape) for shape in self.inputs)

    @property
    def point_to_point(self) -> bool:
        """Whether it is a send or a receive."""
        return self.peer is not None


@dataclass(frozen=True)
class Status:
    """How far a rank is in each group, by torch's status of the groups of one backend."""

    enqueued: Mapping[str, int] = field(default_factory=dict)
    """The number of the latest collective that was started."""
    completed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RankDump:
    """What is known about one rank."""

    source: str
    """The file."""
    rank: int | None = None
    candidates: frozenset[int] = frozenset()
    """The ranks that it can be of, by the groups in it, if the rank is not in it."""
    host: str = ""
    restart_count: int = 0
    run_id: str = ""
    began_ns: int = 0
    """Wall clock of the start of the rank's watch; 0 if it is not known."""
    time_ns: int = 0
    world_size: int | None = None
    groups: Mapping[str, Group] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    """In the order in which they were made."""
    has_calls: bool = False
    """Whether a Flight Recorder was read, so that a call that is not in it was not made or is over."""
    only_active: bool = False
    """Whether it was dumped without the calls that are over."""
    last_enqueued: Mapping[str, int] = field(default_factory=dict)
    """The latest number in each group, by torch's status of the group."""
    last_completed: Mapping[str, int] = field(default_factory=dict)
    by_backend: Mapping[str, Status] = field(default_factory=dict)
    """The same for each backend alone, which tells them apart in a group that has several."""
    nccl_groups: frozenset[str] = frozenset()
    """The groups that NCCL's recorder knows: those that have a communicator, with or without calls."""
    sequences: Mapping[str, int] = field(default_factory=dict)
    """How many operations were started in each group, by the process group's own counter."""
    threads: tuple[ThreadStack, ...] = ()
    has_no_device: bool = False
    """Whether the rank is known to use no device, so that it does not wait for one."""
    step: int | None = None
    phase: str = ""
    since_step_ns: int | None = None
    reason: str = ""
    uncaught: str = ""
    signal: str = ""

    @property
    def training_stack(self) -> ThreadStack | None:
        """The thread of the training loop: the one marked so, else the main thread, else the only one."""
        marked = [thread for thread in self.threads if thread.training]
        named = [thread for thread in self.threads if thread.name == "MainThread"]
        only = self.threads if len(self.threads) == 1 else ()
        return next(iter([*marked, *named, *only]), None)

    def with_rank(self, rank: int) -> RankDump:
        """The same dump, for a rank that was inferred."""
        return replace(self, rank=rank)
