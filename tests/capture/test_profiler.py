"""The profiler in one process: names, steps and metadata agree, and nothing that fails reaches the job."""

from __future__ import annotations

import copy
import inspect
import json
import os
import pickle
import sys
import threading
import time
import typing
import warnings
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from rankscope import Profiler
from rankscope.capture import CaptureWarning, environment, recording
from rankscope.capture import profiler as profiler_module
from rankscope.capture.hang.watch import HangWatch
from rankscope.capture.notices import warn
from rankscope.errors import ConfigError
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.manifest import read_rank_manifest, read_run_manifest
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata
from rankscope.rundir.names import parse_trace_name
from rankscope.rundir.options import options_of

from .conftest import HAS_TRACE_ID, read_trace, steps_in, traces, train

SHORT = {"wait": 2, "warmup": 1, "active": 3}


def said_first(name):
    return parse_trace_name(name).first


def check_agreement(folder, name):
    """The name, the events and the metadata of a trace say the same steps; returns the metadata."""
    trace = read_trace(folder / name)
    said, metadata = parse_trace_name(name), TraceMetadata.from_json(trace[METADATA_KEY])
    assert steps_in(trace) == list(range(said.first, said.last + 1))
    assert (metadata.first_step, metadata.last_step, metadata.rank) == (said.first, said.last, said.rank)
    return metadata


@pytest.mark.parametrize(("compression", "ending"), [("gz", ".gz"), ("none", "")])
def test_name_steps_and_metadata_agree(tmp_path, compression, ending):
    with Profiler(tmp_path, **SHORT, repeat=2, compression=compression, run_id="r1", record_shapes=True) as prof:
        assert (prof.selected, prof.recording, prof.run_dir) == (True, False, str(tmp_path))
        train(prof, 20)
    assert traces(tmp_path) == [f"rank0_iter3_5.trace.json{ending}", f"rank0_iter9_11.trace.json{ending}"]
    for name in traces(tmp_path):
        metadata = check_agreement(tmp_path, name)
        assert (metadata.run_id, metadata.world_size, metadata.partial_step) == ("r1", 1, None)
        assert metadata.schedule == {"wait": 2, "warmup": 1, "active": 3, "repeat": 2, "skip_first": 0}
        first, last, *earlier = metadata.clock_anchors
        # The start of the run, then two for each window before this one.
        assert len(earlier) == (1 if said_first(name) == 3 else 3)
        moments = [a.monotonic_ns for a in (*earlier, first, last)]
        assert moments == sorted(moments)
        # The same clocks; how near in time they are read is held with clocks that the test moves, below.
        assert all(abs(a.perf_ns - a.monotonic_ns) < 60e9 for a in metadata.clock_anchors) or os.name == "nt"
        assert abs((last.wall_ns - first.wall_ns) - (last.monotonic_ns - first.monotonic_ns)) < 60e9
        assert abs(first.wall_ns - time.time_ns()) < 600e9
        assert metadata.profiler["record_shapes"] is True
        assert metadata.versions["torch"] == torch.__version__
    trace = read_trace(tmp_path / traces(tmp_path)[0])
    assert not HAS_TRACE_ID or trace["trace_id"] == "r1"
    # Every step is complete: its work is in it.
    assert sum(e["name"] == "aten::mm" for e in trace["traceEvents"]) == 3
    manifest = read_rank_manifest(tmp_path / "ranks" / "rank0.json")
    assert (manifest.state, manifest.steps, manifest.failed, manifest.skipped) == ("finished", 20, (), ())
    assert [w.file for w in manifest.written] == traces(tmp_path)
    assert [w.bytes for w in manifest.written] == [(tmp_path / w.file).stat().st_size for w in manifest.written]
    assert all(w.stall_ns > 0 for w in manifest.written)
    run = read_run_manifest(tmp_path / "run.json")
    assert (run.run_id, run.world_size, run.ranks) == ("r1", 1, "all")
    files = sorted(p.name for p in tmp_path.iterdir() if p.is_file())
    assert files == [*traces(tmp_path), "run.json"]


@pytest.mark.parametrize(("steps", "last"), [(4, 3), (5, 4), (6, 5), (7, 5)])
def test_a_loop_that_ends_in_a_window_names_its_complete_steps(tmp_path, steps, last):
    with Profiler(tmp_path, **SHORT) as prof:
        train(prof, steps)
    (name,) = traces(tmp_path)
    assert name == f"rank0_iter3_{last}.trace.json.gz"
    metadata = check_agreement(tmp_path, name)
    # Torch writes the range of a step that had just begun as if it had ended: it must not count as one.
    partial = [steps] if steps < 6 else []
    assert steps_in(read_trace(tmp_path / name), "PartialStep#") == partial
    assert metadata.partial_step == (steps if partial else None)


@pytest.mark.parametrize("steps", [0, 2, 3])
def test_a_loop_that_is_too_short_warns_once(tmp_path, steps):
    expected = pytest.warns(CaptureWarning, match=f"ended after {steps} steps, before step 3")
    with expected as caught, Profiler(tmp_path, **SHORT) as prof:
        train(prof, steps)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert traces(tmp_path) == []
    manifest = read_rank_manifest(tmp_path / "ranks" / "rank0.json")
    assert [(s.first_step, s.last_step) for s in manifest.skipped] == [(3, 5)]
    assert manifest.warnings


def test_steps_without_a_start_warn_once(tmp_path):
    profiler = Profiler(str(tmp_path), **SHORT)
    with pytest.warns(CaptureWarning, match=r"without start\(\): nothing is recorded") as caught:
        for _ in range(3):
            profiler.step()
    assert len(caught) == 1
    assert not traces(tmp_path)
    with profiler:  # later it can be started all the same
        train(profiler, 8)
    assert len(traces(tmp_path)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profiler.step()  # behind its end it is what loops do


def test_an_unselected_rank_makes_no_profiler_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.profiler, "profile", lambda *a, **k: pytest.fail("a torch profiler was made"))
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with Profiler(tmp_path / "run", ranks="0, 2", **SHORT) as prof:
        prof.add_metadata("a", "b")
        prof.add_metadata_json("a", "{}")
        train(prof, 10)
        assert (prof.selected, prof.recording, prof.step_num) == (False, False, 10)
    prof.stop()
    assert not (tmp_path / "run").exists()


def test_open_in_the_middle_of_a_period(tmp_path):
    profiler = Profiler(tmp_path, period_steps=10, warmup_steps=2, active_steps=2)
    with profiler.open(start_step=107) as prof:  # the warm-up of this period should have begun at 106
        train(prof, 25)
    assert traces(tmp_path) == [
        "rank0_iter108_109.trace.json.gz",
        "rank0_iter118_119.trace.json.gz",
        "rank0_iter128_129.trace.json.gz",
    ]
    for name in traces(tmp_path):
        check_agreement(tmp_path, name)


def test_an_exception_in_the_loop_saves_and_propagates(tmp_path):
    with pytest.raises(ZeroDivisionError), Profiler(tmp_path, **SHORT) as prof:
        train(prof, 5)
        _ = 1 / 0
    assert traces(tmp_path) == ["rank0_iter3_4.trace.json.gz"]
    check_agreement(tmp_path, traces(tmp_path)[0])


def test_two_profilers_in_one_directory(tmp_path):
    for _ in range(2):
        with Profiler(tmp_path, **SHORT) as prof:
            train(prof, 7)
    assert traces(tmp_path) == ["rank0_iter3_5.2.trace.json.gz", "rank0_iter3_5.trace.json.gz"]
    ids = {TraceMetadata.from_json(read_trace(tmp_path / n)[METADATA_KEY]).run_id for n in traces(tmp_path)}
    assert len(ids) == 2
    assert {read_run_manifest(p).run_id for p in tmp_path.glob("run*.json")} == ids
    assert sorted(w.file for w in read_rank_manifest(tmp_path / "ranks" / "rank0.json").written) == traces(tmp_path)


def test_a_second_profiler_at_the_same_time_stays_inactive(tmp_path):
    with Profiler(tmp_path / "a", **SHORT) as first:
        train(first, 4)
        with pytest.warns(CaptureWarning, match="another torch profiler"), Profiler(tmp_path / "b", wait=0) as second:
            train(second, 9)
        train(first, 3)
    assert traces(tmp_path) == ["a/rank0_iter3_5.trace.json.gz"]


def test_another_profiler_of_the_user_is_left_alone(tmp_path):
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with Profiler(tmp_path, **SHORT) as prof, torch.profiler.profile(activities=cpu) as theirs:
        train(prof, 1)
        with pytest.warns(CaptureWarning, match="steps 3 to 5 were not recorded"):
            prof.step()
    assert traces(tmp_path) == []
    assert any(e.name == "aten::mm" for e in theirs.events())
    assert read_rank_manifest(tmp_path / "ranks" / "rank0.json").skipped[0].first_step == 3


def saves_nothing(self, path):
    pass


def saves_half(self, path):
    path.write_text('{"traceEvents": [{"ph": "X"')


def raises(self, path):
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("save", "says"),
    [(saves_nothing, "saved no file"), (saves_half, "ends in the middle"), (raises, "RuntimeError: no")],
)
def test_a_save_that_fails_does_not_fail_the_job(tmp_path, monkeypatch, save, says):
    monkeypatch.setattr(recording.Recording, "save", save)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Profiler(tmp_path, **SHORT, repeat=2) as prof:
            train(prof, 20)
    assert [w.category for w in caught] == [CaptureWarning]
    assert says in str(caught[0].message)
    manifest = read_rank_manifest(tmp_path / "ranks" / "rank0.json")
    assert [(f.first_step, says in f.reason) for f in manifest.failed] == [(3, True), (9, True)]
    # Nothing half-made stays behind, under any name.
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ranks", "run.json", "watch"]


def test_a_directory_that_cannot_be_made_does_not_fail_the_job(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Profiler(tmp_path / "file" / "run", **SHORT) as prof:
            train(prof, 10)
    assert caught
    assert {w.category for w in caught} == {CaptureWarning}
    assert (tmp_path / "file").read_text() == "in the way"


def test_torch_that_warns_while_it_prepares_is_no_error(tmp_path, monkeypatch):
    """Up to 2.11 it does, after it has made its profiler; starting that one unprepared crashes a process on CUDA."""
    prepare = torch.profiler.profile.prepare_trace

    def prepare_trace(self):
        warnings.warn("Profiler clears events at the end of each cycle", stacklevel=2)
        prepare(self)

    monkeypatch.setattr(torch.profiler.profile, "prepare_trace", prepare_trace)
    with Profiler(tmp_path, **SHORT, repeat=1) as prof:
        train(prof, 8)
    assert len(traces(tmp_path)) == 1


def test_what_the_writer_warns_of_during_the_preparation_is_shown(tmp_path, monkeypatch):
    """All warnings were ignored meanwhile, also that of a run directory that cannot be written."""
    prepare = torch.profiler.profile.prepare_trace

    def prepare_trace(self):
        writer = threading.Thread(target=warn, args=("the run directory cannot be written",))
        writer.start()
        writer.join()
        prepare(self)

    monkeypatch.setattr(torch.profiler.profile, "prepare_trace", prepare_trace)
    with pytest.warns(CaptureWarning, match="cannot be written"), Profiler(tmp_path, **SHORT, repeat=1) as prof:
        train(prof, 8)


def test_what_could_not_be_prepared_is_not_started(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(torch.profiler.profile, "prepare_trace", raises_in_torch)
    monkeypatch.setattr(torch.profiler.profile, "start_trace", lambda _self: started.append(1))
    with pytest.warns(CaptureWarning, match="no CUPTI"), Profiler(tmp_path, **SHORT, repeat=1) as prof:
        train(prof, 8)
    assert not started
    monkeypatch.undo()
    with Profiler(tmp_path / "again", **SHORT, repeat=1) as prof:  # nothing of it is left
        train(prof, 8)
    assert len(traces(tmp_path / "again")) == 1


def raises_in_torch(_self):
    raise RuntimeError("no CUPTI")


@pytest.mark.parametrize("method", ["prepare", "start", "begin_step", "end_step", "stop"])
def test_no_exception_leaves_a_step(tmp_path, monkeypatch, method):
    original = getattr(recording.Recording, method)
    calls = []

    def fails_once(self, *args):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("odd")
        return original(self, *args)

    monkeypatch.setattr(recording.Recording, method, fails_once)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Profiler(tmp_path, **SHORT) as prof:
            train(prof, 10)
    assert "odd" in str(caught[0].message)
    assert "odd" in read_rank_manifest(tmp_path / "ranks" / "rank0.json").failed[0].reason


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda profiler: pickle.loads(pickle.dumps(profiler))])
def test_a_copy_has_the_same_options_and_is_not_started(tmp_path, copied):
    """As Lightning pickles its callbacks for the processes that it spawns."""
    with Profiler(
        tmp_path / "run", wait=0, warmup=1, active=1, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as one:
        other = copied(one)
        assert (other.config, other._activities) == (one.config, one._activities)
        assert one.selected
        assert not other.selected


def test_steps_that_end_in_compiled_code_are_in_the_trace(tmp_path):
    profiler, watch = Profiler(tmp_path, wait=1, warmup=1, active=2), HangWatch(tmp_path)

    @torch.compile(backend="eager")
    def train_step(x):
        y = x + 1
        watch.heartbeat()
        profiler.step()
        return y * 2

    with profiler:
        for _ in range(6):
            train_step(torch.ones(3))
    (name,) = traces(tmp_path)
    assert steps_in(read_trace(tmp_path / name)) == [2, 3]


def test_where_warnings_are_errors_the_job_continues(tmp_path, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Profiler(tmp_path, **SHORT) as prof:
            train(prof, 1)
    assert [record.name for record in caplog.records] == ["rankscope.capture"]
    assert "no trace was written" in caplog.text


def test_contradicting_launchers_leave_the_job_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "4")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.warns(CaptureWarning) as caught, Profiler(tmp_path / "run", **SHORT) as prof:
        train(prof, 10)
    assert "RANK=4" in str(caught[0].message)
    assert not (tmp_path / "run").exists()


def test_an_anchor_is_the_reading_that_was_least_interrupted(monkeypatch):
    """Before any reading of a clock the process may lose its core; here it does in two tries of three."""
    gaps = iter([10, 50_000_000, 100, 100, 10, 100, 100, 100, 10, 100, 100, 90_000_000])
    now = [0]

    def clock(offset):
        def read():
            now[0] += next(gaps)
            return now[0] + offset

        return read

    clocks = SimpleNamespace(monotonic_ns=clock(0), time_ns=clock(10**18), perf_counter_ns=clock(7 * 10**9))
    monkeypatch.setattr(environment, "time", clocks)
    anchor = environment.clock_anchor()
    # Of the second try: wall 100, perf 200 and the middle of the two monotonic ones 150 ns after its beginning.
    began = 10 + 50_000_000 + 100 + 100 + 10
    assert anchor.monotonic_ns == began + 150
    assert anchor.wall_ns == 10**18 + began + 100
    assert anchor.perf_ns == 7 * 10**9 + began + 200


def test_invalid_options_are_refused_before_the_job(tmp_path):
    with pytest.raises(ConfigError):
        Profiler(tmp_path, ranks="sometimes")


def test_mesh_restart_and_folders_of_large_jobs(tmp_path, monkeypatch):
    for name, value in {
        "RANK": "1500",
        "WORLD_SIZE": "4096",
        "TORCHELASTIC_RUN_ID": "e",
        "TORCHELASTIC_RESTART_COUNT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    mesh = SimpleNamespace(mesh_dim_names=("dp", "tp"), shape=(512, 8), get_coordinate=lambda: [187, 4])
    context = SimpleNamespace(mesh_for=lambda domain: mesh if domain == "regular" else None)
    with Profiler(tmp_path, **SHORT, dist_context=context) as prof:
        train(prof, 7)
    name = "ranks1024-2047/rank1500_restart1_dp187-tp4_iter3_5.trace.json.gz"
    assert traces(tmp_path) == [name]
    metadata = check_agreement(tmp_path, name)
    assert metadata.mesh.by_name() == {"dp": 187, "tp": 4}
    assert (metadata.restart_count, metadata.run_id, metadata.launcher) == (1, "e", "torchrun")
    assert (tmp_path / "ranks" / "ranks1024-2047" / "rank1500_restart1.json").exists()


def test_users_metadata_cannot_break_the_file(tmp_path):
    with Profiler(tmp_path, **SHORT) as prof:
        prof.add_metadata('no"te', 'a "quote" and a \\ and a \n')
        prof.add_metadata_json("numbers", '{"a": [1, "x\\"y"]}')
        prof.add_metadata(METADATA_KEY, "mine")
        with pytest.warns(CaptureWarning, match="not JSON"):
            prof.add_metadata_json("broken", "{")
        train(prof, 7)
    trace = read_trace(tmp_path / traces(tmp_path)[0])
    assert trace["no'te"] == "a 'quote' and a / and a  "
    assert trace["numbers"] == {"a": [1, "x'y"]}
    assert trace[METADATA_KEY]["rank"] == 0


def test_the_default_directory_and_its_variable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Profiler(**SHORT) as prof:
        train(prof, 7)
    assert [p.name[:14] for p in tmp_path.iterdir()] == ["rankscope_run_"]
    monkeypatch.setenv("RANKSCOPE_RUN_DIR", str(tmp_path / "here"))
    with Profiler(**SHORT) as prof:
        train(prof, 7)
    assert traces(tmp_path / "here") == ["rank0_iter3_5.trace.json.gz"]


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_default_activities_are_what_is_available(monkeypatch, kind):
    kinds = torch.profiler.ProfilerActivity
    assert environment.default_activities() == [kinds.CPU]
    monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: True)
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {kinds.CPU, kinds.CUDA, kinds.XPU})
    assert environment.default_activities() == [kinds.CPU, getattr(kinds, kind.upper())]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_nothing(tmp_path):
    prof = Profiler(tmp_path, **SHORT)
    prof.start()
    train(prof, 4)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        prof.step()
        prof.stop()
        os.write(write, json.dumps(traces(tmp_path)).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert json.loads(os.read(read, 1000)) == []
    os.close(read)
    os.close(write)
    train(prof, 3)
    prof.stop()
    assert traces(tmp_path) == ["rank0_iter3_5.trace.json.gz"]


def calls_of(profiler, steps):
    """How often each function is called in some steps."""
    found = Counter()

    def seen(frame, event, called):
        if event in ("call", "c_call"):
            found[frame.f_code.co_name if event == "call" else called.__name__] += 1

    sys.setprofile(seen)
    try:
        for _ in range(steps):
            profiler.step()
    finally:
        sys.setprofile(None)
    return found


def test_waiting_and_inactive_steps_do_next_to_nothing(tmp_path, monkeypatch):
    # What that costs is measured by `make bench` (benchmarks/capture.py).
    prof = Profiler(tmp_path, wait=10**9, ranks="all", watch=False)
    prof.start()
    waiting = calls_of(prof, 10_000)
    with pytest.warns(CaptureWarning, match="no trace was written"):
        prof.stop()
    # A step reads the clock and keeps what it read; the kept times are folded every thousand steps or so.
    assert waiting["step"] == 10_000
    assert waiting["_begin_step"] <= 20
    assert waiting["perf_counter_ns"] + waiting["append"] <= 20_100
    assert waiting.total() < 6 * 10_000
    assert calls_of(prof, 1000)["step"] == calls_of(prof, 1000).total() - 1 == 1000  # and sys.setprofile itself
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with Profiler(tmp_path, ranks="0", watch=False) as unselected:
        assert calls_of(unselected, 1000).total() == 1001
    assert profiler_module.NEVER > 10**15


def test_a_file_url_is_its_path_and_another_url_is_warned_about(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    staged = Profiler((tmp_path / "my run").as_uri(), **SHORT, staging_dir="s3://bucket/stage")
    with pytest.warns(CaptureWarning, match="not a directory .* write to: traces are staged"), staged as prof:
        train(prof, 8)
    assert len(traces(tmp_path / "my run")) == 1
    away = Profiler("file://elsewhere/run", **SHORT)
    refused = "'file://elsewhere/run' is not a directory that a job can write to"
    with pytest.warns(CaptureWarning, match=refused), away as prof:
        train(prof, 8)
    (made,) = tmp_path.glob("rankscope_run_*")
    assert len(traces(made)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my run", made.name]


def test_every_option_of_a_capture_is_an_argument_and_no_other():
    """Options are defined in `CaptureConfig`; the arguments follow from it, and default to None: not given."""
    hints = typing.get_type_hints(Profiler.__init__, vars(profiler_module))
    arguments = inspect.signature(Profiler).parameters
    assert all(argument.default is None for argument in arguments.values())
    fields = typing.get_type_hints(CaptureConfig)
    paths = {"save_dir", "staging_dir"}
    for name, kind in fields.items():
        wanted = kind | None if name not in paths else str | os.PathLike[str] | None
        assert hints[name] == wanted, name
    further = {"warmup_steps", "active_steps", "dist_context", "mesh", "activities"}
    assert set(arguments) == set(fields) | further
    assert all(f"\n    {name}: {each.help}\n" in Profiler.__doc__ for name, each in options_of(CaptureConfig).items())
