"""Where a finding can be seen: the event exists, is what it is said to be, and nothing of the kind costs more there.

Each cost is recomputed from the raw events, in plain Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.claims.claim import Claim
from tests.claims.device_rules import PAGEABLE, launched_in_steps, number_of, overlapped, product_kernels, products
from tests.claims.host_rules import (
    MEMORY,
    collections,
    late_gaps,
    left_out,
    memory_time,
    own_long_time,
    short_pieces,
    silent_time,
    waits,
)
from tests.claims.raw import LOADING, File, Raw
from tests.claims.spans import less, union, within
from tests.plain_reading import DEVICE, Event, category, loading_of

from rankscope.results import Anchor

Costs = list[tuple[Event, float]]
"""Events that could prove a finding, and what each costs."""
COMPILER = re.compile(r"TorchDynamo Cache Lookup|AOTDispatcher Runtime Wrapper Prologue|Pregraph|entire_\w+_compile")
WITHOUT = frozenset(
    (
        # About settings, files, or the state of an allocator.
        "longer_steps", "memory_fragmentation", "numa_binding", "profiler_cost", "shared_device", "too_few_steps",
    )
)  # fmt: skip
"""Rules whose findings have no event."""


@dataclass(frozen=True)
class Place:
    """A file, and the finding that is about it."""

    raw: Raw
    file: File
    claim: Claim
    rank: int


def late_launches(place: Place) -> Costs:
    file = place.file
    out = left_out(file)
    costs = [(event, gap, gap[1] - gap[0] - within(out, *gap)) for event, gap in late_gaps(file)]
    # A gap with mostly other causes would prove those.
    return [(event, cost) for event, gap, cost in costs if 2 * cost >= gap[1] - gap[0]]


def after_silence(place: Place) -> Costs:
    silent = silent_time(place.file)
    costs = [(event, gap, within(silent, *gap)) for event, gap in late_gaps(place.file)]
    return [(event, cost) for event, gap, cost in costs if 2 * cost >= gap[1] - gap[0]]


def after_long_calls(place: Place) -> Costs:
    file = place.file
    long = own_long_time(file)
    costs = [(event, gap, within(long, *gap)) for event, gap in late_gaps(file)]
    return [(event, cost) for event, gap, cost in costs if 2 * cost >= gap[1] - gap[0]]


def late_short_launches(place: Place) -> Costs:
    short = short_pieces(place.file)
    return [(event, cost) for event, cost in late_launches(place) if id(event) in short and cost <= 100_000]


def allocator_calls(place: Place) -> Costs:
    file = place.file
    gaps = union(gap for _, gap in late_gaps(file))
    waiting = less(gaps, less(gaps, memory_time(file)))
    return [(call, within(waiting, *call.span)) for call in file.plain.calls if MEMORY.search(call.name)]


def host_waits(place: Place) -> Costs:
    return [(call, cost) for call, cost in waits(place.file, ())]


def loading(place: Place) -> Costs:
    alone = place.file.exclusive["data_loading"]
    return [(event, within(alone, *event.span)) for event in loading_of(place.file.plain.named, LOADING)]


def idle(events: Iterable[Event], file: File) -> Costs:
    busy = file.busy if file.on_device else []
    return [(event, event.end - event.start - within(busy, *event.span)) for event in events]


def compiling(place: Place) -> Costs:
    plain = place.file.plain
    return idle((e for e in [*plain.named, *plain.operators] if COMPILER.match(e.name)), place.file)


def unfilled(place: Place) -> Costs:
    file, found = place.file, []
    shared = overlapped(file)
    for event in file.computing:
        blocks = float(event.args.get("blocks per SM") or 0)
        if event.end - event.start >= 10_000 and 0 < blocks < 1 and launched_in_steps(file, event, ()):
            alone = event.end - event.start - within(shared[event.args.get("device")], *event.span)
            found.append((event, alone * (1 - blocks)))
    return found


def pageable(place: Place) -> Costs:
    file = place.file
    others = union(e.span for e in file.plain.device if category(e) != "memory" or "memset" in e.name.lower())
    return [
        (event, event.end - event.start - within(others, *event.span))
        for event in file.plain.device
        if PAGEABLE.search(event.name) and launched_in_steps(file, event, ())
    ]


def lasted(events: Iterable[Event]) -> Costs:
    return [(event, event.end - event.start) for event in events]


def product_work(place: Place) -> Costs:
    """Of 32 bits or more: kernels, or on the CPU operators."""
    file, wide = place.file, ("float32", "float64")
    if not file.on_device:
        return lasted(e for e in products(file) if number_of(e) in wide)
    mine = [row for row in product_kernels(place.raw, place.rank) if row[0] is file]
    return lasted(k for _, k, o in mine if number_of(o) in wide and launched_in_steps(file, k, ()))


def computing(place: Place) -> Costs:
    return lasted(place.file.computing if place.file.on_device else place.file.pieces)


def communicating(place: Place) -> Costs:
    file = place.file
    if file.on_device:
        return lasted(event for event in file.plain.device if category(event) == "communication")
    return lasted(e for e in [*file.plain.named, *file.plain.operators] if e.name.startswith("gloo:"))


def early(place: Place) -> Costs:
    return [(e, e.launch - e.start) for e in place.file.plain.device if e.launch is not None and e.launch > e.start]


def operators(place: Place) -> Costs:
    return lasted(place.file.plain.operators)


def steps(place: Place) -> Costs:
    return lasted(event for event in place.file.plain.named if event.name.startswith("ProfilerStep#"))


KINDS: dict[str, tuple[Callable[[Place], Costs], bool]] = {
    "bucket_size": (communicating, False),
    "data_loading": (loading, True),
    "exchange_imbalance": (communicating, False),
    "exposed_communication": (communicating, False),
    "gc_pauses": (lambda place: idle(collections(place.file), place.file), True),
    "graph_breaks": (compiling, True),
    "host-device-clock-skew": (early, True),
    "imbalance": (computing, False),
    "launch_bound": (late_launches, True),
    "silent_host": (after_silence, True),
    "long_calls": (after_long_calls, False),
    "low_occupancy": (unfilled, True),
    "memory_growth": (steps, False),
    "memory_limit": (operators, False),
    "memory_retries": (allocator_calls, True),
    "pageable_copies": (pageable, True),
    "pipeline-bubble": (communicating, False),
    "precision": (product_work, True),
    "slow-network": (communicating, False),
    "slow_network": (communicating, False),
    "small_collectives": (communicating, False),
    "small_kernels": (late_short_launches, True),
    "small_problem": (communicating, False),
    "stall": (communicating, False),
    "straggler": (communicating, False),
    "synchronizing_calls": (host_waits, True),
    "tensor_cores": (product_work, False),
    "unmatched-collectives": (communicating, False),
}
"""By finding: the events that can prove it, and whether the one that costs most in its step must be shown."""


def anchored(claim: Claim, raw: Raw) -> None:
    """The finding's event and its peers are in the raw trace, and prove it."""
    anchor = claim.finding.anchor
    if anchor is None:
        return
    claim.require(claim.finding.id in KINDS, "an event, though nothing says which one proves it")
    claim.require(not claim.finding.ranks or anchor.rank in claim.finding.ranks, "its event is on another rank")
    costs, most = KINDS[claim.finding.id]
    file = file_of(claim, anchor, raw)
    found = costs(Place(raw, file, claim, anchor.rank))
    own = [cost for event, cost in found if is_it(event, anchor, found)]
    claim.require(own, f"rank {anchor.rank} has no such event at {anchor.start_ns}: {anchor.name}")
    numbers = steps_at(file, anchor.start_ns)
    claim.require(
        not claim.finding.steps or not numbers or numbers & set(claim.finding.steps), f"its event is in {numbers}"
    )
    if most:
        of = step_of(file, next(event for event, _ in found if is_it(event, anchor, found)))
        same = [cost for event, cost in found if step_of(file, event) == of]
        claim.require(max(own) >= max(same) - 1, f"an event of the step costs {max(same)}, this one {max(own)}")
    for peer in anchor.peers:
        there = costs(Place(raw, file_of(claim, peer, raw), claim, peer.rank))
        claim.require(any(is_it(event, peer, there) for event, _ in there), f"rank {peer.rank} has no such event")
    claim.require(not {anchor.rank} & {*anchor.compared, *(peer.rank for peer in anchor.peers)}, "compared with itself")
    claim.require(anchor.since_ns is None or anchor.since_ns < anchor.start_ns, "a gap that begins after its end")


def is_it(event: Event, anchor: Anchor, others: Costs) -> bool:
    """Whether it is the anchor's event; a collective that ran as several kernels ends with the last."""
    ends = event.end == anchor.end_ns or any(each.end == anchor.end_ns for each, _ in others)
    return (event.start, event.name) == (anchor.start_ns, anchor.name) and ends


def file_of(claim: Claim, anchor: Anchor, raw: Raw) -> File:
    claim.require(anchor.rank in raw.files, f"no trace of rank {anchor.rank}")
    claim.require(anchor.window < len(raw.files[anchor.rank]), f"no window {anchor.window} of rank {anchor.rank}")
    return raw.files[anchor.rank][anchor.window]


def step_of(file: File, event: Event) -> int | None:
    """The step that an event counts for: on the device by the step's window, on the host by its range."""
    if not (file.on_device and event.category in DEVICE):
        return file.step_at(event.start)
    return next((number for number, begin, end in file.windows if begin <= event.start < end), None)


def steps_at(file: File, instant: int) -> set[int]:
    """The steps that an instant is in: on the host, and on the device, which may be behind."""
    windows = {number for number, begin, end in file.windows if number is not None and begin <= instant < end}
    here = file.step_at(instant)
    return windows | ({here} if here is not None else set())
