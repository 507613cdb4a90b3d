"""Memory snapshots: read without running anything, whatever is in the file."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankscope.errors import NotATraceError
from rankscope.ingest.snapshot import read_snapshot
from rankscope.ingest.unpickle import UnpickleError, unpickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(PLAIN, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_out_as_pickle_reads_them(value: Any, protocol: int) -> None:
    if protocol < 3 and "b'" in repr(value) + repr(value).replace('b"', "b'"):
        return  # bytes were calls before protocol 3
    data = pickle.dumps([value, value], protocol)
    assert unpickle(data) == pickle.loads(data)


@settings(max_examples=100, deadline=None)
@example(b"F\n")
@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda rest: pickle.dumps({"segments": []})[:-1] + rest))
def test_any_bytes_end_in_a_value_or_an_error(data: bytes) -> None:
    try:
        unpickle(data)
    except UnpickleError:
        pass


class Evil:
    def __init__(self, call: Any, arguments: tuple[Any, ...]) -> None:
        self.call = (call, arguments)

    def __reduce__(self) -> Any:
        return self.call


def tower() -> list[Any]:
    """Each list holds the one below twice: some bytes as a pickle, a terabyte as text."""
    top: list[Any] = []
    for _ in range(40):
        top = [top, top]
    return top


def hostile(folder: Path) -> dict[str, bytes]:
    touched = str(folder / "touched")
    whole = pickle.dumps({"segments": []})
    body = whole[2:-1]
    return {
        "os.system": pickle.dumps({"segments": [Evil(os.system, (f"touch {touched}",))]}),
        "protocol 0": pickle.dumps(Evil(os.system, (f"touch {touched}",)), 0),
        "eval in a set": pickle.dumps(Evil(eval, (f"open({touched!r}, 'w')",)), 2),
        "a class": pickle.dumps(Path("/tmp")),
        "inst": b"(S'touch " + touched.encode() + b"'\nios\nsystem\n.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        "persistent id": b"\x80\x04\x8c\x01aQ.",
        "extension": b"\x80\x02\x82\x01.",
        "build": b"\x80\x02}}b.",
        "huge memo": b"\x80\x02]r\xff\xff\xff\xff.",
        "memo from nowhere": b"\x80\x02j\xff\xff\xff\xff.",
        "huge bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"abc.",
        "huge text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"abc.",
        "negative text": b"\x80\x02T\xff\xff\xff\xffabc.",
        "huge integer": b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"abc.",
        "many digits": b"L" + b"9" * 1_000_000 + b"L\n.",
        "marks without end": b"\x80\x02" + b"(" * 1_000_000 + b".",
        "stack without end": b"\x80\x02" + b"]" * 300_000 + b".",
        "a nested key": b"\x80\x02}(" + b")" + b"\x85" * 200_000 + b"Nu.",
        "end of nothing": b"\x80\x02u.",
        "no stop": whole[:-1],
        "cut": whole[: len(whole) // 2],
        "nothing": b"",
        "a value too many": b"\x80\x02" + body + b"N.",
        "a class of a tower of lists": pickle.dumps(tower(), 4)[:-1] + b"\x8c\x01a\x93.",
        "no list": b"\x80\x04}\x8c\x08segmentsK\x01s.",
        "no dict": pickle.dumps([1, 2]),
    }


@pytest.mark.parametrize("name", sorted(hostile(Path("x"))))
def test_hostile_pickles(tmp_path: Path, name: str) -> None:
    file = tmp_path / "evil.memory.pickle"
    file.write_bytes(hostile(tmp_path)[name])
    tracemalloc.start()
    try:
        with pytest.raises(NotATraceError) as raised:
            read_snapshot(str(file))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(file) in str(raised.value)
    assert not (tmp_path / "touched").exists()
    assert peak < 300 << 20


def test_what_a_file_imports_is_named(tmp_path: Path) -> None:
    file = tmp_path / "evil.pickle"
    file.write_bytes(hostile(tmp_path)["stack global"])
    with pytest.raises(NotATraceError, match=r"os\.system.*do not need"):
        read_snapshot(str(file))


def test_deep_nesting_is_freed_again(tmp_path: Path) -> None:
    """Lists in lists are values; what is done with them must not be recursive."""
    data = b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b"."
    value = unpickle(data)
    assert isinstance(value, list)
    del value
    file = tmp_path / "deep.pickle"
    file.write_bytes(b"\x80\x04}\x8c\x08segments" + data[2:-1] + b"s.")
    # It is a list of segments, none of which is any.
    assert read_snapshot(str(file))[0]["snapshot_segments"].height == 0


def test_one_list_a_million_times_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.ingest.snapshot.MAX_ROWS", 10_000)
    blocks = [{"size": 1}] * 1000
    file = tmp_path / "bomb.pickle"
    file.write_bytes(pickle.dumps({"segments": [{"blocks": blocks}] * 1000}))
    with pytest.raises(NotATraceError, match="rows"):
        read_snapshot(str(file))


def test_fields_of_any_type(tmp_path: Path) -> None:
    frame = {"filename": tower(), "name": tower(), "line": "x"}
    odd = {"address": "x", "total_size": 1 << 80, "segment_pool_id": 7, "blocks": [None, {"size": [], "frames": 3}],
           "frames": [frame]}  # fmt: skip
    file = tmp_path / "odd.pickle"
    file.write_bytes(pickle.dumps({"segments": [odd, 5], "device_traces": {"a": 1}}))
    tables, info = read_snapshot(str(file))
    assert tables["snapshot_segments"].height == tables["snapshot_blocks"].height == 1
    assert tables["snapshot_segments"]["stack"].to_list() == [":0 "]
    assert info.rank is None


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def test_a_real_snapshot(shared_traces: Path) -> None:
    path = shared_traces / "verl/mem.pickle"
    content = _Plain(io.BytesIO(path.read_bytes())).load()
    assert unpickle(path.read_bytes()) == content
    tables, _ = read_snapshot(str(path))
    assert tables["snapshot_segments"].height == len(content["segments"]) == 127
    assert tables["snapshot_segments"]["bytes"].sum() == sum(s["total_size"] for s in content["segments"])
    assert tables["snapshot_blocks"].height == sum(len(s["blocks"]) for s in content["segments"])
    for segment, mine in zip(content["segments"], tables["snapshot_blocks"].partition_by("segment_row"), strict=True):
        assert mine["address"].to_list() == [block["address"] for block in segment["blocks"]]
