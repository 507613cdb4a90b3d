"""What each step loses between one piece of work and the next."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests import kineto

import rankscope
from rankscope.answers.diagnosis.rules.small_kernels import rule

# The host is in an operator all the time: nowhere is it silent.
BUSY = kineto.op("my::op", 1, 600)


def pieces(*spans: tuple[float, float, float]) -> list[kineto.Event]:
    """Kernels: launched when, from, to."""
    events: list[kineto.Event] = []
    for number, (launch, start, end) in enumerate(spans, 1):
        events += [
            kineto.launch(launch, 1, correlation=number),
            kineto.kernel("k", start, end - start, correlation=number),
        ]
    return events


def row(folder: Path, *events: kineto.Event) -> dict[str, object]:
    run = rankscope.open(kineto.write_ranks(folder, {0: [kineto.step(1, 0, 1000), *events]}), executor="serial")
    found: dict[str, object] = run.idle(by="step").row(0, named=True)
    return found


def test_only_late_launches_count(tmp_path: Path) -> None:
    """20 µs late before a short kernel, 30 µs late before a long one, 40 µs that a kernel launched in time waited."""
    found = row(tmp_path, BUSY, *pieces((5, 10, 110), (115, 130, 135), (150, 165, 265), (200, 305, 405)))
    assert found["late_ns"] == 50_000
    assert found["late_short_ns"] == 20_000
    assert (found["pieces"], found["short"], found["short_ns"]) == (4, 1, 5_000)
    assert "idle_by_step" in rule.requires


def test_waiting_calls_and_data_loading_are_left_out(tmp_path: Path) -> None:
    found = row(
        tmp_path,
        BUSY,
        *pieces((5, 10, 110), (195, 200, 300), (385, 390, 500)),
        kineto.launch(100, 60, name="cudaStreamSynchronize"),
        kineto.loading(310, 70),
    )
    # Of 90 µs 50 in the call, of 90 µs 70 in the loader.
    assert found["late_ns"] == 40_000 + 20_000


def test_a_silent_host_is_left_out(tmp_path: Path) -> None:
    """The host records nothing for 400 µs: it does not launch. An operator around it, and it is late."""
    kernels = pieces((5, 10, 110), (505, 510, 600))
    # From the first launch's end, 6 µs, to the second's begin, 505 µs; the gap ends at 510.
    assert row(tmp_path / "silent", *kernels)["late_ns"] == 5_000
    assert row(tmp_path / "busy", *kernels, kineto.op("my::op", 6, 499))["late_ns"] == 400_000


@pytest.mark.parametrize(("length", "late"), [(9_000, 9_000_000), (11_000, 0)])
def test_a_long_operator_without_events_inside_is_left_out(tmp_path: Path, length: int, late: int) -> None:
    """The first convolution of a process loads libraries: no faster launch would shorten that."""
    end = 10 + length
    kernels = pieces((1, 5, 10), (end, end, end + 20))
    events = [kineto.op("aten::conv2d", 10, length), *kernels]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: [kineto.step(1, 0, 20_000), *events]}), executor="serial")
    assert run.idle(by="step")["late_ns"].to_list() == [late]


def test_against_a_plain_reading(shared_traces: Path) -> None:
    """The late gaps of a real file, in plain Python over its JSON, where nothing is left out: ours are part of them."""
    file = min((shared_traces / "tensorboard-plugin/resnet50_num_workers_4").rglob("*.json*"))
    events = [e for e in read(file) if e.get("ph") == "X"]
    calls = {
        e["args"]["correlation"]: e for e in events if e.get("cat") == "Runtime" and "correlation" in e.get("args", {})
    }
    device = sorted((e for e in events if e.get("cat") in ("Kernel", "Memcpy", "Memset")), key=lambda e: e["ts"])
    reached, late = None, 0
    for event in device:
        launch = calls.get(event["args"].get("correlation"))
        if reached is not None and event["ts"] > reached and launch is not None and launch["ts"] > reached:
            late += event["ts"] - reached
        reached = max(reached or 0, event["ts"] + event["dur"])
    found = rankscope.open(file, executor="serial").idle(by="step")["late_ns"].sum()
    assert 0 < found <= late * 1000


def read(file: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    content = json.loads(data)
    events: list[dict[str, Any]] = content["traceEvents"] if isinstance(content, dict) else content
    return events
