"""The per-rank analyses once more, in plain Python over the JSON: the companion of `plain_reading`.

Sets of time are measured by sweeping over boundaries, nesting by asking each range for those around it. Slow, simple,
and nothing of rankscope in it.
"""

from __future__ import annotations

import bisect
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.plain_reading import Event, Plain, Span, category, loading_of, stream_of, sweep, windows


def length(spans: Iterable[Span]) -> int:
    """The measure of the union."""
    return sum(lasted for open_, lasted in sweep([list(spans)]).items() if open_)


def device_of(event: Event) -> Any:
    return event.args.get("device")


# -- operators ------------------------------------------------------------------------------------------------------


def threads(operators: list[Event]) -> dict[Any, list[Event]]:
    found: dict[Any, list[Event]] = defaultdict(list)
    for operator in operators:
        found[operator.thread].append(operator)
    return found


def parents(operators: list[Event]) -> dict[int, Event | None]:
    """For each operator, by id, the one that is open around its start, the latest to start."""
    found: dict[int, Event | None] = {}
    for ranges in threads(operators).values():
        stack: list[Event] = []
        for event in ranges:
            # A range without duration is inside what is open at its instant.
            stack = [one for one in stack if one.end > event.start or (one.end == one.start == event.start)]
            found[id(event)] = stack[-1] if stack else None
            stack.append(event)
    return found


def launchers(trace: Plain) -> dict[int, Event | None]:
    """For each device event, by id, the operator that it belongs to."""
    by_id: dict[Any, Event] = {}
    for operator in trace.operators:
        if operator.args.get("External id"):
            by_id.setdefault(operator.args["External id"], operator)
    calls: dict[Any, Event] = {}
    for call in trace.calls:
        if call.args.get("correlation"):
            calls.setdefault(call.args["correlation"], call)
    starts: dict[Any, tuple[list[int], list[Event]]] = {}
    for thread, ranges in threads(trace.operators).items():
        starts[thread] = [one.start for one in ranges], ranges
    found: dict[int, Event | None] = {}
    for event in trace.device:
        owner = by_id.get(event.args.get("External id", event.args.get("external id", 0)) or None)
        call = calls.get(event.args.get("correlation") or None)
        if owner is None and call is not None and call.thread in starts:
            firsts, ranges = starts[call.thread]
            before = ranges[: bisect.bisect_right(firsts, call.start)]
            owner = next(
                (one for one in reversed(before) if one.end > call.start or one.end == one.start == call.start), None
            )
        found[id(event)] = owner
    return found


def operators(trace: Plain) -> dict[str, dict[str, Any]]:
    """The rows of `operators` by name: host and device times, calls."""
    around = parents(trace.operators)
    own: dict[str, list[Span]] = defaultdict(list)
    whole: dict[str, list[Span]] = defaultdict(list)
    for event, owner in zip(trace.device, launchers(trace).values(), strict=True):
        if owner is not None:
            own[owner.name].append(event.span)
        while owner is not None:
            whole[owner.name].append(event.span)
            owner = around[id(owner)]
    inside: dict[int, int] = defaultdict(int)
    for operator in trace.operators:
        mother = around[id(operator)]
        if mother is not None:
            inside[id(mother)] += max(min(operator.end, mother.end) - operator.start, 0)
    rows: dict[str, dict[str, Any]] = {}
    for operator in trace.operators:
        row = rows.setdefault(operator.name, {"calls": 0, "host_self_ns": 0, "host_total_ns": 0})
        row["host_self_ns"] += max(operator.end - operator.start - inside[id(operator)], 0)
        mother = around[id(operator)]
        while mother is not None and mother.name != operator.name:
            mother = around[id(mother)]
        if mother is None:
            row["calls"] += 1
            row["host_total_ns"] += operator.end - operator.start
    for name, row in rows.items():
        row["device_self_ns"] = length(own[name]) if trace.device else None
        row["device_total_ns"] = length(whole[name]) if trace.device else None
        row["device_events"] = len(own[name]) if trace.device else None
    return rows


# -- utilization ----------------------------------------------------------------------------------------------------


def utilization(trace: Plain) -> dict[Any, dict[str, Any]]:
    """The rows of `utilization` by device."""
    begins = windows(trace)
    start, end = (begins[0][1], begins[-1][2]) if begins else (0, 0)
    if not trace.steps and begins:
        everything = trace.device or [*trace.operators, *trace.calls, *trace.named, *trace.echoes]
        start, end = min(e.start for e in everything), max(e.end for e in everything)
    rows: dict[Any, dict[str, Any]] = {}
    for device in {device_of(event) for event in trace.device}:
        kernels = [e for e in trace.device if device_of(e) == device and e.category == "kernel"]
        cut = [(max(e.start, start), min(e.end, end), e) for e in kernels]
        cut = [(a, b, e) for a, b, e in cut if b > a]
        changes: dict[int, list[float]] = defaultdict(list)
        for a, b, e in cut:
            if e.args.get("blocks per SM") is not None:
                changes[a].append(float(e.args["blocks per SM"]))
                changes[b].append(-float(e.args["blocks per SM"]))
        efficient, blocks, before = 0.0, [], None
        for instant in sorted(changes):
            if before is not None:
                efficient += min(sum(blocks), 1.0) * (instant - before)
            for change in changes[instant]:
                if change < 0 and -change in blocks:
                    blocks.remove(-change)
                else:
                    blocks.append(change)
            # Ends before begins may come in either order at one instant: pairs cancel.
            blocks = _canceled(blocks)
            before = instant
        occupancies = [
            (float(e.args["est. achieved occupancy %"]), b - a)
            for a, b, e in cut
            if e.args.get("est. achieved occupancy %") is not None
        ]
        weight = sum(lasted for _, lasted in occupancies)
        running = length((a, b) for a, b, _ in cut)
        computing = length((a, b) for a, b, e in cut if category(e) == "compute")
        sized = end > start and any("blocks per SM" in e.args for e in kernels)
        rows[device] = {
            "span_ns": end - start,
            "kernel_ns": running,
            "utilization": running / (end - start) if end > start else None,
            "compute_utilization": computing / (end - start) if end > start else None,
            "sm_efficiency": efficient / (end - start) if sized else None,
            "occupancy": sum(value * lasted for value, lasted in occupancies) / weight if weight else None,
        }
    return rows


def _canceled(blocks: list[float]) -> list[float]:
    left = [block for block in blocks if block >= 0]
    for block in blocks:
        if block < 0:
            left.remove(-block)
    return left


# -- launches and queues --------------------------------------------------------------------------------------------


def launches(trace: Plain) -> dict[str, Any]:
    """The row of `launches` of a rank."""
    launched = [event for event in trace.device if event.launch is not None]
    latencies = [event.start - event.launch for event in launched if event.launch is not None]
    calls: dict[Any, int] = {}
    known: dict[Any, Event] = {}
    for call in trace.calls:
        if call.args.get("correlation"):
            known.setdefault(call.args["correlation"], call)
    for event in launched:
        call = known[event.args["correlation"]]
        calls[event.args["correlation"]] = call.end - call.start
    ends: dict[Any, int] = {}
    unqueued = []
    for event in trace.device:
        reached = ends.get(stream_of(event))
        if event.launch is not None and (reached is None or reached <= event.launch):
            unqueued.append(event.start - event.launch)
        ends[stream_of(event)] = max(reached if reached is not None else event.end, event.end)
    changes: dict[int, int] = defaultdict(int)
    for event in launched:
        changes[event.launch or 0] += 1
        changes[event.start] -= 1
    # The depth from each instant to the next, and the idle time that meets a depth of at most one.
    depth, area, deepest, before = 0, 0, 0, None
    steps: list[tuple[int, int]] = []
    for instant in sorted(changes):
        if before is not None:
            area += depth * (instant - before)
        depth += changes[instant]
        deepest = max(deepest, depth)
        steps.append((instant, depth))
        before = instant
    idle = gaps([event.span for event in trace.device])
    bound = 0
    for a, b in idle:
        # The step function within the gap, piece by piece.
        place = bisect.bisect_right(steps, (a, 1 << 62)) - 1
        at = a
        while at < b:
            following = steps[place + 1][0] if place + 1 < len(steps) else b
            if (steps[place][1] if place >= 0 else 0) <= 1:
                bound += min(following, b) - at
            at, place = min(following, b), place + 1
    return {
        "events": len(trace.device),
        "launchless": len(trace.device) - len(launched),
        "launches": len(calls),
        "call_ns": sum(calls.values()),
        "mean_latency_ns": statistics.fmean(latencies) if latencies else None,
        "min_latency_ns": min(latencies, default=None),
        "median_latency_ns": statistics.median(latencies) if latencies else None,
        "max_latency_ns": max(latencies, default=None),
        "negative": sum(latency < 0 for latency in latencies),
        "unqueued": len(unqueued),
        "unqueued_latency_ns": statistics.median(unqueued) if unqueued else None,
        "max_queue": deepest if launched else None,
        "mean_queue": area / (steps[-1][0] - steps[0][0]) if len(steps) > 1 else None,
        "launch_bound_ns": bound if launched else None,
    }


def gaps(spans: list[Span]) -> list[Span]:
    """Where nothing is open between the first start and the last end."""
    found: list[Span] = []
    reached: int | None = None
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if reached is not None and start > reached:
            found.append((reached, start))
        reached = end if reached is None else max(reached, end)
    return found


# -- idle -----------------------------------------------------------------------------------------------------------


def stream_idle(trace: Plain) -> dict[tuple[Any, Any, str], tuple[int, int]]:
    """Gaps and time of `idle` by device, stream and cause."""
    reached: dict[Any, int] = {}
    found: dict[tuple[Any, Any, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for event in trace.device:
        before = reached.get(stream_of(event))
        if before is not None and event.start > before:
            gap = event.start - before
            if event.launch is None:
                cause = "unknown"
            elif event.launch > before:
                cause = "host_wait"
            else:
                cause = "kernel_wait" if gap < 30_000 else "other"
            count, total = found[(*stream_of(event), cause)]
            found[(*stream_of(event), cause)] = count + 1, total + gap
        reached[stream_of(event)] = event.end if before is None else max(before, event.end)
    return dict(found)


def device_idle(trace: Plain, frames: list[Span]) -> dict[tuple[Any, str], int]:
    """Time of `idle` by device and cause, for devices as a whole."""
    waiting = re.compile(
        r"synchroni[sz]e|waitforevents|event_?wait$|queue_?(finish|wait)|hostsync|^hipmemcpywithstream$", re.IGNORECASE
    )
    layers = [
        [event.span for event in loading_of(trace.named)],
        [call.span for call in trace.calls if waiting.search(call.name)],
        [call.span for call in trace.calls if not waiting.search(call.name)],
        [operator.span for operator in trace.operators],
        frames,
    ]
    names = ("data_loading", "synchronisation", "runtime", "operator", "python", "nothing")
    found: dict[tuple[Any, str], int] = defaultdict(int)
    for device in {device_of(event) for event in trace.device}:
        idle = gaps([event.span for event in trace.device if device_of(event) == device])
        for open_, lasted in sweep([idle, *layers]).items():
            if 0 in open_:
                found[device, names[min((n - 1 for n in open_ if n), default=5)]] += lasted
    return {key: value for key, value in found.items() if value}


def python_frames(content: dict[str, Any]) -> list[Span]:
    """The spans of Python frames."""
    from decimal import Decimal

    found = []
    for raw in content["traceEvents"]:
        if raw.get("ph") == "X" and (raw.get("cat") or "").lower() == "python_function":
            start = int(Decimal(str(raw["ts"])) * 1000)
            found.append((start, start + int(Decimal(str(raw.get("dur", 0))) * 1000)))
    return found
