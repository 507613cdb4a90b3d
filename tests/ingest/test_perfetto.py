"""Perfetto traces give the same tables as the JSON of the same events; damage is named and loses nothing else."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import zstandard
from tests import kineto
from tests.conftest import SHARED_TRACES
from tests.fuzz.mutate import handmade
from tests.ingest.perfetto_text import event, integer, named, packet, perfetto_text, track

from rankscope.errors import NotATraceError, TraceError
from rankscope.ingest import perfetto_schema as pf
from rankscope.ingest.kineto import KinetoTrace, read_kineto
from rankscope.ingest.perfetto import is_perfetto, pair
from rankscope.ingest.perfetto_packets import MAX_NESTING
from rankscope.ingest.protobuf import bytes_field, number_field, read_fields, text_field, varint

SMALL = perfetto_text([(0, 90, "main"), (1, 20, "aten::mm"), (30, 40, "aten::add"), (40, 45, "aten::t"), (50, 50, "x")])
RANGES = {("main", 0, 90), ("aten::mm", 1, 20), ("aten::add", 30, 40), ("aten::t", 40, 45), ("x", 50, 50)}


def read(folder: Path, data: bytes, name: str = "rank0.pftrace") -> KinetoTrace:
    path = folder / name
    path.write_bytes(data)
    return read_kineto(str(path))


def ranges(found: KinetoTrace) -> set[tuple[str, int, int]]:
    frame = pl.concat(
        [found.tables[name].select("name", "start_ns", "end_ns") for name in ("host_ops", "other_events")]
    )
    return {(name, start // 1000, end // 1000) for name, start, end in frame.iter_rows()}


def test_slices_of_one_thread(tmp_path: Path) -> None:
    found = read(tmp_path, SMALL)
    assert ranges(found) == RANGES
    assert set(found.tables["host_ops"]["tid"]) == {8}
    assert found.tables["host_ops"]["external_id"].to_list() == [5] * 5
    assert not found.losses.truncated
    assert not found.odd


@pytest.mark.parametrize("form", ["gz", "zst", "zip", "tar"])
def test_content_decides_not_the_name(tmp_path: Path, form: str) -> None:
    packed = io.BytesIO()
    if form == "gz":
        packed.write(gzip.compress(SMALL))
    elif form == "zst":
        packed.write(zstandard.compress(SMALL))
    elif form == "zip":
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("rank0.pftrace", SMALL)
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            member = tarfile.TarInfo("rank0.pftrace")
            member.size = len(SMALL)
            archive.addfile(member, io.BytesIO(SMALL))
    assert ranges(read(tmp_path, packed.getvalue(), "rank0.json")) == RANGES


@pytest.mark.parametrize(
    "text", [b'\n{"traceEvents": []}', b'\n\n[\n{"ph": "X"}]', b"", b"\n", b'\x0a{ "a": 1}', b"\x0bxx"]
)
def test_json_is_no_perfetto_trace(text: bytes) -> None:
    assert not is_perfetto(text) or text == b"\n"


@pytest.mark.parametrize("layout", ["torch", "sdk"])
def test_same_tables_as_the_json(tmp_path: Path, layout: Any) -> None:
    from tests.perfetto_traces import to_perfetto

    events = [each for each in handmade(0) if each["ph"] in ("X", "s", "f") or (layout == "sdk" and each["ph"] == "i")]
    if layout == "torch":  # what CUPTI records: everything with its correlation
        kinds = ("kernel", "gpu_memcpy", "cuda_runtime")
        events = [e for e in events if e["ph"] in "sf" or (e["cat"] in kinds and "correlation" in e["args"])]
    compare(tmp_path, events, to_perfetto(events, layout), skip={"tracks"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout", "skip"),
    [
        # Kineto's own marks are not in the export, and PyTorch's has no categories for host ranges.
        ("modded-nanogpt-h100-8ranks/*rank6*", "torch", {"host_ops", "annotations", "flows", "collectives"}),
        ("modded-nanogpt-h100-8ranks/*rank6*", "sdk", {"device_events", "flows", "collectives"}),
        ("gloo-2ranks/ddp_gpt_shapes.rank0*", "sdk", set()),
        ("hta/timeline_analysis/sampled_rank-0*", "sdk", set()),
        ("rocm-aorta/misc/*", "torch", {"host_ops", "annotations", "flows", "collectives"}),
    ],
)
def test_same_tables_as_a_real_trace(tmp_path: Path, name: str, layout: Any, skip: set[str]) -> None:
    from tests.perfetto_traces import to_perfetto

    path = next(iter(sorted(SHARED_TRACES.glob(name))), None)
    if path is None:
        pytest.skip("the real trace is not here")
    data = path.read_bytes()
    content = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data, strict=False)
    events = content["traceEvents"]
    compare(tmp_path, events, to_perfetto(events, layout), skip={"tracks", "other_events"} | skip)


def compare(folder: Path, events: list[dict[str, Any]], data: bytes, skip: set[str]) -> None:
    """All tables but some are the same as those of the JSON."""
    expected, found = read(folder, json.dumps(events).encode(), "rank0.json"), read(folder, data)
    assert not found.losses.reason
    for name, table in expected.tables.items():
        if name in skip:
            continue
        # `fwdbwd` ids are another range in the Perfetto trace, which has one for all flows.
        columns = [column for column in table.columns if (name, column) != ("flows", "id")]
        if "host_ops" in skip:
            columns = [column for column in columns if column != "op_row"]
        other = found.tables[name]
        assert other.height == table.height, name
        if name == "collectives":  # those of the device and of the host stand in the order in which they are read
            table, other = (each.sort("source", "row") for each in (table, other))
        for column in columns:
            assert other[column].to_list() == table[column].to_list(), (name, column)
    compared = {name for name, table in expected.tables.items() if table.height} - skip
    assert compared, "nothing was compared"


def test_pairs_are_those_of_a_stack() -> None:
    for seed in range(300):
        source = random.Random(seed)
        rows: list[tuple[int, int, int]] = []
        time = 0
        for _ in range(source.randrange(1, 40)):
            time += source.choice([0, 1, 5])
            rows.append((source.choice([pf.BEGIN, pf.END, pf.INSTANT]), source.randrange(3), time))
        stacks: dict[int, list[int]] = {}
        expected = [-1] * len(rows)
        for row, (kind, which, _) in enumerate(rows):
            opened = stacks.setdefault(which, [])
            if kind == pf.BEGIN:
                opened.append(row)
            elif kind == pf.END and opened:
                begun = opened.pop()
                expected[begun], expected[row] = row, begun
        kind, where, times = (np.array(column) for column in zip(*rows, strict=True))
        assert pair(kind.astype(np.int8), where, times).tolist() == expected, seed


def test_ends_written_after_all_begins_belong_to_them_in_order(tmp_path: Path) -> None:
    """Back to back on one track, as PyTorch writes kernels: by time alone the second would begin in the first."""
    spans = [(0, 10), (10, 20), (20, 35), (36, 40)]
    begins = [event(1, begin, named("kernel"), integer("grid", begin)) for begin, _ in spans]
    found = read(tmp_path, b"".join([track(1), *begins, *(event(2, end) for _, end in spans)]))
    assert list(found.tables["other_events"].select("start_ns", "end_ns").iter_rows()) == spans


def test_clocks_of_a_sequence_and_the_wall_clock(tmp_path: Path) -> None:
    """Perfetto's library counts on from a snapshot, in its own unit."""

    def clock(number: int, now: int, *fields: bytes) -> bytes:
        return bytes_field(1, number_field(1, number) + number_field(2, now) + b"".join(fields))

    clocks = clock(6, 5_000) + clock(1, 9_005_000) + clock(64, 3, number_field(3, 1), number_field(4, 1000))
    snapshot = packet(number_field(10, 4), bytes_field(6, clocks), bytes_field(59, number_field(58, 64)))
    data = [snapshot, track(1), event(1, 2, named("a"), sequence=4), event(2, 3, sequence=4)]
    found = read(tmp_path, b"".join(data))
    # The clock was at 3 µs when the trace's was at 5 µs: the slice begins 2 µs later, and takes 3 µs.
    assert found.tables["other_events"].select("start_ns", "end_ns").row(0) == (7_000, 10_000)
    assert found.metadata["baseTimeNanoseconds"] == 9_000_000


def test_a_clock_of_the_system_is_known_to_every_sequence(tmp_path: Path) -> None:
    """Perfetto's service relates the system's clocks in a sequence of its own."""
    clocks = (
        bytes_field(1, number_field(1, number) + number_field(2, now)) for number, now in ((6, 5_000), (3, 2_000))
    )
    by_monotonic = bytes_field(59, number_field(58, 3))
    data = [
        packet(number_field(10, 1), bytes_field(6, b"".join(clocks))),
        packet(number_field(10, 4), by_monotonic),
        track(1), event(1, 2_500, named("a"), sequence=4), event(2, 3_500, sequence=4),
    ]  # fmt: skip
    found = read(tmp_path, b"".join(data))
    assert found.tables["other_events"].select("start_ns", "end_ns").rows() == [(5_500, 6_500)]


def test_counters_interned_texts_and_compressed_packets(tmp_path: Path) -> None:
    import zlib

    counter = packet(bytes_field(60, number_field(1, 3) + text_field(2, "loss") + bytes_field(8, b"")))
    interned = bytes_field(3, number_field(1, 9) + text_field(2, "key")) + bytes_field(
        29, number_field(1, 8) + text_field(2, "val")
    )
    state = packet(number_field(10, 1), number_field(13, 1), bytes_field(12, interned))
    argument = bytes_field(4, number_field(1, 9) + number_field(17, 8))
    inner = state + event(1, 5, named("a"), argument) + event(2, 6)
    data = (
        track(1) + counter + packet(bytes_field(50, zlib.compress(inner))) + event(4, 7, number_field(30, 12), uuid=3)
    )
    found = read(tmp_path, data)
    assert found.tables["other_events"].select("name", "args").row(0) == ("a", '{"key":"val"}')
    assert found.tables["counters"].select("time_ns", "name", "values").row(0) == (7, "loss", '{"":12}')


# -- hostile input --------------------------------------------------------------------------------------------------


def test_cut_at_every_byte(tmp_path: Path) -> None:
    boundaries = {SMALL.index(b"\x0a" + varint(len(part)) + part) for part in parts_of(SMALL)}
    for size in range(1, len(SMALL)):
        try:
            found = read(tmp_path, SMALL[:size])
        except TraceError as error:
            assert "rank0.pftrace" in str(error)
            continue
        complete = {each for each in ranges(found) if each in RANGES}
        begun = {(name, start) for name, start, _ in ranges(found)}
        assert begun <= {(name, start) for name, start, _ in RANGES}, size
        assert len(complete) >= len(begun) - 2, size  # at most two are open at once
        assert found.losses.truncated or size in boundaries, size


def parts_of(data: bytes) -> list[bytes]:
    """The packets of a trace."""
    return [data[begins:ends] for _, _, begins, ends in read_fields(data, 0, len(data))]


def nested(depth: int) -> bytes:
    inner = number_field(4, 1)
    for _ in range(depth):
        inner = bytes_field(12, inner)
    return bytes_field(4, text_field(10, "deep") + inner)


@pytest.mark.parametrize(
    ("hostile", "what"),
    [
        (b"\x0a" + b"\xff" * 11, "a number of more than ten bytes"),
        (b"\x0a" + varint(1 << 40), "a packet of 1,099,511,627,776 bytes"),
        (packet(number_field(8, 1)) + b"\x0a\x50\x08", "the file ends in a packet"),
        (event(1, 5, nested(MAX_NESTING + 1)), "nested more than"),
        (event(1, 5, b"\x0b"), "a field of the unknown kind 3"),
        (packet(bytes_field(11, b"\x22\x7f")), "a field of 127 bytes where 0 are left"),
        (packet(bytes_field(50, b"no deflate")), "compressed packets that cannot be decompressed"),
        (event(1, 5, bytes_field(47, b"123")), "flow ids of another size"),
    ],
)
def test_damage_is_named_with_its_place_and_loses_nothing_else(tmp_path: Path, hostile: bytes, what: str) -> None:
    found = read(tmp_path, SMALL + hostile)
    assert ranges(found) == RANGES
    assert found.losses.truncated
    assert what in str(found.losses.reason)
    place = int(str(found.losses.reason).split("at byte ")[1].split(":")[0].replace(",", ""))
    assert len(SMALL) <= place <= len(SMALL) + len(hostile)


def test_a_bomb_in_compressed_packets(tmp_path: Path) -> None:
    import zlib

    found = read(tmp_path, SMALL + packet(bytes_field(50, zlib.compress(bytes(64 << 20), 9))))
    assert "grow too much" in str(found.losses.reason)


def test_a_trace_without_events_of_a_program(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="without an event of a program"):
        read(tmp_path, packet(number_field(8, 5), bytes_field(1, b"")))


def test_what_has_no_place_is_counted(tmp_path: Path) -> None:
    other = packet(number_field(8, 5), number_field(10, 1), bytes_field(7, b""))
    undefined = event(1, 95_000, number_field(10, 77)) + event(2, 96_000) + event(2, 97_000)
    found = read(tmp_path, SMALL + other + undefined)
    assert found.odd["packets of other kinds"] == 1
    assert found.odd["names that the file does not define"] == 1
    assert found.odd["ends without a begin"] == 1
    assert ranges(found) > RANGES


def test_random_damage(tmp_path: Path) -> None:
    from tests.ingest.test_fuzz import damage

    for seed in range(400):
        data = damage(random.Random(seed), SMALL, [SMALL, kineto.dumps(kineto.trace(kineto.small_step(), rank=0))])
        try:
            found = read(tmp_path, data)
        except TraceError as error:
            assert error.path
        else:
            assert sum(table.height for table in found.tables.values()) <= len(data)
