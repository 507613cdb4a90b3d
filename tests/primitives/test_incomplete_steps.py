"""Steps without a complete iteration: which they are, that no figure includes them, and that they are reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.kineto import Event, annotation, kernel, launch, loading, op, step, trace, write

import rankscope
from rankscope.errors import ConfigError

LENGTH = 100
NAMES = ("aten::linear", "aten::relu", "aten::cross_entropy", "MmBackward0", "ReluBackward0", "aten::_foreach_add_")


def work(ts: float, names: tuple[str, ...] = NAMES, *, device: bool = True, first: int = 0) -> list[Event]:
    """Operators 5 µs apart, each with a kernel of its own where there is a device."""
    made = []
    for number, name in enumerate(names):
        at, own = ts + 20 + 5 * number, first + number + 1
        made.append(op(name, at, 4, external=own))
        if device:
            made += [launch(at + 1, 2, correlation=own, external=own), kernel(f"k_{name}", at + 3, 4, correlation=own)]
    return made


def iteration(
    number: int, names: tuple[str, ...] = NAMES, *, device: bool = True, length: float = LENGTH
) -> list[Event]:
    ts = 1000.0 + number * LENGTH
    return [
        step(number, ts, length),
        loading(ts + 1, 10),
        op("aten::stack", ts + 2, 4),
        *work(ts, names, device=device, first=100 * number),
    ]


def left_by_the_loop(number: int, *events: Event, length: float = 2) -> list[Event]:
    """The step that `prof.step()` opens after the last iteration: the loader is asked once more, in vain."""
    ts = 1000.0 + number * LENGTH
    return [step(number, ts, length), loading(ts, 1), op("aten::stack", ts + 0.2, 0.5), *events]


def steps_of(path: Path, steps: str | None = None) -> list[int]:
    found: list[int] = rankscope.open(path, executor="serial", steps=steps).step_time()["step"].to_list()
    return found


def saved(folder: Path, *parts: list[Event]) -> Path:
    return write(folder / "rank0.json", trace([event for part in parts for event in part], rank=0, world_size=1))


@pytest.mark.parametrize("device", [True, False])
@pytest.mark.parametrize("complete", [1, 2, 5])
@pytest.mark.parametrize("printed", [True, False])
def test_the_step_after_the_last_iteration_is_in_no_mean(
    tmp_path: Path, complete: int, device: bool, printed: bool
) -> None:
    """Five steps of 100 µs and one of 2: the mean is 100, not 83.7; with or without a value read after each step."""
    names = (*NAMES, "aten::item") if printed else NAMES
    last = left_by_the_loop(complete, *([op("aten::item", 1001 + complete * LENGTH, 0.5)] if printed else []))
    path = saved(tmp_path, *(iteration(n, names, device=device) for n in range(complete)), last)
    run = rankscope.open(path, executor="serial")
    found = run.step_time()
    assert found["step"].to_list() == list(range(complete))
    assert found["window_ns"].to_list() == [LENGTH * 1000] * complete
    for analysis in (run.phases(), run.distributed(), run.overview()):
        if "step" in analysis.columns:
            assert complete not in analysis["step"].to_list()
    assert run.about()["steps"] == list(range(complete))


def test_a_loop_that_calls_step_first_leaves_an_empty_first_step(tmp_path: Path) -> None:
    path = saved(tmp_path, left_by_the_loop(0, length=100), *(iteration(n) for n in range(1, 4)))
    assert steps_of(path) == [1, 2, 3]


def test_both_ends_may_be_empty_and_more_than_one_step_of_each(tmp_path: Path) -> None:
    empty = [left_by_the_loop(n) for n in (0, 4, 5)]
    assert steps_of(saved(tmp_path, *(iteration(n) for n in (1, 2, 3)), *empty)) == [1, 2, 3]


def test_steps_stay_where_most_are_empty(tmp_path: Path) -> None:
    """A first step that compiles, and others of which nothing is recorded."""
    assert steps_of(saved(tmp_path, iteration(0), left_by_the_loop(1), left_by_the_loop(2))) == [0, 1, 2]


def test_what_follows_the_loop_does_not_make_an_iteration(tmp_path: Path) -> None:
    """A value read after the loop, as each iteration reads one: one of many operators."""
    names = (*NAMES, "aten::item")
    read = op("aten::item", 1301, 0.5)
    path = saved(tmp_path, *(iteration(n, names) for n in range(3)), left_by_the_loop(3, read))
    assert steps_of(path) == [0, 1, 2]


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(iteration(3, length=50), id="short, with all of the work"),
        pytest.param(iteration(3, NAMES[:3]), id="the forward pass alone"),
    ],
)
def test_a_real_step_stays(tmp_path: Path, last: list[Event]) -> None:
    assert steps_of(saved(tmp_path, *(iteration(n) for n in range(3)), last)) == [0, 1, 2, 3]


def test_a_step_of_other_work_stays_where_no_step_has_a_backward_pass(tmp_path: Path) -> None:
    """As a decode step after prefill: half as many events, of other names."""
    prefill = ("aten::linear", "aten::relu", "aten::bmm", "aten::softmax", "aten::cat", "aten::embedding")
    decode = iteration(3, ("aten::mm", "aten::add", "aten::mul"))
    assert steps_of(saved(tmp_path, *(iteration(n, prefill) for n in range(3)), decode)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("aten::detach",) * 12, id="a checkpoint: as many operators, of one name"),
        pytest.param(("aten::linear", "aten::relu", "aten::argmax", "aten::eq", "aten::mean"), id="an evaluation"),
    ],
)
@pytest.mark.parametrize("complete", [1, 3])
def test_what_follows_the_loop_of_a_training_is_no_step(tmp_path: Path, names: tuple[str, ...], complete: int) -> None:
    """However long it takes and however much it does: it has no backward pass."""
    after = iteration(complete, names, length=1000)
    assert steps_of(saved(tmp_path, *(iteration(n) for n in range(complete)), after)) == list(range(complete))


def test_a_first_step_that_compiles_does_not_make_the_second_incomplete(tmp_path: Path) -> None:
    """It has many operators that the second does not have; but that one has a backward pass."""
    compiling = (*(f"compile_{n}" for n in range(10)), "Compiled", "CompiledBackward0")
    compiled = iteration(1, ("Compiled", "CompiledBackward0"))
    assert steps_of(saved(tmp_path, iteration(0, compiling), compiled)) == [0, 1]


def test_an_operator_that_takes_most_of_a_step_counts_for_more_than_one(tmp_path: Path) -> None:
    """Steps of a product of 80 µs, of which two values are read: the last step has three quarters of the operators."""

    def of(number: int, *, complete: bool = True) -> list[Event]:
        ts = 1000.0 + number * LENGTH
        read = [op("aten::select", ts + 1, 1), op("aten::select", ts + 3, 1), op("aten::item", ts + 5, 1)]
        product = [op("aten::matmul", ts + 10, 80)] if complete else []
        return [step(number, ts, LENGTH if complete else 10), *read, *product]

    assert steps_of(saved(tmp_path, *(of(n) for n in range(3)), of(3, complete=False))) == [0, 1, 2]


def windows(folder: Path, *files: list[list[Event]]) -> Path:
    """A rank's files, each with the steps of one window."""
    for number, parts in enumerate(files):
        write(folder / f"window{number}.rank0.json", trace([e for part in parts for e in part], rank=0, world_size=1))
    return folder


def test_a_step_is_judged_by_all_windows_of_its_rank(tmp_path: Path) -> None:
    """The last window has one step, and what follows the loop."""
    after = left_by_the_loop(8, op("aten::item", 1801.2, 0.5))
    found = rankscope.open(
        windows(tmp_path, [iteration(1), iteration(2)], [iteration(4), iteration(5)], [iteration(7), after]),
        executor="serial",
    )
    assert found.step_time()["step"].to_list() == [1, 2, 4, 5, 7]
    assert found.overview()["steps"].to_list() == [5]
    assert found.about()["steps"] == [1, 2, 4, 5, 7]
    (finding,) = [each for each in found.findings if each.id == "incomplete-step"]
    assert [each.value for each in finding.evidence] == [1, 12, 2000]


def test_a_window_of_nothing_but_what_follows_the_loop_is_in_no_analysis(tmp_path: Path) -> None:
    after = left_by_the_loop(7, op("aten::item", 1701.2, 0.5))
    run = rankscope.open(windows(tmp_path, [iteration(1), iteration(2)], [iteration(4), iteration(5)], [after]))
    assert run.step_time().select("window", "step", "window_ns").rows() == [
        (0, 1, LENGTH * 1000),
        (0, 2, LENGTH * 1000),
        (1, 4, LENGTH * 1000),
        (1, 5, LENGTH * 1000),
    ]
    assert steps_of(tmp_path, "7") == [7]


def test_a_smaller_batch_in_a_window_of_its_own_stays(tmp_path: Path) -> None:
    small = iteration(4, length=60)
    assert steps_of(windows(tmp_path, [iteration(1), iteration(2)], [small])) == [1, 2, 4]


def test_sql_sees_the_same_steps(tmp_path: Path) -> None:
    after = left_by_the_loop(4, op("aten::item", 1401.2, 0.5))
    run = rankscope.open(windows(tmp_path, [iteration(1), iteration(2)], [iteration(3), after]), executor="serial")
    query = "SELECT step, incomplete_step FROM annotations WHERE name LIKE 'ProfilerStep%' ORDER BY name"
    assert run.sql(query).rows() == [(1, None), (2, None), (3, None), (None, 4)]


def test_a_last_step_of_fewer_micro_batches_stays(tmp_path: Path) -> None:
    """A tenth of the operators, of all kinds."""

    def of(number: int, batches: int) -> list[Event]:
        ts = 1000.0 + number * LENGTH
        return [step(number, ts, LENGTH), *(op(NAMES[n % 6], ts + 1.5 * n, 1) for n in range(6 * batches))]

    assert steps_of(saved(tmp_path, *(of(n, 10) for n in range(3)), of(3, 1))) == [0, 1, 2, 3]


def test_a_step_in_the_middle_stays_whatever_it_holds(tmp_path: Path) -> None:
    path = saved(tmp_path, iteration(0), iteration(1), left_by_the_loop(2), iteration(3), iteration(4))
    assert steps_of(path) == [0, 1, 2, 3, 4]


def test_an_empty_last_step_stays_where_the_loop_has_empty_steps(tmp_path: Path) -> None:
    path = saved(tmp_path, iteration(0), left_by_the_loop(1), iteration(2), iteration(3), left_by_the_loop(4))
    assert steps_of(path) == [0, 1, 2, 3, 4]


def test_steps_of_a_trace_that_records_no_work_stay(tmp_path: Path) -> None:
    path = saved(tmp_path, [step(n, 100.0 * n, 90) for n in range(3)], [annotation("mine", 10, 5)])
    assert steps_of(path) == [0, 1, 2]


def test_it_is_reported_and_shown_if_named(tmp_path: Path) -> None:
    path = saved(tmp_path, *(iteration(n) for n in range(3)), left_by_the_loop(3))
    run = rankscope.open(path, executor="serial")
    (finding,) = [each for each in run.findings if each.id == "incomplete-step"]
    assert (finding.severity, finding.ranks, finding.steps, finding.saving_ns) == ("info", (0,), (3,), None)
    assert finding.title == "Step 3 holds no complete iteration and is left out"
    assert [(each.value, each.unit) for each in finding.evidence] == [(0, "count"), (12, "count"), (2000, "ns")]
    assert steps_of(path, "3") == [3]
    assert steps_of(path, "1:3") == [1, 2, 3]
    assert steps_of(path, "1:") == [1, 2]
    assert steps_of(path, "1:7") == [1, 2]
    with pytest.raises(ConfigError, match="no step 4"):
        steps_of(path, "4")


def test_its_range_is_no_range_of_the_user(tmp_path: Path) -> None:
    path = saved(tmp_path, *(iteration(n) for n in range(3)), left_by_the_loop(3), [annotation("mine", 1010, 5)])
    names = rankscope.open(path, executor="serial").annotations()["name"].to_list()
    assert "mine" in names
    assert not any(name.startswith("ProfilerStep") for name in names)


LOOPS = """
import itertools
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def iteration(batch=64):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(batch, 64)), torch.randint(0, 8, (batch,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

def loop(name, batches, after=lambda: None, **windows):
    count = itertools.count()
    write = lambda p: p.export_chrome_trace(f"{sys.argv[1]}/{name}/window{next(count)}.rank0.json")
    kept = schedule(wait=0, warmup=1, **windows)
    with profile(activities=[ProfilerActivity.CPU], schedule=kept, on_trace_ready=write) as profiler:
        for batch in batches:
            loss = iteration(batch)
            profiler.step()
            print(loss.item())
        after()

loop("stopped", [64] * 6, active=5, repeat=1)
loop("printed", [64] * 6, active=50)
loop("one step", [64] * 2, active=50)
loop("windows", [64] * 8, active=2)
loop("nothing but the end", [64] * 7, active=2)
loop("checkpoint", [64] * 6, lambda: torch.save(model.state_dict(), f"{sys.argv[1]}/model.pt"), active=50)
loop("evaluation", [64] * 6, lambda: model(torch.randn(4096, 64)).argmax(1).eq(0).float().mean().item(), active=50)
loop("small batch", [64] * 5 + [4], active=5, repeat=1)
"""


@pytest.mark.slow
def test_loops_as_torch_profiler_records_them(tmp_path: Path) -> None:
    """The first step is the warm-up; all loops print their loss after `prof.step()`."""
    expected = {
        "stopped": [1, 2, 3, 4, 5],
        "printed": [1, 2, 3, 4, 5],
        "one step": [1],
        "windows": [1, 2, 4, 5, 7],
        "nothing but the end": [1, 2, 4, 5],
        "checkpoint": [1, 2, 3, 4, 5],
        "evaluation": [1, 2, 3, 4, 5],
        "small batch": [1, 2, 3, 4, 5],
    }
    for name in expected:
        (tmp_path / name).mkdir()
    subprocess.run([sys.executable, "-c", LOOPS, str(tmp_path)], check=True, capture_output=True)
    assert {name: steps_of(tmp_path / name) for name in expected} == expected
