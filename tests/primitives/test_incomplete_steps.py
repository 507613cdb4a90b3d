"""Steps without a complete iteration: which they are, that no figure includes them, and that they are reported."""

from __future__ import annotations

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
def test_the_step_after_the_last_iteration_is_in_no_mean(tmp_path: Path, complete: int, device: bool) -> None:
    """Five steps of 100 µs and one of 2: the mean is 100, not 83.7."""
    path = saved(tmp_path, *(iteration(n, device=device) for n in range(complete)), left_by_the_loop(complete))
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
        pytest.param(iteration(3, ("aten::mm", "aten::add", "aten::mul")), id="other work, as much as half"),
    ],
)
def test_a_real_step_stays(tmp_path: Path, last: list[Event]) -> None:
    assert steps_of(saved(tmp_path, *(iteration(n) for n in range(3)), last)) == [0, 1, 2, 3]


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
