"""The messages of a Perfetto trace, as far as they are read and written here: numbers of fields by their names.

From Perfetto's `trace_packet.proto`, `track_event.proto` and the messages in them (v59). Fields that are not listed are
skipped when a trace is read.

In: the name of a field. Out: its number.
"""

from __future__ import annotations

from enum import IntEnum

TRACE_PACKET = 1
"""The only field of a trace that is read: each is a packet."""


class Packet(IntEnum):
    """`TracePacket`."""

    clock_snapshot = 6
    timestamp = 8
    sequence_id = 10
    track_event = 11
    interned_data = 12
    sequence_flags = 13
    incremental_state_cleared = 41
    compressed_packets = 50
    timestamp_clock_id = 58
    defaults = 59
    track_descriptor = 60


STATE_CLEARED, NEEDS_STATE = 1, 2
"""Bits of `sequence_flags`."""


class Event(IntEnum):
    """`TrackEvent`."""

    category_iids = 3
    annotations = 4
    legacy = 6
    type = 9
    name_iid = 10
    track_uuid = 11
    categories = 22
    event_name = 23
    counter_value = 30
    flow_ids_old = 36
    terminating_flow_ids_old = 42
    double_counter_value = 44
    flow_ids = 47
    terminating_flow_ids = 48


BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""Values of `TrackEvent.type`."""


class Track(IntEnum):
    """`TrackDescriptor`."""

    uuid = 1
    track_name = 2
    process = 3
    thread = 4
    parent_uuid = 5
    counter = 8
    static_name = 10
    child_ordering = 11
    sibling_order_rank = 12


class Process(IntEnum):
    """`ProcessDescriptor`."""

    pid = 1
    sort_index = 3
    process_name = 6
    labels = 8


class Thread(IntEnum):
    """`ThreadDescriptor`."""

    pid = 1
    tid = 2
    sort_index = 3
    thread_name = 5


class Annotation(IntEnum):
    """`DebugAnnotation`."""

    name_iid = 1
    bool_value = 2
    uint_value = 3
    int_value = 4
    double_value = 5
    string_value = 6
    pointer_value = 7
    legacy_json_value = 9
    annotation_name = 10
    dict_entries = 11
    array_values = 12
    string_value_iid = 17


class Interned(IntEnum):
    """`InternedData`."""

    categories = 1
    event_names = 2
    annotation_names = 3
    annotation_texts = 29


IID, TEXT = 1, 2
"""The fields of an interned name or text."""


class Defaults(IntEnum):
    """`TracePacketDefaults`."""

    track_event = 11
    timestamp_clock_id = 58


class Clock(IntEnum):
    """`ClockSnapshot.Clock`, of which field 1 of a `ClockSnapshot` is a list."""

    id = 1
    timestamp = 2
    is_incremental = 3
    unit_ns = 4


SNAPSHOT_CLOCKS = 1
REALTIME, BOOTTIME = 1, 6
FIRST_SEQUENCE_CLOCK, LAST_SEQUENCE_CLOCK = 64, 127
"""Ids of clocks that belong to one sequence of packets."""
