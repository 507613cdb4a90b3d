"""Forward and backward against the profiler's own flow events; kernels against launches by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.show.timeline.test_call_trees import drawn

from rankscope.show.timeline.event_details import details
from rankscope.show.timeline.timeline import Timeline


def event(timeline: Timeline, name: str, start_us: float) -> dict[str, Any]:
    """The details of the event of this name that starts then, in its file's time."""
    for in_run in timeline.drawn():
        events, arrays = in_run.lanes.events, in_run.lanes.arrays
        base = timeline.clock.ranks[in_run.lanes.rank].bases[0]
        for lane in range(1, len(in_run.lanes.lanes)):
            for at in range(int(events.pointer[lane]), int(events.pointer[lane + 1])):
                same = timeline.names[int(in_run.names[arrays["name"][at]])] == name
                if same and int(events.start[at]) == round(1000 * start_us) + base:
                    found = details(timeline, in_run.first_lane + lane, at - int(events.pointer[lane]))
                    assert found is not None
                    return found
    raise AssertionError(f"no {name} at {start_us}")


def autograd(name: str, start: float, number: int, thread: int, **more: Any) -> kineto.Event:
    return kineto.op(name, start, 10, **{"Sequence number": number, "Fwd thread id": thread}, **more)


def test_forward_and_backward_lead_to_each_other(tmp_path: Path) -> None:
    events = [
        autograd("aten::mm", 10, 5, 0),
        autograd("MmBackward0", 50, 5, 1, tid=9),
        autograd("aten::add", 25, 6, 0),  # this number is used by two threads
        autograd("aten::add", 25, 6, 0, tid=12),
        autograd("AddBackward0", 70, 6, 1, tid=9),
        autograd("aten::relu", 90, 7, 0),  # without backward
    ]
    _, timeline = drawn(kineto.write(tmp_path / "rank0.json", kineto.trace(events, rank=0)))
    forward, backward = event(timeline, "aten::mm", 10), event(timeline, "MmBackward0", 50)
    assert forward["forward"] is None
    assert backward["backward"] is None
    assert (forward["backward"]["name"], forward["backward"]["start_ns"]) == ("MmBackward0", backward["start_ns"])
    assert (backward["forward"]["name"], backward["forward"]["start_ns"]) == ("aten::mm", forward["start_ns"])
    for name, start in (("aten::add", 25), ("AddBackward0", 70), ("aten::relu", 90)):
        other = event(timeline, name, start)
        assert (other["forward"], other["backward"]) == (None, None)


def test_the_kernels_that_an_operator_launched(tmp_path: Path) -> None:
    events = [
        kineto.op("aten::linear", 0, 40),
        kineto.op("aten::mm", 5, 20),
        kineto.launch(10, 5, correlation=1),
        kineto.launch(30, 5, correlation=2),
        kineto.launch(50, 5, correlation=3),
        kineto.launch(12, 5, correlation=4, tid=77),  # at the same time on another thread
        *(kineto.kernel(f"k{number}", 100 + 20 * number, 10 + number, correlation=number) for number in (1, 2, 3, 4)),
    ]
    _, timeline = drawn(kineto.write(tmp_path / "rank0.json", kineto.trace(events, rank=0)))

    def kernels(name: str, start: float) -> tuple[int, int, list[str]] | None:
        found = event(timeline, name, start)["kernels"]
        return found and (found["count"], found["total_ns"], [each["name"] for each in found["first"]])

    assert kernels("aten::linear", 0) == (2, 23_000, ["k1", "k2"])
    assert kernels("aten::mm", 5) == (1, 11_000, ["k1"])
    assert kernels("cudaLaunchKernel", 50) == (1, 13_000, ["k3"])
    assert kernels("k1", 120) is None


def test_calls_that_start_together_are_each_in_the_operator_of_their_thread(tmp_path: Path) -> None:
    events = [
        kineto.op("aten::mm", 0, 40),
        kineto.op("aten::copy_", 0, 40, tid=77),
        kineto.launch(10, 5, name="cudaLaunchKernel"),
        kineto.launch(10, 5, name="cudaMemcpyAsync", tid=77),
    ]
    _, timeline = drawn(kineto.write(tmp_path / "rank0.json", kineto.trace(events, rank=0)))
    assert event(timeline, "cudaLaunchKernel", 10)["operator"]["name"] == "aten::mm"
    assert event(timeline, "cudaMemcpyAsync", 10)["operator"]["name"] == "aten::copy_"


def test_as_the_profilers_own_flows(shared_traces: Path, tmp_path: Path) -> None:
    """Each `fwdbwd` flow of a real trace: from where it starts to where it ends."""
    source = shared_traces / "gloo-2ranks" / "ddp_gpt_straggler_rank1.rank0.json.gz"
    with gzip.open(source) as file:
        raw = json.load(file)["traceEvents"]
    flows: dict[int, dict[str, Any]] = {}
    for each in raw:
        if each.get("cat") == "fwdbwd":
            flows.setdefault(each["id"], {})[each["ph"]] = each
    operators = {
        (each["tid"], each["ts"]): each
        for each in raw
        if each.get("cat") == "cpu_op" and "Sequence number" in each["args"]
    }
    _, timeline = drawn(source)
    pairs = [(operators[f["s"]["tid"], f["s"]["ts"]], operators[f["f"]["tid"], f["f"]["ts"]]) for f in flows.values()]
    assert len(pairs) > 300
    for forward, backward in pairs[::40]:
        found = event(timeline, backward["name"], backward["ts"])["forward"]
        assert found["name"] == forward["name"]
        assert found["end_ns"] - found["start_ns"] == pytest.approx(1000 * forward["dur"], abs=1)
        assert event(timeline, forward["name"], forward["ts"])["backward"]["name"] == backward["name"]
