"""The collectives of a rank once more, in plain Python over the JSON: see `tests.plain_reading`."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.plain_reading import Event, Plain, category

BACKEND = re.compile(r"(nccl|rccl|xccl|oneccl|hccl|ucc|mpi|msccl|torch_ucc):")
GIVEN_OUT_FIRST = re.compile(r"c10d::(_?allgather|_?reduce_scatter|_?alltoall|gather|scatter)")
CUSTOM = re.compile(r"cross_device_reduce\w*<\s*(?:\w+::)*_*(\w+),\s*(\d+)")
TYPES = {"half": "Half", "float": "Float", "nv_bfloat16": "BFloat16", "hip_bfloat16": "BFloat16"}


@dataclass
class Call:
    """Ranges of one thread that lie in one outermost range."""

    thread: tuple[Any, Any]
    start: int
    end: int
    members: list[Event] = field(default_factory=list)

    @property
    def recorded(self) -> list[Event]:
        """Those with metadata."""
        return [event for event in self.members if event.args.get("Collective name") not in (None, "wait", "init")]

    @property
    def records(self) -> list[Event]:
        """Those with metadata that lie in no other."""
        found: list[Event] = []
        for event in self.recorded:
            if not found or event.start >= max(r.end for r in found):
                found.append(event)
        return found


def calls_of(trace: Plain) -> list[Call]:
    """The calls of collectives, thread by thread."""
    threads: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for event in trace.operators:
        if event.name.startswith("c10d::") or event.name == "record_param_comms" or BACKEND.match(event.name):
            threads[event.thread].append(event)
    for event in trace.named:
        if BACKEND.match(event.name):
            threads[event.thread].append(event)
    found: list[Call] = []
    for thread, events in threads.items():
        last: Call | None = None
        for event in sorted(events, key=lambda e: (e.start, -e.end)):
            if last is None or event.start >= last.end:
                last = Call(thread, event.start, event.end)
                found.append(last)
            last.end = max(last.end, event.end)
            last.members.append(event)
    return [call for call in found if told_by(call) is not None]


def elements(shape: Any) -> int | None:
    def count(one: Any) -> int:
        if not isinstance(one, list) or not one:
            return 0
        return math.prod(one) if all(isinstance(size, int) for size in one) else sum(map(count, one))

    return count(shape) or None


def told_by(call: Call) -> dict[str, Any] | None:
    """What a call says, under Kineto's names; None if it is no collective."""
    records = call.records
    if records:
        return {**_together(records), "source": "record"}
    ranges = [event for event in call.members if BACKEND.match(event.name)]
    operators = [event for event in call.members if event.name.startswith("c10d::")]
    if not ranges and not operators:
        return None
    metadata = {"source": "range", "range": (ranges or operators)[0].name}
    if ranges:
        metadata["In msg nelems"] = elements(ranges[0].args.get("Input Dims"))
        metadata["dtype"] = next((t for t in ranges[0].args.get("Input type") or () if t and "List" not in t), None)
    if operators:
        shapes = operators[0].args.get("Input Dims") or []
        first = elements(shapes[:1])
        second = elements(shapes[1:2]) if GIVEN_OUT_FIRST.match(operators[0].name) else first
        metadata["Out msg nelems"] = first
        metadata["In msg nelems"] = metadata.get("In msg nelems") or second
        types = operators[0].args.get("Input type") or ()
        metadata["dtype"] = metadata.get("dtype") or next(
            (t for t in types if t and "List" not in t and t != "Scalar"), None
        )
    return metadata


def collectives(trace: Plain) -> list[dict[str, Any]]:
    """The rows of `collectives` of a trace with communication kernels, in order; none of Gloo's."""
    launches: dict[int, Event] = {}
    for event in trace.calls:
        if event.args.get("correlation"):
            launches.setdefault(event.args["correlation"], event)
    calls = calls_of(trace)
    kernels = [event for event in trace.device if category(event) == "communication"]
    called = {id(event): _call_of(event, calls, launches) for event in kernels}
    gathered = _gathered(kernels, calls, called, launches)
    found: list[dict[str, Any]] = []
    for event in kernels:
        external = event.args.get("External id", event.args.get("external id", 0)) or 0
        call = called[id(event)]
        own = "Collective name" in event.args
        metadata = event.args if own else (told_by(call) if call is not None else None) or {}
        if not metadata and id(event) in gathered:
            every = [record for one in gathered[id(event)] for record in one.records]
            metadata = {**_together(every), "source": "coalesced"}
        source = "kernel" if own else metadata.get("source", "name")
        dtype, size = metadata.get("dtype"), metadata.get("Group size")
        if source == "name" and (custom := CUSTOM.search(event.name)):
            dtype, size = TYPES[custom[1]], int(custom[2])
        name, description = metadata.get("Process Group Name"), metadata.get("Process Group Description")
        label = f"{name} {description}" if description and description != "undefined" else name
        key = (call and id(call), external if source == "kernel" and external > 0 else None)
        found.append(
            {
                "key": (event.args.get("device"), event.args.get("stream"), *key) if any(key) else len(found),
                "start_ns": event.start, "end_ns": event.end, "name": event.name, "launch_ns": event.launch,
                "stream": event.args.get("stream"), "device": event.args.get("device"), "group": label,
                "group_size": size, "in_elements": metadata.get("In msg nelems"),
                "out_elements": metadata.get("Out msg nelems"), "dtype": dtype, "sequence": metadata.get("Seq"),
                "source": source, "kernels": 1, "ranks": str(metadata.get("Process Group Ranks") or "") or None,
                "label": metadata.get("Collective name") or metadata.get("range"),
                "recorded": metadata.get("Seq") is not None,
                "peer": metadata.get("Dst Rank", metadata.get("Src Rank")),
            }
        )  # fmt: skip
    _name_groups(found)
    found = _once(found)
    for row in found:
        row["step"] = next(
            (n for n, s, e in trace.steps if row["launch_ns"] is not None and s <= row["launch_ns"] < e), None
        )
    found.sort(key=lambda row: (row["start_ns"], row["end_ns"]))
    counted: dict[tuple[str, Any], int] = defaultdict(int)
    for row in found:
        place = counted[row["group"], row["stream"]]
        counted[row["group"], row["stream"]] += 1
        row["sequence"] = place if row["sequence"] is None else row["sequence"]
    return found


def _together(records: list[Event]) -> dict[str, Any]:
    metadata = dict(records[0].args)
    for name in ("In msg nelems", "Out msg nelems"):
        sizes = [record.args.get(name) for record in records]
        metadata[name] = None if None in sizes else sum(sizes)
    for name in ("dtype", "Process Group Name", "Process Group Description", "Group size"):
        if len({record.args.get(name) for record in records}) > 1:
            metadata[name] = None
    return metadata


def _call_of(event: Event, calls: list[Call], launches: dict[int, Event]) -> Call | None:
    correlation = event.args.get("correlation", 0)
    external = event.args.get("External id", event.args.get("external id", 0)) or 0
    launch = launches.get(correlation)
    call = next((c for c in calls if external > 0 and external in ids(c.recorded)), None)
    if call is None and launch is not None and "Graph" not in launch.name:
        around = [c for c in calls if c.thread == launch.thread and c.start <= launch.start < c.end]
        call = around[-1] if around else None
    if call is None and launch is None and external > 0 and external != (correlation or -1):
        others = [(c, [e for e in c.members if e.name != "record_param_comms"]) for c in calls]
        call = next((c for c, members in others if external in ids(members)), None)
    return call


def _gathered(
    kernels: list[Event], calls: list[Call], called: dict[int, Call | None], launches: dict[int, Event]
) -> dict[int, list[Call]]:
    """Calls that launched nothing, by the kernel that the next launch of their thread started, if that knows none."""
    found: dict[int, list[Call]] = defaultdict(list)
    used = {id(call) for call in called.values() if call is not None}
    for call in calls:
        if id(call) in used or not call.records or {r.args.get("Group size") for r in call.records} == {1}:
            continue
        later = [
            (launch.start, place, event)
            for place, event in enumerate(kernels)
            if (launch := launches.get(event.args.get("correlation", 0))) is not None
            and launch.thread == call.thread
            and launch.start >= call.end
        ]
        if later:
            _, _, event = min(later)
            graph = "Graph" in launches[event.args["correlation"]].name
            if called[id(event)] is None and "Collective name" not in event.args and not graph:
                found[id(event)].append(call)
    return found


def ids(events: list[Event]) -> list[Any]:
    return [event.args.get("External id") for event in events]


def _name_groups(rows: list[dict[str, Any]]) -> None:
    """A kernel that names no group takes the only one of its stream, else the stream's name.

    Kernels of libraries other than NCCL are of no group that NCCL's kernels name.
    """
    metadata = ("group", "group_size", "ranks")
    others = ("nvshmem", "deepep", "deep_ep", "intranode::", "internode::", "intranode_ll::", "internode_ll::",
              "cross_device_reduce", "multimem", "symmmem", "symm_mem")  # fmt: skip
    seen: dict[tuple[Any, Any], dict[str, set[Any]]] = defaultdict(lambda: {name: set() for name in metadata})
    for row in rows:
        if row["group"] is not None:
            for name in metadata:
                seen[row["device"], row["stream"]][name] |= {row[name]} - {None}
    for row in rows:
        if row["group"] is None:
            found = seen[row["device"], row["stream"]]
            other = any(each in (row["name"] or "").lower() for each in others)
            if max(map(len, found.values())) == 1 and not other:
                row["group"] = min(found["group"])
                row["group_size"] = min(found["group_size"], default=row["group_size"])
            else:
                row["group"] = "unknown" if row["stream"] is None else f"stream {row['stream']}"


def _once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Kernels of one call on one stream are one."""
    by_key: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_key[row["key"]].append(row)
    merged = []
    for parts in by_key.values():
        parts.sort(key=lambda row: row["start_ns"])
        one = dict(parts[0])
        one["end_ns"] = max(part["end_ns"] for part in parts)
        one["launch_ns"] = min((p["launch_ns"] for p in parts if p["launch_ns"] is not None), default=None)
        one["kernels"] = len(parts)
        if len({(part["in_elements"], part["out_elements"]) for part in parts}) > 1:
            for name in ("in_elements", "out_elements"):
                one[name] = sum(part[name] or 0 for part in parts)
        merged.append(one)
    return merged
