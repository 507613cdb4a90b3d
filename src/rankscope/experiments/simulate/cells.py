"""The smallest unit of a simulated job: one operator or call, with all the events that Kineto writes for it.

A cell has up to twelve moments on the host, given as the spans between them (the first is the gap before it), and at
most one piece of device work. Each event lies between two of these moments. Arguments that differ between ranks are
functions of the rank; those that differ between uses of a cell are an :class:`Id`.

In: spans and the arguments of events. Out: a cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from rankscope.experiments.simulate.identity import MAIN, RankIdentity

HOST_MOMENTS = 12
DEVICE_START, DEVICE_END = HOST_MOMENTS, HOST_MOMENTS + 1
MOMENTS = HOST_MOMENTS + 2

AUTOGRAD_HOST, MAIN_HOST, DEVICE_AND_RUNTIME = SECTIONS = 0, 1, 2
"""Sections of a file: Kineto writes host events thread by thread, then what CUPTI recorded."""

COMPUTE_STREAM = 7

EXTERNAL, CORRELATION, SEQUENCE = COUNTERS = 0, 1, 2


class Id(NamedTuple):
    """A number that is new in each use of a cell."""

    counter: int
    """Which of ``COUNTERS`` it is taken from."""
    number: int
    """Counted within the cell."""


SEQUENCE_NUMBER = Id(SEQUENCE, 0)

Args = dict[str, object]
"""An event's arguments: values, :class:`Id`, and functions of a :class:`RankIdentity` that give the value."""


@dataclass(frozen=True, eq=False)
class CellEvent:
    """An event that a cell writes in each use."""

    phase: str
    """``X``, or ``s`` and ``f`` for the two ends of a flow, whose ``args`` hold its ``id``."""
    category: str
    name: str | Callable[[RankIdentity], str]
    start: int
    end: int
    thread: str | int
    """A thread of the host by name, or a stream of the device."""
    section: int
    args: Args
    lost_as: str = ""
    """Its kind for :class:`Lost`; empty if it is never lost."""

    @property
    def on_device(self) -> bool:
        """Whether it is on a stream."""
        return isinstance(self.thread, int)


@dataclass(frozen=True, eq=False)
class Cell:
    """An operator with its events; cells are compared by identity."""

    name: str
    spans_ns: tuple[int, ...]
    """Between the moments; the first is the gap before the cell."""
    events: tuple[CellEvent, ...]
    launch_at: int
    """The index of the span of the launch call, whose duration is drawn separately; -1: none."""
    kernel_ns: int
    """0: no device work, or (communication) device work whose duration the engine computes."""
    ids: tuple[int, ...]
    """How many ids it takes of each of ``COUNTERS``; the sequence number is the program's."""
    steady: bool
    """Whether its spans have no jitter."""
    waits_at: int
    """The index of the span that waits for the device (a synchronization) or the loader; -1: none."""


@dataclass
class CellBuilder:
    """Collects a cell's events; ids count up as they are taken."""

    thread: str
    stacks: bool = False
    events: list[CellEvent] = field(default_factory=list)
    ids: list[int] = field(default_factory=lambda: [0 for _ in COUNTERS])

    def _take(self, counter: int) -> Id:
        number = self.ids[counter]
        self.ids[counter] += 1
        return Id(counter, number)

    @property
    def section(self) -> int:
        """Where this thread's host events go."""
        return MAIN_HOST if self.thread == MAIN else AUTOGRAD_HOST

    def host(
        self,
        category: str,
        name: str | Callable[[RankIdentity], str],
        start: int,
        end: int,
        args: Args | None = None,
        *,
        forward_thread: int | None = None,
    ) -> Id:
        """A range on the host; returns its External id.

        ``forward_thread`` marks a link between forward and backward: 0 on the forward side, 1 on the other.
        """
        external = self._take(EXTERNAL)
        link = {} if forward_thread is None else {"Sequence number": SEQUENCE_NUMBER, "Fwd thread id": forward_thread}
        all_args = {"External id": external, **link, "Record function id": 0, **(args or {}), "Ev Idx": external}
        lost_as = "operator" if category == "cpu_op" else "other"
        self.events.append(CellEvent("X", category, name, start, end, self.thread, self.section, all_args, lost_as))
        return external

    def operator(
        self, name: str, start: int, end: int, args: Args | None = None, *, forward_thread: int | None = None
    ) -> Id:
        """A ``cpu_op``; returns its External id."""
        return self.host("cpu_op", name, start, end, args, forward_thread=forward_thread)

    def frame(self, name: str, start: int, end: int) -> None:
        """A Python frame, if they are recorded."""
        if self.stacks:
            number = self._take(EXTERNAL)
            args: Args = {"Python parent id": None, "Python id": number, "Ev Idx": number}
            self.events.append(
                CellEvent("X", "python_function", name, start, end, self.thread, self.section, args, "other")
            )

    def flow(self, phase: str, name: str, id: Id, at: int, thread: str | int, section: int) -> None:
        """One end of an arrow."""
        self.events.append(CellEvent(phase, name, name, at, at, thread, section, {"id": id}))

    def autograd_flow(self, phase: str, at: int) -> None:
        """One end of the arrow from a forward operator to its backward one."""
        self.flow(phase, "fwdbwd", SEQUENCE_NUMBER, at, self.thread, self.section)

    def runtime(self, name: str, cbid: int, start: int, end: int, external: Id | None, *, launches: bool = False) -> Id:
        """A call into the device's runtime; returns its correlation id."""
        correlation = self._take(CORRELATION)
        args = _with_external(external, {"cbid": cbid, "correlation": correlation})
        lost_as = "launch" if launches else "other"
        section = DEVICE_AND_RUNTIME
        self.events.append(CellEvent("X", "cuda_runtime", name, start, end, self.thread, section, args, lost_as))
        if launches:
            self.flow("s", "ac2g", correlation, start, self.thread, section)
        return correlation

    def device(
        self, category: str, name: str, correlation: Id, external: Id | None, args: Args, stream: int = COMPUTE_STREAM
    ) -> None:
        """Device work launched by the call with ``correlation``."""
        queued = {"queued": 0} if category == "kernel" else {}
        placement = {"device": lambda rank: rank.device, "context": 1, "stream": stream, "correlation": correlation}
        all_args = _with_external(external, {**queued, **placement, **args})
        lost_as = "kernel" if stream == COMPUTE_STREAM else "collective"
        section = DEVICE_AND_RUNTIME
        self.events.append(CellEvent("X", category, name, DEVICE_START, DEVICE_END, stream, section, all_args, lost_as))
        self.flow("f", "ac2g", correlation, DEVICE_START, stream, section)

    def cell(
        self,
        name: str,
        spans_ns: tuple[int, ...],
        *,
        launch_at: int = -1,
        kernel_ns: int = 0,
        steady: bool = False,
        waits_at: int = -1,
    ) -> Cell:
        """The cell with the events collected so far."""
        spans = spans_ns + (0,) * (HOST_MOMENTS - len(spans_ns))
        return Cell(name, spans, tuple(self.events), launch_at, kernel_ns, tuple(self.ids), steady, waits_at)


def _with_external(external: Id | None, args: Args) -> Args:
    return args if external is None else {"External id": external, **args}


def launch_shape(
    registers: int, shared: int, blocks: float, warps: float, grid: tuple[int, int, int], block: int, occupancy: int
) -> Args:
    """A kernel's launch shape, as arguments of its event."""
    return {
        "registers per thread": registers,
        "shared memory": shared,
        "blocks per SM": round(blocks, 6),
        "warps per SM": round(warps, 6),
        "grid": grid,
        "block": [block, 1, 1],
        "est. achieved occupancy %": occupancy,
    }
