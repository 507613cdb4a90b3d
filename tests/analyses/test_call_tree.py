"""Call trees: a thread worked out by hand, torch's own key_averages, and modules once more as `modules` has them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.errors import ConfigError

REAL = [
    "gloo-2ranks/ddp_resnet_shapes_stack_mem_flops.rank1.json.gz",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
]


def events(slow: float = 0) -> list[kineto.Event]:
    """A step with a linear layer that is called twice, the second call slower; another thread; frames and modules."""
    return [
        kineto.step(1, 0, 100 + slow),
        kineto.op("aten::linear", 10, 20),
        kineto.op("aten::mm", 12, 10),
        kineto.launch(14, 3),
        kineto.op("aten::linear", 40, 20 + slow),
        kineto.op("aten::mm", 45, 10 + slow),
        kineto.op("aten::mm", 50, 30, tid=2),
        kineto.frame("train.py(3): main", 5, 90 + slow),
        kineto.frame("nn.Module: Net_0", 8, 60 + slow),
        kineto.frame("net.py(9): forward", 9, 50 + slow),
        kineto.frame("nn.Module: Linear_1", 10, 20),
        kineto.frame("<built-in method linear of Tensor object at 0x7f00>", 12, 10),
    ]


def opened(folder: Path, slow: float = 5) -> Run:
    return rankscope.open(kineto.write_ranks(folder, {0: events(), 1: events(slow)}), executor="serial")


def by_path(run: Run, **parameters: Any) -> dict[tuple[str, ...], dict[str, Any]]:
    """The rows by their path."""
    paths: dict[tuple[Any, int], tuple[str, ...]] = {}
    found = {}
    for row in run.call_tree(**parameters).to_dicts():
        around = paths[row["rank"], row["parent"]] if row["parent"] is not None else ()
        path = paths[row["rank"], row["node"]] = (*around, row["name"])
        assert row["depth"] == len(path) - 1
        assert path not in found
        found[path] = row
    return found


def times(run: Run, **parameters: Any) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Calls, self and total time in microseconds, by path."""
    return {
        path: (row["calls"], row["self_ns"] // 1000, row["total_ns"] // 1000)
        for path, row in by_path(run, **parameters).items()
    }


STEP = "ProfilerStep*"


def test_operators_by_hand(tmp_path: Path) -> None:
    found = times(opened(tmp_path), rank=0)
    assert found == {
        (STEP,): (1, 60, 100),
        (STEP, "aten::linear"): (2, 20, 40),
        (STEP, "aten::linear", "aten::mm"): (2, 17, 20),
        (STEP, "aten::linear", "aten::mm", "cudaLaunchKernel"): (1, 3, 3),
        ("aten::mm",): (1, 30, 30),
    }
    # Siblings by total time; each followed by what is in it.
    assert list(found)[:3] == [(STEP,), (STEP, "aten::linear"), (STEP, "aten::linear", "aten::mm")]


def test_a_range_cuts_calls(tmp_path: Path) -> None:
    """Instants are since the run's first event, whatever the clock of a rank's file is."""
    for rank in range(2):
        # The second host's profiler began a second earlier, and its clock has other numbers.
        shifted = [{**each, "ts": each["ts"] + 1e6 * rank} for each in events(5.0 * rank)]
        made = kineto.trace(shifted, rank=rank, world_size=2, base_time_ns=(5 - rank) * 10**9)
        kineto.write(tmp_path / f"rank{rank}.json", made)
    run = rankscope.open(tmp_path, executor="serial")
    assert times(run, rank=1, from_ns=13_000, to_ns=39_000) == times(run, rank=0, from_ns=13_000, to_ns=39_000)
    assert times(run, rank=0, from_ns=13_000, to_ns=51_000) == {
        (STEP,): (1, 10, 38),
        (STEP, "aten::linear"): (2, 13, 28),
        (STEP, "aten::linear", "aten::mm"): (2, 12, 15),
        (STEP, "aten::linear", "aten::mm", "cudaLaunchKernel"): (1, 3, 3),
        ("aten::mm",): (1, 1, 1),
    }
    assert times(run, rank=0, from_ns=51_000, to_ns=51_000) == {}


def test_frames_and_modules(tmp_path: Path) -> None:
    run = opened(tmp_path)
    inner = "<built-in method linear of Tensor object>"
    path = ("train.py(3): main", "Net_0", "net.py(9): forward", "Linear_1", inner)
    assert times(run, rank=0, by="frames") == {
        path[:1]: (1, 30, 90),
        path[:2]: (1, 10, 60),
        path[:3]: (1, 30, 50),
        path[:4]: (1, 10, 20),
        path: (1, 10, 10),
    }
    assert times(run, rank=0, by="modules") == {("Net_0",): (1, 40, 60), ("Net_0", "Linear_1"): (1, 20, 20)}


def test_what_made_a_rank_slow(tmp_path: Path) -> None:
    found = by_path(opened(tmp_path), rank=1, against=0)
    slower = {path: row["self_difference_ns"] for path, row in found.items() if row["self_difference_ns"]}
    assert slower == {(STEP, "aten::linear", "aten::mm"): 5_000}
    assert found[STEP,]["total_difference_ns"] == found[STEP, "aten::linear"]["total_difference_ns"] == 5_000
    # What only the other rank ran is there too.
    others = rankscope.open(
        kineto.write_ranks(tmp_path / "other", {0: [kineto.op("aten::add", 0, 7)], 1: [kineto.op("aten::mul", 0, 4)]}),
        executor="serial",
    )
    differences = {path[0]: row["total_difference_ns"] for path, row in by_path(others, rank=1, against=0).items()}
    assert differences == {"aten::add": -7_000, "aten::mul": 4_000}


@pytest.mark.parametrize("name", ["rank", "against"])
def test_a_rank_without_a_trace(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no trace of rank 9"):
        opened(tmp_path).analyze("call_tree", parameters={"call_tree": {name: 9}})


def test_added_up_and_inverted(tmp_path: Path) -> None:
    run = opened(tmp_path)
    merged = times(run, merge=True)
    assert merged[STEP,] == (2, 120, 205)
    assert merged[STEP, "aten::linear", "aten::mm"] == (4, 39, 45)
    turned = times(run, merge=True, invert=True)
    assert turned["aten::mm",] == (6, 99, 99)
    assert turned["aten::mm", "aten::linear", STEP] == (4, 39, 39)
    assert sum(own for path, (_, own, _) in turned.items() if len(path) == 1) == 265
    assert by_path(run, rank=1, against=0, invert=True)["aten::mm",]["self_difference_ns"] == 5_000
    shares = by_path(run, merge=True)
    assert sum(row["self_share"] for row in shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", REAL)
def test_operators_self_times_of_real_traces(shared_traces: Path, name: str) -> None:
    """Added up by name, the self times are those of `operators`, which groups them in another way."""
    run = rankscope.open(shared_traces / name, executor="serial")
    mine: dict[str, int] = defaultdict(int)
    for path, row in by_path(run).items():
        mine[path[-1]] += row["self_ns"]
    theirs: dict[str, int] = defaultdict(int)
    for row in run.operators(include="torch").to_dicts():
        theirs[row["name"]] += row["host_self_ns"]
    # Ranges of collectives have no self time there, as in torch.
    mine = {name: ns for name, ns in mine.items() if not name.startswith(("gloo:", "nccl:"))}
    assert {key: value for key, value in mine.items() if value} == {k: v for k, v in theirs.items() if v}


@pytest.mark.parametrize("name", REAL)
def test_modules_of_real_traces(shared_traces: Path, name: str) -> None:
    run = rankscope.open(shared_traces / name, executor="serial")
    mine = {"/".join(path): (row["calls"], row["self_ns"]) for path, row in by_path(run, by="modules").items()}
    theirs = {row["path"]: (row["calls"], row["host_self_ns"]) for row in run.modules().to_dicts()}
    assert mine == theirs


@pytest.mark.slow
def test_against_torchs_own_key_averages(tmp_path: Path) -> None:
    """One recording, read by torch itself and from its trace."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        for _ in range(3):
            with record_function("forward"):
                loss = model(torch.ones(5, 8)).sum()
            loss.backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    run = rankscope.open(tmp_path, executor="serial")
    own: dict[str, int] = defaultdict(int)
    calls: dict[str, int] = defaultdict(int)
    for path, row in by_path(run).items():
        own[path[-1]] += row["self_ns"]
        # torch counts a call directly inside another of the same name, as in aten::sum, with that one.
        calls[path[-1]] += row["calls"] if path[-2:-1] != path[-1:] else 0
    averages = profiler.key_averages()
    assert len(averages) > 10
    for event in averages:
        assert calls[event.key] == event.count, event.key
        assert own[event.key] == pytest.approx(event.self_cpu_time_total * 1e3, abs=2 * event.count), event.key
