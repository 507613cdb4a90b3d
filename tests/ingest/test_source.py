"""A trace is opened by what it is, whatever it is packed in and called; bombs and traps are refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import random
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from tests.kineto import dumps, kernel, pack, small_step, trace, write

from rankscope.engine.pipeline import open_run
from rankscope.errors import NotATraceError, TraceError
from rankscope.ingest.discover import find_traces
from rankscope.ingest.kineto import read_kineto
from rankscope.rundir.directory import directory_of

MADE = small_step() + [kernel(f"kernel {number}", 200 + number, 1) for number in range(500)]
TEXT = dumps(trace(MADE, rank=0))


def names(file: Path) -> list[str]:
    found = read_kineto(str(file), chunk_bytes=5000)
    assert found.losses.reason is None
    assert found.json_bytes == len(TEXT)
    return sorted(name for frame in found.tables.values() if "name" in frame.columns for name in frame["name"])


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return names(write(tmp_path_factory.mktemp("plain") / "t.json", TEXT))


def members(*parts: bytes) -> bytes:
    return b"".join(gzip.compress(part) for part in parts)


def tar_of(entries: dict[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("somewhere")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def zip_of(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


Packer = Callable[[dict[str, bytes]], bytes]

PACKED = {
    "plain": TEXT,
    "gz": pack(TEXT, "gz"),
    "gz of many members": members(TEXT[:100], TEXT[100:5000], b"", TEXT[5000:]),
    "gz with zeros behind": pack(TEXT, "gz") + b"\0" * 3000,
    "gz with zeros between members": members(TEXT[:5000]) + b"\0" * 512 + members(TEXT[5000:]),
    "gz with something else behind": pack(TEXT, "gz") + b"end of file",
    "zst": pack(TEXT, "zst"),
    "zst of many frames": pack(TEXT[:777], "zst") + pack(TEXT[777:], "zst"),
    "zst without a size": zstandard.ZstdCompressor(write_content_size=False).compress(TEXT),
    "zst with frames to skip, as pzstd writes it": b"".join(
        b"\x50\x2a\x4d\x18\4\0\0\0" + len(frame).to_bytes(4, "little") + frame
        for frame in (pack(TEXT[:777], "zst"), pack(TEXT[777:], "zst"))
    ),
    "tar.gz": tar_of({"rank-3-coord-1-0-trace.json": TEXT}),
    "tar.gz behind other members": tar_of({"notes.txt": b"x" * 5000, "._t.json": b"\0", "a/b/t.json": TEXT}),
    "tar.gz of a gz": tar_of({"t.json.gz": pack(TEXT, "gz")}),
    "tar": tar_of({"t.json": TEXT}, "w"),
    "tar.zst": pack(TEXT, "tar.zst"),
    "zip": zip_of({"t.json": TEXT}),
    "zip of a gz": zip_of({"readme.txt": b"x", "t.pt.trace.json.gz": pack(TEXT, "gz")}),
    "a path that leaves": tar_of({"../../../escaped.json": TEXT}),
    "a path that leaves a zip": zip_of({"../../../escaped.json": TEXT}),
    "an absolute path": tar_of({"/escaped.json": TEXT}),
}


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".tar.gz", ".zip", ".txt"])
@pytest.mark.parametrize("kind", PACKED)
def test_by_content_not_by_name(tmp_path: Path, wanted: list[str], kind: str, suffix: str) -> None:
    inside = tmp_path / "a" / "b" / "c"
    inside.mkdir(parents=True)
    file = write(inside / f"t{suffix}", PACKED[kind], None)
    assert names(file) == wanted
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"t{suffix}"]


@pytest.mark.parametrize("kind", [kind for kind in PACKED if kind != "plain"])
def test_cut_and_damaged_packings_never_crash(tmp_path: Path, kind: str) -> None:
    whole = PACKED[kind]
    source = random.Random(3)
    cuts = [*range(40), *(source.randrange(len(whole)) for _ in range(25)), len(whole) - 1]
    for number, cut in enumerate(cuts):
        data = bytearray(whole[:cut] if number % 2 else whole)
        if not number % 2:
            data[cut % len(data)] ^= 1 << source.randrange(8)
        try:
            found = read_kineto(str(write(tmp_path / "t.json", bytes(data), None)), chunk_bytes=5000)
        except TraceError as error:
            assert error.path
            assert error.what
            continue
        if sum(found.counts.values()) < len(MADE):
            assert found.losses.truncated or found.losses.events, cut


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pack(TEXT, "zst")[:200], "the compressed file is cut off"),
        (pack(b"", "zst"), "the file is empty"),
        (bz2.compress(TEXT), "compressed with bzip2, which is not supported"),
        (lzma.compress(TEXT), "compressed with xz, which is not supported"),
        (b'{"traceEvents": {}}', "its `traceEvents` are not an array"),
    ],
    ids=["zst cut", "zst of nothing", "bz2", "xz", "no array"],
)
def test_why_a_file_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(NotATraceError, match=why):
        read_kineto(str(write(tmp_path / "t.json", data, None)))


MORE = {"rank0.json": TEXT, "notes.txt": b"x", "rank1.json": TEXT, "deep/rank2.json.gz": pack(TEXT, "gz")}


@pytest.mark.parametrize("data", [tar_of(MORE), tar_of(MORE, "w"), zip_of(MORE)], ids=["tar.gz", "tar", "zip"])
def test_further_traces_in_an_archive_are_reported(tmp_path: Path, data: bytes, wanted: list[str]) -> None:
    file = write(tmp_path / "traces.tar.gz", data, None)
    assert names(file) == wanted
    (finding,) = [each for each in open_run(tmp_path, executor="serial").load().findings if "archive" in each.id]
    assert "holds 2 more files" in finding.title


def test_what_lies_behind_the_trace_in_an_archive_does_no_harm(tmp_path: Path, wanted: list[str]) -> None:
    two = tar_of({"rank0.json": TEXT, "rank1.json": TEXT}, "w")
    start = two.index(b"rank1.json")
    broken = two[:start] + b"\xff" * 512 + two[start + 512 :]
    zeros = tar_of({"rank0.json": TEXT, "zeros": b"\0" * (100 << 20), "rank1.json": TEXT})
    for data in (broken, zeros):
        file = write(tmp_path / "t.tar.gz", data, None)
        assert names(file) == wanted
        assert read_kineto(str(file)).others == 0


def other_checksum(data: bytes, at: int) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= 0xFF
    return bytes(damaged)


def zip_of_another_checksum(text: bytes) -> bytes:
    packed = zip_of({"t.json": text})
    # Behind its signature: 12 bytes of a local header, 14 of the directory's entry.
    return other_checksum(other_checksum(packed, 14), packed.index(b"PK\x01\x02") + 16)


WITH_CHECKSUM = zstandard.ZstdCompressor(write_checksum=True)
# Long enough that it comes in several pieces, the last of them short.
LONG = dumps(trace(MADE + [kernel(f"kernel {number}", 800 + number, 1) for number in range(20_000)], rank=0))


KINDS_WITH_CHECKSUM = ["gz", "gz of many members", "gz in a tar", "tar.gz", "tar.gz of two", "tar.zst", "zip", "zst"]


@pytest.mark.parametrize("text", [TEXT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("kind", KINDS_WITH_CHECKSUM)
def test_what_fails_its_checksum_is_kept_and_reported(tmp_path: Path, kind: str, text: bytes) -> None:
    data = {
        "gz": other_checksum(pack(text, "gz"), -6),
        "gz of many members": other_checksum(members(text[:9000]), -6) + members(text[9000:]),
        "gz in a tar": tar_of({"t.json.gz": other_checksum(pack(text, "gz"), -6)}, "w"),
        "tar.gz": other_checksum(tar_of({"t.json": text}), -6),
        "tar.gz of two": other_checksum(tar_of({"run.json": MANIFEST, "t.json": text, "u.json": text}), -6),
        "tar.zst": other_checksum(WITH_CHECKSUM.compress(tar_of({"t.json": text}, "w")), -1),
        "zip": zip_of_another_checksum(text),
        "zst": other_checksum(WITH_CHECKSUM.compress(text), -1),
    }[kind]
    file = write(tmp_path / "rank0.json", data, None)
    found = read_kineto(str(file))
    assert found.counts == read_kineto(str(write(tmp_path / "whole.json", text, None))).counts
    assert found.losses.checksum
    assert not found.losses.truncated
    (finding,) = [each for each in open_run(file, executor="serial").load().findings if "damaged" in each.id]
    assert "fails its checksum" in finding.title


def test_the_checksum_of_a_file_that_is_looked_at_as_a_whole(tmp_path: Path) -> None:
    text = dumps({"schemaVersion": 1, "traceEvents": [kernel("k", 1, 1)]})
    assert len(text) < 512
    file = write(tmp_path / "rank0.json", other_checksum(WITH_CHECKSUM.compress(text), -1), None)
    assert read_kineto(str(file)).losses.checksum


def test_a_zstandard_file_that_breaks_off_behind_its_last_block(tmp_path: Path) -> None:
    text = LONG[:100_000]  # one block, and more than is asked for first
    file = write(tmp_path / "rank0.json", WITH_CHECKSUM.compress(text)[:-4], None)
    plain = write(tmp_path / "plain.json", text, None)
    assert read_kineto(str(file)).json_bytes == read_kineto(str(plain)).json_bytes == len(text)


def test_a_zip_whose_manifest_is_damaged(tmp_path: Path, wanted: list[str]) -> None:
    packed = zip_of({"run.json": MANIFEST, "rank0.json": TEXT})
    at = packed.index(b"run.json") + len(b"run.json")
    # No block of deflate begins so.
    file = write(tmp_path / "run.zip", packed[:at] + b"\xff" + packed[at + 1 :], None)
    assert names(file) == wanted


@pytest.mark.parametrize("packed", [tar_of, zip_of], ids=["tar.gz", "zip"])
def test_other_files_before_the_trace_in_an_archive(tmp_path: Path, wanted: list[str], packed: Packer) -> None:
    before = {"failed.json": b"", "config.json": b'{"lr": 0.1}'}
    file = write(tmp_path / "t.zip", packed({**before, "rank0.json": TEXT}), None)
    assert names(file) == wanted
    (finding,) = [each for each in open_run(tmp_path, executor="serial").load().findings if "archive" in each.id]
    assert "holds 2 more files" in finding.title
    for name, why in (("failed.json", "the file is empty"), ("config.json", "it has no `traceEvents`")):
        with pytest.raises(NotATraceError, match=why):
            read_kineto(str(write(tmp_path / "t.zip", packed({name: before[name]}), None)))


def test_an_encrypted_zip(tmp_path: Path) -> None:
    packed = bytearray(zip_of({"t.json": TEXT}))
    for at in (6, packed.index(b"PK\x01\x02") + 8):
        packed[at] |= 1
    with pytest.raises(NotATraceError, match="encrypted"):
        read_kineto(str(write(tmp_path / "t.zip", bytes(packed), None)))


def test_damage_in_the_midst_of_a_gzip_costs_what_follows(tmp_path: Path) -> None:
    packed = pack(LONG, "gz")
    at = len(packed) // 2
    found = read_kineto(str(write(tmp_path / "rank0.json", packed[:at] + b"\xff" * 4096, None)))
    assert found.losses.truncated
    before = zlib.decompressobj(wbits=31).decompress(packed[:at]).count(b'"ph"')
    assert sum(found.counts.values()) > 0.8 * before > 0


HEADERS = {
    "nothing": (0, b""),
    "a name": (8, b"t.json\0"),
    "all": (4 | 8 | 16 | 2, b"\5\0extra" + b"t.json\0" + b"a comment\0" + b"\1\2"),
    "an extra field of no bytes": (4, b"\0\0"),
    "a long name": (8, b"n" * 300_000 + b"\0"),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_of_gzip(tmp_path: Path, wanted: list[str], kind: str) -> None:
    flags, more = HEADERS[kind]
    packed = gzip.compress(TEXT)
    data = packed[:3] + bytes([flags]) + packed[4:10] + more + packed[10:]
    assert names(write(tmp_path / "t.json", members(b"") + data, None)) == wanted
    for cut in range(len(members(b"")) + 1, len(data) - len(packed) + 30):
        if cut < 2000:
            with pytest.raises(NotATraceError):
                read_kineto(str(write(tmp_path / "t.json", (members(b"") + data)[:cut], None)))


MANIFEST = b'{\n "run_id": "20261122",\n "schema_version": 1,\n "versions": {"rankscope": "0.1.0"}\n}\n'
PACKED_RUN = {"run.json": MANIFEST, "ranks/rank0.json": MANIFEST, "ranks/rank1.json": MANIFEST}
MEASURED = {
    "overhead.json": b'{"schema": 1}',
    "jobs/1/settings.json": b"{}",
    "measured/rank0.json": b"{}",
    "hang/rank0.heartbeat.json": b"{}",
    "truth/rank0.json": b'{"schema": 1, "rank": 0, "collectives": []}',
}


@pytest.mark.parametrize("folder", ["", "./", "night/"])
@pytest.mark.parametrize("packed", [tar_of, zip_of], ids=["tar.gz", "zip"])
def test_a_packed_run_directory(tmp_path: Path, wanted: list[str], packed: Packer, folder: str) -> None:
    entries = {**PACKED_RUN, **MEASURED, "rank0_iter1_2.trace.json": TEXT, "rank1_iter1_2.trace.json": TEXT}
    file = write(tmp_path / "run.tar.gz", packed({folder + name: data for name, data in entries.items()}), None)
    assert names(file) == wanted
    found = find_traces(file)
    assert {Path(path).name for path in found.traces} >= {"rank0_iter1_2.trace.json", "rank1_iter1_2.trace.json"}
    assert len(found.rank_manifests) == 2
    without = write(tmp_path / "run.tar.gz", packed({folder + name: data for name, data in PACKED_RUN.items()}), None)
    with pytest.raises(NotATraceError, match="an archive of a run without its traces"):
        read_kineto(str(without))
    # What is called so and is a trace is read.
    assert names(write(tmp_path / "run.tar.gz", packed({folder + "ranks/rank0.json": TEXT}), None)) == wanted
    assert names(write(tmp_path / "run.tar.gz", packed({folder + "run.json": TEXT}), None)) == wanted


# VmHWM and not ru_maxrss: that one starts with what the parent had when it forked.
PEAK = """
import re, resource, sys
from pathlib import Path
from rankscope.errors import TraceError
from rankscope.ingest.task import ingest_trace
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
try:
    info = ingest_trace(sys.argv[1]).info
    print("refused" if info.truncated and "300 times" in (info.reason or "") else "read", info.reason)
except TraceError as error:
    print("refused", error.what)
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) >> 10)
"""


def bomb(kind: str) -> bytes:
    """Some MB, or kB, that unpack to 3 GB."""
    start, much = b'{"traceEvents": [{"ph": "X", "name": "', b"a" * (8 << 20)
    if kind == "zeros":
        start, much = b"", b"\0" * (8 << 20)
    if kind == "blanks":
        start, much = b'{"traceEvents": [', b" " * (8 << 20)
    if kind == "metadata":
        start = b'{"a": "'
    if kind == "events":
        start, much = b'{"traceEvents": [', b'{"ph":"X","ts":1},' * (8 << 15)
    if kind == "zst":
        return zstandard.ZstdCompressor().compress(start) + 400 * zstandard.ZstdCompressor().compress(much)
    if kind == "window":
        settings = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True, compression_level=1)
        made = zstandard.ZstdCompressor(compression_params=settings).compressobj()
        return made.compress(start) + made.compress(much) + made.flush()
    return gzip.compress(start) + 400 * gzip.compress(much)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="measures by /proc/self/status")
@pytest.mark.parametrize("kind", ["name", "zeros", "blanks", "metadata", "events", "zst", "window"])
def test_a_bomb_takes_no_memory(tmp_path: Path, kind: str) -> None:
    file = write(tmp_path / "rank0.json.gz", bomb(kind), None)
    process = subprocess.run([sys.executable, "-c", PEAK, str(file)], capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    outcome, peak = process.stdout.strip().splitlines()
    assert int(peak) < 1000, (outcome, peak)  # MB, a third of what the file unpacks to
    if kind != "window":
        assert outcome.startswith("refused"), outcome


def test_an_archive_without_a_trace(tmp_path: Path) -> None:
    for data in (tar_of({"a.txt": b"x"}), tar_of({}), zip_of({"a.txt": b"x"})):
        with pytest.raises(NotATraceError, match=r"an archive without a \.json in it"):
            read_kineto(str(write(tmp_path / "t.json", data, None)))


def test_archives_in_archives_are_not_opened(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError):
        read_kineto(str(write(tmp_path / "t.json", zip_of({"t.json": zip_of({"t.json": TEXT})}), None)))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_refused_and_never_loaded(tmp_path: Path, protocol: int) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    data = pickle.dumps({"segments": [Trap()]}, protocol=protocol)
    for packed in (data, zip_of({"snapshot.json": data}), gzip.compress(data)):
        with pytest.raises(NotATraceError, match="pickle"):
            read_kineto(str(write(tmp_path / "t.json", packed, None)))
    assert not (tmp_path / "sprung").exists()


def test_other_formats_are_refused(tmp_path: Path) -> None:
    for data in (b"\x7fELF\x02\x01", b"PAR1....", b"\xff\xfe{\x00", random.Random(1).randbytes(4000)):
        with pytest.raises(NotATraceError, match="not JSON"):
            read_kineto(str(write(tmp_path / "t.json", data, None)))


def test_no_file_and_no_permission(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_kineto(str(tmp_path / "none.json"))
    with pytest.raises(TraceError, match="cannot be opened"):
        read_kineto(str(tmp_path))


def test_file_urls_mean_what_they_mean_to_a_job(tmp_path: Path) -> None:
    folder = tmp_path / "my run#2"
    folder.mkdir()
    write(folder / "rank0.json", TEXT)
    quoted = f"{tmp_path}/my%20run%232"
    for url in (f"file://{folder}", f"file://{quoted}", f"file:{quoted}", f"FILE://localhost{quoted}"):
        assert Path(directory_of(url)) == folder
        assert find_traces(url).traces == [str(folder / "rank0.json")]
    assert find_traces(f"file://{quoted}/rank*.json").traces == [str(folder / "rank0.json")]
    # A folder whose name looks quoted is found by the name that it has.
    (tmp_path / "my%20run%232").mkdir()
    write(tmp_path / "my%20run%232" / "rank1.json", TEXT)
    assert find_traces(f"file://{quoted}").traces == [str(tmp_path / "my%20run%232" / "rank1.json")]
