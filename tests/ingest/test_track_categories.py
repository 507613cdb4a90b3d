"""Events without a category are read by their process: the autograd profiler's list, torch_npu's `trace_view.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from tests.kineto import event

import rankscope
from rankscope.ingest.categories import categorized, known_processes
from rankscope.ingest.event_types import Event
from rankscope.ingest.kineto import KinetoTrace, read_kineto
from rankscope.store.spool import Spool

HOST, DEVICE = "CPU functions", "CUDA functions"


def listed(path: Path, events: list[dict[str, Any]]) -> str:
    """A file with a list of events."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(events))
    return str(path)


def rows(trace: KinetoTrace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of a table."""
    return trace.tables[table].select(columns).rows()


def arrow(phase: str, ts: Any, pid: Any, tid: int, number: Any, category: str) -> dict[str, Any]:
    return event("launched", ts, ph=phase, cat=category, pid=pid, tid=tid, id=number)


LEGACY = [
    event("ProfilerStep#3", 0, 50, pid=HOST, tid=1),
    event("aten::mm", 2.5, 20, pid=HOST, tid=1),
    event("aten::empty", 3, 1, pid=HOST, tid=1),
    arrow("s", 2.5, HOST, 1, 0, "cpu_to_cuda"),
    arrow("f", 30, DEVICE, 0, 0, "cpu_to_cuda"),
    event("sgemm", 30, 10, pid=DEVICE, tid=0),
    event("my range", 22.5, 5, pid=HOST, tid=2),
]


def test_the_list_of_the_autograd_profiler_is_read(tmp_path: Path) -> None:
    trace = read_kineto(listed(tmp_path / "list.json", LEGACY))
    assert rows(trace, "host_ops", "name", "start_ns", "end_ns", "depth") == [
        ("aten::mm", 2_500, 22_500, 0),
        ("aten::empty", 3_000, 4_000, 1),
        ("my range", 22_500, 27_500, 0),
    ]
    assert rows(trace, "annotations", "name", "step", "end_ns") == [("ProfilerStep#3", 3, 50_000)]
    assert rows(trace, "device_events", "name", "kind", "device", "start_ns", "op_row", "launch_ns") == [
        ("sgemm", "kernel", 0, 30_000, 0, 2_500)
    ]
    assert not trace.tables["other_events"].height
    assert dict(trace.counts) == {
        ("X", "operator"): 4, ("X", "kernel"): 1, ("s", "cpu_to_cuda"): 1, ("f", "cpu_to_cuda"): 1,
    }  # fmt: skip


def test_device_events_on_the_launching_thread_are_told_by_their_names(tmp_path: Path) -> None:
    names = {
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)": "kernel",
        "ampere_sgemm_32x128_tn": "kernel",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "kernel",
        "Memcpy HtoD (Pageable -> Device)": "memcpy",
        "Memset (Device)": "memset",
    }
    others = ["aten::mm", "cudaLaunchKernel", "train.py(58): tokenize", "nn.Module: Linear_0", "attention_kernel"]
    events = [event(name, 10 * at, 5, pid=HOST, tid=1) for at, name in enumerate([*names, *others])]
    trace = read_kineto(listed(tmp_path / "list.json", events))
    assert dict(rows(trace, "device_events", "name", "kind")) == names
    assert rows(trace, "host_ops", "name") == [("aten::mm",), ("attention_kernel",)]
    assert rows(trace, "runtime_calls", "name") == [("cudaLaunchKernel",)]
    assert rows(trace, "python_frames", "name") == [("train.py(58): tokenize",), ("nn.Module: Linear_0",)]


def test_a_list_that_torch_writes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with torch.autograd.profiler.profile() as profiler:
        torch.ones(4).add(1)
    path = tmp_path / "list.json"
    profiler.function_events.export_chrome_trace(str(path))
    written = json.loads(path.read_text())
    assert sorted(rows(read_kineto(str(path)), "host_ops", "name")) == sorted((each["name"],) for each in written)
    assert ("aten::add",) in rows(read_kineto(str(path)), "host_ops", "name")


def test_events_of_other_processes_stay(tmp_path: Path) -> None:
    others = [event("cycle", 5, 2, pid=7, tid=1), event("Communication", 6, 2, pid=HOST, tid=1, cat="unknown")]
    trace = read_kineto(listed(tmp_path / "list.json", [*LEGACY, *others]))
    assert rows(trace, "other_events", "name", "category") == [("cycle", None), ("Communication", "unknown")]
    assert trace.counts["X", None] == 1


def test_rows_on_disk_are_moved_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [event(f"aten::op{at % 7}", at, 1, pid=HOST if at % 2 else 9, tid=1) for at in range(900)]
    path = listed(tmp_path / "list.json", events)
    in_memory = read_kineto(path)
    monkeypatch.setattr("rankscope.store.spool.PENDING_BYTES", 2_000)
    folder = tmp_path / "spool"
    folder.mkdir()
    on_disk = read_kineto(path, chunk_bytes=4_000, spool_folder=lambda: folder)
    assert len(list(folder.iterdir())) > 3
    assert on_disk.tables["host_ops"].equals(in_memory.tables["host_ops"])
    assert on_disk.tables["other_events"].equals(in_memory.tables["other_events"])
    assert (on_disk.tables["host_ops"].height, on_disk.tables["other_events"].height) == (450, 450)


def test_a_table_is_taken_out_of_a_spool() -> None:
    assert list(Spool().take("other_events")) == []


# -- torch_npu ----------------------------------------------------------------------------------------------------

PROCESSES = {500: "Python", 7: "Ascend Hardware", 8: "Communication", 9: "Overlap Analysis", 6: "CANN"}


def npu(
    pid: int, name: str, ts: float, dur: float, tid: int = 2, task: str | None = None, connection: int | None = None
) -> dict[str, Any]:
    """A range of a device's process, its time as text."""
    args = {key: value for key, value in (("Task Type", task), ("connection_id", connection)) if value is not None}
    return event(name, f"{1_715_000_000_000_000 + ts:.3f}", dur, pid=pid, tid=tid, args=args)


def npu_steps(first: float, steps: int = 4) -> list[dict[str, Any]]:
    """Steps of 1,000 µs: 700 µs of a kernel, then 200 µs of an all_reduce, 100 µs of it next to another kernel."""
    events: list[dict[str, Any]] = []
    for at in range(steps):
        start = first + 1000 * at
        launched = f"{1_715_000_000_000_000 + start + 20:.3f}"
        events += [
            npu(500, f"ProfilerStep#{at}", start, 1000, 500) | {"cat": "cpu_op"},
            npu(500, "aten::mm", start + 20, 60, 500) | {"cat": "cpu_op"},
            arrow("s", launched, 500, 500, str(at), "async_npu"),
            arrow("f", f"{1_715_000_000_000_000 + start + 100:.3f}", 7, 2, str(at), "async_npu"),
            npu(6, "Node@launch", start + 30, 5, 500, connection=40 + at),
            npu(7, "MatMulV2", start + 100, 700, task="AI_CORE"),
            npu(7, "Add", start + 800, 100, task="AI_VECTOR_CORE", connection=40 + at),
            npu(7, "Notify_Wait", start + 900, 100, 3, task="NOTIFY_WAIT_SQE"),
            npu(8, f"hcom_allReduce__{at}_1", start + 800, 200, 2),
            npu(8, "Reduce_Inline", start + 810, 20, 4),
            npu(9, "Computing", start + 100, 800),
        ]
    named = [
        event("process_name", None, ph="M", pid=pid, tid=0, args={"name": name}) for pid, name in PROCESSES.items()
    ]
    return events + named


def test_the_trace_of_torch_npu_is_read(tmp_path: Path) -> None:
    trace = read_kineto(listed(tmp_path / "trace_view.json", npu_steps(0, 1)))
    base = 1_715_000_000_000_000_000
    assert rows(trace, "device_events", "name", "stream", "start_ns", "op_row", "launch_ns") == [
        ("MatMulV2", 2, base + 100_000, 0, base + 20_000),
        ("hcom_allReduce__0_1", -3, base + 800_000, None, None),
        ("Add", 2, base + 800_000, None, base + 30_000),
    ]
    assert rows(trace, "annotations", "name", "step") == [("ProfilerStep#0", 0)]
    assert rows(trace, "host_ops", "name") == [("aten::mm",)]
    assert rows(trace, "runtime_calls", "name", "correlation") == [("Node@launch", 40)]
    assert rows(trace, "other_events", "name", "category") == [
        ("Computing", "npu_summary"), ("Reduce_Inline", "npu_detail"), ("Notify_Wait", "npu_detail"),
    ]  # fmt: skip


def test_steps_of_npus_have_their_parts(tmp_path: Path) -> None:
    for rank in range(2):
        listed(tmp_path / f"rank{rank}" / "trace_view.json", npu_steps(rank))
    run = rankscope.open(tmp_path, executor="serial")
    row = run.overview().row(0, named=True)
    assert (row["steps"], row["step_ns"], row["compute_ns"]) == (4, 1_000_000, 800_000)
    assert (row["exposed_communication_ns"], row["otherwise_idle_ns"]) == (100_000, 100_000)
    assert run.about()["devices"] == []


def test_ordinary_names_of_processes_say_nothing_without_the_device() -> None:
    assert known_processes({8: "Communication", 9: "CANN", -1: HOST, 3: "python"}) == {-1: HOST}
    assert known_processes({8: "Communication", 7: "Ascend Hardware"}) == {8: "Communication", 7: "Ascend Hardware"}


@pytest.mark.parametrize(
    ("task", "name", "category"),
    [
        ("AI_CORE", "MatMulV2", "kernel"),
        ("MIX_AIC", "FlashAttentionScore", "kernel"),
        (None, "MaskedSelectRecordAdd", "kernel"),
        ("EVENT_WAIT_SQE", "EVENT_WAIT", "npu_detail"),
        ("PLACE_HOLDER_SQE", "x", "npu_detail"),
        (None, "EVENT_RECORD", "npu_detail"),
        (None, "Notify_Wait", "npu_detail"),
        ("MEMCPY_ASYNC", "MEMCPY_ASYNC", "gpu_memcpy"),
        ("SDMA_SQE", "x", "gpu_memcpy"),
    ],
)
def test_the_task_type_says_what_a_device_did(task: str | None, name: str, category: str) -> None:
    made = Event("X", None, name, args=Raw(json.dumps({"Task Type": task}).encode()))
    assert categorized(made, "Ascend Hardware").cat == category


@pytest.mark.parametrize("process", ["CUDA functions", "XPU functions", "HIP functions"])
def test_the_threads_of_a_list_of_kernels_are_devices(process: str) -> None:
    made = categorized(Event("X", None, "k", tid=3), process)
    assert (made.cat, json.loads(bytes(made.args))) == ("kernel", {"device": 3})


def test_arguments_of_another_kind_are_no_reason_to_fail() -> None:
    made = Event("X", None, None, tid="a thread", args=Raw(b'{"Task Type": [1]}'))
    assert categorized(made, "Ascend Hardware").cat == "kernel"
