"""The numbers of a watched job: against the truth of a simulated one, the documentation, and the dashboard."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from tests.answers.watch.jobs import MS, SimulatedJob

from rankscope.cli import main
from rankscope.rundir.hang_dump import DUMP_FORMAT, HEARTBEAT_FORMAT, Frame, HangDump, Heartbeat, ThreadStack
from rankscope.show.monitor.job import WatchedJob
from rankscope.show.monitor.numbers import METRICS, PREFIX, numbers_of

ROOT = Path(__file__).parents[3]


def values(run, steps=60):
    return {(each.name, *each.labels.values()): each.value for each in numbers_of(WatchedJob(run, steps).read())}


def slow_rank(rank, _step, place):
    return 40 * MS if rank == 2 and place == "backward" else 0


@pytest.fixture
def run(tmp_path):
    SimulatedJob(slow=slow_rank).write(tmp_path)
    return tmp_path


def test_the_numbers_of_a_job_with_a_slow_rank(tmp_path):
    local = SimulatedJob(slow=slow_rank).write(tmp_path)
    found = values(tmp_path)
    assert [found["straggler", str(rank)] for rank in range(4)] == [0, 0, 1, 0]
    assert found["straggler_excess_seconds", "2"] == pytest.approx(0.040, abs=0.002)
    for rank in range(4):
        # The first step has no collective before it.
        truth = float(np.median(local[rank][1:])) / 1e9
        assert found["rank_local_seconds", str(rank)] == pytest.approx(truth, abs=0.001)
    # Everyone waits for rank 2, which waits for nobody.
    assert found["rank_waiting_seconds", "0"] == pytest.approx(0.040, abs=0.003)
    assert found["rank_waiting_seconds", "2"] < 0.002
    # 2 + 20 + 30 + 5 ms of a rank's own, and 40.
    assert found["job_step_seconds",] == pytest.approx(0.097, abs=0.002)
    assert found["job_step",] == found["rank_step", "3"] == 59
    assert found["last_arrival_share", "0", "2"] > 0.9
    assert (found["job_running",], found["job_attempts",], found["hang",]) == (1, 1, 0)
    assert found["rank_state", "0", "running"] == 1


def test_a_stall_of_a_late_rank_does_not_hide_by_how_much_it_is_late(tmp_path):
    def slow(rank, step, place):
        return slow_rank(rank, step, place) + (400 * MS if (rank, step, place) == (2, 40, "forward") else 0)

    SimulatedJob(slow=slow).write(tmp_path)
    status = WatchedJob(tmp_path, 60).read().status
    assert [(each.rank, each.found.once) for each in status.late_ranks] == [(2, False), (2, True)]
    assert values(tmp_path)["straggler_excess_seconds", "2"] > 0.03


def test_a_stall_is_no_straggler(tmp_path):
    def slow(rank, step, place):
        return 400 * MS if (rank, step, place) == (2, 40, "forward") else 0

    SimulatedJob(slow=slow).write(tmp_path)
    found = values(tmp_path)
    assert not any(found.get(("straggler", str(rank))) for rank in range(4))
    assert found["stall_seconds", "2"] == pytest.approx(0.4, rel=0.1)
    assert ("straggler_excess_seconds", "2") not in found


def test_from_too_few_steps_it_is_not_said_who_is_a_straggler(tmp_path):
    SimulatedJob(steps=6).write(tmp_path)
    assert not [name for name, *_ in values(tmp_path) if name == "straggler"]


def test_every_number_is_described_and_has_its_labels(run):
    described = {each.name: each.labels for each in METRICS}
    numbers = numbers_of(WatchedJob(run).read())
    assert {each.name for each in numbers} <= set(described)
    assert all(tuple(each.labels) == described[each.name] for each in numbers)


def hang(folder, rank, at_ns, cause="time.sleep(9)"):
    (folder / "hang").mkdir(exist_ok=True)
    stack = ThreadStack((Frame("/job/train.py", 19, "main", cause),), "MainThread", 1, training=True)
    dump = HangDump(
        DUMP_FORMAT, rank, time_ns=at_ns, world_size=4, reason="no step for 300 s", threads=(stack,), began_ns=1
    )
    (folder / "hang" / f"rank{rank}.json").write_text(dump.to_json())
    beat = Heartbeat(HEARTBEAT_FORMAT, rank, time_ns=at_ns, interval_ns=10**10, world_size=4, began_ns=1)
    (folder / "hang" / f"rank{rank}.heartbeat.json").write_text(beat.to_json())


def test_a_hang_lasts_until_its_ranks_have_made_a_step(run):
    job = WatchedJob(run)
    last = max(log.steps[-1].start_ns + log.steps[-1].ns for log in job.logs.latest().values())
    hang(run, 1, last + 10**9)
    state = job.read()
    found = {(each.name, *each.labels.values()): each.value for each in numbers_of(state)}
    assert (state.hangs, found["hang",], found["hang_culprit", "1", "python_code"]) == (True, 1, 1)
    with (run / "watch" / "rank1.jsonl").open("a") as file:
        file.write(f'{{"step":60,"start_ns":{last + 2 * 10**9},"ns":1000}}\n')
    state = job.read()
    assert not state.hangs
    assert state.verdict.culprits == (1,)  # what was found remains known


def test_a_job_that_has_ended_does_not_hang(run):
    hang(run, 2, at_ns=2**62)
    assert values(run)["hang",] == 1
    (run / "ranks").mkdir()
    for rank in range(4):
        manifest = {"run_id": "one", "rank": rank, "pid": rank + 1, "state": "interrupted"}
        (run / "ranks" / f"rank{rank}.json").write_text(json.dumps(manifest))
    assert values(run)["hang",] == 0


def test_the_documentation_has_each_metric_as_it_is_in_the_code():
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(rankscope_\w+)` \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    expected = [(PREFIX + each.name, ", ".join(f"`{label}`" for label in each.labels), each.help) for each in METRICS]
    assert rows == expected


def test_the_dashboard_uses_metrics_and_labels_that_exist():
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    labels = {PREFIX + each.name: set(each.labels) for each in METRICS}
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(targets) >= 8
    used = set()
    for target in targets:
        names = set(re.findall(r"rankscope_\w+", target["expr"]))
        assert names <= set(labels), target
        used |= names
        wanted = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
        wanted |= {
            label for inside in re.findall(r"\{([^}]*)\}", target["expr"]) for label in re.findall(r"(\w+)\s*=", inside)
        }
        assert wanted - {"instance", "job"} <= set().union(*(labels[name] for name in names)), target
    assert {
        "rankscope_job_step_seconds",
        "rankscope_rank_waiting_seconds",
        "rankscope_straggler",
        "rankscope_stall_seconds",
        "rankscope_hang",
    } <= used
    state = next(panel for panel in dashboard["panels"] if panel["title"] == "Job")
    assert set(re.findall(r"rankscope_\w+", state["targets"][0]["expr"])) == {
        "rankscope_job_running",
        "rankscope_job_restarting",
    }
    shown = state["fieldConfig"]["defaults"]["mappings"][0]["options"]
    assert {value: each["text"] for value, each in shown.items()} == {"0": "ended", "1": "running", "2": "restarting"}
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert not any(
        x < x2 + w2 and x2 < x + w and y < y2 + h2 and y2 < y + h
        for (x, y, w, h), (x2, y2, w2, h2) in combinations(places, 2)
    )
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_terminal_shows_a_hang(run, capfd, monkeypatch):
    job = WatchedJob(run)
    last = max(log.steps[-1].start_ns + log.steps[-1].ns for log in job.logs.latest().values())
    hang(run, 1, last + 10**9)
    monkeypatch.setattr("sys.argv", ["rankscope", "watch", str(run), "--once"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    shown = " ".join(capfd.readouterr().out.split())
    assert f"Hangs: {job.read().verdict.summary}" in shown
