"""Parts of a run from several hosts in one place: what arrives, what is refused, what is missing, and going on."""

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
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from tests.ports import free_port

from rankscope.errors import ConfigError, RankscopeError
from rankscope.jobs.gather import completeness, gather, parse_source
from rankscope.jobs.gather.complete import ranges
from rankscope.jobs.gather.merge import STAGE
from rankscope.jobs.gather.sources import LocalFolder, RemoteFolder
from rankscope.rundir.coverage import KEPT
from rankscope.rundir.manifest import (
    LostWindow,
    RankManifest,
    RunManifest,
    WrittenTrace,
    read_rank_manifest,
    to_json,
)
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata

pytestmark = pytest.mark.skipif(os.name != "posix", reason="ssh and rsync of Unix")


def part(folder: Path, ranks: tuple[int, ...], *, world_size: int = 4, run_id: str = "r1", host: str = "h0") -> Path:
    """What one host's disk holds after a job: its ranks' traces and manifests; rank 0's host has the run's."""
    (folder / "ranks").mkdir(parents=True)
    for rank in ranks:
        name = f"rank{rank}_iter3_4.trace.json.gz"
        (folder / name).write_bytes(f"trace of {rank} in {run_id}".encode() * 100)
        written = WrittenTrace(name, 3, 4, (folder / name).stat().st_size)
        (folder / "ranks" / f"rank{rank}.json").write_bytes(
            to_json(
                RankManifest(
                    run_id, rank, world_size=world_size, local_rank=rank % 2, host=host, pid=100 + rank,
                    state="finished", steps=9, written=(written,),
                )
            )
        )  # fmt: skip
    if 0 in ranks:
        (folder / "run.json").write_bytes(to_json(RunManifest(run_id, world_size=world_size, ranks="all")))
    (folder / ".rank9.tmp").write_text("what a process that died left")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def seen(folder: Path) -> dict[str, bytes]:
    return {path: data for path, data in contents(folder).items() if not path.startswith(".")}


# Every way there is: rsync and copies of this machine, rsync and scp by a shell that only pretends to go elsewhere.
SSH = """#!/bin/sh
# ssh [options] HOST COMMAND…
while [ "${1#-}" != "$1" ]; do case "$1" in -o|-l|-p) shift 2 ;; *) shift ;; esac; done
echo "$1" >>"$SAID"
[ "$1" = gone ] && { echo "ssh: connect to host gone: No route to host" >&2; exit 255; }
shift
exec sh -c "$*"
"""
SCP = f"""#!{sys.executable}
import os, shutil, sys
words = [w for w in sys.argv[1:] if not w.startswith("-")]
for word in words[:-1]:
    host, _, path = word.partition(":")
    shutil.copy2(path, words[-1])
    if os.environ.get("SCP_BREAKS"):
        open(os.path.join(words[-1], os.path.basename(path)), "r+b").truncate(10)
        sys.exit("lost connection")
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder of programs that is all that is found: chosen by the test."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "find", "xargs", "sha256sum", "env"):
        (folder / name).symlink_to(shutil.which(name))
    for name, text in (("ssh", SSH), ("scp", SCP)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    return folder


def with_rsync(programs: Path) -> None:
    found = shutil.which("rsync", path="/usr/bin:/bin:/usr/local/bin")
    if found is None:
        pytest.skip("no rsync here: apt-get install rsync")
    (programs / "rsync").symlink_to(found)


WAYS = ("copies", "rsync", "ssh+rsync", "ssh+scp")


@pytest.fixture(params=WAYS)
def source_of(request, programs):
    """How a folder is named so that it comes that way."""
    if "rsync" in request.param:
        with_rsync(programs)
    return (lambda folder: f"node1:{folder}") if "ssh" in request.param else str


def test_parts_of_two_hosts_become_one_run(tmp_path, source_of):
    first, second = part(tmp_path / "a", (0, 1)), part(tmp_path / "b", (2, 3), host="h1")
    (second / "nccl").mkdir()
    (second / "nccl" / "h1.7.log").write_text("NCCL INFO")
    run = tmp_path / "run"
    brought = gather(run, [parse_source(source_of(first)), parse_source(source_of(second))])
    wanted = {**contents(first), **contents(second)}
    del wanted[".rank9.tmp"]
    assert contents(run) == wanted
    assert [(one.files, one.new) for one in brought] == [(5, 5), (5, 5)]
    assert brought[0].bytes == sum(len(data) for path, data in contents(first).items() if not path.startswith("."))
    assert all((run / p).stat().st_mtime_ns // 10**9 == (first / p).stat().st_mtime_ns // 10**9 for p in seen(first))
    found = completeness(run)
    assert found.whole
    assert (found.expected, found.present, found.hosts, found.traces) == ((0, 1, 2, 3), (0, 1, 2, 3), ("h0", "h1"), 4)
    assert found.report() == [f"run r1: 4 of 4 ranks on 2 hosts, 4 traces, {found.bytes / 1e6:.1f} MB"]
    # Again: nothing comes, nothing changes.
    before = {path: (run / path).stat().st_ino for path in contents(run)}
    assert [one.new for one in gather(run, [parse_source(source_of(first)), parse_source(source_of(second))])] == [0, 0]
    assert {path: (run / path).stat().st_ino for path in contents(run)} == before


def test_a_different_file_is_never_overwritten(tmp_path, source_of):
    first = part(tmp_path / "a", (0, 1))
    run = tmp_path / "run"
    run.mkdir()
    # Of the same size, so that only what is in it tells; and of another.
    for name, data in (("rank0_iter3_4.trace.json.gz", b"x" * 1600), ("notes.txt", b"mine")):
        (run / name).write_bytes(data)
    (first / "notes.txt").write_bytes(b"theirs, and longer")
    assert (first / "rank0_iter3_4.trace.json.gz").stat().st_size == 1600
    before = contents(run)
    with pytest.raises(RankscopeError, match="nothing was overwritten") as raised:
        gather(run, [parse_source(source_of(first))])
    assert "rank0_iter3_4.trace.json.gz" in str(raised.value)
    assert "notes.txt" in str(raised.value)
    assert contents(run) == before


def test_what_its_manifest_proves_cut_is_replaced(tmp_path, source_of):
    first = part(tmp_path / "a", (0, 1))
    name = "rank0_iter3_4.trace.json.gz"
    whole = (first / name).read_bytes()
    run = tmp_path / "run"
    gather(run, [parse_source(source_of(first))])
    (run / name).write_bytes(whole[:700])
    assert completeness(run).absent_traces == ((0, name),)
    assert [one.new for one in gather(run, [parse_source(source_of(first))])] == [1]
    assert (run / name).read_bytes() == whole
    assert not (run / STAGE).exists()
    # Too long is not cut; and without its manifest here it may be anybody's; nor is it, where it is cut there as well.
    manifest = run / "ranks" / "rank0.json"
    for here, there, kept in (
        (whole + b"x", whole, True),
        (whole[:700], whole, False),
        (whole[:700], whole[:900], True),
    ):
        (run / name).write_bytes(here)
        (first / name).write_bytes(there)
        text = manifest.read_bytes()
        if not kept:
            manifest.unlink()
        with pytest.raises(RankscopeError, match="nothing was overwritten"):
            gather(run, [parse_source(source_of(first))])
        assert (run / name).read_bytes() == here
        manifest.write_bytes(text)
        (first / name).write_bytes(whole)


def test_two_runs_do_not_become_one(tmp_path, source_of):
    first, second = part(tmp_path / "a", (0, 1)), part(tmp_path / "b", (2, 3), run_id="r2")
    run = tmp_path / "run"
    gather(run, [parse_source(source_of(first))])
    before = seen(run)
    with pytest.raises(RankscopeError, match="is of run r2, here is run r1"):
        gather(run, [parse_source(source_of(second))])
    assert seen(run) == before


def test_what_is_missing_is_said(tmp_path):
    run = tmp_path / "run"
    gather(run, [LocalFolder(str(part(tmp_path / "a", (0, 1), world_size=8)))])
    found = completeness(run)
    assert not found.whole
    assert found.missing == (2, 3, 4, 5, 6, 7)
    assert found.report()[1] == "missing: ranks 2-7: gather from the hosts they ran on"
    # A trace that was written and is not here, and one that was cut.
    (run / "rank0_iter3_4.trace.json.gz").unlink()
    (run / "rank1_iter3_4.trace.json.gz").write_bytes(b"cut")
    lost = completeness(run)
    assert lost.absent_traces == ((0, "rank0_iter3_4.trace.json.gz"), (1, "rank1_iter3_4.trace.json.gz"))
    assert "missing or incomplete: rank0_iter3_4.trace.json.gz of rank 0" in lost.report()


def test_a_trace_that_the_run_directory_could_not_take_is_missing_until_it_is_gathered(tmp_path):
    kept = tmp_path / "kept" / "rank1_iter7_8.trace.json.gz"
    reason = f"TraceKeptError: No space left on device; {KEPT}{kept}: rankscope gather adds what is in {kept.parent}"
    run = part(tmp_path / "run", (0, 1), world_size=2)
    manifest = read_rank_manifest(run / "ranks" / "rank1.json")
    failed = (LostWindow(7, 8, reason), LostWindow(9, 10, "OSError: No space left on device"))
    (run / "ranks" / "rank1.json").write_bytes(to_json(replace(manifest, failed=failed)))
    found = completeness(run)
    assert (found.kept, found.whole) == (((1, str(kept)),), False)
    said = f"rank 1 kept 1 trace in {kept.parent}, as the run directory could not take it: gather from there"
    assert said in found.report()
    kept.parent.mkdir()
    kept.write_bytes(b"trace")
    gather(run, [LocalFolder(str(kept.parent))])
    assert completeness(run).kept == ()


def test_ranks_that_were_not_profiled_are_not_missed(tmp_path):
    run = part(tmp_path / "a", (0, 2), world_size=8)
    (run / "run.json").write_bytes(to_json(RunManifest("r1", world_size=8, ranks="0-3")))
    assert completeness(run).missing == (1, 3)
    # "node" is the first rank of every host; only they themselves know that they are.
    (run / "run.json").write_bytes(to_json(RunManifest("r1", world_size=8, ranks="node")))
    assert completeness(run).whole


def test_a_run_of_others_is_counted_by_its_names(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for rank in (0, 1, 3):
        (run / f"rank{rank}_iter1_2.trace.json.gz").write_bytes(b"x")
    found = completeness(run)
    assert (found.expected, found.present, found.whole) == (None, (0, 1, 3), False)
    assert "give rankscope gather --world-size" in found.report()[1]
    assert completeness(run, world_size=4).missing == (2,)


@pytest.mark.parametrize("way", ["ssh+scp", "ssh+rsync"])
def test_what_was_cut_off_is_gone_on_with(tmp_path, monkeypatch, programs, way):
    first = part(tmp_path / "a", (0, 1))
    run = tmp_path / "run"
    if way == "ssh+rsync":
        with_rsync(programs)
        # A connection that breaks after a part of the first large file, as rsync keeps it.
        name = "rank0_iter3_4.trace.json.gz"
        source = RemoteFolder(f"node1:{first}", "node1", str(first))
        fetch = RemoteFolder.fetch

        def breaking(self, paths, into):
            (into / name).write_bytes((first / name).read_bytes()[:700])
            raise RankscopeError("rsync ended with 255: connection lost")

        monkeypatch.setattr(RemoteFolder, "fetch", breaking)
        with pytest.raises(RankscopeError, match="connection lost"):
            gather(run, [source])
        monkeypatch.setattr(RemoteFolder, "fetch", fetch)
    else:
        monkeypatch.setenv("SCP_BREAKS", "1")
        with pytest.raises(RankscopeError, match="lost connection") as raised:
            gather(run, [parse_source(f"node1:{first}")])
        assert "the same command continues" in str(raised.value)
        monkeypatch.delenv("SCP_BREAKS")
    # Nobody who reads the run sees what is not whole.
    assert seen(run) == {}
    assert list((run / STAGE).iterdir())
    gather(run, [parse_source(f"node1:{first}")])
    assert contents(run) == {path: data for path, data in contents(first).items() if path != ".rank9.tmp"}


@pytest.mark.parametrize("there", ["link", "file"])
def test_nothing_is_written_through_a_link_or_below_a_file(tmp_path, there):
    source, run, elsewhere = tmp_path / "a", tmp_path / "run", tmp_path / "elsewhere"
    for folder in (source / "deep" / "er", run, elsewhere):
        folder.mkdir(parents=True)
    (source / "deep" / "er" / "rank0.json").write_text("{}")
    if there == "link":
        (run / "deep").symlink_to(elsewhere)
    else:
        (run / "deep").write_text("a file")
    with pytest.raises(RankscopeError, match="symbolic link" if there == "link" else "is a file") as raised:
        gather(run, [parse_source(str(source))])
    assert str(run / "deep") in str(raised.value)
    assert not list(elsewhere.iterdir())


def test_a_manifest_may_have_grown(tmp_path, source_of):
    first = part(tmp_path / "a", (0, 1))
    path = first / "ranks" / "rank1.json"
    manifest = RankManifest("r1", 1, world_size=4, host="h0", pid=101, state="running", steps=4)
    path.write_bytes(to_json(manifest))
    run = tmp_path / "run"
    gather(run, [parse_source(source_of(first))])
    assert completeness(run).running == (1,)
    path.write_bytes(to_json(replace(manifest, state="finished", steps=90)))
    gather(run, [parse_source(source_of(first))])
    assert (run / "ranks" / "rank1.json").read_bytes() == path.read_bytes()
    # Another process's is no later state, nor is an earlier one.
    for other in (replace(manifest, pid=7, state="finished", steps=99), replace(manifest, steps=3)):
        path.write_bytes(to_json(other))
        with pytest.raises(RankscopeError, match="nothing was overwritten"):
            gather(run, [parse_source(source_of(first))])


def test_a_host_that_is_not_there(tmp_path, programs):
    with pytest.raises(RankscopeError, match="cannot be reached: ssh: connect to host gone") as raised:
        gather(tmp_path / "run", [parse_source("gone:/tmp/run")])
    assert "does `ssh gone ls /tmp/run` work?" in str(raised.value)
    with pytest.raises(RankscopeError, match="cannot be read there") as raised:
        gather(tmp_path / "run", [parse_source(f"node1:{tmp_path}/nowhere")])
    assert "nowhere" in str(raised.value)
    with pytest.raises(RankscopeError, match="is not a directory here"):
        gather(tmp_path / "run", [parse_source(str(tmp_path / "nowhere"))])


def test_without_any_program(tmp_path, programs):
    first = part(tmp_path / "a", (0,))
    (programs / "scp").unlink()
    with pytest.raises(RankscopeError, match="neither rsync nor scp"):
        gather(tmp_path / "run", [parse_source(f"node1:{first}")])
    (programs / "ssh").unlink()
    with pytest.raises(RankscopeError, match="ssh cannot be started"):
        gather(tmp_path / "run", [parse_source(f"node1:{first}")])


@pytest.mark.parametrize("odd", ["a b", "$(touch pwned)", "'; touch pwned; '", "*", "-rf", "ü", "a\nb"])
def test_odd_names_of_folders_and_files(tmp_path, monkeypatch, programs, odd):
    monkeypatch.chdir(tmp_path)
    folder = part(tmp_path / "disk" / odd, (0, 1, 2, 3))
    (folder / odd).write_text("odd")
    if odd == "-rf":
        # Behind a host and a folder it is no option.
        gather(tmp_path / "run0", [parse_source(f"node1:{folder}")])
        assert seen(tmp_path / "run0") == seen(folder)
    else:
        with pytest.raises(RankscopeError, match="not a name that scp can take safely"):
            gather(tmp_path / "run0", [parse_source(f"node1:{folder}")])
    with_rsync(programs)
    gather(tmp_path / "run", [parse_source(f"me@node1:{folder}")])
    assert seen(tmp_path / "run") == seen(folder)
    # Relative to where the shell over there starts, as ssh has it.
    gather(tmp_path / "run", [parse_source(f"node1:disk/{odd}"), parse_source(f"node1:~/disk/{odd}")])
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("text", ["-oProxyCommand=x:/tmp", "host:", "a\0b:/tmp"])
def test_sources_that_cannot_be_meant(text):
    with pytest.raises(ConfigError):
        parse_source(text)


@pytest.mark.parametrize("text", ["-x@host:/tmp", "ho st:/tmp", "$(x):/tmp", "./a:b", "/tmp/a:b"])
def test_what_is_no_host_is_a_folder(text):
    if text.startswith("-"):
        with pytest.raises(ConfigError):
            parse_source(text)
    else:
        assert isinstance(parse_source(text), LocalFolder)


def test_hosts(tmp_path, monkeypatch):
    assert parse_source("n-1.x.org:/tmp") == RemoteFolder("n-1.x.org:/tmp", "n-1.x.org", "/tmp")
    assert parse_source("me@[fe80::1]:a b", "ssh -p 22").shell == ("ssh", "-p", "22")
    # A folder here that is called so is meant.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b").mkdir()
    assert isinstance(parse_source("a:b"), LocalFolder)


@pytest.mark.parametrize("way", ["copies", "rsync", "ssh+scp", "ssh+rsync"])
def test_a_run_directory_that_looks_like_a_host(tmp_path, monkeypatch, programs, way):
    if "rsync" in way:
        with_rsync(programs)
    folder = part(tmp_path / "disk", (0, 1, 2, 3))
    monkeypatch.chdir(tmp_path)
    gather(Path("node9:run"), [parse_source(f"node1:{folder}" if "ssh" in way else "disk")])
    assert completeness(tmp_path / "node9:run").whole


def test_a_listing_that_leads_out_is_refused(tmp_path):
    class Liar(LocalFolder):
        def listing(self):
            return {"../outside": 3}

    with pytest.raises(RankscopeError, match="not a path within"):
        gather(tmp_path / "run", [Liar(str(tmp_path))])
    # A link is not followed: what it leads to is not the run's.
    folder = part(tmp_path / "a", (0,))
    (folder / "secret").symlink_to("/etc/hostname")
    assert "secret" not in LocalFolder(str(folder)).listing()


def test_many_at_once_into_one_place(tmp_path):
    """As every node of a job does it."""
    parts = [part(tmp_path / f"n{n}", (2 * n, 2 * n + 1), world_size=8, host=f"h{n}") for n in range(4)]
    line = [sys.executable, "-m", "rankscope.jobs.gather", "--part", str(tmp_path / "run")]
    running = [subprocess.Popen([*line, str(folder)], stdout=subprocess.PIPE, text=True) for folder in parts]
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4, said
    assert completeness(tmp_path / "run").whole
    assert not list((tmp_path / "run").rglob(".*"))


def test_the_command(tmp_path, monkeypatch, capfd):
    from rankscope.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rankscope", "gather", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, *capfd.readouterr()

    first, second = part(tmp_path / "a", (0, 1)), part(tmp_path / "b", (2, 3), host="h1")
    code, out, _ = run(tmp_path / "run", first)
    assert code == 1
    assert out.splitlines()[0] == f"{first}: 5 files, 5 new (0.0 MB)"
    assert "missing: ranks 2-3" in out
    code, out, _ = run(tmp_path / "run", second, "--json")
    found = json.loads(out)
    assert (code, found["whole"], found["missing"], found["schema_version"]) == (0, True, [], 1)
    assert found["sources"] == [{"source": str(second), "files": 4, "new": 4, "bytes": found["sources"][0]["bytes"]}]
    assert run(tmp_path / "run")[0] == 0
    code, _, err = run(tmp_path / "run", tmp_path / "nowhere")
    assert code == 2
    assert "is not a directory here" in err
    assert run(tmp_path / "nothing")[0] == 2


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
    assert not completeness(tmp_path).whole


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
