"""Small programs of several ranks whose every dependency is known: their times, traces and critical paths.

Nothing here looks at a trace: a program is a graph with durations on nodes and lags on edges, and its critical path is
the longest path of that graph, found by plain recursion over the edges. Times are whole microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from tests import kineto

BEGIN = 10_000
NEAR = 6
"""Rules that tell what an event waited for cannot decide between ends that are as close as this."""
LAUNCH_LATENCY, STREAM_GAP, EVENT_GAP, RETURN, CALL, TRANSFER = 3, 1, 2, 3, 2, 40


@dataclass
class Node:
    """A piece of work, and what it waits for: (node, lag, category of the lag)."""

    rank: int
    category: str
    duration: int
    waits: Sequence[Wait] = field(repr=False)
    start: int = field(init=False)
    end: int = field(init=False)
    cause: Wait = field(init=False, repr=False)
    unclear: bool = field(init=False)

    def __post_init__(self) -> None:
        ready = [
            ((BEGIN if node is None else node.end) + lag, place) for place, (node, lag, _) in enumerate(self.waits)
        ]
        self.start, place = max(ready)
        self.cause = self.waits[place]
        others = [time for time, index in ready if index != place]
        self.unclear = any(self.start - time <= NEAR for time in others)
        self.end = self.start + self.duration


@dataclass
class Program:
    """The ranks' events, the last node of each rank, and whether a rule could not tell what a node waited for."""

    events: dict[int, list[kineto.Event]]
    last: dict[int, Node]
    nodes: list[Node] = field(repr=False)

    @property
    def unclear(self) -> bool:
        return any(node.unclear for node in self.nodes)

    def longest_path(self, rank: int) -> Counter[tuple[int, str]]:
        """The time by rank and category on the longest path to the end of a rank, µs."""
        found: Counter[tuple[int, str]] = Counter()
        node: Node | None = self.last[rank]
        while node is not None:
            found[node.rank, node.category] += node.duration
            before, lag, category = node.cause
            found[node.rank, category] += lag
            node = before
        return Counter({key: value for key, value in found.items() if value})


Wait = tuple["Node | None", int, str]
"""What a node waited for, how long it took from its end, and what that time is."""

ITEMS = st.lists(
    st.one_of(
        st.tuples(st.just("op"), st.integers(5, 60), st.integers(0, 12)),
        st.tuples(st.just("launch"), st.integers(5, 90), st.sampled_from((7, 8))),
        st.tuples(st.just("after"), st.integers(5, 90), st.sampled_from((7, 8))),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=5,
)


@st.composite
def programs(draw: st.DrawFn, ranks: int) -> Program:
    """One step: operators, launches on two streams with waits between them, synchronization, collectives."""
    writers = [_Rank(rank, ranks) for rank in range(ranks)]
    for writer in writers:
        writer.op(draw(st.integers(5, 60)), 0)
    for number in range(draw(st.integers(1, 3))):
        for writer in writers:
            for kind, duration, choice in draw(ITEMS):
                getattr(writer, kind)(duration, choice)
        if ranks > 1:
            _collective(writers, number)
    return Program(
        {writer.rank: writer.finish() for writer in writers},
        {writer.rank: writer.last for writer in writers},
        [node for writer in writers for node in writer.nodes],
    )


class _Rank:
    """Writes the events of a rank, one after another."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.events: list[kineto.Event] = []
        self.nodes: list[Node] = []
        self.host: Node | None = None
        self.streams: dict[int, Node] = {}
        self.correlation = 0
        self.last: Node
        # The same five collectives on all ranks give all clocks; they are over when the step begins.
        for number in range(5 if ranks > 1 else 0):
            self._kernel(100 * number, 50, 100 * number, 20, number)

    def op(self, duration: int, gap: int) -> None:
        self.host = self._node("host_op", duration, [(self.host, gap, "other")])
        self.events.append(kineto.op("aten::op", self.host.start, duration))

    def launch(self, duration: int, stream: int) -> None:
        self._launch(duration, stream, [])

    def after(self, duration: int, stream: int) -> None:
        other = [node for number, node in self.streams.items() if number != stream]
        self._launch(duration, stream, [(node, EVENT_GAP, "kernel_gap") for node in other])

    def sync(self, _duration: int, _choice: int) -> None:
        begin = BEGIN if self.host is None else self.host.end
        waits: list[Wait] = [(node, RETURN, "runtime") for node in self.streams.values()]
        # A call that waits for nothing takes a time of its own.
        self.host = self._node("runtime", 0, [(self.host, CALL, "runtime"), *waits])
        self.events.append(kineto.launch(begin, self.host.end - begin, name="cudaStreamSynchronize"))

    def arrive(self) -> tuple[Node, int]:
        """A collective's launch, and its kernel's start."""
        ends: list[Wait] = [(node, EVENT_GAP, "kernel_gap") for stream, node in self.streams.items() if stream != 20]
        call, waits = self._call(20, ends)
        return self._node("communication", 0, waits), call

    def transfer(self, arrival: Node, call: int, arrivals: list[Node], number: int) -> None:
        last = max(arrivals, key=lambda node: node.start)
        node = self._node("communication", TRANSFER, [(last, 0, "communication")])
        node.unclear = any(last.start - other.start <= NEAR for other in arrivals if other is not last)
        self.streams[20] = node
        self._kernel(arrival.start, node.end - arrival.start, call, 20, 100 + number)

    def finish(self) -> list[kineto.Event]:
        host_end = BEGIN + 1 if self.host is None else self.host.end + 1
        ended = [node for node in self.streams.values() if node.end >= host_end]
        if ended:
            self.last = max(ended, key=lambda node: node.end)
            # Of two that end together either is the last.
            self.last.unclear |= sum(node.end == self.last.end for node in ended) > 1
        else:
            self.last = self._node("other", 1, [(self.host, 0, "other")])
        return [*self.events, kineto.step(3, BEGIN, host_end - BEGIN)]

    def _launch(self, duration: int, stream: int, others: list[Wait]) -> None:
        call, waits = self._call(stream, others)
        node = self.streams[stream] = self._node("compute", duration, waits)
        self._write(kineto.kernel("gemm", node.start, duration, stream=stream, correlation=self._last_call), call)

    def _call(self, stream: int, others: list[Wait]) -> tuple[int, list[Wait]]:
        begin = BEGIN if self.host is None else self.host.end
        waits: list[Wait] = [(self.host, LAUNCH_LATENCY, "launch"), *others]
        if stream in self.streams:
            waits.append((self.streams[stream], STREAM_GAP, "kernel_gap"))
        self.host = self._node("runtime", CALL, [(self.host, 0, "other")])
        return begin, waits

    @property
    def _last_call(self) -> int:
        self.correlation += 1
        return self.correlation

    def _write(self, event: kineto.Event, call: int) -> None:
        self.events += [event, kineto.launch(call, CALL, correlation=self.correlation)]

    def _kernel(self, start: int, duration: int, call: int, stream: int, sequence: int) -> None:
        event = kineto.collective(
            start, duration, sequence=sequence, stream=stream, ranks=range(self.ranks), correlation=self._last_call
        )
        self._write(event, call)

    def _node(self, category: str, duration: int, waits: Sequence[Wait]) -> Node:
        self.nodes.append(Node(self.rank, category, duration, waits))
        return self.nodes[-1]


def _collective(writers: list[_Rank], number: int) -> None:
    arrived = [writer.arrive() for writer in writers]
    for writer, (arrival, call) in zip(writers, arrived, strict=True):
        writer.transfer(arrival, call, [node for node, _ in arrived], number)
