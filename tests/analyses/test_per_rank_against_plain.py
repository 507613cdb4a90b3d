"""operators, utilization, launches and idle, read once more in plain Python from the same JSON."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests import kineto, plain_per_rank, plain_reading
from tests.analyses.random_traces import traces

import rankscope
from rankscope.engine.pipeline import Run

REAL = [
    "hta/timeline_analysis/sampled_rank-0.json.gz",
    "torchrec/rank2-sleeps-4ranks/host_19490.1698954910152757753.pt.trace.json.gz",
    "modded-nanogpt-h100-8ranks/Baseline_-_12-11_-_6bd4b-rank1-chrome-trace.json.gz",
    "gloo-2ranks/ddp_gpt_shapes.rank1.json.gz",
    "tracelens/inference/vllm_decode_full/graph_execution.json.gz",
    "tracelens/mi210/gpu_only_trace/gpu_only_trace.json.gz",
    "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
]
SLOW = [
    "hta/nccl_parser_config/nccl_data.json.gz",
    "hta/negative_queue_length_values_check/rank0.json.gz",
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "tracelens/mi300/resnet_act_checkpoint.json.gz",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "torchrec/ddp-resnet18-2ranks/host_85867.1698107929568240321.pt.trace.json.gz",
    "tensorboard-plugin/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
    "gloo-2ranks/fsdp2_gpt_shapes_stack_mem.rank0.json.gz",
]


def assert_row(got: dict[str, Any], wanted: dict[str, Any], where: object) -> None:
    for name, value in wanted.items():
        if isinstance(value, float) and got[name] is not None:
            assert math.isclose(got[name], value, rel_tol=1e-6, abs_tol=1e-7), (where, name, got[name], value)
        else:
            assert got[name] == value, (where, name, got[name], value)


def assert_agrees(run: Run, plain: plain_reading.Plain, frames: list[plain_reading.Span]) -> None:
    found = {row["name"]: row for row in run.operators().to_dicts()}
    known = plain_per_rank.operators(plain)
    assert set(found) == set(known)
    for name, row in known.items():
        assert_row(found[name], row, name)

    devices = {row["device"]: row for row in run.utilization().to_dicts() if row["kernel_ns"] is not None}
    expected = plain_per_rank.utilization(plain)
    assert set(devices) == set(expected)
    for device, row in expected.items():
        assert_row(devices[device], row, device)

    assert_row(run.launches().row(0, named=True), plain_per_rank.launches(plain), "launches")

    idle = run.idle().to_dicts()
    streams = {(r["device"], r["stream"], r["cause"]): (r["gaps"], r["idle_ns"]) for r in idle if r["cause"] in
               ("host_wait", "kernel_wait", "other", "unknown")}  # fmt: skip
    assert streams == plain_per_rank.stream_idle(plain)
    whole: dict[tuple[Any, str], int] = {}
    for row in idle:
        if row["cause"] not in ("host_wait", "kernel_wait", "other", "unknown"):
            assert row["stream"] is None
            key = row["device"], row["cause"]
            whole[key] = whole.get(key, 0) + row["idle_ns"]
    assert whole == plain_per_rank.device_idle(plain, frames)


def assert_sums(run: Run, plain: plain_reading.Plain) -> None:
    """What must hold exactly: self times add up to the union thread by thread, idle to the span less what ran."""
    ranges = plain_per_rank.threads(plain.operators)
    union = sum(plain_per_rank.length(one.span for one in events) for events in ranges.values())
    crossing = any(
        mother is not None and mother.end < one.end
        for one, mother in zip(plain.operators, plain_per_rank.parents(plain.operators).values(), strict=False)
    )
    if not crossing:
        assert run.operators()["host_self_ns"].sum() == union
    idle = run.idle().filter(run.idle()["stream"].is_null())
    if len({plain_per_rank.device_of(event) for event in plain.device}) == 1 and not idle.is_empty():
        assert idle["idle_ns"].sum() == run.device_time()["idle_ns"].sum()


def nested(trace: kineto.Trace) -> kineto.Trace:
    """The trace with operators of one thread cut at the end of those around them, as real ones are.

    Of ranges that cross, which is inside which is a matter of taste, and nothing else of it is looked at here.
    """
    opened: dict[Any, list[Decimal]] = {}
    ranges = [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    for event in sorted(ranges, key=lambda one: (one["ts"], -one["dur"])):
        start, lasts = Decimal(str(event["ts"])), Decimal(str(event["dur"]))
        around = [end for end in opened.get(event["tid"], []) if end > start]
        if around and start + lasts > around[-1]:
            lasts = around[-1] - start
            event["dur"] = int(lasts) if lasts == int(lasts) else float(lasts)
        opened[event["tid"]] = [*around, start + lasts]
    return trace


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces(device=True))
def test_random_traces(trace: kineto.Trace) -> None:
    nested(trace)
    with tempfile.TemporaryDirectory() as folder:
        run = rankscope.open(kineto.write(Path(folder) / "rank0.json", trace), executor="serial")
        assert_agrees(run, plain_reading.read(trace), [])


@pytest.mark.parametrize("name", [*REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
@pytest.mark.usefixtures("shared_cache")
def test_real_traces(shared_traces: Path, name: str) -> None:
    path = shared_traces / name
    content = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    plain = plain_reading.read(content)
    run = rankscope.open(path, executor="serial")
    assert_agrees(run, plain, plain_per_rank.python_frames(content))
    assert_sums(run, plain)
