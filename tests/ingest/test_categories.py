"""Traces of other tools, and traces without an event: it is said what is not read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.kineto import event, kernel, op, step, trace, write

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.errors import OtherTraceError
from rankscope.ingest.categories import timed, unknown_categories
from rankscope.ingest.kineto import read_kineto
from rankscope.results import Finding
from rankscope.show.report.summary import summary
from rankscope.store.trace_info import TraceInfo

Events = list[dict[str, Any]]
GOOD: Events = [step(at, 100 * at, 100) for at in range(3)] + [op("aten::mm", 100 * at, 60) for at in range(3)]
JAX: Events = [event("process_name", None, ph="M", pid=1, args={"name": "/device:GPU:0"})] + [
    event("fusion", 10 * at, 8, pid=1) for at in range(1_200)
]
HOROVOD = [event(name, at, ph=ph, pid=1) for at in range(4) for ph, name in (("B", "ALLREDUCE"), ("E", "ALLREDUCE"))]


def opened(folder: Path, files: dict[str, Events]) -> Run:
    folder.mkdir()
    for name, events in files.items():
        write(folder / name, trace(events))
    return rankscope.open(folder, executor="serial")


def found(run: Run, name: str) -> Finding:
    (finding,) = [each for each in run.load().findings if each.id == name]
    return finding


def shown(run: Run) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary(run, 200))
    return console.export_text()


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (JAX, "1,200 timed events, none of a category of torch.profiler: 1,200 without a category"),
        (HOROVOD, "4 timed events, none of a category of torch.profiler: 4 without a category"),
        (
            [event("MatMul", at, 1, cat="Op" if at else "Graph") for at in range(3)],
            "3 timed events, none of a category of torch.profiler: 2 'Op', 1 'Graph'",
        ),
        (
            [event("x", at, 1, cat=f"c{at % 6}") for at in range(7)],
            "7 timed events, none of a category of torch.profiler: 2 'c0', 1 'c1', 1 'c2', 1 'c3' and 2 other "
            "categories",
        ),
    ],
)
def test_a_trace_of_another_tool_is_refused_with_its_categories(tmp_path: Path, events: Events, why: str) -> None:
    run = opened(tmp_path / "run", {"t.json": events})
    with pytest.raises(OtherTraceError) as error:
        run.load()
    assert error.value.what == why
    assert "rankscope reads the traces of torch.profiler" in (error.value.hint or "")


def test_next_to_ranks_it_is_a_warning(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", {"rank0.json": GOOD, "timeline.json": JAX})
    finding = found(run, "not-a-trace")
    assert (finding.severity, finding.title) == (
        "warning",
        "timeline.json is not a trace that rankscope reads and was left out: 1,200 timed events, none of a category of "
        "torch.profiler: 1,200 without a category",
    )
    assert "no problems found" not in shown(run)


@pytest.mark.parametrize(("number", "said"), [(1, False), (2, True)])
def test_a_hundredth_of_unknown_ranges_is_said(tmp_path: Path, number: int, said: bool) -> None:
    known = [op("aten::mm", 100 * at, 60) for at in range(198 - number)] + [step(0, 0, 10_000), step(1, 10_000, 9_000)]
    unread = [event("k", 100 * at, 50, cat="task", pid=9) for at in range(number)]
    run = opened(tmp_path / "run", {"rank0.json": [*known, *unread]})
    titles = [each.title for each in run.load().findings if each.id == "unknown-categories"]
    assert titles == (
        ["2 of 200 timed events of rank0.json have no category of torch.profiler and are not counted: 2 'task'"]
        if said
        else []
    )
    assert run.about()["devices"] == ([] if said else ["CPU"])
    assert ("no problems found" in shown(run)) != said


def test_one_finding_for_all_ranks(tmp_path: Path) -> None:
    unread = [event("k", 1, 50, cat="task", pid=9)]
    run = opened(tmp_path / "run", {f"rank{rank}.json": [*GOOD, *unread] for rank in range(3)})
    finding = found(run, "unknown-categories")
    assert finding.ranks == (0, 1, 2)
    assert finding.title.startswith("1 of 7 timed events of rank0.json, and of 2 other files have no category")


def test_categories_of_torch_are_known_in_any_case() -> None:
    known = {("X", "Kernel"): 2, ("X", "Trace"): 1, ("X", "overhead"): 1, ("X", "npu_summary"): 3, ("i", None): 9}
    unknown = {("X", ""): 1, ("X", None): 1, ("b", "step"): 2}
    assert timed(known | unknown) == 11
    assert unknown_categories(known | unknown) == {"": 2, "step": 2}
    assert (timed({}), unknown_categories({})) == (0, {})


# -- unitrace -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["python", ""])
def test_device_events_of_unitrace_are_read(tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKSCOPE_READER", reader)
    events: Events = []
    for at in range(0, 1_000, 100):
        events += [
            op("zeCommandQueueExecuteCommandLists", at, 1),
            event("gemm[SIMD32 {1;1;1}]", at + 10, 48, cat="gpu_op", pid=77, tid=3, args={"id": "1"}),
            event("zeCommandListAppendMemoryCopy(M2D)[64 bytes]", at + 58, 2, cat="gpu_op", pid=77, tid=3),
            event("dep", at, ph="s", cat="Flow_H2D_0_1", id=at, pid=100, tid=100),
            event("dep", at + 10, ph="t", cat="Flow_H2D_0_1", id=at, pid=77, tid=3),
        ]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    read = read_kineto(str(tmp_path / "rank0.json")).tables["device_events"]
    assert read["kind"].to_list() == ["kernel", "memcpy"] * 10
    assert read["op_row"].to_list()[:4] == [0, None, 1, None]
    assert read["launch_ns"].to_list()[2] == 100_000
    row = rankscope.open(tmp_path, executor="serial").overview().row(0, named=True)
    assert (row["step_ns"], row["compute_ns"], row["exposed_copies_ns"]) == (950_000, 480_000, 20_000)


# -- empty --------------------------------------------------------------------------------------------------------

METADATA: Events = [event("process_name", None, ph="M", pid=1, args={"name": "python"})]
MARKS: Events = [
    event("Record Window End", 5, ph="i", pid="", tid=""),
    event("PyTorch Profiler (0)", 0, 5, cat="Trace", pid="Spans", tid="PyTorch Profiler"),
]


@pytest.mark.parametrize("events", [METADATA, METADATA + MARKS])
def test_the_rank_of_an_empty_trace_is_named(tmp_path: Path, events: Events) -> None:
    files = {f"rank{rank}.json": [*GOOD, kernel("gemm", 10, 200)] for rank in range(2)}
    run = opened(tmp_path / "run", {**files, "rank2.json": events})
    finding = found(run, "trace-empty")
    assert (finding.severity, finding.ranks) == ("warning", (2,))
    assert finding.title == "Rank 2's trace is empty (metadata only)"
    assert "traces      Rank 2's trace is empty (metadata only)" in shown(run)
    others = [each for each in run.findings if each.id in ("clock-not-aligned", "ranks-without-device-events")]
    assert not any(2 in each.ranks for each in others)


def test_several_empty_traces_are_one_finding(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", {"rank0.json": GOOD, "rank1.json": METADATA, "rank2.json": METADATA})
    finding = found(run, "trace-empty")
    assert (finding.title, finding.ranks) == ("The traces of 2 ranks are empty (metadata only)", (1, 2))


def test_instants_of_memory_are_no_empty_trace() -> None:
    assert TraceInfo("a", counts={"M None": 3, "i None": 2}).is_empty
    assert not TraceInfo("a", counts={"i None": 90}).is_empty
    assert not TraceInfo("a", counts={"i cpu_instant_event": 1}).is_empty
    assert not TraceInfo("a", counts={"X cpu_op": 1}, start_ns=5).is_empty
