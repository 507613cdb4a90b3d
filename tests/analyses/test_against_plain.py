"""Every number of the base analyses, read once more in plain Python from the same JSON: random traces and real ones."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from tests import kineto, plain_collectives, plain_reading
from tests.analyses.random_traces import traces

import rankscope
from rankscope.engine.pipeline import Run

REAL = [
    "hta/nccl_parser_config/nccl_data.json.gz",
    "hta/timeline_analysis/sampled_rank-0.json.gz",
    "hta/rank_unavailable/rank_not_found.json.gz",
    "torchrec/rank2-sleeps-4ranks/host_19490.1698954910152757753.pt.trace.json.gz",
    "modded-nanogpt-h100-8ranks/Baseline_-_12-11_-_6bd4b-rank1-chrome-trace.json.gz",
    "gloo-2ranks/ddp_gpt_all_collectives_shapes.rank1.json.gz",
    "gloo-2ranks/fsdp2_gpt_straggler_rank1.rank0.json.gz",
    "tracelens/inference/vllm_decode_full/graph_execution.json.gz",
    "tracelens/mi210/gpu_only_trace/gpu_only_trace.json.gz",
    "tensorboard-plugin/unit_tests/test_distributed_nccl/worker0.pt.trace.json",
]
SLOW = [
    "hta/negative_queue_length_values_check/rank0.json.gz",
    "tracelens/mi300/resnet_act_checkpoint.json.gz",
    "tensorboard-plugin/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
    "tensorboard-plugin/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
]


def assert_row(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Whole numbers exactly; ratios and means as float64 has them, weighted ones as the file's float32 does."""
    for name, value in wanted.items():
        if isinstance(value, float) and got[name] is not None:
            assert math.isclose(got[name], value, rel_tol=1e-6, abs_tol=1e-9), name
        else:
            assert got[name] == value, name


def assert_agrees(run: Run, plain: plain_reading.Plain) -> None:
    unknown = any(info.account.hides_work for info in run.loaded.infos)
    device = plain_reading.device_time(plain)
    assert_row(run.device_time().row(0, named=True), dict.fromkeys(device) if unknown else device)

    steps = run.step_time()
    expected = plain_reading.step_time(plain)
    assert steps.height == len(expected)
    # Where too much is missing, what the device did is null.
    parts = [name for name in steps.columns[steps.columns.index("gap_before_ns") + 1 :] if unknown]
    for got, wanted in zip(steps.to_dicts(), expected, strict=True):
        assert_row(got, {**wanted, **dict.fromkeys(parts)})

    kernels = {(row["name"], row["category"]): row for row in run.kernels().to_dicts()}
    known = plain_reading.kernels(plain)
    assert set(kernels) == set(known)
    for key, wanted in known.items():
        assert_row(kernels[key], wanted)

    if plain.device:
        # Gloo's ranges are read as before; calls without any kernel stand there only where there is nothing else.
        found = run.collectives().filter(pl.col("kernels") > 0).to_dicts()
        order = plain_collectives.collectives(plain)
        assert len(found) == len(order)
        for got, wanted in zip(found, order, strict=True):
            beside = ["device", "key", "label", "peer", "ranks", "recorded"]
            beside += ["out_elements"] if wanted["out_elements"] is None else []
            assert_row(got, {name: value for name, value in wanted.items() if name not in beside})


def assert_sums(run: Run) -> None:
    """What must hold exactly of any run."""
    device, steps = run.device_time(), run.step_time()
    parts = device["compute_ns"] + device["exposed_communication_ns"] + device["exposed_memory_ns"]
    assert (device["busy_ns"] == parts).all()
    assert (device["span_ns"] == device["busy_ns"] + device["idle_ns"]).all()
    assert (device["communication_ns"] == device["overlap_ns"] + device["exposed_communication_ns"]).all()
    categories = list(steps.columns[steps.columns.index("gap_before_ns") + 1 :])
    assert len(categories) == 8
    if any(info.account.hides_work for info in run.loaded.infos):
        assert steps[categories].null_count().row(0) == (steps.height,) * 8
        return
    assert steps.filter(pl.sum_horizontal(categories) != pl.col("window_ns")).is_empty()
    whole = ["window_ns", *categories]
    assert steps.filter(pl.any_horizontal(pl.col(name) < 0 for name in whole)).is_empty()
    assert steps.filter(pl.col("gap_before_ns") < 0).is_empty()


def opened(trace: kineto.Trace, folder: str) -> Run:
    return rankscope.open(kineto.write(Path(folder) / "rank0.json", trace), executor="serial")


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_random_traces(trace: kineto.Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = opened(trace, folder)
        assert_agrees(run, plain_reading.read(trace))
        assert_sums(run)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces(device=False))
def test_random_gloo_traces(trace: kineto.Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = opened(trace, folder)
        assert_agrees(run, plain_reading.read(trace))
        assert_sums(run)
        ranges = [event for event in trace["traceEvents"] if event["name"].startswith("gloo:")]
        assert run.collectives().height == len(ranges)


@pytest.mark.parametrize("name", [*REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
@pytest.mark.usefixtures("shared_cache")
def test_real_traces(shared_traces: Path, name: str) -> None:
    path = shared_traces / name
    run = rankscope.open(path, executor="serial")
    assert_agrees(run, plain_reading.read(path))
    assert_sums(run)
