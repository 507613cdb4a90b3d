"""operators: hand-made traces, the TensorBoard plugin's cases, and torch's own key_averages.

`recorded/h100_first_graph.json.gz` is a trace of torch 2.11.0 on an H100 (26 November 2026), without the run's
metadata: a kernel is loaded while it is launched for the first time.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.errors import ConfigError
from rankscope.show.report.key_averages import _COUNTED_BY_TORCH

US = 1000
H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85 << 30, "numSms": 132, "computeMajor": 9}]
LAYER = [[64, 512], [512, 256]]
FLOPS = 2 * 64 * 512 * 256


def written(folder: Path, events: list[kineto.Event], **metadata: Any) -> Run:
    path = kineto.write(folder / "rank0.json", kineto.trace(events, rank=0, world_size=1, **metadata))
    return rankscope.open(path, executor="serial")


def by_name(run: Run, **parameters: Any) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in run.operators(**parameters).to_dicts()}


def layers() -> list[kineto.Event]:
    """Two steps; in each linear → addmm with two kernels on two streams that overlap, then a ReLU."""
    events: list[kineto.Event] = []
    for number in (0, 1):
        at, ids = 1000.0 * number, 10 * number
        types = ["c10::BFloat16"] * 2
        events += [
            kineto.step(number, at, 900),
            kineto.op("aten::linear", at + 10, 100, external=ids + 1, dims=LAYER, **{"Input type": types}),
            kineto.op(
                "aten::mm", at + 20, 60, external=ids + 2, dims=LAYER if number else [[32, 512], [512, 256]],
                **{"Input type": types},
            ),
            kineto.launch(at + 25, 5, correlation=ids + 1, external=ids + 2),
            kineto.kernel("sm90_xmma_gemm_bf16", at + 100, 40, correlation=ids + 1, external=ids + 2),
            kineto.launch(at + 35, 5, correlation=ids + 2, external=ids + 2),
            kineto.kernel("splitKreduce", at + 130, 20, stream=9, correlation=ids + 2, external=ids + 2),
            kineto.op("aten::relu", at + 200, 30, external=ids + 3, dims=[[64, 256]], **{"Input type": types[:1]}),
            kineto.launch(at + 210, 5, correlation=ids + 3),
            kineto.kernel("relu_kernel", at + 300, 10, correlation=ids + 3),
        ]  # fmt: skip
    return events


def test_times_by_hand(tmp_path: Path) -> None:
    rows = by_name(written(tmp_path, layers(), deviceProperties=H100))
    linear, mm, relu = rows["aten::linear"], rows["aten::mm"], rows["aten::relu"]
    assert (linear["calls"], linear["host_self_ns"], linear["host_total_ns"]) == (2, 80 * US, 200 * US)
    assert (mm["host_self_ns"], mm["host_total_ns"]) == (120 * US, 120 * US)
    # [100, 140) and [130, 150) overlap: 50 µs a step; linear launched none of it itself.
    assert (linear["device_self_ns"], linear["device_total_ns"], linear["device_events"]) == (0, 100 * US, 0)
    assert (mm["device_self_ns"], mm["device_total_ns"], mm["device_events"]) == (100 * US, 100 * US, 4)
    # The ReLU's kernel carries no External id: the launch lies in the operator.
    assert relu["device_self_ns"] == 20 * US
    assert sum(row["host_self_share"] for row in rows.values()) == pytest.approx(1)
    assert mm["device_self_share"] == pytest.approx(100 / 120)


def test_tensor_cores_flops_and_share_of_the_peak(tmp_path: Path) -> None:
    rows = by_name(written(tmp_path, layers(), deviceProperties=H100))
    mm, relu = rows["aten::mm"], rows["aten::relu"]
    assert (mm["tensor_core_eligible"], relu["tensor_core_eligible"]) == (True, False)
    assert mm["tensor_core_share"] == pytest.approx(80 / 100)
    assert relu["tensor_core_share"] == 0
    assert mm["flops"] == rows["aten::linear"]["flops"] == FLOPS + FLOPS // 2
    assert relu["flops"] is relu["mfu"] is None
    assert mm["tflops_per_s"] == pytest.approx(1.5 * FLOPS / 100e-6 / 1e12)
    assert mm["mfu"] == pytest.approx(1.5 * FLOPS / 989.4e12 / 100e-6)


def test_an_unknown_device_has_a_rate_and_no_share(tmp_path: Path) -> None:
    mm = by_name(written(tmp_path, layers()))["aten::mm"]
    assert mm["mfu"] is None
    assert mm["tflops_per_s"] > 0


def test_by_shape_by_name_and_in_chosen_steps(tmp_path: Path) -> None:
    run = written(tmp_path, layers())
    shaped = run.operators(by="shape", match="MM$")
    assert set(shaped["input_shapes"]) == {json.dumps(d, separators=(",", ":")) for d in (LAYER, [[32, 512], LAYER[1]])}
    assert shaped["calls"].to_list() == [1, 1]
    # Shares stay those of all operators.
    assert shaped["host_self_share"].sum() == pytest.approx(120 / 260)
    chosen = rankscope.open(tmp_path / "rank0.json", executor="serial", steps="1").operators(match="mm")
    assert chosen.select("calls", "flops", "device_total_ns").row(0) == (1, FLOPS, 50 * US)


def test_by_stack(tmp_path: Path) -> None:
    events = [
        kineto.frame("train.py(3): main", 0, 500, python_id=1),
        kineto.frame("model.py(9): forward", 50, 100, python_id=2, parent=1),
        kineto.frame("<built-in method mm of Tensor object at 0x7f01>", 60, 20, python_id=3, parent=2),
        kineto.op("aten::mm", 65, 10),
        kineto.frame("<built-in method mm of Tensor object at 0x7f02>", 90, 20, python_id=4, parent=2),
        kineto.op("aten::mm", 95, 10),
        kineto.op("aten::mm", 200, 10),
        kineto.op("aten::mm", 300, 10, tid=kineto.BACKWARD_THREAD),
    ]
    rows = written(tmp_path, events).operators(by="stack").select("stack", "calls").rows()
    forward = "<built-in method mm of Tensor object>; model.py(9): forward; train.py(3): main"
    assert sorted(rows, key=str) == sorted([(forward, 2), ("train.py(3): main", 1), (None, 1)], key=str)


def test_a_trace_of_the_host_alone(tmp_path: Path) -> None:
    row = written(tmp_path, [kineto.op("aten::mm", 0, 100, dims=LAYER)]).operators().row(0, named=True)
    assert row["device_self_ns"] is row["device_total_ns"] is row["device_events"] is row["mfu"] is None
    assert row["tensor_core_share"] is None
    assert row["tflops_per_s"] == pytest.approx(FLOPS / 100e-6 / 1e12)


def test_several_windows_are_added(tmp_path: Path) -> None:
    for number in (0, 1):
        events = [event | {"ts": event["ts"] + 1e6 * number} for event in layers()]
        kineto.write(tmp_path / f"rank0_{number}.json", kineto.trace(events, rank=0, world_size=1))
    run = rankscope.open(tmp_path, executor="serial")
    mm = {row["name"]: row for row in run.operators().to_dicts()}["aten::mm"]
    assert (mm["calls"], mm["device_total_ns"], mm["flops"]) == (4, 200 * US, 3 * FLOPS)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"by": "moon"}, "by cannot be 'moon'"),
        ({"match": "("}, "is not a regular expression"),
        ({"match": "(?<!a)b"}, "is not a regular expression"),
        ({"nonsense": 1}, "has no option 'nonsense'"),
    ],
)
def test_mistakes(tmp_path: Path, parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        written(tmp_path, layers()).operators(**parameters)


def test_each_choice_is_kept_apart(tmp_path: Path) -> None:
    run = written(tmp_path, layers())
    assert run.operators(match="relu").height == 1
    assert run.operators().height == 3
    assert run.operators(match="relu").height == 1
    both = run.analyze("operators", "kernels", parameters={"kernels": {"by": "shape"}})
    assert both["operators"].frame.height == 3


# -- the TensorBoard plugin's cases ---------------------------------------------------------------------------------


def plugin(shared_traces: Path, name: str) -> dict[str, dict[str, Any]]:
    path = shared_traces / f"tensorboard-plugin/unit_tests/single/test_{name}__json_content.pt.trace.json"
    return by_name(rankscope.open(path, executor="serial"))


def test_plugin_tensor_core(shared_traces: Path) -> None:
    rows = plugin(shared_traces, "tensor_core")
    assert rows["aten::conv2d"]["tensor_core_share"] == pytest.approx(15 / 25)
    assert rows["aten::conv2d"]["tensor_core_eligible"]
    assert rows["aten::cudnn_convolution"]["tensor_core_share"] == 1
    assert (rows["op_no_tc"]["tensor_core_share"], rows["op_no_tc"]["tensor_core_eligible"]) == (0, False)


def test_plugin_self_time(shared_traces: Path) -> None:
    rows = plugin(shared_traces, "self_time")
    outer, inner = rows["aten::mat_mul"], rows["aten::mm"]
    assert (outer["host_total_ns"], outer["host_self_ns"]) == (100 * US, 60 * US)
    assert (outer["device_total_ns"], outer["device_self_ns"]) == (36 * US, 16 * US)
    assert (inner["host_self_ns"], inner["device_total_ns"]) == (40 * US, 20 * US)


def test_plugin_external_id(shared_traces: Path) -> None:
    """Its kernels all start at 130: the plugin adds 5 + 7 and 6 + 8 µs, the unions are 7 and 8."""
    rows = plugin(shared_traces, "external_id")
    assert rows["aten::mm"]["device_self_ns"] == 7 * US
    assert (rows["aten::mat_mul"]["device_self_ns"], rows["aten::mat_mul"]["device_total_ns"]) == (8 * US, 8 * US)
    assert (rows["aten::mm"]["device_events"], rows["aten::mat_mul"]["device_events"]) == (2, 2)


def test_plugin_duplicate_nodes(shared_traces: Path) -> None:
    """Three nested calls of one name are one, as the plugin has it."""
    row = plugin(shared_traces, "remove_dup_nodes")["aten::mm"]
    assert (row["calls"], row["host_total_ns"], row["host_self_ns"]) == (1, 100 * US, 100 * US)
    assert (row["device_self_ns"], row["device_total_ns"]) == (8 * US, 8 * US)


def test_plugin_launch_outside_of_any_operator(shared_traces: Path) -> None:
    assert plugin(shared_traces, "top_level_runtime")["aten::mm"]["device_total_ns"] == 0


def test_tracelens_figures(shared_traces: Path) -> None:
    path = shared_traces / "tracelens/mi300/resnet_act_checkpoint.json.gz"
    rows = rankscope.open(path, executor="serial").operators(by="shape", match="record_param_comms")
    # TraceLens's own tests: all_reduces of 8816192 and of 2873320 bf16, three each.
    times = dict(rows.select("input_shapes", "device_self_ns").rows())
    assert times["[[[8816192]],[],[],[],[],[],[],[],[],[]]"] == 26_798_240
    assert times["[[[2873320]],[],[],[],[],[],[],[],[],[]]"] == 20_338_798


def annotated() -> list[kineto.Event]:
    """A step with a range in it; two operators inside, of which the first allocates and launches."""
    return [
        kineto.step(4, 0, 100),
        kineto.event("forward", 10, 60, cat="user_annotation"),
        kineto.op("aten::linear", 20, 30, external=1),
        kineto.launch(25, 5, correlation=1, external=1),
        kineto.kernel("gemm", 200, 40, correlation=1, external=1),
        kineto.op("aten::relu", 80, 10, external=2),
        kineto.event("train.py(3): main", 0, 100, cat="python_function", **{"Python id": 1}),
        kineto.memory(22, 4096, allocated=4096, reserved=8192, address=1 << 20, device=-1, device_type=0),
        kineto.memory(85, 512, allocated=4608, reserved=8192, address=1 << 21, device=-1, device_type=0),
    ]  # fmt: skip


def test_annotations_runtime_calls_and_frames_are_nested_with_operators(tmp_path: Path) -> None:
    run = written(tmp_path, annotated())
    plain, torch = by_name(run), by_name(run, include="torch")
    assert set(plain) == {"aten::linear", "aten::relu"}
    assert {name: row["kind"] for name, row in torch.items()} == {
        "ProfilerStep*": "annotation",
        "forward": "annotation",
        "aten::linear": "operator",
        "aten::relu": "operator",
        "cudaLaunchKernel": "runtime",
    }
    # Of each what is not inside another: 100 − 60 − 10, 60 − 30, 30 − 5, 10 and 5 µs.
    assert {name: row["host_self_ns"] // US for name, row in torch.items()} == {
        "ProfilerStep*": 30, "forward": 30, "aten::linear": 25, "aten::relu": 10, "cudaLaunchKernel": 5,
    }  # fmt: skip
    assert torch["aten::relu"]["host_self_share"] == pytest.approx(0.10)
    assert plain["aten::relu"]["host_self_share"] == pytest.approx(0.25)
    # The device's time belongs to the operator, and in total to the ranges around it.
    assert (torch["aten::linear"]["device_self_ns"], torch["forward"]["device_total_ns"]) == (40 * US, 40 * US)
    assert torch["forward"]["device_self_ns"] == 0
    every = by_name(run, include="all")
    assert every["train.py(3): main"]["kind"] == "python"
    assert set(by_name(run, include="annotations")) == set(torch) - {"cudaLaunchKernel"}


def overhead(name: str, ts: float, dur: float) -> kineto.Event:
    """The profiler's own work, of which Kineto names no thread."""
    return kineto.event(name, ts, dur, cat="overhead", pid=-1, tid=0)


@pytest.mark.parametrize("steps", [True, False])
def test_the_profilers_own_work_is_inside_what_runs_on_its_thread(tmp_path: Path, steps: bool) -> None:
    """As torch counts it: on the thread that ends the recording, whichever thread it was on."""
    events = [
        kineto.op("aten::addmm", 10, 60, external=1),
        overhead("Activity Buffer Request", 15, 40),
        kineto.launch(60, 5, correlation=1, external=1),
        kineto.op("aten::mm", 15, 50, external=2, tid=kineto.BACKWARD_THREAD),
        kineto.op("aten::relu", 80, 10, external=3),
        # On CUPTI's thread: it is in no range of the main thread, as it ends in another one than it begins in.
        overhead("Buffer Flush", 85, 10),
        kineto.op("aten::gelu", 91, 9, external=4),
    ]  # fmt: skip
    run = written(tmp_path, [kineto.step(4, 0, 100)] * steps + events)
    torch = by_name(run, include="torch")
    expected = {
        "aten::addmm": 60 - 40 - 5, "Activity Buffer Request": 40, "cudaLaunchKernel": 5, "aten::mm": 50,
        "aten::relu": 10, "Buffer Flush": 10, "aten::gelu": 9,
    }  # fmt: skip
    assert {name: row["host_self_ns"] // US for name, row in torch.items() if name != "ProfilerStep*"} == expected
    assert {name for name, row in torch.items() if row["kind"] == "overhead"} == {
        "Activity Buffer Request",
        "Buffer Flush",
    }
    assert by_name(run)["aten::addmm"]["host_self_ns"] == 60 * US


def test_the_profilers_own_work_is_inside_nothing_where_its_thread_is_not_known(tmp_path: Path) -> None:
    other = kineto.HOST_PID + 7
    run = written(tmp_path, [kineto.op("aten::addmm", 10, 60, tid=other), overhead("Buffer Flush", 15, 40)])
    found = by_name(run, include="torch")
    assert (found["aten::addmm"]["host_self_ns"], found["Buffer Flush"]["host_self_ns"]) == (60 * US, 40 * US)


def test_a_recording_of_an_h100_against_torchs_own_nesting(tmp_path: Path) -> None:
    """Torch's own code nests the events of a real trace; that overhead is on the main thread is from its C++ source."""
    pytest.importorskip("torch")
    from torch.autograd import DeviceType
    from torch.autograd.profiler_util import EventList, FunctionEvent

    path = Path(__file__).parent / "recorded" / "h100_first_graph.json.gz"
    trace = json.loads(gzip.decompress(path.read_bytes()))
    host = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "overhead"}
    events = [event for event in trace["traceEvents"] if event.get("cat") in host]
    (main,) = {event["tid"] for event in events if event["cat"] == "cpu_op"}
    assert [event["name"] for event in events if event["cat"] == "overhead"] == ["Lazy Function Loading"]
    begin = min(event["ts"] for event in events)
    of_torch = EventList(
        FunctionEvent(
            id=0,
            name="ProfilerStep*" if event["name"].startswith("ProfilerStep#") else event["name"],
            thread=main if event["cat"] == "overhead" else event["tid"],
            start_us=event["ts"] - begin,
            end_us=event["ts"] - begin + event["dur"],
            stack=[],
            use_device="cuda",
            device_type=DeviceType.CPU,
        )
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"]))
    )
    of_torch._build_tree()
    averages = of_torch.key_averages()
    found = by_name(rankscope.open(path, executor="serial"), include="torch")
    assert {event.key for event in averages} == set(found)
    for event in averages:
        assert found[event.key]["host_self_ns"] == pytest.approx(event.self_cpu_time_total * US, abs=100), event.key


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op"])
def test_ranges_of_collectives_have_no_self_time_and_nothing_inside(tmp_path: Path, category: str) -> None:
    """As torch counts what may end on another thread; torch before 2.1 writes Gloo's ranges as operators."""
    events = [
        kineto.op("aten::mm", 10, 30),
        kineto.op("c10d::send", 50, 20),
        kineto.event("gloo:send", 55, 60, cat=category),
        kineto.event("gloo:all_reduce", 20, 100, cat=category, tid=kineto.BACKWARD_THREAD),
        kineto.op("aten::div_", 30, 10, tid=kineto.BACKWARD_THREAD),
    ]
    found = by_name(written(tmp_path, events), include="torch")
    assert {
        name: (row["calls"], row["host_self_ns"] // US, row["host_total_ns"] // US) for name, row in found.items()
    } == {
        "aten::mm": (1, 30, 30),
        "c10d::send": (1, 20, 20),
        "gloo:send": (1, 0, 60),
        "gloo:all_reduce": (1, 0, 100),
        "aten::div_": (1, 10, 10),
    }
    # 30 of 60 µs, not of 180.
    assert found["aten::mm"]["host_self_share"] == pytest.approx(0.5)
    assert by_name(written(tmp_path, events))["aten::mm"]["host_self_share"] == pytest.approx(0.5)


GLOO = """
import json, sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _ in range(3):
        model(torch.randn(8, 64)).sum().backward()
        dist.all_reduce(torch.ones(1000))
dist.destroy_process_group()
profiler.export_chrome_trace(sys.argv[1])
averages = [[e.key, e.self_cpu_time_total, e.cpu_time_total] for e in profiler.key_averages()]
with open(sys.argv[2], "w") as file:
    json.dump(averages, file)
"""


@pytest.mark.slow
def test_a_job_with_gloo_against_torchs_own_averages(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GLOO, str(tmp_path / "rank0.json"), str(tmp_path / "averages")]
    subprocess.run(command, check=True, capture_output=True)
    averages = json.loads((tmp_path / "averages").read_text())
    found = by_name(rankscope.open(tmp_path / "rank0.json", executor="serial"), include="torch")
    assert "gloo:all_reduce" in found
    assert set(found) == {name for name, *_ in averages}
    for name, own, total in averages:
        assert found[name]["host_self_ns"] == pytest.approx(own * US, abs=100), name
        assert found[name]["host_total_ns"] == pytest.approx(total * US, abs=100), name


def test_sorted_by_a_column(tmp_path: Path) -> None:
    run = written(tmp_path, annotated())

    def order(by: str) -> list[str]:
        return run.operators(sort_by=by, include="annotations")["name"].to_list()

    assert order("cpu")[:2] == ["ProfilerStep*", "forward"]
    assert order("self_device")[0] == "aten::linear"
    assert order("device")[-1] == "aten::relu"
    assert run.operators(sort_by="memory").select("name", "memory_self_bytes").rows() == [
        ("aten::linear", 4096),
        ("aten::relu", 512),
    ]
    assert run.operators(sort_by="self_cpu", match="relu")["host_self_share"].to_list() == [0.25]
    without = written(tmp_path / "without", layers())
    assert without.operators(sort_by="count")["memory_self_bytes"].null_count() == 2 + 1


@pytest.mark.slow
def test_shares_against_torchs_own_totals(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    path = tmp_path / "trace.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        profile_memory=True,
        acc_events=True,
        schedule=schedule(wait=0, warmup=1, active=2),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(3):
            with record_function("forward"):
                loss = model(torch.ones(5, 8)).sum()
            loss.backward()
            profiler.step()
    averages = profiler.key_averages()
    total = sum(event.self_cpu_time_total for event in averages)
    found = by_name(rankscope.open(path, executor="serial"), include="torch")
    for event in averages:
        share = found[event.key]["host_self_share"]
        assert share == pytest.approx(event.self_cpu_time_total / total, abs=2e-3), event.key
        assert found[event.key]["memory_self_bytes"] == event.self_cpu_memory_usage, event.key
    assert "ProfilerStep*" in found


@pytest.mark.slow
def test_against_torchs_own_key_averages(tmp_path: Path) -> None:
    """One recording, read by torch itself and from its trace."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    layers = torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(*layers)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True, acc_events=True) as profiler:
        for _ in range(3):
            model(torch.ones(5, 2, 4, 4)).sum().backward()
            torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5))
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = {row["name"]: row for row in rankscope.open(tmp_path, executor="serial").operators().to_dicts()}
    compared = 0
    for event in profiler.key_averages():
        row = found[event.key]
        assert row["calls"] == event.count, event.key
        assert row["host_self_ns"] == pytest.approx(event.self_cpu_time_total * 1e3, abs=2 * event.count), event.key
        assert row["host_total_ns"] == pytest.approx(event.cpu_time_total * 1e3, abs=2 * event.count), event.key
        if event.flops and event.key not in ("aten::mul", "aten::add"):
            assert row["flops"] == event.flops, event.key
            assert event.key in _COUNTED_BY_TORCH
            compared += 1
    assert compared == 4
