"""The call trees of a range: by hand, and the same as the analysis has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import clock_of
from rankscope.show.timeline import call_trees as module
from rankscope.show.timeline.build import draw_run
from rankscope.show.timeline.call_trees import call_trees
from rankscope.show.timeline.column_file import read_column_file
from rankscope.show.timeline.selection_stats import measure
from rankscope.show.timeline.timeline import Timeline

REAL = [
    "gloo-2ranks/ddp_resnet_shapes_stack_mem_flops.rank1.json.gz",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "hta/critical_path/end_to_end/simple_add/input/trace.json.gz",
]
Paths = dict[tuple[int, tuple[str, ...]], tuple[int, int, int]]


def drawn(source: Path) -> tuple[Run, Timeline]:
    run = rankscope.open(source, executor="serial")
    return run, draw_run(run, clock_of(run))


def trees(timeline: Timeline, from_ns: int, to_ns: int, by: str, **options: Any) -> tuple[dict[str, Any], Paths]:
    """The header, and calls, self and total time by rank and path."""
    head, found = read_column_file(call_trees(timeline, from_ns, to_ns, by, **options))
    paths: list[tuple[str, ...]] = []
    for name, parent in zip(found["node_name"].tolist(), found["node_parent"].tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), head["names"][name]))
    assert len(set(paths)) == len(paths)
    fields = [found[f"cell_{name}"].tolist() for name in ("node", "rank", "calls", "self_ns", "total_ns")]
    cells = zip(*fields, strict=True)
    return head, {(rank, paths[node]): (calls, own, total) for node, rank, calls, own, total in cells}


def of_analysis(run: Run, by: str, **parameters: Any) -> Paths:
    paths: dict[tuple[int, int], tuple[str, ...]] = {}
    found: Paths = {}
    for row in run.call_tree(by=by, **parameters).to_dicts():
        around = paths[row["rank"], row["parent"]] if row["parent"] is not None else ()
        paths[row["rank"], row["node"]] = path = (*around, row["name"])
        found[row["rank"], path] = row["calls"], row["self_ns"], row["total_ns"]
    return found


def one_rank(late: float) -> list[kineto.Event]:
    return [
        kineto.step(4, 0, 100),
        kineto.op("aten::mm", 10, 20 + late),
        kineto.launch(12, 5),
        kineto.op("aten::mm", 50, 20),
        kineto.op("aten::add", 60, 30, tid=5),
        kineto.frame("nn.Module: Net_0", 5, 60 + late),
        kineto.frame("net.py(3): forward", 6, 40),
    ]


def test_by_hand(tmp_path: Path) -> None:
    _, timeline = drawn(kineto.write_ranks(tmp_path, {0: one_rank(0), 1: one_rank(10)}))
    head, found = trees(timeline, 15_000, 70_000, "operators")
    step = "ProfilerStep*"
    assert found == {
        (0, (step,)): (1, 20_000, 55_000),
        (0, (step, "aten::mm")): (2, 33_000, 35_000),
        (0, (step, "aten::mm", "cudaLaunchKernel")): (1, 2_000, 2_000),
        (0, ("aten::add",)): (1, 10_000, 10_000),
        (1, (step,)): (1, 10_000, 55_000),
        (1, (step, "aten::mm")): (2, 43_000, 45_000),
        (1, (step, "aten::mm", "cudaLaunchKernel")): (1, 2_000, 2_000),
        (1, ("aten::add",)): (1, 10_000, 10_000),
    }
    assert (head["ranks"], head["left_out"], head["nodes"], head["calls"], head["self_ns"]) == (
        [0, 1],
        [],
        4,
        10,
        130_000,
    )
    _, found = trees(timeline, 0, 100_000, "modules", ranks=[1])
    assert found == {(1, ("Net_0",)): (1, 70_000, 70_000)}
    assert trees(timeline, 200_000, 300_000, "frames")[1] == {}


def test_what_is_too_much_is_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, timeline = drawn(kineto.write_ranks(tmp_path, {0: one_rank(0), 1: one_rank(10)}))
    head, found = trees(timeline, 0, 100_000, "operators", limit=9)
    assert (head["ranks"], head["left_out"]) == ([0], [1])
    assert {rank for rank, _ in found} == {0}
    assert read_column_file(measure(timeline, 0, 100_000, limit=15))[0]["left_out"] == [1]
    monkeypatch.setattr(module, "MAX_NODES", 2)
    head, found = trees(timeline, 0, 100_000, "operators")
    assert {path for _, path in found} == {("ProfilerStep*",), ("ProfilerStep*", "aten::mm")}
    assert (head["nodes"], head["calls"]) == (4, 10)
    assert found[0, ("ProfilerStep*", "aten::mm")] == (2, 35_000, 40_000)


@pytest.mark.parametrize("by", ["operators", "frames", "modules"])
@pytest.mark.parametrize("name", REAL)
def test_as_the_analysis(shared_traces: Path, monkeypatch: pytest.MonkeyPatch, name: str, by: str) -> None:
    """The lanes of the timeline and the tables give the same trees, of everything and of a part."""
    monkeypatch.setattr(module, "MAX_NODES", 1 << 30)
    monkeypatch.setattr(module, "MAX_CELLS", 1 << 30)
    run, timeline = drawn(shared_traces / name)
    span = timeline.clock.span_ns
    assert trees(timeline, 0, span + 1, by)[1] == of_analysis(run, by)
    low, high = span // 3, span // 2
    assert trees(timeline, low, high, by)[1] == of_analysis(run, by, from_ns=low, to_ns=high)
