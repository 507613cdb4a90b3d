"""Perfetto traces with the events of JSON traces, written with the classes that Perfetto generates from its own schema.

PyTorch's export is not in a release yet: the layout `torch` is what its encoder writes (pytorch#187892): no categories,
names interned at once, and for each kind of events all begins and then all ends. `sdk` is what Perfetto's library
writes: packets in the order of time, categories and names interned when they first occur.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

Event = dict[str, Any]
Layout = Literal["torch", "sdk"]


def nanoseconds(microseconds: float | str) -> int:
    """Exactly: a float has at most three decimals here."""
    whole, _, fraction = str(microseconds).partition(".")
    return int(whole) * 1000 + int(fraction.ljust(3, "0")[:3] or 0)


def to_perfetto(events: list[Event], layout: Layout) -> bytes:
    """A Perfetto trace with the slices, instants of memory, counters and flows of some events."""
    trace = pb.Trace()
    slices = [event for event in events if event.get("ph") == "X"]
    uuids: dict[tuple[object, object], int] = {}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    processes: dict[object, int] = {}
    for event in slices + [event for event in events if event.get("ph") in ("i", "C")]:
        pid, tid = event.get("pid"), event.get("tid")
        if pid not in processes:
            processes[pid] = 1_000_000 + len(processes)
            described = trace.packet.add().track_descriptor
            described.uuid = processes[pid]
            if isinstance(pid, int):
                described.process.pid, described.process.process_name = pid, "python"
            else:
                described.name = str(pid)
        if (pid, tid) in uuids:
            continue
        uuids[pid, tid] = len(uuids) + 1
        described = trace.packet.add().track_descriptor
        described.uuid, described.parent_uuid = uuids[pid, tid], processes[pid]
        if isinstance(pid, int) and isinstance(tid, int):
            described.thread.pid, described.thread.tid = pid, tid
            described.thread.thread_name = str(names.get((pid, tid), f"thread {tid}"))
        else:
            described.name = str(tid)
    flows = _flows(events)
    if layout == "torch":
        interned = trace.packet.add()
        interned.trusted_packet_sequence_id, interned.sequence_flags = 1, 1
        iids: dict[str, int] = {}
        for event in slices:
            name = str(event.get("name", ""))
            if name not in iids:
                iids[name] = len(iids) + 1
                entry = interned.interned_data.event_names.add()
                entry.iid, entry.name = iids[name], name
        kinds: dict[str, list[Event]] = {}
        for event in slices:
            kinds.setdefault(str(event.get("cat")), []).append(event)
        for group in kinds.values():
            for event in group:
                packet = _packet(trace, nanoseconds(event["ts"]), 1, uuids[event["pid"], event["tid"]])
                packet.sequence_flags, packet.track_event.name_iid = 2, iids[str(event.get("name", ""))]
                _fill(packet.track_event, event, flows)
            for event in group:
                end = nanoseconds(event["ts"]) + nanoseconds(event["dur"])
                _packet(trace, end, 2, uuids[event["pid"], event["tid"]])
        return bytes(trace.SerializeToString())
    # Ends before begins at one instant, but that of a slice after its own begin; the longest slice first.
    keyed: list[tuple[tuple[int, int, int, int], Event, int]] = []
    for row, event in enumerate(slices):
        begin = nanoseconds(event["ts"])
        end = begin + nanoseconds(event["dur"])
        keyed.append(((begin, 1, -end, row), event, 1))
        keyed.append(((end, 1, -end, row) if end == begin else (end, 0, -begin, -row), event, 2))
    known: dict[tuple[str, str], int] = {}
    for key, event, kind in sorted(keyed, key=lambda each: each[0]):
        packet = _packet(trace, key[0], kind, uuids[event["pid"], event["tid"]])
        if kind == 2:
            continue
        packet.sequence_flags = 2 if known else 1
        for what, text in (("event_names", str(event.get("name", ""))), ("event_categories", str(event.get("cat")))):
            if (what, text) not in known:
                known[what, text] = len(known) + 1
                entry = getattr(packet.interned_data, what).add()
                entry.iid, entry.name = known[what, text], text
        packet.track_event.name_iid = known["event_names", str(event.get("name", ""))]
        packet.track_event.category_iids.append(known["event_categories", str(event.get("cat"))])
        _fill(packet.track_event, event, flows)
    for event in events:
        if event.get("ph") == "i":
            packet = _packet(trace, nanoseconds(event["ts"]), 3, uuids[event.get("pid"), event.get("tid")])
            packet.track_event.name = str(event.get("name", ""))
            if event.get("cat"):
                packet.track_event.categories.append(str(event["cat"]))
            _fill(packet.track_event, event, {})
    return bytes(trace.SerializeToString())


def _packet(trace: Any, time_ns: int, kind: int, track: int) -> Any:
    packet = trace.packet.add()
    packet.timestamp, packet.trusted_packet_sequence_id = time_ns, 1
    packet.track_event.type, packet.track_event.track_uuid = kind, track
    return packet


def _flows(events: list[Event]) -> dict[tuple[object, ...], list[int]]:
    """The ids of `ac2g` and `fwdbwd` arrows by where they start or end, where a slice starts, too."""
    found: dict[tuple[object, ...], list[int]] = {}
    for event in events:
        if event.get("ph") in ("s", "f"):
            # Ids are counted by kind.
            number = int(event["id"]) + (1 << 40 if event["cat"] == "fwdbwd" else 0)
            found.setdefault((event["pid"], event["tid"], nanoseconds(event["ts"])), []).append(number)
    return found


def _fill(track_event: Any, event: Event, flows: dict[tuple[object, ...], list[int]]) -> None:
    for key, value in event.get("args", {}).items():
        annotation = track_event.debug_annotations.add()
        annotation.name = key
        _set(annotation, value)
    here = (event.get("pid"), event.get("tid"), nanoseconds(event["ts"]))
    track_event.flow_ids.extend(flows.pop(here, ()))


def _set(annotation: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            entry = annotation.dict_entries.add()
            entry.name = key
            _set(entry, inner)
    elif isinstance(value, list):
        for inner in value:
            _set(annotation.array_values.add(), inner)
    elif isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int):
        if value >= 1 << 63:
            annotation.uint_value = value
        else:
            annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    else:
        annotation.string_value = str(value)
