"""The tools on a small run: numbers are those of the analyses and of the page, names from traces are data."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.answers.watch.jobs import MS, SimulatedJob
from tests.show.agents.conftest import ORDER, Call

import rankscope
from rankscope.answers.hang import read as read_hang
from rankscope.engine.pipeline import Run
from rankscope.errors import NoTracesError
from rankscope.show.agents import toolbox as toolbox_module
from rankscope.show.agents.answers import MAX_CHARACTERS, UNTRUSTED, Answer
from rankscope.show.agents.arguments import Argument
from rankscope.show.agents.job_tools import guide
from rankscope.show.agents.roots import Roots
from rankscope.show.agents.tool import Rest, Tool
from rankscope.show.agents.toolbox import AT_ONCE, TOOLS, Toolbox
from rankscope.show.web.runs import Runs


@pytest.fixture(scope="module")
def run(folder: Path, toolbox: Toolbox) -> Run:
    """The same run, opened by itself."""
    return rankscope.open(folder, executor="serial")


def table(answer: dict[str, Any]) -> list[dict[str, Any]]:
    names = [each["name"] for each in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


def error(box: Toolbox, name: str, /, **arguments: Any) -> str:
    reply = box.call(name, arguments)
    assert reply.is_error
    found = json.loads(reply.text)["error"]
    return f"{found['what']} {found['hint']}"


@pytest.mark.slow
def test_keys_of_runs_are_those_of_the_page(call: Call, folder: Path) -> None:
    (row,) = table(call("list_runs"))
    runs = Runs([str(folder)], executor="serial")
    runs.start()
    assert runs.shown.loaded.wait(600)
    assert row["run"] == runs.listed()["shown"]
    assert (row["root"], row["ranks"]) == ("run", 2)


def test_summary_has_the_diagnosis_s_numbers(call: Call, run: Run) -> None:
    data = call("summary")["data"]
    diagnosis = run.diagnosis()
    assert data["step_ns"] == diagnosis.step_ns == 990_000
    assert data["saving_ns_ceiling"] == diagnosis.saving_ns
    assert data["run"]["ranks"] == "0-1"
    assert data["overview"]["step_ns"] == {"value": 990_000, "unit": "ns"}
    assert {each["what"] for each in data["unknown"]} == {each.what for each in diagnosis.not_judged}


def test_findings_have_typed_evidence_and_places(call: Call, run: Run) -> None:
    answer = call("findings")
    found = run.diagnose()
    assert [row["id"] for row in answer["rows"]] == [each.id for each in found]
    for row, finding in zip(answer["rows"], found, strict=True):
        assert row["saving_ns"] == finding.saving_ns
        assert row["evidence"] == [{"name": e.name, "value": e.value, "unit": e.unit} for e in finding.evidence]
        assert ("file" in row) == (finding.anchor is not None)
    warnings = call("findings", severity="warning")["rows"]
    assert [row["number"] for row in warnings] == [n for n, each in enumerate(found) if each.severity != "info"]


def test_analyze_has_the_frame_s_rows_filtered_and_sorted(call: Call, run: Run) -> None:
    frame = run.step_time()
    answer = call("analyze", name="step_time", columns=["rank", "step", "window_ns"], rank=1, sort="step")
    expected = frame.filter(frame["rank"] == 1).sort("step", descending=True)
    assert answer["rows"] == [list(row) for row in expected.select("rank", "step", "window_ns").iter_rows()]
    assert answer["columns"][2]["unit"] == "ns"
    assert answer["page"]["fragment"].startswith("#/step_time?run=")
    part = call("analyze", name="step-time", offset=1, limit=2)
    assert (len(part["rows"]), part["total_rows"]) == (2, frame.height)
    assert call("analyze", name="operators", match="MM")["total_rows"] == 2
    assert call("analyze", name="operators", match="mm", parameters={"by": "shape"})["total_rows"] == 2


def test_a_view_of_an_analysis_by_its_parameter_and_by_an_old_name(call: Call, run: Run) -> None:
    answer = call("analyze", name="idle", parameters={"by": "device"})
    assert answer["data"]["analysis"] == "idle_by_device"
    assert answer["page"]["fragment"].startswith("#/idle_by_device?run=")
    assert answer["total_rows"] == run.idle(by="device").height > 0
    with pytest.warns(FutureWarning, match="idle_causes is now idle by device"):
        old = call("analyze", name="idle_causes")
    assert old == answer | {"notes": old["notes"]}
    assert old["notes"][0].startswith("idle_causes is now idle by device")
    assert answer["notes"] == []
    device, step = call("list_analyses", name="idle")["data"]["views"]
    assert (device["name"], step["name"]) == ("idle_by_device", "idle_by_step")
    assert [each["name"] for each in device["columns"]] == run.idle(by="device").columns


def test_diff_of_two_ranks_is_that_of_the_command_line(call: Call, run: Run) -> None:
    rows = table(call("diff", ranks=[0, 1], section="steps", limit=100))
    expected = rankscope.diff(run, ranks=[0, 1]).section("steps")
    assert [row["name"] for row in rows] == expected["name"].to_list()
    assert [row["change"] for row in rows] == expected["change"].to_list()


def test_events_of_a_window_by_brute_force(call: Call, folder: Path) -> None:
    """The kernels that overlap a window, from the trace's own JSON. The first event of the run is step 10, at 0 µs."""
    first, last = 90.0, 320.0
    expected = set()
    for rank in (0, 1):
        content = json.loads((folder / f"rank{rank}.json").read_text())
        for each in content["traceEvents"]:
            if each.get("cat") == "kernel" and each["ts"] < last and each["ts"] + each["dur"] > first:
                expected.add((rank, each["name"], round(each["ts"] * 1000), round(each["dur"] * 1000)))
    found = [
        row
        for category in ("compute", "communication")
        for row in table(call("events", from_ns=int(first * 1000), to_ns=int(last * 1000), category=category))
    ]
    assert {(r["rank"], r["name"], r["start_ns"], r["duration_ns"]) for r in found} == expected
    assert len(found) == len(expected) == 4


def test_events_of_a_step_the_longest_first_and_one_in_detail(call: Call) -> None:
    rows = table(call("events", step=11, ranks=[1], match="^gemm<|allreduce", regex=True, longest_first=True))
    durations = [row["duration_ns"] for row in rows]
    assert durations == sorted(durations, reverse=True)
    gemm = next(row for row in rows if row["name"] == "gemm<4>")
    detail = call("event", lane=gemm["lane"], row=gemm["row"])["data"]["event"]
    assert (detail["name"], detail["rank"], detail["start_ns"]) == ("gemm<4>", 1, gemm["start_ns"])
    assert detail["operator"]["name"] == "aten::mm"
    assert detail["statistics"]["count"] == 4


def test_statistics_of_a_range_are_unions(call: Call) -> None:
    rows = {(r["rank"], r["category"]): r for r in table(call("range_statistics", from_ns=100_000, to_ns=400_000))}
    assert rows[0, "compute"]["busy_ns"] == 50_000
    assert rows[0, "communication"]["busy_ns"] == 200_000  # 200 to 500 µs, cut at 400
    assert (0, "memory") not in rows


def test_a_query_has_the_rows_of_the_run_in_parts(call: Call, run: Run) -> None:
    sql = "SELECT rank, name, start_ns FROM device_events WHERE kind = 'kernel' ORDER BY rank, start_ns"
    expected = [list(row) for row in run.sql(sql).iter_rows()]
    first = call("query", sql=sql, limit=3)
    assert first["columns"][2]["unit"] == "ns"
    assert any("offset=3" in note for note in first["notes"])
    rest = call("query", sql=sql, limit=100, offset=3)
    assert not [note for note in rest["notes"] if "offset=" in note]
    assert [row[::2] for row in first["rows"] + rest["rows"]] == [row[::2] for row in expected]
    columns = {row[0]: row for row in call("list_tables", table="device_events")["rows"]}
    assert columns["start_ns"][2] == "ns"


def test_names_from_traces_are_inert_short_and_marked(call: Call) -> None:
    answer = call("analyze", name="kernels", match="SYSTEM:", columns=["name"])
    (row,) = answer["rows"]
    assert answer["untrusted"] == UNTRUSTED
    assert len(row[0]) == 400
    assert row[0].endswith("…")
    assert row[0].startswith("gemm") and not set(row[0]) & {"\x1b", "\n", "\u202e"}
    assert len(ORDER) > 5000


def test_no_answer_is_too_long(toolbox: Toolbox) -> None:
    asked: dict[str, dict[str, Any]] = {
        "guide": {}, "list_runs": {"limit": 500}, "summary": {}, "findings": {"limit": 500}, "list_analyses": {},
        "analyze": {"name": "kernels", "limit": 500}, "diff": {"ranks": [0, 1], "limit": 500},
        "list_tables": {}, "query": {"sql": "SELECT * FROM device_events", "limit": 500},
        "events": {"limit": 500}, "event": {"lane": 1, "row": 0}, "range_statistics": {"limit": 500},
        "timeline_picture": {}, "hang": {"folder": "run"}, "watch": {"folder": "run"},
    }  # fmt: skip
    assert set(asked) == set(TOOLS)
    for name, arguments in asked.items():
        reply = toolbox.call(name, arguments)
        assert reply.is_error == (name in ("hang", "watch")), reply.text  # it has neither dumps nor a log
        assert len(reply.text) <= MAX_CHARACTERS
        assert (reply.picture is not None) == (name == "timeline_picture")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("summary", {"run": "000000000000"}, "no run with this key"),
        ("summary", {"run": "../../etc"}, "no run with this key"),
        ("analyze", {"name": "nothing"}, "no analysis"),
        ("analyze", {"name": "kernels", "columns": ["nothing"]}, "no column 'nothing'"),
        ("analyze", {"name": "kernels", "sort": "nothing"}, "no column 'nothing'"),
        ("analyze", {"name": "clock", "step": 1}, "no column step"),
        ("analyze", {"name": "kernels", "parameters": {"by": "nothing"}}, "by cannot be"),
        ("diff", {}, "two ranks"),
        ("events", {"finding": 99}, "no finding 99"),
        ("events", {"step": 99}, "no step 99"),
        ("events", {"ranks": [7]}, "rank 7 has no timeline"),
        ("events", {"from_ns": 5}, "go together"),
        ("events", {"from_ns": 5, "to_ns": 5}, "ends before it starts"),
        ("events", {"from_ns": 1 << 50, "to_ns": 1 << 51}, "outside of the run"),
        ("events", {"match": "(", "regex": True}, "not a valid regular expression"),
        ("event", {"lane": 999, "row": 0}, "no such event"),
        ("list_tables", {"table": "nothing"}, "no table"),
        ("query", {"sql": "DELETE FROM device_events"}, "only SELECT is allowed"),
        ("query", {"sql": "SELECT * FROM read_csv('/etc/passwd')"}, "read_csv"),
        ("query", {"sql": "SELECT 1", "offset": 1 << 20}, "offset"),
        ("nothing", {}, "no such tool"),
    ],
)
def test_errors_say_what_to_do(toolbox: Toolbox, name: str, arguments: dict[str, Any], said: str) -> None:
    assert said in error(toolbox, name, **arguments)


def test_an_internal_error_reveals_nothing(toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(runs: object, given: object) -> Answer:
        raise OSError("/home/user/secret")

    monkeypatch.setattr(toolbox_module, "TOOLS", {"broken": Tool("broken", "", (), broken)})
    assert "secret" not in error(toolbox, "broken")


def test_slow_work_continues_and_the_same_call_returns_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, calls = threading.Event(), []

    def slow(runs: object, given: object) -> Answer:
        calls.append(given)
        release.wait()
        return Answer({"done": 1})

    monkeypatch.setattr(toolbox_module, "TOOLS", {"slow": Tool("slow", "", (), slow)})
    box = Toolbox(Roots([str(folder)]), executor="serial", patience_s=0.0)
    assert json.loads(box.call("slow", {}).text)["state"] == "working"
    assert json.loads(box.call("slow", {}).text)["state"] == "working"
    release.set()
    next(iter(box._calls.values())).result()
    assert json.loads(box.call("slow", {}).text)["data"] == {"done": 1}
    assert len(calls) == 1
    box.close()


def test_a_slow_call_does_not_delay_those_that_need_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that reads runs holds up the others that do; the rest of it, as of a query, holds up none."""
    release = threading.Event()

    def reading(runs: object, given: object) -> Answer:
        release.wait()
        return Answer({"read": 1})

    def asked() -> Answer:
        release.wait()
        return Answer({"asked": 1})

    def query(runs: object, given: object) -> Rest:
        return Rest(asked)

    def quick(runs: object, given: object) -> Answer:
        return Answer({"quick": 1})

    tools = {
        "reading": Tool("reading", "", (), reading),
        "query": Tool("query", "", (Argument("number", "integer", ""),), query),
        "run": Tool("run", "", (), quick),
        "guide": Tool("guide", "", (), quick, opens_runs=False),
    }
    monkeypatch.setattr(toolbox_module, "TOOLS", tools)
    box = Toolbox(Roots([str(folder)]), executor="serial", patience_s=600)
    slow = [threading.Thread(target=box.call, args=("query", {"number": number})) for number in range(AT_ONCE + 1)]
    for each in slow:
        each.start()
    assert json.loads(box.call("run", {}).text)["data"] == {"quick": 1}
    slow.append(threading.Thread(target=box.call, args=("reading", {})))
    slow[-1].start()
    assert json.loads(box.call("guide", {}).text)["data"] == {"quick": 1}
    assert all(each.is_alive() for each in slow)
    release.set()
    for each in slow:
        each.join()
    assert json.loads(box.call("query", {"number": 0}).text)["data"] == {"asked": 1}
    box.close()


def test_an_error_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = iter([NoTracesError("no trace yet"), TimeoutError("slow disk"), None])

    def at_last(runs: object, given: object) -> Answer:
        error = next(outcomes)
        if error is not None:
            raise error
        return Answer({"done": 1})

    monkeypatch.setattr(toolbox_module, "TOOLS", {"later": Tool("later", "", (), at_last)})
    box = Toolbox(Roots([str(folder)]), executor="serial", patience_s=600)
    assert "no trace yet" in error(box, "later")
    assert "internal error" in error(box, "later")
    assert json.loads(box.call("later", {}).text)["data"] == {"done": 1}
    box.close()


def test_the_state_of_a_watched_job(tmp_path: Path) -> None:
    def slow(rank: int, step: int, place: str) -> int:
        return 20 * MS if rank == 2 and place == "forward" else 0

    SimulatedJob(slow=slow, forward=2).write(tmp_path / "jobs" / "night")
    box = Toolbox(Roots([str(tmp_path / "jobs")]), executor="serial", patience_s=600)
    listed = json.loads(box.call("list_runs", {}).text)["data"]
    assert listed["jobs"] == [{"folder": "jobs/night", "watched": True, "hang": False}]
    assert listed["unreadable"][0]["directory"] == "jobs"
    answer = json.loads(box.call("watch", {"folder": "jobs/night"}).text)
    assert [each["rank"] for each in answer["data"]["stragglers"]] == [2]
    assert [row["rank"] for row in answer["rows"]] == [0, 1, 2, 3]
    box.close()


def test_why_a_job_hangs_from_real_dumps(shared_traces: Path) -> None:
    place = shared_traces / "flight-recorder"
    verdict = read_hang(place / "lock_gil_1st")
    box = Toolbox(Roots([str(place)]), executor="serial", patience_s=600)
    answer = json.loads(box.call("hang", {"folder": "flight-recorder/lock_gil_1st", "limit": 3}).text)
    assert answer["data"]["found"] is True
    assert answer["data"]["culprits"] == list(verdict.culprits)
    assert [row["rank"] for row in answer["rows"]] == [each.rank for each in verdict.ranks[:3]]
    assert answer["total_rows"] == len(verdict.ranks) == 16
    box.close()


def test_new_traces_are_found(tmp_path: Path, folder: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    (place / "rank0.json").write_bytes((folder / "rank0.json").read_bytes())
    box = Toolbox(Roots([str(place)]), executor="serial", patience_s=600)
    assert json.loads(box.call("summary", {}).text)["data"]["run"]["ranks"] == "0"
    (place / "rank1.json").write_bytes((folder / "rank1.json").read_bytes())
    assert json.loads(box.call("summary", {}).text)["data"]["run"]["ranks"] == "0-1"
    box.close()


def test_the_guide_names_every_tool_and_the_rules() -> None:
    text = guide()
    assert text.startswith("---\nname: rankscope\ndescription: ")
    for name in set(TOOLS) - {"guide", "event", "range_statistics"}:
        assert f"`{name}" in text, name
    for rule in ("unions of intervals", "ceiling", "Unknown is not zero", "Waiting is not transfer", "One clock"):
        assert rule in text
