"""Stopping in the loop or off it: what decides, and that both give the same trace."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
import torch

from rankscope import Profiler
from rankscope.capture import recording, stop_mode
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.manifest import read_rank_manifest
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata

from .conftest import clean_environ, read_trace, steps_in, traces, train

CPU = [torch.profiler.ProfilerActivity.CPU]
SHORT = {"wait": 1, "warmup": 1, "active": 2}


@pytest.fixture
def released(monkeypatch):
    """A torch whose stop lets other threads run, as far as the probe can see, and that has all that this needs."""
    monkeypatch.setattr(stop_mode, "_releases", True)
    monkeypatch.setattr(stop_mode, "all_threads_config", lambda: None)
    monkeypatch.setattr(torch.profiler.profile, "toggle_collection_dynamic", lambda *_: None, raising=False)


@pytest.mark.parametrize(
    ("options", "activities", "chosen"),
    [
        ({}, CPU, stop_mode.THREAD),
        ({"record_shapes": True}, CPU, stop_mode.THREAD),
        ({"stop_off_loop": "never"}, CPU, stop_mode.LOOP),
        ({"profile_memory": True}, CPU, stop_mode.LOOP),
        ({"profile_memory": True, "stop_off_loop": "always"}, CPU, stop_mode.LOOP),
        ({"with_stack": True}, CPU, stop_mode.THREAD),
        ({}, [*CPU, torch.profiler.ProfilerActivity.CUDA], stop_mode.LOOP),
        ({"stop_off_loop": "always"}, [*CPU, torch.profiler.ProfilerActivity.CUDA], stop_mode.THREAD),
    ],
)
def test_what_decides(released, options, activities, chosen):
    where, reason = stop_mode.choose_stop_mode(CaptureConfig(**options), activities)
    assert where == chosen
    assert reason


def test_without_the_settings_of_newer_torch_it_is_the_loop(released, monkeypatch):
    def refuses():
        raise TypeError("unexpected keyword argument")

    monkeypatch.setattr(stop_mode, "all_threads_config", refuses)
    assert stop_mode.choose_stop_mode(CaptureConfig(stop_off_loop="always"), CPU)[0] == stop_mode.LOOP


@pytest.mark.parametrize("activities", [CPU, [*CPU, torch.profiler.ProfilerActivity.CUDA]])
def test_where_torch_blocks_other_threads_it_always_stops_in_the_loop(released, monkeypatch, activities):
    monkeypatch.setattr(stop_mode, "_releases", False)
    assert stop_mode.choose_stop_mode(CaptureConfig(stop_off_loop="always"), activities)[0] == stop_mode.LOOP


def test_an_accelerator_is_not_woken_to_find_out(released, monkeypatch):
    tried = []
    monkeypatch.setattr(torch, "__version__", "2.14.1+cu130")
    monkeypatch.setattr(stop_mode, "_releases", None)
    monkeypatch.setattr(
        stop_mode, "other_threads_run_during_stop", lambda activities, operators: not tried.append(activities)
    )
    accelerated = [*CPU, torch.profiler.ProfilerActivity.CUDA]
    assert stop_mode.choose_stop_mode(CaptureConfig(stop_off_loop="always"), accelerated) == (
        stop_mode.THREAD,
        "requested",
    )
    assert tried
    assert all(kinds == CPU for kinds in tried)


def test_no_trial_where_no_release_of_torch_could_pass_it(monkeypatch):
    def fails(*_arguments):
        raise AssertionError("a trial recording")

    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.setattr(stop_mode, "_releases", None)
    monkeypatch.setattr(stop_mode, "other_threads_run_during_stop", fails)
    assert stop_mode.other_threads_run() is False


def counts_in_python():
    # Much longer than the interval at which threads usually make way for each other.
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass


def lets_the_other_run():
    # Until it has, however late it comes.
    until = time.perf_counter() + 300
    while any(thread.name == "rankscope-probe" for thread in threading.enumerate()) and time.perf_counter() < until:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("stop", "found"),
    [
        (lets_the_other_run, True),
        (lambda: sum(range(10**6)), False),
        (counts_in_python, False),
        # So long that the other thread may have been made way for.
        (lambda: time.sleep(stop_mode._SWITCH_INTERVAL_S), False),
    ],
)
def test_the_trial_detects_whether_other_threads_run(monkeypatch, stop, found):
    """Stand-ins for a torch that releases the interpreter while it stops, and for one that does not."""

    class Profile:
        def __init__(self, **_options):
            self.profiler = None
            self.prepare_trace = self.start_trace = lambda: None
            self.stop_trace = stop

    if found:
        # A busy machine may let the other thread come late; what is long is not what is tried here.
        monkeypatch.setattr(stop_mode, "_SWITCH_INTERVAL_S", 1000.0)
    monkeypatch.setattr(torch.profiler, "profile", Profile)
    assert stop_mode.other_threads_run_during_stop(CPU) is found


def test_the_trial_leaves_nothing_behind():
    before = threading.active_count()
    assert stop_mode.other_threads_run_during_stop(CPU) in (True, False)
    assert threading.active_count() <= before + 1
    assert not torch.autograd.profiler._is_profiler_enabled


@pytest.mark.parametrize("stop_off_loop", ["always", "never"])
def test_both_modes_give_the_same_trace(tmp_path, monkeypatch, off_loop_everywhere, stop_off_loop):
    if stop_mode.choose_stop_mode(CaptureConfig(stop_off_loop=stop_off_loop), CPU)[1] != "requested":
        pytest.skip("this torch cannot stop off the loop")
    threads = []
    original = recording.Recording.save

    def save(self, path):
        threads.append(threading.current_thread() is threading.main_thread())
        original(self, path)

    monkeypatch.setattr(recording.Recording, "save", save)
    with Profiler(tmp_path, **SHORT, repeat=2, stop_off_loop=stop_off_loop, record_shapes=True) as prof:
        train(prof, 12)
    assert traces(tmp_path) == ["rank0_iter2_3.trace.json.gz", "rank0_iter6_7.trace.json.gz"]
    for name in traces(tmp_path):
        trace = read_trace(tmp_path / name)
        said = TraceMetadata.from_json(trace[METADATA_KEY])
        assert steps_in(trace) == [said.first_step, said.last_step]
        assert sum(e["name"] == "aten::mm" for e in trace["traceEvents"]) == 2
    assert threads == [stop_off_loop == "never"] * 2
    manifest = read_rank_manifest(tmp_path / "ranks" / "rank0.json")
    assert (manifest.capture["stop"], said.profiler["stop"]) == (
        ("thread" if stop_off_loop == "always" else "loop"),
    ) * 2
    assert all(trace.off_loop_ns > 0 for trace in manifest.written)


@pytest.mark.parametrize("switches", [{"record_shapes": True, "with_flops": True}, {"profile_memory": True}])
def test_trace_only_changes_no_trace(tmp_path, monkeypatch, switches):
    """Torch's own default against its `trace_only`: the same events with the same arguments."""
    original = stop_mode.experimental_config

    if original(CaptureConfig(), off_loop=False) is None:
        pytest.skip("this torch has no trace_only")

    def default(config, *, off_loop):
        return stop_mode.all_threads_config() if off_loop else None

    found = []
    for name, setting in (("less", original), ("default", default)):
        monkeypatch.setattr(recording, "experimental_config", setting)
        with Profiler(tmp_path / name, **SHORT, **switches) as prof:
            train(prof, 5)
        events = read_trace(tmp_path / name / "rank0_iter2_3.trace.json.gz")["traceEvents"]
        # Garbage is collected when it is.
        found.append(sorted(
            (e["ph"], e.get("cat", ""), e["name"], *sorted(e.get("args", {}))) for e in events
            if e["ph"] != "M" and not e["name"].startswith(("gc:", "Iteration Start", "Record Window"))
        ))  # fmt: skip
    assert found[0] == found[1]
    assert any(name == ("[memory]" if "profile_memory" in switches else "aten::mm") for _, _, name, *_ in found[0])


def test_an_older_torch_lacks_settings(monkeypatch):
    class Older:
        def __init__(self, profile_all_threads=False):
            self.profile_all_threads = profile_all_threads

    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", Older)
    assert stop_mode.experimental_config(CaptureConfig(), off_loop=False) is None
    assert stop_mode.experimental_config(CaptureConfig(), off_loop=True).profile_all_threads


ACROSS = """
import random, threading, torch
from rankscope.capture.recording import Recording
from rankscope.rundir.config import CaptureConfig

torch.set_num_threads(1)
kinds, going = [torch.profiler.ProfilerActivity.CPU], True
def ranges():  # they stay open across stops and starts
    while going:
        with torch.profiler.record_function("long"):
            for _ in range(random.randrange(40)):
                torch.neg(torch.ones(3))
def backward():
    layer = torch.nn.Linear(8, 8)
    while going:
        layer(torch.ones(4, 8)).sum().backward()
def brief():  # threads whose queues outlive them
    while going:
        thread = threading.Thread(target=lambda: [torch.neg(torch.ones(3)) for _ in range(20)])
        thread.start()
        thread.join()
beside = [threading.Thread(target=work) for work in (ranges, backward, brief)]
for thread in beside:
    thread.start()
for number in range(100):
    config = CaptureConfig(record_shapes=bool(number % 2), with_stack=number % 3 == 0)
    recording = Recording(config, kinds, "id", off_loop=True)
    recording.prepare()
    recording.start()
    recording.begin_step(number)
    for _ in range(random.randrange(60)):
        torch.neg(torch.ones(5))
    if number % 4:
        recording.end({})
    stopping = threading.Thread(target=recording.stop)
    stopping.start()
    while stopping.is_alive():
        torch.neg(torch.ones(5))
    recording.free()
going = False
for thread in beside:
    thread.join()
print("survived")
"""


def test_operators_of_other_threads_survive_a_stop_off_the_loop():
    """In a process of its own that overwrites what is freed: torch 2.13, stopped so, dies within seconds."""
    if stop_mode.choose_stop_mode(CaptureConfig(), CPU)[0] != stop_mode.THREAD:
        pytest.skip("this torch is not stopped off the loop")
    environ = {**clean_environ(), "MALLOC_PERTURB_": "165"}
    done = subprocess.run([sys.executable, "-c", ACROSS], env=environ, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "survived"), done.stderr[-3000:]
