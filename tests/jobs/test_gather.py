"""Parts of a run from several hosts in one place: what arrives, what is refused, what is missing, and going on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.jobs.parts import contents, part, seen

from rankscope.errors import ConfigError, RankscopeError
from rankscope.jobs.gather import completeness, gather, parse_source
from rankscope.jobs.gather.merge import STAGE
from rankscope.jobs.gather.sources import LocalFolder, RemoteFolder
from rankscope.rundir.coverage import KEPT
from rankscope.rundir.manifest import (
    LostWindow,
    RankManifest,
    RunManifest,
    read_rank_manifest,
    to_json,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="ssh and rsync of Unix")


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
    assert (found.world_size, found.present, found.missing, found.whole) == (4, (0, 1, 3), (2,), False)
    assert "up to the highest" in found.report()[1]
    assert completeness(run, world_size=6).missing == (2, 4, 5)


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
def test_sources_that_are_not_valid(text):
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
