"""The state of a watched job: the straggler is the one that was made slow, and nobody is where nobody was."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import time

import pytest

from rankscope.answers.watch.judgment import ENOUGH_STEPS
from rankscope.answers.watch.local_times import local_times
from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.status import read_status, significance_of
from rankscope.answers.watch.status_json import as_json
from rankscope.capture.watch.log_lines import one_line
from rankscope.primitives.statistics import Significance
from rankscope.primitives.stragglers import detectors
from rankscope.primitives.stragglers.observations import Observations
from rankscope.primitives.stragglers.thresholds import Thresholds
from rankscope.rundir.manifest import RankManifest, to_json
from rankscope.rundir.processes import pid_namespace
from rankscope.show.report.formatting import number_of
from rankscope.show.report.watch import straggler_sentence, watch_view

from .jobs import MS, START, SimulatedJob


def status_of(folder, job, **options):
    job.write(folder, **options)
    return read_status(folder, WatchLogs(folder))


def shown(status):
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(watch_view(status))
    return console.export_text()


@pytest.mark.parametrize("place", ["loading", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_slow_rank_is_named_with_its_phase_and_since_when(tmp_path, place, ranks):
    culprit = ranks // 2

    def slow(rank, step, at):
        return 12 * MS if rank == culprit and at == place and step >= 40 else 0

    status = status_of(tmp_path, SimulatedJob(ranks=ranks, steps=200, slow=slow))
    assert significance_of(status) is Significance.SIGNIFICANT
    (late,) = status.late_ranks
    assert late.rank == culprit
    assert late.found.excess_ns == pytest.approx(12 * MS, rel=0.1)
    assert late.phase == {"loading": "data loading"}.get(place, place)
    assert late.since_step == pytest.approx(40, abs=1)
    assert status.step_time.change.verdict.significant
    assert status.step_time.changed_at == pytest.approx(40, abs=1)
    assert status.last_arrivals[0].rank == culprit
    assert status.last_arrivals[0].late_ns == pytest.approx(12 * MS, rel=0.2)
    assert straggler_sentence(late) in shown(status).replace("\n", " ")


@pytest.mark.parametrize(("forward", "phase"), [(0, "loading or forward"), (4, "loading, forward and backward")])
def test_loading_that_is_not_a_data_loader_s_is_not_called_forward(tmp_path, forward, phase):
    def slow(rank, _step, place):
        return 12 * MS if rank == 1 and place == "loading" else 0

    status = status_of(tmp_path, SimulatedJob(steps=80, forward=forward, slow=slow, loader=False))
    (late,) = status.late_ranks
    assert (late.rank, late.phase) == (1, phase)


HOUR = 3600 * 10**9


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("by", [-HOUR, -50 * MS, HOUR])
@pytest.mark.parametrize("hosts", [("a", "a"), ("a", "b")])
def test_a_clock_that_is_set_changes_nobody_s_verdict(tmp_path, hosts, by, late):
    def slow(rank, _step, place):
        return 12 * MS if late and (rank, place) == (1, "loading") else 0

    ranks = tuple(rank for rank, host in enumerate(hosts) if host == hosts[1])
    job = SimulatedJob(ranks=2, steps=160, slow=slow, clock_set=(100, by, ranks))
    status = status_of(tmp_path, job, hosts=hosts)
    assert not status.unknown
    assert [each.rank for each in status.late_ranks] == [1] * late
    assert all(each.damaged == 0 for each in status.ranks)
    assert status.last_arrivals[0].late_ns < 20 * MS
    assert status.step_time.steps == 100


def test_a_phase_has_no_more_of_a_delay_than_all_of_it(tmp_path):
    def slow(rank, _step, place):
        return {"loading": 20 * MS, "optimizer": -3 * MS}.get(place, 0) if rank == 1 else 0

    (late,) = status_of(tmp_path, SimulatedJob(steps=80, noise=0, slow=slow)).late_ranks
    assert (late.rank, late.phase) == (1, "data loading")
    assert late.phase_ns == late.found.excess_ns == pytest.approx(17 * MS, rel=0.05)
    assert " per step, all of it in data loading" in straggler_sentence(late)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_nobody_is_named_where_nobody_is_slow(tmp_path, ranks, seed):
    status = status_of(tmp_path, SimulatedJob(ranks=ranks, steps=150, seed=seed))
    assert status.late_ranks == ()
    assert significance_of(status) is Significance.NOT_SIGNIFICANT
    assert "No rank delays the others by more than" in shown(status)


@pytest.mark.parametrize("delay", [0, 20 * MS])
@pytest.mark.parametrize("steps", [4, ENOUGH_STEPS])
def test_a_few_steps_do_not_tell(tmp_path, steps, delay):
    def slow(rank, _step, place):
        return delay if (rank, place) == (1, "loading") else 0

    status = status_of(tmp_path, SimulatedJob(ranks=2, steps=steps, slow=slow))
    assert status.late_ranks == ()
    assert significance_of(status) is Significance.TOO_FEW
    assert f"too few steps to tell ({steps - 1} steps)" in shown(status)


def test_times_that_vary_are_the_reason_where_there_are_steps_enough(tmp_path):
    status = status_of(tmp_path, SimulatedJob(ranks=2, steps=20, noise=60 * MS))
    assert significance_of(status) is Significance.TOO_FEW
    assert status.least_delay_ns > 0.2 * status.step_time.median_ns
    text = " ".join(shown(status).split())
    assert "too few" not in text
    assert "the times vary so much that in 19 steps only a delay above" in text


def late_backward(rank, step, place):
    return 15 * MS if rank == 1 and place == "backward" and step >= 150 else 0


def test_a_straggler_is_named_from_the_steps_that_were_read(tmp_path):
    # The ranks read 100 calls of each 400, the second one a little later.
    job = SimulatedJob(ranks=2, steps=400, forward=1, slow=late_backward)
    job.write(tmp_path, unread=lambda rank, number: not 5 * rank <= number % 400 < 100 + 5 * rank)
    status = read_status(tmp_path, WatchLogs(tmp_path), judged_steps=40)
    (late,) = status.late_ranks
    assert (late.rank, late.since_step) == (1, 150)  # which is in a gap: the duration of steps says it
    assert late.found.excess_ns == pytest.approx(15 * MS, rel=0.1)
    assert "collectives were not read" in shown(status)


@pytest.mark.parametrize("why", ["unread", "none"])
def test_without_the_backward_pass_no_rank_is_ruled_out(tmp_path, why):
    job = SimulatedJob(ranks=2, steps=200, forward=1, slow=late_backward)
    # Of each step, one of four is missing.
    status = status_of(tmp_path, job, unread=lambda _rank, number: why == "none" or number % 4 == 1)
    assert (status.late_ranks, status.verdicts) == ((), {})
    reason = "more collectives than can be read" if why == "unread" else "the log has no collectives"
    assert reason in status.unknown
    text = " ".join(shown(status).split())
    assert "Straggler: unknown." in text
    assert "record a window: rankscope trigger" in text


def test_a_loader_that_is_late_is_named_without_collectives(tmp_path):
    def slow(rank, _step, place):
        return 15 * MS if rank == 1 and place == "loading" else 0

    status = status_of(tmp_path, SimulatedJob(ranks=2, steps=200, slow=slow), unread=lambda _rank, _number: True)
    assert [late.rank for late in status.late_ranks] == [1]
    assert not status.unknown


def test_where_waiting_cannot_be_told_from_work_only_loading_identifies_a_rank(tmp_path):
    def slow(rank, step, place):
        late = {"optimizer": 15 * MS, "loading": 15 * MS if step == 60 else 0}
        return late.get(place, 0) if rank == 1 else 0

    status = status_of(tmp_path, SimulatedJob(ranks=2, steps=120, slow=slow), unread=lambda _rank, _number: True)
    assert (status.late_ranks, status.verdicts) == ((), {})
    assert "only data loading was compared" in status.unknown


def test_ranks_that_call_no_collectives_do_not_delay_each_other(tmp_path):
    def slow(rank, _step, place):
        return 15 * MS if rank == 1 and place == "loading" else 0

    SimulatedJob(ranks=2, steps=200, slow=slow).write(tmp_path, unread=lambda _rank, _number: True)
    for path in (tmp_path / "watch").iterdir():
        path.write_text(path.read_text().replace('"has_all_calls":false', '"has_all_calls":true'))
    status = read_status(tmp_path, WatchLogs(tmp_path))
    assert (status.late_ranks, status.verdicts) == ((), {})
    assert "if the job calls none, no rank waits" in status.unknown
    assert "only data loading is compared" not in shown(status)


@pytest.mark.parametrize(("steps", "at", "said"), [(60, 2, False), (60, 40, True)])
def test_a_stall_needs_steps_to_compare_with(tmp_path, steps, at, said):
    def slow(rank, step, place):
        return 60 * MS if (rank, step, place) == (1, at, "forward") else 0

    status = status_of(tmp_path, SimulatedJob(ranks=2, steps=steps, noise=2 * MS, slow=slow))
    assert [(late.rank, late.since_step) for late in status.late_ranks] == ([(1, at)] if said else [])
    if said:
        (late,) = status.late_ranks
        text = " ".join(shown(status).split())
        assert f"Rank 1 stalled once in {steps - 1} steps" in text
        assert f"for {number_of(late.found.excess_ns * late.found.compared, 'ns')} in step {at}, " in text
        assert " of it in forward" in text
        assert late.found.excess_ns * late.found.compared == pytest.approx(60 * MS, rel=0.1)
        assert late.phase_ns == pytest.approx(late.found.excess_ns, rel=0.1)


def test_of_some_late_steps_the_phase_has_its_part_of_the_mean(tmp_path):
    def slow(rank, step, place):
        return 40 * MS if rank == 1 and place == "loading" and step % 5 == 0 else 0

    (late,) = status_of(tmp_path, SimulatedJob(steps=101, slow=slow)).late_ranks
    assert (late.rank, late.phase, late.found.lasting) == (1, "data loading", False)
    assert late.found.excess_ns == pytest.approx(8 * MS, rel=0.1)
    assert late.phase_ns == pytest.approx(late.found.excess_ns, rel=0.1)


def interrupted(folder, states, **fields):
    """The manifests of a job that has failed, and the rest of its header."""
    (folder / "ranks").mkdir(exist_ok=True)
    for rank, state in enumerate(states):
        manifest = RankManifest(run_id="one", rank=rank, pid=fields.get("pid", rank + 1), state=state)
        (folder / "ranks" / f"rank{rank}.json").write_bytes(to_json(manifest))
        path = folder / "watch" / f"rank{rank}.jsonl"
        head, _, rest = path.read_text().partition("\n")
        path.write_text(json.dumps({**json.loads(head), **fields}) + "\n" + rest)


def state_of(folder, now=None):
    status = read_status(folder, WatchLogs(folder), now=now)
    assert as_json(status)["restarting"] is (status.state == "restarting")
    return status.state


def test_a_job_that_torchrun_starts_again_has_not_ended(tmp_path):
    SimulatedJob(ranks=2).write(tmp_path)
    later = time.time() + 3600
    interrupted(tmp_path, ["interrupted", "interrupted"], max_restarts=1)
    assert [state_of(tmp_path), state_of(tmp_path, later)] == ["restarting", "ended"]
    interrupted(tmp_path, ["interrupted", "interrupted"], max_restarts=0)
    assert state_of(tmp_path) == "ended"
    interrupted(tmp_path, ["finished", "finished"], max_restarts=1)
    assert state_of(tmp_path) == "ended"


@pytest.mark.skipif(not pid_namespace(), reason="processes of other namespaces could have the same number")
def test_a_job_restarts_as_long_as_its_agent_lives(tmp_path):
    SimulatedJob(ranks=2).write(tmp_path)
    here = {"host": socket.gethostname(), "pid_namespace": pid_namespace()}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as agent:
        # A process that is gone: otherwise its number may be another one's here.
        here["pid"] = agent.pid
        interrupted(tmp_path, ["interrupted", "finished"], max_restarts=1, agent_pid=agent.pid, **here)
        assert state_of(tmp_path, time.time() + 3600) == "restarting"
        # All have called sys.exit(1), which their manifests do not say.
        interrupted(tmp_path, ["finished", "finished"], max_restarts=1, agent_pid=agent.pid, **here)
        assert state_of(tmp_path) == "restarting"
        agent.communicate(b"\n")
    assert state_of(tmp_path) == "ended"


def test_a_later_job_in_the_directory_of_an_elastic_one_is_shown(tmp_path):
    SimulatedJob(ranks=2, steps=5).write(tmp_path, restart=2)
    SimulatedJob(ranks=2, steps=9).write(tmp_path)
    for path in (tmp_path / "watch").glob("rank?.jsonl"):
        text = path.read_text().replace('"run_id":"one"', '"run_id":"two"')
        path.write_text(text.replace(f'"began_ns":{START}', f'"began_ns":{START + 9}'))
    status = read_status(tmp_path, WatchLogs(tmp_path))
    assert (status.run_id, [each.last_step for each in status.ranks]) == ("two", [8, 8])


def test_a_long_step_names_the_rank_that_was_busy(tmp_path):
    def slow(rank, step, place):
        return 300 * MS if (rank, step, place) == (3, 70, "forward") else 0

    status = status_of(tmp_path, SimulatedJob(steps=150, slow=slow))
    (long,) = status.long_steps
    assert (long.step, long.rank) == (70, 3)
    assert long.excess_ns == pytest.approx(300 * MS, rel=0.05)


def test_a_step_that_was_long_on_all_ranks_names_none(tmp_path):
    def slow(_rank, step, place):
        return 300 * MS if (step, place) == (70, "optimizer") else 0

    status = status_of(tmp_path, SimulatedJob(steps=150, slow=slow))
    assert [(long.step, long.rank) for long in status.long_steps] == [(70, None)]


@pytest.mark.parametrize("every", [1, 30])
def test_pipeline_stages_are_not_compared(tmp_path, every):
    """Whoever waits for the stage before would look busy; a few sends are no pipeline."""
    job = SimulatedJob(slow=lambda rank, _step, place: 12 * MS if (rank, place) == (1, "forward") else 0)
    rows = job.run()[0]
    job.write(tmp_path)
    for rank, path in enumerate(sorted((tmp_path / "watch").iterdir())):
        sends = [[99, 0, (row.began - START) // 1000] for row in rows[rank][::every]]
        kind = {"kind": 99, "group": "0", "op": "send", "dtype": "float32", "bytes": 8}
        with path.open("a") as file:
            file.write(json.dumps(kind) + "\n")
        # Sorted in, as a reading has all calls of a time.
        lines = path.read_text().splitlines()
        calls = [json.loads(line) for line in lines if '"calls"' in line]
        every_call = sends + [
            [number, sequence, us + (line["base_ns"] - START) // 1000]
            for line in calls
            for number, sequence, us in line["calls"]
        ]
        merged = {"calls": sorted(every_call, key=lambda call: call[2]), "base_ns": START}
        kept = [line for line in lines if '"calls"' not in line]
        path.write_text("\n".join([*kept, json.dumps(merged)]) + "\n")
    status = read_status(tmp_path, WatchLogs(tmp_path))
    assert [late.rank for late in status.late_ranks] == ([] if every == 1 else [1])
    assert ("send to each other" in status.unknown) == (every == 1)


@pytest.mark.parametrize(
    ("device", "steps"), [("XPU", '"step"'), ("CUDA", '"device_unknown":true,"step"'), ("CUDA", '"step"')]
)
def test_an_accelerator_has_no_verdict_unless_the_job_runs_on_the_cpu(tmp_path, device, steps):
    SimulatedJob().write(tmp_path)
    for path in (tmp_path / "watch").iterdir():
        text = path.read_text().replace('"device":null', f'"device":"{device}"')
        path.write_text(text.replace('"step"', steps))
    status = read_status(tmp_path, WatchLogs(tmp_path))
    if (device, steps) == ("CUDA", '"step"'):
        assert not status.unknown
        return
    assert status.late_ranks == ()
    assert "no times of the devices" in status.unknown
    assert "Straggler: unknown" in shown(status)


def test_ranks_that_are_missing_silent_or_ended_are_named(tmp_path):
    SimulatedJob(ranks=4).write(tmp_path)
    (tmp_path / "watch" / "rank3.jsonl").unlink()
    (tmp_path / "ranks").mkdir()
    for rank, state in ((0, "finished"), (1, "interrupted")):
        manifest = RankManifest(run_id="one", rank=rank, world_size=4, pid=rank + 1, state=state)
        (tmp_path / "ranks" / f"rank{rank}.json").write_bytes(to_json(manifest))
    logs = WatchLogs(tmp_path)
    grew = logs.latest()[2].grew_at
    assert [each.state for each in read_status(tmp_path, logs, now=grew + 1).ranks] == [
        "finished", "interrupted", "running",
    ]  # fmt: skip
    status = read_status(tmp_path, logs, now=grew + 1000)
    assert [each.state for each in status.ranks] == ["finished", "interrupted", "silent"]
    assert status.running
    text = " ".join(status.warnings)
    assert "3 of 4 ranks have a log" in text
    assert "ranks 2 have not logged" in text or "rank 2 has not logged" in text


def test_an_interrupted_job_may_start_again(tmp_path):
    SimulatedJob(ranks=2).write(tmp_path)
    (tmp_path / "ranks").mkdir()
    for rank, state in ((0, "finished"), (1, "interrupted")):
        manifest = RankManifest(run_id="one", rank=rank, world_size=2, pid=rank + 1, state=state)
        (tmp_path / "ranks" / f"rank{rank}.json").write_bytes(to_json(manifest))
    logs = WatchLogs(tmp_path)
    grew = logs.latest()[1].grew_at
    states = [read_status(tmp_path, logs, now=grew + seconds) for seconds in (5, 60)]
    assert [(each.running, each.ended) for each in states] == [(False, False), (False, True)]


def test_as_json(tmp_path):
    def slow(rank, _step, place):
        return 20 * MS if rank == 1 and place == "loading" else 0

    status = status_of(tmp_path, SimulatedJob(slow=slow, steps=100))
    found = json.loads(json.dumps(as_json(status)))
    assert found["schema_version"] == 1
    (straggler,) = found["stragglers"]
    assert (straggler["rank"], straggler["cause"], straggler["phase"]) == (1, "data_loading", "data loading")
    assert straggler["significance"] == "significant"
    assert found["verdicts"]["1"] == "significant"
    assert found["last_arrivals"][0]["rank"] == 1


def test_untrusted_text_is_escaped(tmp_path):
    SimulatedJob().write(tmp_path)
    with (tmp_path / "watch" / "rank0.jsonl").open("a") as file:
        file.write(one_line({"note": "\x1b[31mred\x07"}) + "\n")
    text = shown(read_status(tmp_path, WatchLogs(tmp_path)))
    assert "red" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("late", [0, 12 * MS])
def test_among_many_ranks_the_least_delay_is_as_among_few(tmp_path, monkeypatch, late):
    def slow(rank, _step, place):
        return late if rank == 3 and place == "forward" else 0

    SimulatedJob(ranks=24, steps=40, slow=slow).write(tmp_path)
    times = local_times(WatchLogs(tmp_path).latest(), 40)
    seen = Observations.of({"operators": times.local_ns}, 60.0 * MS, on_host=True)
    exact = detectors.detectable(seen, Thresholds())
    monkeypatch.setattr(detectors, "MANY_RANKS", 8)
    assert detectors.detectable(seen, Thresholds()) == pytest.approx(exact, rel=0.1)


def test_no_straggler_is_ruled_out_where_waits_cannot_be_told(tmp_path):
    def slow(rank, _step, place):
        return 3 * MS if (rank, place) == (1, "forward") else 0

    status = status_of(tmp_path, SimulatedJob(ranks=2, noise=0, forward=4, buckets=1, slow=slow))
    assert status.late_ranks == ()
    assert status.verdicts == {}
    assert "rankscope trigger" in status.unknown
    assert "No rank delays" not in shown(status)


@pytest.mark.parametrize(("delay", "named"), [(2, False), (8, True)])
def test_cores_of_one_machine_differ(tmp_path, delay, named):
    """A rank whose step is 3 % longer throughout is on another core; one with 14 % more is late."""

    def slow(rank, _step, place):
        return delay * MS if (rank, place) == (1, "backward") else 0

    status = status_of(tmp_path, SimulatedJob(ranks=2, steps=80, noise=MS // 5, slow=slow))
    assert [each.rank for each in status.late_ranks] == [1] * named
    if not named:
        assert significance_of(status) is Significance.NOT_SIGNIFICANT
        assert status.least_delay_ns == pytest.approx(0.06 * status.step_time.median_ns, rel=0.05)


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ((15, 25, 45, 55), True),  # every tenth, two of which were not judged
        ((15, 24, 47, 58), False),  # four of two ranks may be chance
        (tuple(range(3, 60, 5)), True),
    ],
)
def test_an_evaluation_of_one_rank(tmp_path, steps, named):
    """Long steps make the times vary so much that no mean stands out: they are of one rank, in a rhythm."""

    def slow(rank, step, place):
        return 250 * MS if (rank, place) == (0, "optimizer") and step in steps else 0

    status = status_of(tmp_path, SimulatedJob(ranks=2, steps=60, slow=slow))
    assert [each.rank for each in status.late_ranks] == [0] * named
    for late in status.late_ranks:
        assert not late.found.lasting
        assert len(late.found.steps) == len(steps)
        assert late.found.excess_ns == pytest.approx(250 * MS * len(steps) / late.found.compared, rel=0.1)
