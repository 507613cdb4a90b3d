"""idle: causes of a stream's gaps and of the device's, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import kineto

import rankscope
from rankscope.analyses import idle

US = 1000


def rows(folder: Path, events: list[kineto.Event], steps: str | None = None) -> dict[tuple[Any, ...], tuple[int, int]]:
    path = kineto.write(folder / "r.json", kineto.trace(events, rank=0))
    found = rankscope.open(path, executor="serial", steps=steps).idle()
    return {
        (row["stream"], row["cause"], row["detail"]): (row["gaps"], row["idle_ns"] // US) for row in found.to_dicts()
    }


def made() -> list[kineto.Event]:
    return [
        kineto.kernel("a", 0, 10, stream=7),
        # Launched while `a` ran, 5 µs behind it; then overlapping; then late; then in time but 50 µs behind.
        kineto.launch(3, 1, correlation=1), kineto.kernel("b", 15, 20, stream=7, correlation=1),
        kineto.launch(4, 1, correlation=2), kineto.kernel("c", 30, 5, stream=7, correlation=2),
        kineto.launch(60, 2, correlation=3), kineto.kernel("d", 70, 10, stream=7, correlation=3),
        kineto.launch(72, 1, correlation=4), kineto.kernel("e", 130, 10, stream=7, correlation=4),
        kineto.kernel("f", 150, 10, stream=7),
        kineto.launch(5, 1, correlation=5), kineto.kernel("other", 80, 15, stream=9, correlation=5),
        # On the host: [35, 70) is loading to 50, an operator with another inside and a launch, 8 of nothing.
        kineto.loading(30, 20), kineto.op("aten::linear", 52, 10), kineto.op("aten::mm", 55, 5),
        # [95, 130): a wait for the device, a Python frame around it.
        kineto.launch(100, 10, name="cudaStreamSynchronize"), kineto.frame("train.py(1): loop", 95, 20),
    ]  # fmt: skip


def test_by_hand(tmp_path: Path) -> None:
    found = rows(tmp_path, made())
    assert {key: value for key, value in found.items() if key[0] is not None} == {
        (7, "kernel_wait", None): (1, 5),
        (7, "host_wait", None): (1, 35),
        (7, "other", None): (1, 50),
        (7, "unknown", None): (1, 10),
    }
    # The device's gaps: [10, 15), [35, 70), [95, 130), [140, 150).
    whole = {key[1:]: value[1] for key, value in found.items() if key[0] is None}
    assert whole == {
        ("data_loading", None): 15,
        ("runtime", None): 2,
        ("operator", "aten::linear"): 8,
        ("synchronisation", None): 10,
        ("python", None): 10,
        ("nothing", None): 5 + 10 + 15 + 10,
    }
    assert sum(whole.values()) == 5 + 35 + 35 + 10


def test_where_the_longest_is(tmp_path: Path) -> None:
    path = kineto.write(tmp_path / "r.json", kineto.trace(made(), rank=0))
    found = rankscope.open(path, executor="serial").idle()
    longest = {
        (row["stream"], row["cause"]): (row["longest_start_ns"] // US, row["max_ns"] // US) for row in found.to_dicts()
    }
    assert longest == {
        (7, "kernel_wait"): (10, 5), (7, "host_wait"): (35, 35), (7, "other"): (80, 50), (7, "unknown"): (140, 10),
        (None, "data_loading"): (35, 15), (None, "runtime"): (60, 2), (None, "operator"): (52, 8),
        (None, "synchronisation"): (100, 10), (None, "python"): (95, 5), (None, "nothing"): (115, 15),
    }  # fmt: skip
    assert found["window"].to_list() == [0] * found.height


def test_the_longest_is_in_the_file_that_has_it(tmp_path: Path) -> None:
    for window, gap in enumerate((30, 70, 50)):
        at = 1000.0 * window
        events = [
            kineto.step(10 * window, at, 200),
            kineto.kernel("a", at + 10, 10),
            kineto.launch(at + 25, 1, correlation=1),
            kineto.kernel("b", at + 20 + gap, 10, correlation=1),
        ]
        kineto.write(tmp_path / f"rank0_iter{10 * window}.json", kineto.trace(events, rank=0))
    found = rankscope.open(tmp_path, executor="serial").idle()
    (row,) = found.filter(found["cause"] == "host_wait").to_dicts()
    assert (row["gaps"], row["idle_ns"] // US, row["max_ns"] // US) == (3, 150, 70)
    assert (row["window"], row["longest_start_ns"] // US) == (1, 1020)


def test_the_largest_comes_first_also_where_one_file_alone_has_gaps(tmp_path: Path) -> None:
    events = [kineto.step(1, 0, 400), kineto.kernel("a", 10, 10)]
    # Launched late, 20 µs of gap; launched in time, 200 µs of it.
    for number, (launch, start) in enumerate(((30, 40), (5, 250)), 1):
        events += [kineto.launch(launch, 1, correlation=number), kineto.kernel("b", start, 10, correlation=number)]
    kineto.write(tmp_path / "rank0_iter1.json", kineto.trace(events, rank=0))
    without = [kineto.step(2, 1000, 100), kineto.op("aten::mm", 1010, 5)]
    kineto.write(tmp_path / "rank0_iter2.json", kineto.trace(without, rank=0))
    found = rankscope.open(tmp_path, executor="serial").idle(of="streams")
    assert found.select("cause", "idle_ns").rows() == [("other", 200 * US), ("host_wait", 20 * US)]


def test_streams_or_devices_alone(tmp_path: Path) -> None:
    run = rankscope.open(kineto.write(tmp_path / "r.json", kineto.trace(made(), rank=0)), executor="serial")
    whole = run.idle()
    streams, devices = run.idle(of="streams"), run.idle(of="devices")
    assert streams.equals(whole.filter(whole["stream"].is_not_null()))
    assert devices.equals(whole.filter(whole["stream"].is_null()))
    assert streams.height and devices.height


def test_two_threads_have_an_operator_each(tmp_path: Path) -> None:
    events = [
        kineto.kernel("a", 0, 10), kineto.kernel("b", 100, 10),
        kineto.op("first", 20, 30), kineto.op("second", 40, 30, tid=kineto.BACKWARD_THREAD),
    ]  # fmt: skip
    found = rows(tmp_path, events)
    assert found[None, "operator", "first"][1] == 30
    assert found[None, "operator", "second"][1] == 20
    assert found[None, "nothing", None][1] == 40
    run = rankscope.open(tmp_path / "r.json", executor="serial")
    starts = {row["detail"]: row["longest_start_ns"] // US for row in run.idle().to_dicts()}
    assert (starts["first"], starts["second"]) == (20, 40)  # of the calls, though second's part begins at 50


def test_in_chosen_steps(tmp_path: Path) -> None:
    events = [
        kineto.step(1, 0, 50), kineto.step(2, 50, 50),
        kineto.launch(1, 1, correlation=1), kineto.kernel("a", 5, 5, correlation=1),
        kineto.launch(51, 1, correlation=2), kineto.kernel("b", 80, 5, correlation=2),
    ]  # fmt: skip
    found = rows(tmp_path, events, steps="2")
    # Of the gap [10, 80) the second window has [50, 80).
    assert found[7, "host_wait", None] == (1, 30)
    assert sum(value[1] for key, value in found.items() if key[0] is None) == 30


def test_a_slow_loader_is_the_first_cause(shared_traces: Path) -> None:
    run = rankscope.open(
        shared_traces / "tensorboard-plugin/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz"
    )
    first = run.idle().filter(run.idle()["stream"].is_null()).row(0, named=True)
    assert first["cause"] == "data_loading"
    assert first["share"] > 0.7


def test_every_gap_of_a_row(tmp_path: Path) -> None:
    path = kineto.write(tmp_path / "r.json", kineto.trace(made(), rank=0))
    run = rankscope.open(path, executor="serial")
    rows = run.idle().to_dicts()
    trace = run.loaded.ranks[0][0]
    tables = trace.load_all({**idle.analysis.reads, **idle.extra_columns({"of": "all"})})
    for row in rows:
        key = idle.GapKey(row["device"], row["stream"], row["cause"], row["detail"])
        found = idle.gaps_of(tables, run.options, key)
        assert (found.height, found["idle_ns"].sum()) == (row["gaps"], row["idle_ns"]), row
        assert found["idle_ns"].to_list() == sorted(found["idle_ns"], reverse=True)
        assert (found["start_ns"][0], found["idle_ns"][0]) == (row["longest_start_ns"], row["max_ns"]), row
    nothing = idle.gaps_of(tables, run.options, idle.GapKey(0, None, "nothing"))
    assert [(start // US, end // US) for start, end in nothing.select("start_ns", "end_ns").rows()] == [
        (115, 130), (140, 150), (62, 70), (10, 15), (50, 52),
    ]  # fmt: skip
    assert idle.gaps_of(tables, run.options, idle.GapKey(0, 7, "nothing")).is_empty()
    assert idle.gaps_of(tables, run.options, idle.GapKey(3, None, "nothing")).is_empty()
