"""A profiler that loses kernels: each launch has a device event, or the trace is incomplete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import work
from tests.show.report.test_summary import shown

import rankscope
from rankscope.show.report.formatting import sentence


def steps_of(lost: range = range(0), *, captured: bool = False) -> list[kineto.Event]:
    """Six steps of 1 ms with ten kernels of 50 µs; of some steps the kernels are lost, or were captured in a graph."""
    events: list[kineto.Event] = []
    for number in range(6):
        at = 1000.0 * number
        events.append(kineto.step(number, at, 1000))
        if number in lost and captured:
            events.append(kineto.launch(at + 1, 1, correlation=0, name="cudaStreamBeginCapture"))
            events.append(kineto.launch(at + 990, 1, correlation=0, name="cudaStreamEndCapture"))
        for each in range(10):
            launch, kernel = work(at + 10 + 60 * each, 50)
            events += [launch] if number in lost else [launch, kernel]
    return events


def run_of(folder: Path, *ranks: list[kineto.Event]) -> rankscope.Run:
    return rankscope.open(kineto.write_ranks(folder, dict(enumerate(ranks))), executor="serial")


def test_the_rank_is_named_and_left_out(tmp_path: Path) -> None:
    run = run_of(tmp_path, steps_of(), steps_of(lost=range(3)))
    (lost,) = [each for each in run.findings if each.id == "device-events-lost"]
    assert (lost.ranks, lost.severity) == ((1,), "warning")
    assert lost.title.startswith("Rank 1 lost device events: 30 of 60 launches have none")
    overview = run.analyze("overview")["overview"].frame.row(0, named=True)
    assert overview["compute_ns"] == 500_000
    text = "\n".join(shown(run))
    assert "no problems found" not in text
    assert "lost device events" in text


@pytest.mark.parametrize("captured", [True, False])
def test_what_a_capture_launches_is_not_lost(tmp_path: Path, captured: bool) -> None:
    run = run_of(tmp_path, steps_of(lost=range(2), captured=captured))
    assert any(each.id == "device-events-lost" for each in run.findings) is not captured


def test_a_few_at_the_end_are_cut_off(tmp_path: Path) -> None:
    events = [*steps_of(), *(kineto.launch(5900 + each, 0.5, correlation=9000 + each) for each in range(2))]
    assert not any(each.id == "device-events-lost" for each in run_of(tmp_path, events).findings)


def test_without_any_device_event_operators_are_no_compute(tmp_path: Path) -> None:
    operators = [kineto.op("aten::mm", 1000.0 * number + 10, 900) for number in range(6)]
    run = run_of(tmp_path, [*steps_of(lost=range(6)), *operators])
    (lost,) = [each for each in run.findings if each.id == "device-events-lost"]
    assert "the device was not recorded: none of 60 launches" in lost.title
    text = "\n".join(shown(run))
    assert "compute" not in text.partition("stragglers")[0]
    assert "what it was spent on is not recorded" in text


def spoiled(event: kineto.Event, how: str) -> kineto.Event:
    """A kernel that no table has, or whose time is missing; other events as they are."""
    if event["cat"] != "kernel":
        return event
    changed = {**event, "cat": "task_of_a_new_device"} if how != "no duration" else {**event}
    if how == "no duration":
        del changed["dur"]
    return changed


@pytest.mark.parametrize(("how", "every"), [("category", 2), ("category", 1), ("no duration", 2), ("no launches", 1)])
def test_what_may_hide_work_is_not_called_idle(tmp_path: Path, how: str, every: int) -> None:
    events = [spoiled(each, how) if number % every == 0 else each for number, each in enumerate(steps_of())]
    if how == "no launches":
        events = [each for each in events if each["cat"] != "cuda_runtime"]
    run = run_of(tmp_path, events)
    text = "\n".join(shown(run))
    assert not re.search("idle|compute|no problems|can be saved|No finding|CPU", text), text
    assert "what it was spent on is not recorded" in text
    headline = sentence(run.diagnosis().headline)
    assert headline.startswith(("What the time was spent on is not known", "The device was not recorded")), headline
    account = run.analyze("account")["account"].frame.row(0, named=True)
    assert (account["clean"], account["idle_ns"], account["unassigned_ns"]) == (False, None, None)


def test_a_few_of_unknown_categories_are_named_and_change_nothing(tmp_path: Path) -> None:
    events = [*steps_of(), *(kineto.event("other", 10.0 * each, 1, cat="strange") for each in range(5))]
    run = run_of(tmp_path, events)
    assert any(each.id == "unknown-categories" for each in run.findings)
    overview = run.analyze("overview")["overview"].frame.row(0, named=True)
    assert overview["compute_ns"] == 500_000
