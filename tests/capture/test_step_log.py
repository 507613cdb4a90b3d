"""Step durations, and the environment of a rank."""

from __future__ import annotations

import time

from rankscope import Profiler
from rankscope.capture import environment, step_log
from rankscope.capture.step_log import StepTimes
from rankscope.jobs.jobscript import find_machine, known_machines
from rankscope.rundir.manifest import read_rank_manifest
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata
from rankscope.rundir.schedule import Window

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
    monkeypatch.setattr(step_log.time, "perf_counter_ns", lambda: now[0])
    times = StepTimes(10)
    step = 10
    for _ in range(10_000):
        now[0] += step  # a step lasts as long as its number says
        step += 1
        times.mark(now[0])
        if step >= times.fold_at:
            times.fold(step)
    times.add_window(Window(9_000, 9_001, 9_002))
    spans = times.spans(step)
    assert [(s.first_step, s.state) for s in spans] == [
        (10, "wait"), (step - step_log.KEPT_LATEST, "wait"), (9_000, "warmup"), (9_001, "active"), (9_003, "wait")
    ]  # fmt: skip
    assert all(s.ns == tuple(range(s.first_step, s.first_step + len(s.ns))) for s in spans)
    assert len(spans[0].ns) == step_log.KEPT_FIRST
    assert times.medians(step)["active"] == 9_001
    blocks = times.blocks()
    kept = step_log.KEPT_FIRST
    assert (blocks[0].first_step, sum(b.steps for b in blocks)) == (10 + kept, 10_000 - kept)
    for block in blocks:
        durations = range(block.first_step, block.first_step + block.steps)
        assert (block.min_ns, block.max_ns, block.total_ns) == (durations[0], durations[-1], sum(durations))


def test_windows_of_a_long_run_keep_their_steps_and_blocks_stay_few(monkeypatch):
    now = [0]
    monkeypatch.setattr(step_log.time, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(step_log, "KEPT_BLOCKS", 8)
    times = StepTimes(0)
    for step in range(60_000):
        if step == 20_000:
            times.add_window(Window(20_000, 20_001, 20_002))
        now[0] += step
        times.mark(now[0])
        if step + 1 >= times.fold_at:
            times.fold(step + 1)
    spans = times.spans(60_000)
    assert [(s.first_step, s.state, s.ns) for s in spans if s.state != "wait"] == [
        (20_000, "warmup", (20_000,)), (20_001, "active", (20_001, 20_002))
    ]  # fmt: skip
    blocks = times.blocks()
    assert 8 <= len(blocks) < 16
    assert sum(b.steps for b in blocks) == 60_000 - step_log.KEPT_FIRST
    assert sum(b.total_ns for b in blocks) == sum(range(step_log.KEPT_FIRST, 60_000))
    few = times.spans(60_000, 5)
    assert [(s.first_step, len(s.ns)) for s in few] == [(0, 5), (59_995, 5)]
    still = times.snapshot()
    times.mark(10**12)
    assert still.spans(60_000) == spans


def test_a_first_step_that_began_before_the_profiler():
    times = StepTimes(0, time.perf_counter_ns() - 7_000_000_000)
    times.mark(time.perf_counter_ns())
    (span,) = times.spans(1)
    assert (span.first_step, len(span.ns)) == (0, 1)
    assert 7e9 <= span.ns[0] < 600e9


def test_settings_are_kept_and_secrets_are_not():
    environ = {"NCCL_DEBUG": "INFO", "TORCH_API_KEY": "x", "HOME": "/h", "CUDA_TOKEN": "hf_abcdefghijk", "OMP_X": "1"}
    assert environment.settings(environ) == {
        "NCCL_DEBUG": "INFO", "TORCH_API_KEY": "<redacted>", "CUDA_TOKEN": "<redacted>", "OMP_X": "1"
    }  # fmt: skip


def test_settings_of_xpu_and_of_each_profile_are_kept():
    environ = dict.fromkeys(
        (
            "CCL_ATL_TRANSPORT", "CCL_WORKER_AFFINITY", "ONECCL_LOG", "FI_PROVIDER", "FI_CXI_DEFAULT_CQ_SIZE",
            "MPIR_CVAR_ENABLE_GPU", "I_MPI_OFFLOAD", "PALS_LOCAL_SIZE", "ZE_AFFINITY_MASK", "ZES_ENABLE_SYSMAN",
            "ZEX_NUMBER_OF_CCS", "SYCL_CACHE_PERSISTENT", "UR_L0_USE_IMMEDIATE_COMMANDLISTS", "ONEAPI_DEVICE_SELECTOR",
            "IPEX_TILE_AS_DEVICE", "IGC_EnableDPEmulation", "ONEDNN_VERBOSE",
        ),
        "1",
    )  # fmt: skip
    for name in known_machines({}):
        environ |= {setting.name: setting.value for setting in find_machine(name, {}).environment}
    assert environment.settings(environ) == dict(sorted(environ.items()))
    secret = {"FI_PROV_AUTH_KEY": "x", "CCL_TOKEN": "x"}
    assert environment.settings({**secret, "PMI_SHARED_SECRET": "x"}) == dict.fromkeys(sorted(secret), "<redacted>")


def test_ranges():
    assert environment.as_ranges({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8"
    assert environment.as_ranges([]) == ""
