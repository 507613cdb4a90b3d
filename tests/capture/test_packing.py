"""From a saved JSON to a complete file, in every format."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tarfile
import threading

import pytest
import torch

from rankscope import Profiler
from rankscope.capture import packing, trace_edits
from rankscope.rundir import staging
from rankscope.rundir.manifest import read_rank_manifest
from rankscope.rundir.names import ENDINGS, parse_trace_name

from .conftest import traces, train

SHORT = {"wait": 1, "warmup": 1, "active": 2}
EVENTS = {"traceEvents": [{"ph": "X", "name": f"ProfilerStep#{n}"} for n in (7, 8)] * 50}


def unpacked(path):
    raw = path.read_bytes()
    if path.name.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
            (member,) = archive.getmembers()
            return json.load(archive.extractfile(member))
    if path.name.endswith(".zst"):
        zstandard = pytest.importorskip("zstandard")
        return json.loads(zstandard.ZstdDecompressor().decompressobj().decompress(raw))
    return json.loads(gzip.decompress(raw) if path.name.endswith(".gz") else raw)


@pytest.mark.parametrize("compression", ENDINGS)
@pytest.mark.parametrize("partial", [None, 8])
@pytest.mark.parametrize("isal", [True, False])
def test_every_format_holds_the_same(tmp_path, monkeypatch, compression, partial, isal):
    if compression == "zst":
        pytest.importorskip("zstandard")
    if not isal:
        monkeypatch.setattr(packing, "_isal", lambda: None)
    monkeypatch.setattr(trace_edits, "CHUNK", 100)
    saved = tmp_path / "elsewhere" / "saved"
    saved.parent.mkdir()
    saved.write_text(json.dumps(EVENTS, indent=1))
    target = tmp_path / "run" / f"rank0_iter7_8{ENDINGS[compression]}"
    done = packing.finish_trace(saved, target, edits=trace_edits.Edits(partial, '"ours": [1]'))
    assert (done.path, done.bytes) == (target, target.stat().st_size)
    trace = unpacked(target)
    assert list(trace) == ["ours", "traceEvents"]
    names = [e["name"] for e in trace["traceEvents"]]
    assert names == ["ProfilerStep#7", "PartialStep#8" if partial else "ProfilerStep#8"] * 50
    assert [p.name for p in target.parent.iterdir()] == [target.name]
    assert not saved.exists()
    said = parse_trace_name(target)
    assert (said.rank, said.first, said.last, said.pattern) == (0, 7, 8, "rankscope")


def test_formats_by_argument(tmp_path):
    for compression in ("tar.gz", "zst"):
        if compression == "zst":
            pytest.importorskip("zstandard")
        with Profiler(tmp_path, **SHORT, compression=compression) as prof:
            train(prof, 5)
        (path,) = tmp_path.glob(f"*{ENDINGS[compression]}")
        assert unpacked(path)["rankscope"]["profiler"]["compressor"]


def test_without_zstandard_it_is_gzip(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.warns(UserWarning, match="using gz instead"), Profiler(tmp_path, **SHORT, compression="zst") as prof:
        train(prof, 5)
    assert traces(tmp_path) == ["rank0_iter2_3.trace.json.gz"]


@pytest.mark.parametrize(("limit", "left"), [({"keep_windows": 2}, 2), ({"keep_bytes": 1}, 1), ({}, 5)])
def test_rotation_keeps_the_newest(tmp_path, limit, left):
    with Profiler(tmp_path, **SHORT, repeat=5, **limit) as prof:
        train(prof, 22)
    kept = [f"rank0_iter{n}_{n + 1}.trace.json.gz" for n in (2, 6, 10, 14, 18)][-left:]
    assert sorted(traces(tmp_path)) == sorted(kept)
    manifest = read_rank_manifest(tmp_path / "ranks" / "rank0.json")
    assert ([w.file for w in manifest.written], manifest.rotated) == (kept, 5 - left)


def test_a_window_that_comes_too_early_is_counted(tmp_path, monkeypatch):
    original, over = packing.finish_trace, threading.Event()

    def waits(*given, **named):
        assert over.wait(300)
        return original(*given, **named)

    monkeypatch.setattr("rankscope.capture.trace_queue.finish_trace", waits)
    profiler = Profiler(tmp_path, **SHORT, repeat=2)
    with pytest.warns(UserWarning, match="still being written"), profiler:
        for _ in range(12):
            profiler.step()
        over.set()
    manifest = read_rank_manifest(tmp_path / "ranks" / "rank0.json")
    assert [(s.first_step, "still being written" in s.reason) for s in manifest.skipped] == [(6, True)]
    assert traces(tmp_path) == ["rank0_iter2_3.trace.json.gz"]


def writes_slowly(monkeypatch, until):
    """Traces are written when an event is set."""
    original = packing.finish_trace

    def waits(*given, **named):
        assert until.wait(300)
        return original(*given, **named)

    monkeypatch.setattr("rankscope.capture.trace_queue.finish_trace", waits)


@pytest.mark.parametrize("wait", [0, 1])
def test_a_window_that_is_due_waits_for_the_writer_if_asked(tmp_path, monkeypatch, wait):
    over, waited = threading.Event(), []
    writes_slowly(monkeypatch, over)
    profiler = Profiler(tmp_path, wait=wait, warmup=1, active=2, repeat=2, when_busy="wait")
    drain = profiler._writer.drain

    def drain_now(limit_s):
        waited.append(limit_s)
        over.set()
        return drain(limit_s)

    with profiler:
        monkeypatch.setattr(profiler._writer, "drain", drain_now)
        for step in range(12):
            assert len(waited) == int(step > wait * 2 + 2)
            profiler.step()
        assert waited == [120]
    manifest = read_rank_manifest(tmp_path / "ranks" / "rank0.json")
    assert (manifest.skipped, manifest.warnings) == ((), ())
    assert [each.first_step for each in manifest.written] == [wait + 1, 2 * wait + 4]


def test_the_loop_does_not_wait_for_ever(tmp_path, monkeypatch):
    over, waited = threading.Event(), []
    writes_slowly(monkeypatch, over)
    profiler = Profiler(tmp_path, **SHORT, repeat=3, when_busy="wait", hang_timeout=100)
    with pytest.warns(UserWarning, match="still being written"), profiler:
        monkeypatch.setattr(profiler._writer, "drain", waited.append)
        for _ in range(16):
            profiler.step()
        monkeypatch.undo()
        over.set()
    assert waited == [50]  # no hang, and only once
    manifest = read_rank_manifest(tmp_path / "ranks" / "rank0.json")
    assert [each.first_step for each in manifest.skipped] == [6, 10]
    assert "the loop waits no more" in manifest.warnings[0]


def test_what_a_handler_of_the_job_raises_ends_the_wait_and_reaches_the_job(tmp_path, monkeypatch):
    over = threading.Event()
    writes_slowly(monkeypatch, over)
    profiler = Profiler(tmp_path, **SHORT, repeat=2, when_busy="wait")

    def interrupted(_limit_s):
        raise TimeoutError("of the job")

    with pytest.raises(TimeoutError, match="of the job"), profiler, monkeypatch.context() as patched:
        patched.setattr(profiler._writer, "drain", interrupted)
        try:
            for _ in range(12):
                profiler.step()
        finally:
            over.set()
    assert traces(tmp_path) == ["rank0_iter2_3.trace.json.gz"]


# --- room ---------------------------------------------------------------------------------------------------


def test_files_of_dead_processes_are_removed_and_nothing_else(tmp_path, monkeypatch):
    living = staging.temporary_path(tmp_path / "a.json")
    monkeypatch.setattr(os, "getpid", lambda: 2**22 + 5)  # above any process number
    dead, torchs = staging.temporary_path(tmp_path / "b.json"), staging.temporary_path(tmp_path / "c.json")
    torchs = torchs.with_name(torchs.name + ".tmp")
    fresh = staging.temporary_path(tmp_path / "d.json")
    monkeypatch.setattr(staging.socket, "gethostname", lambda: "other")
    elsewhere = staging.temporary_path(tmp_path / "e.json")
    monkeypatch.undo()
    theirs = tmp_path / ".theirs.tmp"
    for path in (living, dead, torchs, fresh, elsewhere, theirs):
        path.write_text("")
        if path != fresh:
            os.utime(path, (0, 0))
    assert staging.remove_stale([tmp_path, tmp_path / "missing"]) == 2
    assert sorted(tmp_path.iterdir()) == sorted([living, fresh, elsewhere, theirs])


def test_the_first_folder_with_space_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(staging.tempfile, "gettempdir", lambda: str(tmp_path))
    own = staging.staging_folder(None, None, 0)
    assert own.startswith(str(tmp_path / "rankscope-"))
    (tmp_path / "wanted").mkdir()
    assert staging.staging_folder(str(tmp_path / "wanted"), None, 0) == str(tmp_path / "wanted")
    assert staging.staging_folder(str(tmp_path / "missing"), None, 0) == own
    free = {own: 5, str(tmp_path / "run"): staging.SPARE_BYTES + 100}
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(staging, "free_bytes", lambda folder: free[folder])
    assert staging.staging_folder(None, str(tmp_path / "run"), 100) == str(tmp_path / "run")
    assert staging.staging_folder(None, str(tmp_path / "run"), 101) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners are those of POSIX")
def test_a_folder_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(staging.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"rankscope-{os.getuid()}"
    folder.mkdir(mode=0o755)
    assert staging.staging_folder(None, None, 0) is None
    folder.rmdir()
    (tmp_path / "target").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "target")
    assert staging.staging_folder(None, None, 0) is None


# --- frames outside the steps -------------------------------------------------------------------------------


def work():
    return torch.ones(4) + 1


@pytest.mark.parametrize("stop_off_loop", ["always", "never"])
@pytest.mark.parametrize("chunk", [700, 1 << 20])
def test_python_frames_outside_the_steps_are_removed_and_no_others(
    tmp_path, monkeypatch, off_loop_everywhere, stop_off_loop, chunk
):
    monkeypatch.setattr(trace_edits, "CHUNK", chunk)
    original, saved = packing.finish_trace, []

    def keeps(source, target, **options):
        saved.append(json.loads(source.read_bytes()))
        return original(source, target, **options)

    monkeypatch.setattr("rankscope.capture.trace_queue.finish_trace", keeps)
    with Profiler(tmp_path, **SHORT, with_stack=True, compression="none", stop_off_loop=stop_off_loop) as prof:
        for _ in range(30):
            for _ in range(20):
                work()
            prof.step()
    (name,) = traces(tmp_path)
    written = json.loads((tmp_path / name).read_bytes())
    assert written["rankscope"]["first_step"] == 2
    before, after = (trace["traceEvents"] for trace in (saved[0], written))
    steps = [e for e in before if e["name"].startswith("ProfilerStep#")]
    began, ended = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)

    def outside(event):
        return event.get("cat") == "python_function" and (event["ts"] > ended or event["ts"] + event["dur"] < began)

    assert after == [event for event in before if not outside(event)]
    assert len(before) - len(after) > 20
    # Up to 2.5 the clock of Python frames was a tenth of a millisecond before that of the steps: here a full step.
    if tuple(map(int, torch.__version__.split(".")[:2])) > (2, 5):
        assert sum(e["name"].endswith("): work") for e in after) == 40  # other threads may have a `_worker`


def test_frames_in_another_format_stay(tmp_path):
    events = [
        {"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": at, "dur": 1} for at in (1, 5, 9)
    ]
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 4, "dur": 3}
    trace = {"traceEvents": [*events, step]}
    (tmp_path / "saved").write_text(json.dumps(trace))
    done = packing.finish_trace(tmp_path / "saved", tmp_path / "a.trace.json", edits=trace_edits.Edits(frames=True))
    assert json.loads(done.path.read_text()) == trace


def cannot_be_written(folder, run="run"):
    """A run directory that is a file."""
    (folder / run).parent.mkdir(exist_ok=True)
    (folder / run).write_text("a file")
    return folder / run


def keep(run_dir, local, name="rank0_iter1_2.trace.json.gz"):
    """Where a trace is kept that cannot be written."""
    local.mkdir(exist_ok=True)
    saved = local / "saved"
    saved.write_text(json.dumps(EVENTS))
    with pytest.raises(packing.TraceKeptError) as raised:
        packing.finish_trace(saved, run_dir / name)
    kept = staging.kept_folder(local, run_dir)
    assert f"rankscope gather adds what is in {local}" in str(raised.value)
    assert not saved.exists()
    return kept


def test_as_many_traces_are_kept_as_there_is_space_for(tmp_path, monkeypatch):
    run_dir, local = cannot_be_written(tmp_path), tmp_path / "local"
    for _ in range(20):
        kept = keep(run_dir, local)
    found = list(kept.iterdir())
    assert len(found) == 20
    assert all(unpacked(path) == EVENTS for path in found)
    assert staging.kept_traces(str(local), run_dir, 0) == {kept: 20}
    assert staging.kept_traces(str(local), run_dir, kept.stat().st_mtime + 1000) == {}
    size = len(json.dumps(EVENTS))
    (local / "saved").write_text(json.dumps(EVENTS))
    monkeypatch.setattr(packing, "free_bytes", lambda _: staging.SPARE_BYTES + size - 1)
    with pytest.raises(OSError, match=r"File exists|Not a directory") as raised:
        packing.finish_trace(local / "saved", run_dir / "a.trace.json.gz")
    assert not isinstance(raised.value, packing.TraceKeptError)
    assert len(list(kept.iterdir())) == 20


def test_runs_of_one_name_keep_their_traces_apart(tmp_path):
    local = tmp_path / "local"
    first, second = (keep(cannot_be_written(tmp_path, f"{name}/run"), local) for name in "ab")
    assert first != second
    assert all(len(list(kept.iterdir())) == 1 for kept in (first, second))
    assert staging.kept_folder(local, tmp_path / "a" / ".." / "a" / "run") == first


@pytest.mark.parametrize("character", ["n", "\U0001f600"])
def test_a_run_directory_with_a_long_name(tmp_path, character):
    local, run_dir = tmp_path / "local", tmp_path / (character * 300)
    kept = keep(run_dir, local)
    assert len(list(kept.iterdir())) == 1


def test_a_file_with_the_name_of_the_kept_directory(tmp_path):
    local, run_dir = tmp_path / "local", cannot_be_written(tmp_path)
    local.mkdir()
    kept = staging.kept_folder(local, run_dir)
    kept.write_text("a file")
    keep(run_dir, local)
    assert len(list(local.glob(f"{kept.name}-*/*.trace.json.gz"))) == 1
