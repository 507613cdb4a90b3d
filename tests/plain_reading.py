"""The analyses once more, in plain Python over the JSON text: slow, simple, and nothing of rankscope in it.

It follows the definitions as they are written, instant by instant: a set of time is measured by sweeping over the
boundaries of its ranges and looking at what is open between each two. What the two readings agree on is right, or
wrong twice in quite different ways.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

DEVICE = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
RUNTIME = re.compile(r"(cuda|hip|xpu|mtia)_(runtime|driver)|runtime")
COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|hccl|msccl|nvshmem|deep_?ep|(inter|intra)node(_ll)?::|multimem|symm_?mem|cross_device_reduce"
    r"|(?<!sm)(all_?to_?all|all_?reduce|all_?gather)|reduce_?scatter|send_?recv",
    re.IGNORECASE,
)
NAMED_2020 = re.compile(r"ProfilerStep#|enumerate\(Data(Loader|Pipe)\)#|Optimizer\.|DistributedDataParallel\.")
LOADING = re.compile(r"enumerate\(Data(Loader|Pipe)\)|data_?load|load_?(data|batch)", re.IGNORECASE)

Span = tuple[int, int]


@dataclass
class Event:
    """One range: nanoseconds, and what else of it a definition asks for."""

    start: int
    end: int
    name: str
    category: str
    thread: tuple[Any, Any]
    args: dict[str, Any]
    launch: int | None = None
    depth: int = 0

    @property
    def span(self) -> Span:
        return self.start, self.end


@dataclass
class Plain:
    """A trace by kinds of events, each in the order of its starts."""

    device: list[Event] = field(default_factory=list)
    operators: list[Event] = field(default_factory=list)
    calls: list[Event] = field(default_factory=list)
    named: list[Event] = field(default_factory=list)
    echoes: list[Event] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)


def read(source: Path | dict[str, Any]) -> Plain:
    """A trace, from a file or as it is."""
    if isinstance(source, Path):
        text = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
        source = json.loads(text, parse_float=Decimal)
    found = Plain()
    events = source["traceEvents"] if isinstance(source, dict) else source
    for raw in events:
        if raw.get("ph") != "X":
            continue
        start = int(Decimal(str(raw["ts"])) * 1000)
        end = start + max(int(Decimal(str(raw.get("dur", 0))) * 1000), 0)
        category = (raw.get("cat") or "").lower()
        one = Event(start, end, raw.get("name", ""), category, (raw.get("pid"), raw.get("tid")), raw.get("args") or {})
        if category in DEVICE:
            found.device.append(one)
        elif RUNTIME.fullmatch(category):
            found.calls.append(one)
        elif category == "gpu_user_annotation":
            found.echoes.append(one)
        elif category == "user_annotation" or (category == "operator" and NAMED_2020.match(one.name)):
            found.named.append(one)
        elif category in ("cpu_op", "operator"):
            found.operators.append(one)
    for events in (found.device, found.operators, found.calls, found.named):
        events.sort(key=lambda event: (event.start, -event.end))
    launches: dict[int, int] = {}
    for call in found.calls:
        if call.args.get("correlation"):
            launches.setdefault(call.args["correlation"], call.start)
    for event in found.device:
        event.launch = launches.get(event.args.get("correlation", 0))
    for event in found.named:
        number = re.fullmatch(r"ProfilerStep#(\d+)", event.name)
        if number:
            found.steps.append((int(number.group(1)), event.start, event.end))
    _depths(found.operators)
    work = [(event.start, event, False) for event in found.operators if not event.depth]
    work += [(event.launch, event, True) for event in found.device if event.launch is not None]
    loading = [event.span for event in loading_of(found.named)]
    found.steps = complete_steps(sorted(found.steps, key=lambda step: step[1]), work, loading)
    return found


def loading_of(named: Sequence[Event], pattern: re.Pattern[str] = LOADING) -> list[Event]:
    """Ranges that load data; where threads have steps, only theirs: no step waits for another thread's loader."""
    stepping = {event.thread for event in named if re.fullmatch(r"ProfilerStep#\d+", event.name)}
    return [e for e in named if pattern.search(e.name) and (not stepping or e.thread in stepping)]


def complete_steps(
    steps: list[tuple[int, int, int]], work: Iterable[tuple[int, Event, bool]], loading: Sequence[Span]
) -> list[tuple[int, int, int]]:
    """The steps without those at the ends that hold no iteration: number, start and end, in their order.

    Args:
        work: top-level operators by their starts, and device events by their launches (true).
        loading: ranges of data loading, whose work does not count.
    """
    held: list[list[tuple[Event, bool]]] = [[] for _ in steps]
    for instant, event, on_device in work:
        if not any(start <= instant < end for start, end in loading):
            for place, (_, start, end) in enumerate(steps):
                if start <= instant < end:
                    held[place].append((event, on_device))
    names = [{event.name for event, _ in each} for each in held]
    backward = [any(re.search(r"^autograd::|Backward\d*$", event.name) for event, _ in each) for each in held]
    spent: Counter[str] = Counter()
    for event, on_device in (one for each in held for one in each):
        spent[event.name] += 0 if on_device else event.end - event.start

    def time(place: int, of_device: bool) -> int:
        return sum(event.end - event.start for event, on_device in held[place] if on_device is of_device)

    def empty(place: int, others: list[int]) -> bool:
        if not others:
            return False
        if 2 * sum(backward[other] for other in others) > len(others):
            if backward[place]:
                return False
        else:
            of_device = any(time(other, True) for other in others)
            few = len(held[place]) < statistics.median(len(held[other]) for other in others) / 4
            short = time(place, of_device) < statistics.median(time(other, of_device) for other in others) / 4
            if not (few and short if len(others) == 1 else few or short):
                return False
        times = Counter(name for other in others for name in names[other])
        common = {name for name, number in times.items() if number > len(others) / 2}
        has = common & names[place]
        return len(has) < len(common) / 2 or sum(spent[name] for name in has) < sum(spent[name] for name in common) / 2

    left = list(range(len(steps)))
    while len(left) > 1:
        dropped = [place for place in (left[-1], left[0]) if empty(place, [each for each in left if each != place])]
        if not dropped:
            break
        left.remove(dropped[0])
    if len(left) < len(steps) and any(empty(place, [each for each in left if each != place]) for place in left):
        return steps
    return [steps[place] for place in left]


def _depths(operators: list[Event]) -> None:
    opened: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for event in operators:
        stack = opened[event.thread] = [end for end in opened[event.thread] if end > event.start]
        event.depth = len(stack)
        stack.append(event.end)


# -- sets of time ---------------------------------------------------------------------------------------------------


def sweep(layers: Sequence[Iterable[Span]], window: Span | None = None) -> dict[frozenset[int], int]:
    """How long exactly these layers were open at once, for every combination that was, within a window."""
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, spans in enumerate(layers):
        for start, end in spans:
            if window is not None:
                start, end = max(start, window[0]), min(end, window[1])
            if end > start:
                changes[start].append((number, 1))
                changes[end].append((number, -1))
    count = [0] * len(layers)
    lasted: dict[frozenset[int], int] = defaultdict(int)
    before: int | None = None
    for instant in sorted(changes):
        if before is not None:
            lasted[frozenset(number for number, n in enumerate(count) if n)] += instant - before
        for number, change in changes[instant]:
            count[number] += change
        before = instant
    return lasted


def layers_of(trace: Plain) -> tuple[list[Span], list[Span], list[Span], list[Span]]:
    """Compute, communication, copies, fills."""
    if trace.device:
        kinds: dict[str, list[Span]] = defaultdict(list)
        for event in trace.device:
            kinds[category(event)].append(event.span)
        return kinds["compute"], kinds["communication"], kinds["memcpy"], kinds["memset"]
    gloo = [event for event in [*trace.named, *trace.operators] if event.name.startswith("gloo:")]
    compute = []
    for event in trace.operators:
        if event.depth == 0 and not event.name.startswith("gloo:"):
            around = [g for g in gloo if g.thread == event.thread and g.start <= event.start < g.end]
            if not around:
                compute.append(event.span)
    return compute, [event.span for event in gloo], [], []


def category(event: Event) -> str:
    """Compute or communication; memcpy or memset."""
    kind = DEVICE[event.category]
    if kind != "kernel":
        return kind
    communicates = "Collective name" in event.args or _named_communication(event.name)
    return "communication" if communicates else "compute"


@functools.cache
def _named_communication(name: str) -> bool:
    return COMMUNICATION.search(name) is not None


# -- the analyses ---------------------------------------------------------------------------------------------------


def device_time(trace: Plain) -> dict[str, int | float | None]:
    """The row of `device_time`, without its rank."""
    compute, communication, memcpy, memset = layers_of(trace)
    lasted = sweep([compute, communication, [*memcpy, *memset]])

    def total(chosen: Any) -> int:
        return sum(length for open_, length in lasted.items() if chosen(open_))

    everything = [span for span in [*compute, *communication, *memcpy, *memset] if span[1] > span[0]]
    span = max(end for _, end in everything) - min(start for start, _ in everything) if everything else 0
    busy = total(bool)
    both = total(lambda o: {0, 1} <= o)
    communicating = total(lambda o: 1 in o)
    return {
        "span_ns": span,
        "busy_ns": busy,
        "compute_ns": total(lambda o: 0 in o),
        "communication_ns": communicating,
        "memory_ns": total(lambda o: 2 in o),
        "overlap_ns": both,
        "exposed_communication_ns": total(lambda o: 1 in o and 0 not in o),
        "exposed_memory_ns": total(lambda o: o == {2}),
        "idle_ns": span - busy,
        "overlap_ratio": both / communicating if communicating else None,
    }


def windows(trace: Plain) -> list[tuple[int | None, int, int]]:
    """Step, begin and end of every window; without steps, of the device's span, or of everything without a device."""
    steps = sorted(trace.steps, key=lambda step: step[1])
    if not steps:
        ranges = trace.device or [*trace.operators, *trace.calls, *trace.named, *trace.echoes]
        return [(None, min(e.start for e in ranges), max(e.end for e in ranges))] if ranges else []
    first_launched: dict[tuple[Any, Any], int] = {}
    for event in trace.device:
        if event.launch is not None:
            stream = stream_of(event)
            first_launched[stream] = min(first_launched.get(stream, event.start), event.start)
    begin = steps[0][1]
    for event in trace.device:
        if event.launch is not None:
            before = event.launch < steps[0][1]
        else:
            before = event.start < first_launched.get(stream_of(event), steps[0][1])
        if before:
            begin = max(begin, event.end)
    found: list[tuple[int | None, int, int]] = []
    for number, start, end in steps:
        begin = max(begin, start)
        owned = [e.end for e in trace.device if e.launch is not None and start <= e.launch < end]
        finish = max([end, begin, *owned])
        found.append((number, begin, finish))
        begin = finish
    return found


def stream_of(event: Event) -> tuple[Any, Any]:
    return event.args.get("device"), event.args.get("stream")


def step_time(trace: Plain) -> list[dict[str, int | None]]:
    """The rows of `step_time`, without rank and file."""
    compute, communication, memcpy, memset = layers_of(trace)
    layers = [
        compute,
        communication,
        memcpy,
        memset,
        [call.span for call in trace.calls],
        [event.span for event in loading_of(trace.named)],
        [operator.span for operator in trace.operators],
    ]
    names = (
        "compute",
        "exposed_communication",
        "exposed_memcpy",
        "exposed_memset",
        "runtime",
        "data_loading",
        "host_op",
    )
    rows: list[dict[str, int | None]] = []
    previous: int | None = None
    for number, begin, end in windows(trace):
        row: dict[str, int | None] = {
            "step": number,
            "start_ns": begin,
            "window_ns": end - begin,
            "gap_before_ns": None if previous is None else begin - previous,
        }
        lasted = sweep(layers, (begin, end))
        for place, name in enumerate(names):
            row[f"{name}_ns"] = sum(length for open_, length in lasted.items() if min(open_, default=-1) == place)
        row["other_ns"] = end - begin - sum(length for open_, length in lasted.items() if open_)
        rows.append(row)
        previous = end
    return rows


def shared_name(name: str) -> str:
    """The name of a kernel of Triton 2 without what it ends with for each of its arguments, numbered from 0."""
    front, _, suffix = name.rpartition("_")
    for count in range(2, 100):
        if not suffix.isdigit() and re.fullmatch("".join(f"{number}c?d?e?" for number in range(count)), suffix):
            return f"{front}_0…{count - 1}"
    return name


def kernels(trace: Plain) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of `kernels` by name and category, without rank."""
    groups: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in trace.device:
        kind = category(event)
        groups[shared_name(event.name), "memory" if kind in ("memcpy", "memset") else kind].append(event)
    everything = sum(event.end - event.start for event in trace.device)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for key, events in groups.items():
        lengths = [event.end - event.start for event in events]
        rows[key] = {
            "calls": len(lengths),
            "total_ns": sum(lengths),
            "share": sum(lengths) / everything if everything else None,
            "mean_ns": statistics.fmean(lengths),
            "min_ns": min(lengths),
            "median_ns": statistics.median(lengths),
            "max_ns": max(lengths),
            "std_ns": statistics.stdev(lengths) if len(lengths) > 1 else None,
            "blocks_per_sm": _weighted(events, "blocks per SM"),
            "occupancy": _weighted(events, "est. achieved occupancy %"),
        }
    return rows


def _weighted(events: Sequence[Event], name: str) -> float | None:
    occupancies = [(float(e.args[name]), e.end - e.start) for e in events if e.args.get(name) is not None]
    weight = sum(length for _, length in occupancies)
    return sum(value * length for value, length in occupancies) / weight if weight else None
