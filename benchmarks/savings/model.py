"""An exact model of a job: hosts that call, streams that execute in order, collectives that wait for all ranks.

In: calls in the order of the program, which every rank executes alike but for durations that may differ by rank. Out:
Kineto events of each rank, and how long the job took. Nothing here is random and nothing uses rankscope, so that two
programs can be compared to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import kineto

COMPUTE, COMMUNICATION, COPIES = 7, 20, 30
SENDS, RECEIVES = 21, 22
CALL = 5.0
"""µs that the host needs to launch something."""
Time = float | Sequence[float]
"""µs, of all ranks or by rank."""


@dataclass
class _Rank:
    host: float = 0.0
    free: dict[int, float] = field(
        default_factory=lambda: dict.fromkeys((COMPUTE, COMMUNICATION, COPIES, SENDS, RECEIVES), 0.0)
    )
    events: list[kineto.Event] = field(default_factory=list)


class Job:
    """A job that is being executed; every method is a call of the program.

    Args:
        ranks: how many execute it.
    """

    def __init__(self, ranks: int = 1) -> None:
        self._ranks = [_Rank() for _ in range(ranks)]
        self._calls = 0
        self._collectives = 0

    @property
    def end(self) -> float:
        """When the last rank has ended all that it called, µs."""
        return max(max(rank.host, *rank.free.values()) for rank in self._ranks)

    def _of(self, time: Time, rank: int) -> float:
        return float(time) if isinstance(time, int | float) else float(time[rank])

    def _next(self) -> int:
        self._calls += 1
        return self._calls

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """A training step."""
        begun = [rank.host for rank in self._ranks]
        yield
        for rank, begin in zip(self._ranks, begun, strict=True):
            rank.events.append(kineto.step(number, begin, rank.host - begin))

    def host(self, time: Time, name: str = "aten::add") -> None:
        """An operator of the host that launches nothing."""
        for number, rank in enumerate(self._ranks):
            taken = self._of(time, number)
            rank.events.append(kineto.op(name, rank.host, taken))
            rank.host += taken

    def silent(self, time: Time) -> None:
        """Python, or another library, of which nothing is recorded."""
        for number, rank in enumerate(self._ranks):
            rank.host += self._of(time, number)

    def load(self, time: Time) -> None:
        """Wait for the data loader."""
        for number, rank in enumerate(self._ranks):
            taken = self._of(time, number)
            rank.events.append(kineto.loading(rank.host, taken))
            rank.host += taken

    def collect(self, time: Time) -> None:
        """Collect garbage; ranks whose time is 0 do not."""
        for number, rank in enumerate(self._ranks):
            if taken := self._of(time, number):
                rank.events.append(kineto.annotation("gc: generation 2", rank.host, taken))
                rank.host += taken

    def launch(
        self,
        time: Time,
        name: str = "gemm",
        *,
        op: str = "aten::mm",
        host: Time = 0.0,
        args: Any = None,
        by: Collection[int] | None = None,
        **on: Any,
    ) -> None:
        """A kernel on the compute stream, called by an operator that takes `host` µs before the launch.

        What autograd evaluates is called on its own thread.

        Args:
            by: the ranks that call it; all of them without.
        """
        thread = kineto.BACKWARD_THREAD if op.startswith("autograd") else kineto.MAIN_THREAD
        identity = self._next()
        for number, rank in enumerate(self._ranks):
            if by is not None and number not in by:
                continue
            before = self._of(host, number)
            rank.events.append(kineto.op(op, rank.host, before + CALL, external=identity, tid=thread, **(args or {})))
            rank.host += before
            begin = max(rank.host + CALL, rank.free[COMPUTE])
            rank.events.append(kineto.launch(rank.host, CALL - 1, correlation=identity, external=identity, tid=thread))
            rank.host += CALL
            taken = self._of(time, number)
            rank.events.append(kineto.kernel(name, begin, taken, correlation=identity, external=identity, **on))
            rank.free[COMPUTE] = begin + taken

    def graph(self, count: int, time: float) -> None:
        """A CUDA graph of some kernels, launched with one call."""
        identity = self._next()
        for rank in self._ranks:
            rank.events.append(kineto.launch(rank.host, CALL - 1, correlation=identity, name="cudaGraphLaunch"))
            begin = max(rank.host + CALL, rank.free[COMPUTE])
            rank.host += CALL
            for place in range(count):
                rank.events.append(
                    kineto.kernel("gemm", begin + place * time, time, correlation=identity, **{"graph node id": place})
                )
            rank.free[COMPUTE] = begin + count * time

    def copy(self, time: float, *, pageable: bool) -> None:
        """A copy to the device: from pageable memory on the compute stream, while the host waits; else beside it."""
        identity = self._next()
        stream = COMPUTE if pageable else COPIES
        for rank in self._ranks:
            begin = max(rank.host + CALL, rank.free[stream])
            called = begin + time - rank.host if pageable else CALL - 1
            name = f"Memcpy HtoD ({'Pageable' if pageable else 'Pinned'} -> Device)"
            rank.events.append(kineto.launch(rank.host, called, correlation=identity, name="cudaMemcpyAsync"))
            rank.events.append(
                kineto.memcpy(begin, time, name=name, stream=stream, correlation=identity, size=round(time * 1000))
            )
            rank.free[stream] = begin + time
            rank.host += max(called, CALL)

    def synchronize(self, name: str = "cudaStreamSynchronize", op: str = "aten::item") -> None:
        """The host waits for all that it launched."""
        for rank in self._ranks:
            ended = max(rank.host + CALL, *rank.free.values())
            rank.events.append(kineto.op(op, rank.host, ended - rank.host + 1))
            rank.events.append(kineto.launch(rank.host, ended - rank.host, name=name))
            rank.host = ended + 1

    def allocate(self, time: Time) -> None:
        """The allocator returns memory to the driver and takes other: the device first ends all it has."""
        for number, rank in enumerate(self._ranks):
            for name in ("cudaFree", "cudaMalloc"):
                ended = max(rank.host, *rank.free.values()) if name == "cudaFree" else rank.host
                ended += self._of(time, number) / 2
                rank.events.append(kineto.launch(rank.host, ended - rank.host, name=name))
                rank.host = ended

    def reduce(self, time: float, elements: int = 1 << 20, *, bucket: bool = False, **metadata: Any) -> None:
        """An all-reduce over all ranks, on a stream of its own, of what was computed so far.

        Args:
            time: µs that the transfer takes once every rank has come.
            bucket: whether DDP calls it in the backward.
        """
        identity = self._next()
        self._collectives += 1
        begun = []
        thread = kineto.BACKWARD_THREAD if bucket else kineto.MAIN_THREAD
        for rank in self._ranks:
            outer = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            if bucket:
                rank.events.append(kineto.op(outer, rank.host, CALL + 4, tid=thread))
            rank.events.append(kineto.op("c10d::allreduce_", rank.host + 1, CALL + 1, external=identity, tid=thread))
            rank.events.append(
                kineto.launch(rank.host + 2, CALL - 2, correlation=identity, external=identity, tid=thread)
            )
            rank.host += CALL + 4
            begun.append(max(rank.host, rank.free[COMPUTE], rank.free[COMMUNICATION]))
        ended = max(begun) + time
        for rank, begin in zip(self._ranks, begun, strict=True):
            rank.free[COMMUNICATION] = ended
            rank.events.append(
                kineto.collective(
                    begin,
                    ended - begin,
                    elements=elements,
                    correlation=identity,
                    external=identity,
                    sequence=self._collectives,
                    ranks=range(len(self._ranks)),
                    stream=COMMUNICATION,
                    **metadata,
                )
            )

    def send(self, source: int, target: int, time: float) -> None:
        """Pass on what the source has computed: both kernels end `time` µs after both have begun.

        The target computes on when it has it; the source does not wait.
        """
        begun = {}
        for number, kind in ((source, "send"), (target, "recv")):
            rank, stream = self._ranks[number], SENDS if kind == "send" else RECEIVES
            rank.events.append(kineto.launch(rank.host, CALL - 1, correlation=self._next()))
            rank.host += CALL
            computed = rank.free[COMPUTE] if kind == "send" else 0.0
            begun[number] = kind, stream, self._calls, max(rank.host, computed, rank.free[stream])
        ended = max(begin for *_, begin in begun.values()) + time
        for number, (kind, stream, identity, begin) in begun.items():
            peer = {"Dst Rank": target} if kind == "send" else {"Src Rank": source}
            self._ranks[number].events.append(
                kineto.collective(
                    begin, ended - begin, kind=kind, group="1", description="mesh_pp", ranks=range(len(self._ranks)),
                    stream=stream, correlation=identity, **peer,
                )
            )  # fmt: skip
            self._ranks[number].free[stream] = ended
        self._ranks[target].free[COMPUTE] = max(self._ranks[target].free[COMPUTE], ended)

    def wait(self, stream: int = COMMUNICATION) -> None:
        """What is computed from here on waits for a stream."""
        for rank in self._ranks:
            rank.free[COMPUTE] = max(rank.free[COMPUTE], rank.free[stream])

    def write(self, folder: Path, **metadata: Any) -> Path:
        """A trace of each rank in a folder; gives the folder."""
        rounded = {
            number: [{**each, "ts": round(each["ts"], 3), "dur": round(each["dur"], 3)} for each in rank.events]
            for number, rank in enumerate(self._ranks)
        }
        return kineto.write_ranks(folder, rounded, **metadata)


Program = Callable[[Job], None]
"""The calls of one step."""


def execute(program: Program, *, ranks: int = 1, steps: int = 6) -> Job:
    """A job of some steps."""
    job = Job(ranks)
    for number in range(steps):
        with job.step(number):
            program(job)
    return job
