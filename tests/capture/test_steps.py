"""How long steps took, and what surrounds a rank."""

from __future__ import annotations

import time

from rankscope import Profiler
from rankscope.capture import steps, surroundings
from rankscope.capture.schedule import Window
from rankscope.capture.steps import StepTimes
from rankscope.rundir.manifest import read_rank_manifest
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata

from .conftest import read_trace, traces, train


def test_every_step_has_its_time_and_state(tmp_path):
    with Profiler(tmp_path, wait=2, warmup=1, active=3) as prof:
        time.sleep(0.05)
        train(prof, 9)
    manifest = read_rank_manifest(tmp_path / "ranks" / "rank0.json")
    assert [(s.first_step, s.state, len(s.ns)) for s in manifest.step_times] == [
        (0, "wait", 2), (2, "warmup", 1), (3, "active", 3), (6, "wait", 3)
    ]  # fmt: skip
    assert manifest.step_times[0].ns[0] >= 50_000_000
    assert set(manifest.step_median_ns) == {"wait", "warmup", "active"}
    said = TraceMetadata.from_json(read_trace(tmp_path / traces(tmp_path)[0])[METADATA_KEY])
    assert said.profiler["step_median_ns"]["warmup"] > 0
    assert "settings" in said.environment
    assert said.environment == manifest.environment


def test_the_first_and_the_latest_are_kept(monkeypatch):
    now = [0]
    monkeypatch.setattr(steps.time, "perf_counter_ns", lambda: now[0])
    times = StepTimes(10)
    step = 10
    for _ in range(10_000):
        now[0] += step  # a step lasts as long as its number says
        step += 1
        times.mark(now[0])
        if step >= times.fold_at:
            times.fold()
    times.recorded(Window(9_000, 9_001, 9_002))
    spans = times.spans(step)
    assert [(s.first_step, s.state) for s in spans] == [
        (10, "wait"), (step - steps.KEPT_LATEST, "wait"), (9_000, "warmup"), (9_001, "active"), (9_003, "wait")
    ]  # fmt: skip
    assert all(s.ns == tuple(range(s.first_step, s.first_step + len(s.ns))) for s in spans)
    assert len(spans[0].ns) == steps.KEPT_FIRST
    assert times.medians(step)["active"] == 9_001


def test_settings_are_kept_and_secrets_are_not():
    environ = {"NCCL_DEBUG": "INFO", "TORCH_API_KEY": "x", "HOME": "/h", "CUDA_TOKEN": "hf_abcdefghijk", "OMP_X": "1"}
    assert surroundings.settings(environ) == {
        "NCCL_DEBUG": "INFO", "TORCH_API_KEY": "<redacted>", "CUDA_TOKEN": "<redacted>", "OMP_X": "1"
    }  # fmt: skip


def test_ranges():
    assert surroundings.as_ranges({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8"
    assert surroundings.as_ranges([]) == ""
