"""A packed run directory: recognized by content, unpacked without following what its names say, and bounded."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard
from tests.ingest import test_nsight as nsight
from tests.ingest.perfetto_text import perfetto_text
from tests.kineto import dumps, small_step, trace

from rankscope.engine.pipeline import open_run
from rankscope.errors import RankscopeError
from rankscope.ingest.discover import find_traces
from rankscope.jobs.doctor import disk, run
from rankscope.jobs.gather import completeness
from rankscope.jobs.gather.__main__ import run_gather
from rankscope.jobs.gather.sources import parse_source
from rankscope.rundir import archives
from rankscope.rundir.archives import is_packed_run, unpack_run
from rankscope.store.cache import Cache

TRACE = [gzip.compress(dumps(trace(small_step(), rank=rank, world_size=2))) for rank in range(2)]
RUN = {f"run/rank{rank}_iter0_0.trace.json.gz": text for rank, text in enumerate(TRACE)}
HOWS = ("tar", "tar.gz", "tar.zst", "zip")


def packed(path: Path, files: dict[str, bytes], how: str) -> Path:
    out = io.BytesIO()
    if how == "zip":
        with zipfile.ZipFile(out, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    pack = {"tar.gz": gzip.compress, "tar.zst": zstandard.compress}.get(how, bytes)
    path.write_bytes(pack(out.getvalue()))
    return path


@pytest.mark.parametrize("how", HOWS)
def test_the_run_in_an_archive_is_read_as_if_it_were_unpacked(tmp_path, how):
    archive = packed(tmp_path / f"copied.{how}", RUN, how)
    run = open_run(archive)
    assert sorted(run.step_time()["rank"].unique()) == [0, 1]
    assert find_traces(archive).traces == find_traces(archive).traces  # unpacked once
    assert not [each for each in run.findings if each.id == "archive-holds-more"]
    assert Cache().clear()
    assert sorted(tmp_path.glob("copied*")) == [archive]


@pytest.mark.parametrize("how", HOWS)
def test_perfettos_traces_and_databases_are_unpacked(tmp_path, how):
    slices = [perfetto_text([(rank, rank + 7, "main")]) for rank in range(2)]
    run = {"rank0.pftrace": slices[0], "rank1.pftrace.gz": gzip.compress(slices[1])}
    archive = packed(tmp_path / f"perfetto.{how}", run, how)
    assert open_run(archive).ranks == [0, 1]
    for rank in range(2):
        nsight.export(tmp_path / f"report.rank{rank}.sqlite", rank=rank)
    run = {path.name: path.read_bytes() for path in tmp_path.glob("*.sqlite")}
    archive = packed(tmp_path / f"reports.{how}", run, how)
    assert open_run(archive).ranks == [0, 1]


@pytest.mark.parametrize("how", HOWS)
def test_gather_takes_an_archive_as_a_source(tmp_path, how, capsys):
    one = packed(
        tmp_path / f"node0.{how}", dict([next(iter(RUN.items()))]) | {"run/ranks/rank0.json": b'{"run_id": ""}'}, how
    )
    two = packed(tmp_path / f"both.{how}", RUN, how)
    assert run_gather(tmp_path / "all", [str(one), str(two)]) == 0, capsys.readouterr()
    found = sorted(path.name for path in (tmp_path / "all").rglob("*.gz"))
    assert found == [name.removeprefix("run/") for name in RUN]


def test_gather_into_an_archive_says_how_to_unpack_it(tmp_path):
    archive = packed(tmp_path / "run.tgz", RUN, "tar.gz")
    with pytest.raises(RankscopeError, match=r"is a file(.|\n)*gather DIR .*run\.tgz"):
        run_gather(archive, [])


def test_one_trace_in_an_archive_is_not_a_run(tmp_path):
    settings = json.dumps({"lr": 0.1}).encode()
    archive = packed(tmp_path / "a.tar.gz", {"config.json": settings, "rank0.trace.json.gz": TRACE[0]}, "tar.gz")
    assert not is_packed_run(archive)
    assert find_traces(archive).traces == [str(archive)]
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(TRACE[0]))
    assert not is_packed_run(plain)


@pytest.mark.parametrize("how", ["tar", "zip"])
def test_names_lead_nowhere_else(tmp_path, how):
    hostile = ("../out.json", "/tmp/out.json", "a/../../out.json", "..\\out.json", "C:\\out.json", "a/.hidden.json")
    files = dict.fromkeys(hostile, TRACE[0]) | {"run.sh": b"rm", "./b.json": b"first", "b.json/c.json": b"below a file"}
    archive = packed(tmp_path / "a", files, how)
    into = tmp_path / "deep" / "into"
    into.mkdir(parents=True)
    assert unpack_run(archive, into) == ["b.json"]
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")] == ["deep/into/b.json"]


def test_links_and_devices_are_not_unpacked(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            entry = tarfile.TarInfo(f"link{kind!r}.json")
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
        folder = tarfile.TarInfo("folder.json")
        folder.type, folder.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(folder)
        below = tarfile.TarInfo("folder.json/below.json")
        archive.addfile(below)
    into = tmp_path / "into"
    into.mkdir()
    assert unpack_run(tmp_path / "a.tar", into) == ["folder.json/below.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "into"]


@pytest.mark.parametrize("how", ["tar.gz", "tar.zst", "zip"])
def test_a_bomb_is_refused(tmp_path, monkeypatch, how):
    monkeypatch.setattr(archives, "FREE_BYTES", 1 << 20)
    files = RUN | {"run/rank2_iter0_0.trace.json": bytes(8 << 20)}
    if how == "zip":
        with zipfile.ZipFile(tmp_path / "a", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        packed(tmp_path / "a", files, how)
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(RankscopeError, match="decompression bomb") as raised:
        unpack_run(tmp_path / "a", into)
    assert "a" in str(raised.value)
    assert sum(path.stat().st_size for path in into.rglob("*") if path.is_file()) < 3 << 20


def test_a_damaged_archive_names_itself_and_what_to_do(tmp_path):
    archive = packed(tmp_path / "cut.tar.gz", RUN | {"run/x.json": random.Random(0).randbytes(1 << 20)}, "tar.gz")
    archive.write_bytes(archive.read_bytes()[: -(1 << 19)])
    with pytest.raises(RankscopeError, match=r"cut\.tar\.gz.*cannot be unpacked(.|\n)*open the directory"):
        parse_source(str(archive)).listing()
    read = open_run(archive).load()
    assert not list((Cache().root / "archives").glob("*/*"))
    assert "only the first was read" in next(each.title for each in read.findings if each.id == "archive-holds-more")
    why = next(each.title for each in read.findings if each.id == "trace-unreadable")
    assert "cannot be unpacked: Compressed file ended before" in why


DAMAGED = {
    "empty.tar.gz": (lambda path: path.write_bytes(b""), "is empty"),
    "no files.tar": (lambda path: packed(path, {}, "tar"), "is a file, not a directory"),
    "cut.zip": (lambda path: _cut(packed(path, RUN, "zip")), "is a damaged archive: File is not a zip file"),
    "cut.tar.gz": (lambda path: _cut(packed(path, RUN, "tar.gz"), 200), "is a damaged archive: Compressed file ended"),
    "rank0.trace.json.gz": (lambda path: path.write_bytes(TRACE[0]), "is a trace, not a run directory"),
    "one.zip": (lambda path: packed(path, {"rank0.trace.json.gz": TRACE[0]}, "zip"), "is a trace"),
    "note.txt": (lambda path: path.write_bytes(b"hello"), "is a file, not a directory"),
}


def _cut(path: Path, left: int = 600) -> None:
    path.write_bytes(path.read_bytes()[:left])


@pytest.mark.parametrize("name", DAMAGED)
def test_another_file_than_a_run_says_what_it_is(tmp_path, name, capsys):
    make, what = DAMAGED[name]
    make(tmp_path / name)
    for asked in (
        lambda: run_gather(tmp_path / "into", [str(tmp_path / name)]),
        lambda: run_gather(tmp_path / name, []),
        lambda: completeness(tmp_path / name),
    ):
        with pytest.raises(RankscopeError, match=what) as raised:
            asked()
        assert "gather DIR" not in str(raised.value)
    checks = [*run.checks(tmp_path / name), *disk.checks(tmp_path / name, {}, None)]
    wrong = [each.what for each in checks if each.status == "fail" and name in each.what]
    # A single trace is looked at as one.
    assert [bool(re.search(what, each)) for each in wrong] == ([] if what.startswith("is a trace") else [True])


def test_a_damaged_archive_is_not_to_be_gathered_from(tmp_path):
    archive = packed(tmp_path / "cut.tar.gz", RUN | {"run/x.json": random.Random(0).randbytes(1 << 20)}, "tar.gz")
    archive.write_bytes(archive.read_bytes()[: -(1 << 19)])
    with pytest.raises(RankscopeError, match=r"cut\.tar\.gz: is a damaged archive: .*\n.*copy it again"):
        run_gather(archive, [])


def test_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    archive = packed(tmp_path / "a.tar", {f"{number}.json": b"" for number in range(4)}, "tar")
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(RankscopeError, match="more than 3 files"):
        unpack_run(archive, into)
