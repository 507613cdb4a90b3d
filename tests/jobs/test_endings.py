"""A trace that was cut is noticed wherever it was cut, and a complete one is never called cut."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zlib

import pytest
import zstandard
from tests.ingest.perfetto_text import perfetto_text

from rankscope.jobs.doctor import run as doctor
from rankscope.jobs.gather import completeness
from rankscope.jobs.gather.endings import _TAIL, wrong_end, wrong_ends

NAMES = ('a "quoted" name', "back\\slash\\", "a } and a ]", "{[", 'ends in \\"', "ü", "")


def trace(events=40, **further):
    made = [
        {
            "ph": "X",
            "name": NAMES[k % len(NAMES)],
            "ts": k,
            "dur": 1,
            "args": {"Input Dims": [[k], []], "stack": "x" * (k % 70)},
        }
        for k in range(events)
    ]
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": made, "traceName": "a.json", **further}


def text_of(events=40, indent=None):
    return json.dumps(trace(events), indent=indent).encode() + b"\n"


def zst(data, **options):
    return zstandard.ZstdCompressor(**options).compress(data)


def tar_gz(data):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        info = tarfile.TarInfo("rank0.json")
        info.size = len(data)
        file.addfile(info, io.BytesIO(data))
    return out.getvalue()


WAYS = {
    ".json": lambda data: data,
    ".json.gz": gzip.compress,
    ".json.zst": zst,
    ".tar.gz": tar_gz,
}


@pytest.mark.parametrize("ending", WAYS)
def test_cut_anywhere(tmp_path, ending):
    path = tmp_path / f"rank0.trace{ending}"
    whole = WAYS[ending](text_of(8))
    path.write_bytes(whole)
    assert wrong_end(path) is None
    last = len(whole.rstrip()) if ending == ".json" else len(whole)
    for size in range(last):
        path.write_bytes(whole[:size])
        assert wrong_end(path), size


@pytest.mark.parametrize("indent", [None, 2])
def test_a_long_json_cut_behind_any_bracket(tmp_path, indent):
    whole = text_of(2500, indent)
    assert len(whole) > 3 * _TAIL
    path = tmp_path / "rank0_trace.json"
    path.write_bytes(whole)
    assert wrong_end(path) is None
    brackets = [k for k, byte in enumerate(whole) if byte in b"]}" and k < len(whole.rstrip()) - 1]
    # The last ones, which are the hard cases, and some of all.
    for at in [*brackets[-40:], *random.Random(0).sample(brackets, 40)]:
        path.write_bytes(whole[: at + 1])
        assert wrong_end(path), at


@pytest.mark.parametrize(
    "text",
    [b"{}", b"[]", b'[{"ph": "X"}]', b'\xef\xbb\xbf{"a": []}', b' {"a": "}"} \n\0', json.dumps(trace(0)).encode()],
)
def test_other_whole_texts(tmp_path, text):
    for ending in (".json", ".json.gz"):
        path = tmp_path / f"t{ending}"
        path.write_bytes(WAYS[ending](text))
        assert wrong_end(path) is None


def test_whole_files_of_other_writers(tmp_path):
    text, path = text_of(2000), tmp_path / "t.json.zst"
    whole = [
        zst(text, level=19),
        zst(text, write_checksum=True),
        zst(text, write_content_size=False),
        zst(text) + zst(b" " * 9),  # frames may follow one another
        b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" + zst(text),  # and some are to be passed over
        zst(bytes(1 << 20)),  # blocks of one byte repeated
        zst(random.Random(0).randbytes(300_000)),  # raw ones
        zstandard.ZstdCompressor().stream_reader(io.BytesIO(text)).read(),
    ]
    for data in whole:
        path.write_bytes(data)
        assert wrong_end(path) is None
        for size in (3, 5, 9, len(data) // 3, len(data) - 5, len(data) - 1):
            path.write_bytes(data[:size])
            assert wrong_end(path), size
    # Several members of a gzip, as `cat` makes them, and as `gzip -1` does.
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text[:1000]) + gzip.compress(text[1000:], 1))
    assert wrong_end(path) is None


def test_what_is_said_of_each(tmp_path):
    text = text_of()
    packed = gzip.compress(text)
    cut_files = {
        "a.json": b"",
        "b.json": text[:500],
        "c.json.gz": packed[:500],
        "d.json.gz": gzip.compress(b""),  # what torch leaves where $TMPDIR was full
        "e.json.gz": packed[:-8] + zlib.crc32(b"x").to_bytes(4, "little") + packed[-4:],
        "f.json.gz": b"no gzip at all",
        "g.json.gz": gzip.compress(text[:500]),  # packed whole, of a text that was not
        "h.json.zst": zst(text)[:-9],
        "i.json.zst": b"no zstandard",
    }
    for name, data in cut_files.items():
        (tmp_path / name).write_bytes(data)
    found = {path.name: wrong for path, wrong in wrong_ends(tmp_path.iterdir()).items()}
    assert set(found) == set(cut_files)
    for name, word in {
        "a.json": "empty", "b.json": "JSON ends too early", "c.json.gz": "data ends too early", "d.json.gz": "empty",
        "e.json.gz": "damaged", "f.json.gz": "damaged", "g.json.gz": "JSON ends too early",
        "h.json.zst": "compressed data ends too early", "i.json.zst": "damaged",
    }.items():  # fmt: skip
        assert word in found[name], name
    assert "cannot be read" in wrong_end(tmp_path / "nowhere.json")


def test_gather_and_doctor_name_the_file(tmp_path):
    whole = gzip.compress(text_of())
    for rank in range(2):
        (tmp_path / f"rank{rank}_iter3_4.trace.json.gz").write_bytes(whole)
    assert completeness(tmp_path, 2).whole
    assert not [check for check in doctor.checks(tmp_path) if check.name == "broken"]
    (tmp_path / "rank1_iter3_4.trace.json.gz").write_bytes(whole[:-20])
    found = completeness(tmp_path, 2)
    assert not found.whole
    assert found.broken == (("rank1_iter3_4.trace.json.gz", "it is truncated: its compressed data ends too early"),)
    assert (
        "incomplete: rank1_iter3_4.trace.json.gz: it is truncated: its compressed data ends too early" in found.report()
    )
    check = next(check for check in doctor.checks(tmp_path) if check.name == "broken")
    assert check.status == "fail"
    assert check.what.startswith("rank1_iter3_4.trace.json.gz is incomplete: it is truncated")


def test_traces_of_others_are_found_by_their_names(tmp_path):
    names = ("iteration_10/rank0_trace.json", "step_4/rank-1-coord-1-0-trace.tar.gz", "rank-2.json.gz", "rank3.json")
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(WAYS[next(e for e in (".tar.gz", ".json.gz", ".json") if name.endswith(e))](text_of()))
    # Files of `rankscope measure` and manifests are named after ranks, too.
    for name in ("measured/rank7.json", "ranks/rank8.json", "3/overhead.json", ".gather/x/rank9_trace.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{")
    found = completeness(tmp_path, 4)
    assert (found.traces, found.present, found.broken) == (4, (0, 1, 2, 3), ())
    (tmp_path / names[1]).write_bytes((tmp_path / names[1]).read_bytes()[:-3])
    assert [file for file, _ in completeness(tmp_path, 4).broken] == [names[1]]


def test_perfettos_traces_end_with_a_packet(tmp_path):
    data = perfetto_text([(k, k + 2, f"{'long ' * 40}{k}") for k in range(5)])
    path = tmp_path / "rank0.pftrace"
    ends = set()
    for length in range(1, len(data) + 1):
        path.write_bytes(data[:length])
        if wrong_end(path) is None:
            ends.add(length)
    # Where a packet ends, no reader can know that there was another one.
    assert len(data) in ends
    assert len(ends) < 30
    assert all(data[length] == 0x0A for length in ends - {len(data)})
    path.write_bytes(data[:-3])
    assert wrong_end(path) == "it is truncated: its last packet ends too early"
    path.write_bytes(b"{" + data)
    assert wrong_end(path) == "it is damaged: no packet begins at byte 0"
    packed = tmp_path / "rank1.pftrace.gz"
    packed.write_bytes(gzip.compress(data))
    assert wrong_end(packed) is None
    packed.write_bytes(gzip.compress(data)[:-20])
    assert wrong_end(packed) == "it is truncated: its compressed data ends too early"


def test_perfettos_traces_are_found(tmp_path):
    for rank, name in enumerate(("rank0.pftrace", "rank1.pftrace.gz", "rank2.perfetto-trace", "rank3.pftrace.zst")):
        data = perfetto_text([(rank, rank + 1, "x")])
        packed = gzip.compress(data) if name.endswith("gz") else zst(data) if name.endswith("zst") else data
        (tmp_path / name).write_bytes(packed)
    found = completeness(tmp_path, 4)
    assert (found.traces, found.present, found.broken, found.whole) == (4, (0, 1, 2, 3), (), True)
