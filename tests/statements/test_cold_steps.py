"""The breakdown is of the steps that the step time is of: a cold step is named and is no part of the mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import work
from tests.show.report.test_summary import shown

import rankscope


def run_of(folder: Path, durations: dict[int, list[int]]) -> rankscope.Run:
    """One rank with a window for each key, whose steps take so many µs; the device works for 500 of each."""
    for first, own in durations.items():
        at, events = 0.0, []
        for number, duration in enumerate(own, first):
            events += [kineto.step(number, at, duration), *work(at + 10, 500)]
            at += duration
        name = f"rank0_iter{first}_{first + len(own) - 1}.trace.json"
        made = kineto.trace(events, rank=0, world_size=1, baseTimeNanoseconds=first * 10**9)
        kineto.write(folder / name, made)
    return rankscope.open(folder, executor="serial")


@pytest.mark.parametrize(
    ("durations", "averaged", "mean"),
    [
        ({0: [9000, 600, 600, 600]}, 3, 600_000),
        ({0: [600, 600, 9000, 600]}, 3, 600_000),
        ({0: [9000, 600, 600], 10: [8000, 600, 600]}, 4, 600_000),  # the first of each window
        ({0: [9000, 8000, 600, 600, 600]}, 3, 600_000),  # a second one that compiles
        ({0: [9000, 8000, 600, 600, 600], 10: [5000, 600, 600, 600]}, 6, 600_000),
        ({0: [9000, 600, 8000, 600, 600]}, 5, 3_760_000),
        ({0: [600, 600, 3000, 600, 600, 3000, 600]}, 7, 1_285_714),  # it recurs
        ({0: [9000, 600]}, 2, 4_800_000),  # nothing says which of two is unusual
        ({0: [600, 700, 1100, 600]}, 4, 750_000),
    ],
    ids=["first", "middle", "windows", "first two", "first ones", "first and third", "recurring", "two", "vary"],
)
def test_the_mean_is_of_the_usual_steps(
    tmp_path: Path, durations: dict[int, list[int]], averaged: int, mean: int
) -> None:
    run = run_of(tmp_path, durations)
    row = run.analyze("overview")["overview"].frame.row(0, named=True)
    assert (row["averaged_steps"], row["mean_step_ns"]) == (averaged, mean)
    parts = ("compute_ns", "exposed_communication_ns", "exposed_copies_ns", "data_loading_ns", "otherwise_idle_ns")
    assert sum(row[name] for name in parts) == pytest.approx(mean, abs=2)
    text = " ".join(" ".join(shown(run)).split())
    assert ("mean over usual steps" in text) is (averaged < row["steps"])
    cold = row["steps"] - averaged
    assert (f"and {cold - 1} other cold step" in text) is (cold > 1)
