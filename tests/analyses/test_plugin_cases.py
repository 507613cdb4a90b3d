"""The hand-made traces of the TensorBoard plugin's own tests, with the figures that its tests assert.

Its definitions are read here once more in plain Python (`plugin_windows`), so that what differs differs for a reason
that can be pointed at: docs/numbers.md names the reasons.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import kineto, plain_reading
from tests.plain_reading import Event, Plain, Span

import rankscope

US = 1000

# step: window, kernel, memcpy, memset, runtime, data loading, host operator, other; µs, as the plugin asserts (but one)
CASES: dict[str, list[tuple[int, ...]]] = {
    "all_categories": [(400, 15, 10, 5, 30, 180, 35, 125)],
    "multiple_profilersteps_no_overlap": [(220, 0, 40, 0, 5, 0, 55, 120), (260, 200, 0, 0, 5, 0, 45, 10)],
    "multiple_profilersteps_with_overlap": [(140, 0, 100, 0, 5, 0, 15, 20), (230, 200, 0, 0, 5, 0, 25, 0)],
    # The plugin divides by the host's span of 320 µs; here it is the device's, which is one kernel.
    "no_profilerstep": [(100, 100, 0, 0, 0, 0, 0, 0)],
    "runtime_called_by_profilerstep": [(300, 8, 0, 0, 20, 0, 0, 272)],
}
COLUMNS = (
    "window_ns", "compute_ns", "exposed_memcpy_ns", "exposed_memset_ns", "runtime_ns", "data_loading_ns",
    "host_op_ns", "other_ns",
)  # fmt: skip


def case(shared_traces: Path, name: str) -> Path:
    return shared_traces / "tensorboard-plugin" / "unit_tests" / "single" / f"test_{name}__json_content.pt.trace.json"


@pytest.mark.parametrize("name", CASES)
def test_what_the_plugin_asserts(shared_traces: Path, name: str) -> None:
    found = rankscope.open(case(shared_traces, name), executor="serial").step_time().to_dicts()
    assert [tuple(row[column] // US for column in COLUMNS) for row in found] == CASES[name]


def plugin_windows(trace: Plain) -> list[Span]:
    """The plugin's windows: from completion to completion as well, but other launches and another backlog count.

    A launch belongs to a step only if it also ends inside; before the first window ends is what was launched in no
    step and *ended* before that step's first device event began.
    """
    ends = {call.args["correlation"]: call.end for call in trace.calls if call.args.get("correlation")}

    def inside(event: Event, start: int, end: int) -> bool:
        return event.launch is not None and start <= event.launch and ends[event.args["correlation"]] <= end

    steps = sorted((start, end) for _, start, end in trace.steps)
    owned = [[event for event in trace.device if inside(event, *step)] for step in steps]
    begin = steps[0][0]
    if owned[0]:
        first = min(event.start for event in owned[0])
        matched = {id(event) for events in owned for event in events}
        begin = max([begin, *(e.end for e in trace.device if id(e) not in matched and e.end < first)])
    found = []
    for (start, end), events in zip(steps, owned, strict=True):
        begin = max(begin, start)
        until = max([begin, end, *(event.end for event in events)])
        found.append((begin, until))
        begin = until
    return found


def our_windows(trace: Plain) -> list[Span]:
    return [(begin, end) for _, begin, end in plain_reading.windows(trace)]


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("multiple_profilersteps_no_overlap", [(100, 320), (350, 610)]),
        ("multiple_profilersteps_with_overlap", [(240, 380), (380, 610)]),
    ],
)
def test_windows_of_both_definitions_are_the_same_in_its_step_cases(
    shared_traces: Path, name: str, windows: list[Span]
) -> None:
    trace = plain_reading.read(case(shared_traces, name))
    expected = [(begin * US, end * US) for begin, end in windows]
    assert plugin_windows(trace) == our_windows(trace) == expected
    found = rankscope.open(case(shared_traces, name), executor="serial").step_time()
    starts, lengths = found["start_ns"].to_list(), found["window_ns"].to_list()
    assert [(s, s + n) for s, n in zip(starts, lengths, strict=True)] == expected


def test_steps_without_kernels_are_kept_at_the_end(shared_traces: Path) -> None:
    """The plugin drops the last two and reports one step of 220 µs; we drop none."""
    found = rankscope.open(case(shared_traces, "last_steps_no_kernel"), executor="serial").step_time()
    assert found["window_ns"].to_list() == [220 * US, 70 * US, 50 * US]
    assert found["compute_ns"].to_list() == [180 * US, 0, 0]


def windows_of(tmp_path: Path, events: list[kineto.Event]) -> tuple[list[Span], list[Span]]:
    """The plugin's windows, and what rankscope says, in µs."""
    content: dict[str, Any] = kineto.trace(events, rank=0, world_size=1)
    path = kineto.write(tmp_path / "rank0.json", content)
    found = rankscope.open(path, executor="serial").step_time()
    ours = [(row["start_ns"] // US, (row["start_ns"] + row["window_ns"]) // US) for row in found.to_dicts()]
    return [(begin // US, end // US) for begin, end in plugin_windows(plain_reading.read(content))], ours


def test_a_backlog_on_another_stream_does_not_count_for_the_plugin(tmp_path: Path) -> None:
    # The backlog on stream 9 runs to 60; the step's own first kernel, on stream 7, begins at 30.
    events = [
        kineto.launch(5, 1, correlation=1),
        kineto.step(1, 20, 50),
        kineto.launch(25, 1, correlation=2),
        kineto.kernel("backlog", 10, 50, stream=9, correlation=1),
        kineto.kernel("own", 30, 60, stream=7, correlation=2),
    ]
    plugin, ours = windows_of(tmp_path, events)
    assert plugin == [(20, 90)]
    assert ours == [(60, 90)]


def test_a_launch_that_outlasts_its_step_is_no_steps_for_the_plugin(tmp_path: Path) -> None:
    events = [
        kineto.step(1, 0, 20),
        kineto.launch(18, 5, correlation=1),
        kineto.step(2, 20, 20),
        kineto.kernel("k", 25, 30, correlation=1),
        kineto.launch(30, 1, correlation=2),
        kineto.kernel("k", 60, 10, correlation=2),
    ]
    plugin, ours = windows_of(tmp_path, events)
    assert plugin == [(0, 20), (20, 70)]
    assert ours == [(0, 55), (55, 70)]


def test_distributed_nccl_kernels(shared_traces: Path) -> None:
    """Communication by kernels: 1572 µs on worker 0, of which 498 are waiting; the least over the ranks is 1074."""
    folder = shared_traces / "tensorboard-plugin" / "unit_tests" / "test_distributed_nccl"
    run = rankscope.open(folder, executor="serial")
    assert run.device_time()["communication_ns"].to_list() == [(16 + 1556) * US, (31 + 1058) * US]
    least = run.collectives().group_by("sequence").agg(pl.col("duration_ns").min())["duration_ns"].sum()
    assert least == (16 + 1058) * US == 1074 * US
    assert run.device_time()["communication_ns"][0] - least == 498 * US
