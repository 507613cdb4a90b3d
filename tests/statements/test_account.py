"""Every event, launch and nanosecond has an owner, or it is said what is missing."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import kineto
from tests.show.report.test_summary import shown
from typer.testing import CliRunner

import rankscope
from rankscope.cli import make_app
from rankscope.errors import RankscopeError
from rankscope.ingest.kineto import read_kineto
from rankscope.store.account import Account

LARGEST = 4_000_000


def plain(path: Path) -> list[Any] | None:
    """The events of a file, without rankscope; None if it is no JSON."""
    data = path.read_bytes()
    try:
        value = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, OSError):
        return None
    events = value.get("traceEvents") if isinstance(value, dict) else value
    return events if isinstance(events, list) else None


def launches(ranges: list[Any]) -> int:
    """The calls with a kernel: what a call is named does not matter, but for copies and fills that kernels do."""

    def correlation(event: Any) -> Any:
        return (event.get("args") or {}).get("correlation")

    kernels = {correlation(each) for each in ranges if each["cat"].lower() == "kernel"} - {None, 0}
    calls = [each for each in ranges if "runtime" in each["cat"].lower() or "driver" in each["cat"].lower()]
    return sum(correlation(each) in kernels and not re.search("Mem(cpy|set)|Array", each["name"]) for each in calls)


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["python", ""])
def test_every_event_of_the_shared_traces_has_an_owner(
    reader: str, shared_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKSCOPE_READER", reader)
    compared = 0
    for path in sorted(shared_traces.rglob("*.json*")):
        if not path.is_file() or path.stat().st_size > LARGEST:
            continue
        events = plain(path)
        try:
            trace = read_kineto(str(path))
        except RankscopeError:
            continue
        account = trace.account
        assert account.missing == 0, path
        if events is None:
            continue
        compared += 1
        assert account.events == len(events), path
        ranges = [event for event in events if event.get("ph") in ("X", "B", "b")]
        assert account.timed == len(ranges), path
        kernels = [
            e for e in ranges if str(e.get("cat")).lower() in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
        ]
        if all(event.get("cat") for event in ranges):  # else processes tell what an event is
            assert account.device_events == len(kernels), path
            if "capture_traces" not in path.parts:  # what is captured has no kernel, and is not lost
                assert account.launches - account.lost_launches == launches(ranges), path
    assert compared > 20


names = st.sampled_from(
    ["aten::mm", "ProfilerStep#1", "gloo:all_reduce", "Python GC", "[memory]", "record_param_comms"]
)
categories = st.sampled_from(
    ["cpu_op", "kernel", "cuda_runtime", "user_annotation", "python_function", "task", "", None]
)
times = st.one_of(st.none(), st.integers(0, 1000), st.just("nan"), st.just(1e300))
events = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XBEiMCsfbe"),
        "name": names,
        "ts": times,
        "pid": st.sampled_from([1, "CPU functions", "x"]),
    },
    optional={
        "cat": categories,
        "dur": times,
        "tid": st.integers(0, 2),
        "args": st.just({"correlation": 3}),
        "id": st.just(1),
    },
)


@given(st.lists(st.one_of(events, st.just(7), st.just("text")), min_size=1, max_size=30), st.integers(0, 40))
def test_whatever_a_file_holds_nothing_is_missing(
    tmp_path_factory: pytest.TempPathFactory, made: list[Any], cut: int
) -> None:
    text = json.dumps({"traceEvents": made})
    path = tmp_path_factory.mktemp("any") / "t.json"
    path.write_text(text[: len(text) - cut])
    try:
        account = read_kineto(str(path)).account
    except RankscopeError:
        return
    assert account.missing == 0
    phases = Counter(event["ph"] for event in made if isinstance(event, dict))
    assert account.events <= len(made) + 1  # what is cut off is one event, or none
    assert account.ends <= phases["E"]


def test_accounts_add_up() -> None:
    one = Account(events=5, timed=4, tables={"host_ops": 3}, unread={"damaged": 1}, unknown={"task": 1}, launches=2)
    both = Account.of([one, one, Account()])
    assert (both.events, both.tables, both.unread, both.unknown) == (10, {"host_ops": 6}, {"damaged": 2}, {"task": 2})
    assert (both.missing, both.launches, both.skipped_share) == (0, 4, 0.5)
    assert Account.from_json(json.loads(json.dumps(both.to_json()))) == both
    assert Account(events=1).missing == 1


def recorded(number: int) -> list[kineto.Event]:
    return [kineto.step(number, 1000 * number, 1000), kineto.op("aten::mm", 1000 * number + 10, 600)]


def run_of(folder: Path, *more: kineto.Event) -> rankscope.Run:
    events = [event for number in range(4) for event in recorded(number)]
    return rankscope.open(kineto.write_ranks(folder, {0: events, 1: [*events, *more]}), executor="serial")


def test_the_account_of_a_clean_run(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    frame = run.analyze("account")["account"].frame
    assert frame["clean"].to_list() == [True, True]
    assert frame["skipped"].sum() == frame["no_duration"].sum() == 0
    assert frame["window_ns"].to_list() == [4_000_000] * 2
    # Outside of operators nothing is recorded.
    assert frame["unexplained_ns"].to_list() == frame["idle_ns"].to_list() == [1_600_000] * 2
    assert frame["unassigned_ns"].to_list() == [0, 0]
    assert any(line.startswith("traces      no problems found in ") for line in shown(run))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (kineto.event("k", 5, 1, cat="task"), "1 of an unknown category"),
        ({"ph": "X", "cat": "cpu_op", "name": "x", "ts": 5, "pid": 1, "tid": 1}, "1 without a duration"),
        ({"ph": "X", "cat": "cpu_op", "name": "x", "dur": 5, "pid": 1, "tid": 1}, "1 without a time"),
    ],
)
def test_what_is_missing_is_said_everywhere(tmp_path: Path, more: kineto.Event, said: str) -> None:
    run = run_of(tmp_path, more)
    row = run.analyze("account")["account"].frame.row(1, named=True)
    assert (row["clean"], row["rank"]) == (False, 1)
    assert row["reasons"].startswith(said)
    assert "no problems found" not in "\n".join(shown(run))
    printed = CliRunner().invoke(make_app(), ["doctor", str(tmp_path), "--only-wrong"])
    assert f"rank 1: {said}" in printed.output
    assert "too much is missing on rank 1" in printed.output


@pytest.mark.parametrize("name", ["trace_view.json", "", "node1_3100.17.pt.trace.json"])
def test_the_doctor_counts_no_other_traces_than_it_reads(tmp_path: Path, name: str) -> None:
    file = kineto.write(tmp_path / (name or "trace.json"), [event for number in range(4) for event in recorded(number)])
    printed = CliRunner().invoke(make_app(), ["doctor", str(tmp_path if name else file)])
    assert "8 events: nothing is missing" in printed.output
    assert "0 traces" not in printed.output
    assert "0 ranks" not in printed.output
    assert "0 failures" in printed.output


def test_the_doctor_of_a_file_that_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    printed = CliRunner().invoke(make_app(), ["doctor", str(tmp_path / "notes.txt")])
    assert printed.exit_code == 1
    assert "not JSON" in printed.output
    assert "1 failure" in printed.output


def test_a_directory_without_traces_is_not_well(tmp_path: Path) -> None:
    printed = CliRunner().invoke(make_app(), ["doctor", str(tmp_path)])
    assert "no trace in this directory" in printed.output


def test_a_file_that_is_left_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    text = " ".join("\n".join(shown(run_of(tmp_path))).split())
    assert "traces no problems found in 16 events; config.json is not a trace and was left out" in text


def test_parts_are_unknown_where_the_device_was_not_recorded(tmp_path: Path) -> None:
    events = [event for number in range(4) for event in recorded(number)]
    events += [kineto.launch(1000.0 * number + 20, 5, correlation=number + 1) for number in range(4)]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial")
    results = run.analyze("overview", "step_time", "device_time")
    row = results["overview"].frame.row(0, named=True)
    assert row["step_ns"] == 1_000_000
    assert [row[name] for name in ("mean_step_ns", "compute_ns", "otherwise_idle_ns", "busy_share")] == [None] * 4
    assert results["step_time"].frame["compute_ns"].null_count() == 4
    assert results["device_time"].frame["compute_ns"].to_list() == [None]
    assert run.diagnosis().headline.text.startswith("The device was not recorded")
