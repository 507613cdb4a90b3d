"""Runs without manifests: the traces themselves say how many ranks there are, and of which run."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard
from tests.jobs.parts import part, seen
from tests.ports import free_port

from rankscope.errors import RankscopeError
from rankscope.jobs.gather import completeness, gather, parse_source
from rankscope.jobs.gather.complete import ranges
from rankscope.jobs.gather.sources import LocalFolder
from rankscope.rundir.manifest import (
    RankManifest,
    WrittenTrace,
    to_json,
)
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata

pytestmark = pytest.mark.skipif(os.name != "posix", reason="ssh and rsync of Unix")


def test_ranges():
    assert ranges((3,)) == "rank 3"
    assert ranges((0, 1, 2, 5, 7, 8)) == "ranks 0-2, 5, 7-8"


def test_plain_traces_say_how_many_they_are(tmp_path):
    def write(name, rank, size):
        text = json.dumps({"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": size}, "traceEvents": []})
        (tmp_path / f"{name}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))

    write("host_1", 0, 3)
    write("host_2", 2, 3)
    found = completeness(tmp_path)
    assert (found.world_size, found.present, found.missing, found.whole) == (3, (0, 2), (1,), False)
    write("host_3", 1, 3)
    assert completeness(tmp_path).whole
    # A number that no job has is not believed, nor walked through.
    write("host_4", 0, 99_999_999)
    assert completeness(tmp_path).world_size == 3


@pytest.mark.parametrize(
    ("ranks", "missing"), [("0,2", ()), ("every:2", ()), ("node", ()), ("0-2", (1,)), (None, (1, 3))]
)
def test_plain_traces_of_chosen_ranks(tmp_path, ranks, missing):
    """A script that profiles some ranks by itself: nothing but the user says that there are no others."""
    for rank in (0, 2):
        record = {"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": []}
        (tmp_path / f"host{rank}.pt.trace.json").write_text(json.dumps(record))
    found = completeness(tmp_path, recorded=ranks)
    assert found.missing == missing
    assert found.whole is (not missing)


def test_plain_traces_by_their_content(tmp_path):
    for rank, name in enumerate(("r0_6.json", "trace1.json")):
        head = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": []}
        (tmp_path / name).write_text(json.dumps(head))
    (tmp_path / "config.json").write_text('{"rank": 5}')
    found = completeness(tmp_path)
    assert (found.world_size, found.present, found.traces, found.whole) == (2, (0, 1), 2, True)


def packed(text: str, how: str) -> bytes:
    """A trace as people archive them."""
    plain, packed = text.encode(), io.BytesIO()
    if "tar" in how:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("some/trace.json")
            member.size = len(plain)
            archive.addfile(member, io.BytesIO(plain))
        plain = packed.getvalue()
    if how == "zip":
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("notes.txt", "x")
            archive.writestr("trace.json", plain)
        return packed.getvalue()
    return gzip.compress(plain) if how.endswith("gz") else zstandard.compress(plain)


@pytest.mark.parametrize("how", ["json.gz", "json.zst", "tar.gz", "tar.zst", "tgz", "zip"])
def test_archives_of_traces_by_their_content(tmp_path, how):
    for rank, name in enumerate(("first", "second")):
        head = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [{}] * 99}
        (tmp_path / f"{name}.{how}").write_bytes(packed(json.dumps(head), how))
    (tmp_path / f"data.{how}").write_bytes(packed('{"rank": 5}', how))
    found = completeness(tmp_path)
    assert (found.world_size, found.present, found.traces, found.whole) == (2, (0, 1), 2, True)
    whole = (tmp_path / f"first.{how}").read_bytes()
    (tmp_path / f"first.{how}").write_bytes(whole[: len(whole) * 3 // 4])
    assert not completeness(tmp_path).whole


def test_a_short_trace_that_is_cut_is_incomplete_and_not_unknown(tmp_path):
    text = json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": [{}] * 900})
    whole = gzip.compress(text.encode())
    (tmp_path / "a.json.gz").write_bytes(whole[:-12])
    found = completeness(tmp_path)
    assert (found.present, found.missing) == ((1,), (0,))
    assert found.broken == (("a.json.gz", "it is truncated: its compressed data ends too early"),)


def ours(folder: Path, rank: int, *, run_id: str = "r1", world_size: int = 2) -> Path:
    """A trace of rankscope's, without its manifest."""
    metadata = TraceMetadata(run_id=run_id, rank=rank, world_size=world_size, host=f"h{rank}")
    text = f'{{"{METADATA_KEY}": {metadata.to_json()},\n"schemaVersion": 1, "traceEvents": []}}'
    folder.mkdir(exist_ok=True)
    (folder / f"rank{rank}_iter3_4.trace.json.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def test_traces_without_manifests_say_how_many_they_are(tmp_path):
    kept = ours(tmp_path / "kept-run-12345678", 1)
    found = completeness(kept)
    assert (found.runs, found.world_size, found.missing, found.hosts) == (("r1",), 2, (0,), ("h1",))
    assert completeness(ours(kept, 0)).whole
    # A trace that only its content says to be of another run.
    other = completeness(ours(kept, 0, run_id="r2"))
    assert (other.runs, other.whole) == (("r1", "r2"), False)


def test_steps_that_only_some_ranks_recorded_are_named(tmp_path):
    kept = ours(ours(tmp_path / "kept", 0), 1)
    for n in (5, 8, 11):
        shutil.copy(kept / "rank0_iter3_4.trace.json.gz", kept / f"rank0_iter{n}_{n}.trace.json.gz")
    found = completeness(kept)
    assert found.report()[1:] == ["no trace on rank 1 of steps 5, 8, 11, which rank 0 recorded"]
    assert found.whole


@pytest.mark.parametrize("with_manifest", ["here", "there", "neither"])
def test_traces_of_another_run_are_refused(tmp_path, with_manifest):
    here = part(tmp_path / "run", (0,)) if with_manifest == "here" else ours(tmp_path / "run", 0)
    there = (
        part(tmp_path / "a", (1,), run_id="r2") if with_manifest == "there" else ours(tmp_path / "a", 1, run_id="r2")
    )
    before = seen(here)
    with pytest.raises(RankscopeError, match="is of run r2, here is run r1"):
        gather(here, [LocalFolder(str(there))])
    assert seen(here) == before
    gather(here, [LocalFolder(str(ours(tmp_path / "b", 1)))])
    assert len(completeness(here).runs) == 1


def test_a_head_of_nothing_but_blanks_is_read_at_once(tmp_path):
    (tmp_path / "x.json").write_text('{"rankscope": {"a": 1' + " " * (1 << 20))
    assert completeness(tmp_path).traces == 1


def test_one_trace_of_one_process(tmp_path):
    (tmp_path / "trace.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    found = completeness(tmp_path)
    assert (found.world_size, found.present, found.whole) == (1, (0,), True)
    (tmp_path / "other.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    found = completeness(tmp_path)
    assert not found.whole
    assert "2 traces do not contain their ranks" in "\n".join(found.report())


def test_plain_traces_of_several_ranks_are_as_many_as_in_a_summary(tmp_path):
    """torch.profiler's export_chrome_trace on each rank of a job that has no process group."""
    for rank in range(2):
        (tmp_path / f"trace_rank{rank}.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    found = completeness(tmp_path)
    assert (found.world_size, found.missing, found.whole) == (2, (), True)
    assert "up to the highest" in found.report()[1]


def test_a_run_directory_named_with_dots(tmp_path, monkeypatch):
    run = part(tmp_path / "run", (0, 1), world_size=2)
    (tmp_path / "link").symlink_to(run)
    monkeypatch.chdir(run)
    for named in (run / ".." / "run", Path("../run"), Path("../../") / tmp_path.name / "run", tmp_path / "link"):
        assert completeness(named).absent_traces == ()
    (tmp_path / "out.json").write_text("{}")
    written = WrittenTrace("../out.json", 3, 4, 2)
    (run / "ranks" / "rank0.json").write_bytes(to_json(RankManifest("r1", 0, world_size=2, written=(written,))))
    assert completeness(Path("../run")).absent_traces == ((0, "../out.json"),)


@pytest.mark.parametrize("named", ["nothing", "s3://bucket/run"])
def test_a_run_that_cannot_be_meant_makes_no_directory(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RankscopeError, match=r"does not exist|not a directory of this host"):
        gather(Path(named), [])
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_ends_first(tmp_path):
    run = part(tmp_path / "run", (0, 1), world_size=2)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "rankscope.jobs.gather", str(run)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_url_that_refuses_the_connection_is_named_with_the_reason(tmp_path):
    pytest.importorskip("aiohttp")
    with pytest.raises(RankscopeError, match="cannot be listed: Cannot connect to host"):
        gather(tmp_path / "run", [parse_source(f"http://127.0.0.1:{free_port()}/run/")])
    with pytest.raises(RankscopeError, match="has no files"):
        gather(tmp_path / "run", [parse_source("memory://empty/run")])


def test_dumps_of_a_hang_are_no_traces(tmp_path):
    part(tmp_path, (0,), world_size=1)
    before = completeness(tmp_path)
    (tmp_path / "hang").mkdir()
    (tmp_path / "hang" / "rank0.json").write_text('{"format":"rankscope-hang-dump","rank":0}')
    assert completeness(tmp_path) == before
