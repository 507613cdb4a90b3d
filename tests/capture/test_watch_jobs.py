"""Watched jobs of two ranks: the same losses, windows on request and after slow steps, and every end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.status import read_status
from rankscope.rundir.manifest import read_rank_manifest

from .conftest import clean_environ, traces
from .two_ranks import TIMEOUT_S, end_when_the_test_ends, finish, rankscope, start

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux")]

JOB = """
import gc, os, signal, sys, time
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
{before}
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.001)
step = 0
while True:
    time.sleep(0.02)
    {inside}
    optimizer.zero_grad()
    loss = model(torch.full((2, 8), 1.0 + rank + step % 7)).square().sum()
    loss.backward()
    optimizer.step()
    if step < 40:
        print(loss.item().hex(), flush=True)
    step += 1
    ends = torch.tensor([float(os.path.exists("stop") or step >= {steps})])
    dist.all_reduce(ends)
    if ends.item():
        break
del model; gc.collect(); dist.destroy_process_group()
"""
WATCH = {"RANKSCOPE_WAIT": "4", "RANKSCOPE_WARMUP": "1", "RANKSCOPE_ACTIVE": "2"}
BY_REQUEST = {**WATCH, "RANKSCOPE_WATCH_SIGNAL": "1"}


def job(*, before="", inside="", steps=10**9):
    return JOB.format(before=before, inside=inside, steps=steps)


def wait_for(condition, jobs=()):
    until = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < until, "it took too long"
        assert all(each.poll() is None for each in jobs), [each.communicate() for each in jobs if each.poll()]
        time.sleep(0.1)
    return found


def logged(folder, rank, step):
    """Whether a rank has logged a step."""
    path = folder / "run" / "watch" / f"rank{rank}.jsonl"
    return path.exists() and any(json.loads(line).get("step", -1) >= step for line in whole_lines(path))


def whole_lines(path):
    return path.read_bytes().rpartition(b"\n")[0].splitlines()


def notes(folder):
    return [
        note
        for path in sorted((folder / "run" / "watch").glob("*.jsonl"))
        for line in whole_lines(path)
        if (note := json.loads(line).get("note"))
    ]


def recorded(folder, rank):
    """The windows that a rank has written."""
    manifest = read_rank_manifest(folder / "run" / "ranks" / f"rank{rank}.json")
    return [(each.first_step, each.last_step) for each in manifest.written] if manifest is not None else []


def stop(folder, jobs):
    (folder / "stop").touch()
    ended = finish(jobs)
    assert [each.code for each in ended] == [0, 0], ended[0].errors[-3000:] + ended[1].errors[-3000:]
    return ended


def test_losses_are_the_same_and_steps_are_logged(tmp_path):
    plain = finish(start(job(steps=40), tmp_path / "plain", profiled=False))
    watched = finish(start(job(steps=40), tmp_path / "watched", **WATCH))
    assert [each.losses for each in watched] == [each.losses for each in plain]
    assert len(plain[0].losses) == 40
    logs = WatchLogs(tmp_path / "watched" / "run").latest()
    assert list(logs) == [0, 1]
    for log in logs.values():
        steps = [line.step for line in log.steps]
        assert steps[-1] == 39
        assert all(line.backward_ns and line.forward_ns and line.optimizer_ns for line in log.steps if line.step > 1)
        assert log.damaged == 0
        # Three buckets or one: DDP's all-reduce, and that of the end of the loop.
        if log.calls:
            assert {call.kind.op for call in log.calls} >= {"allreduce"}
            assert log.groups["0"] == (0, 1)
    assert len(traces(tmp_path / "watched" / "run")) == 2  # the schedule's window


def trigger(folder, *arguments):
    """`rankscope trigger` that runs."""
    return end_when_the_test_ends(
        subprocess.Popen(
            [sys.executable, "-m", "rankscope", "trigger", "run", *arguments],
            cwd=folder,
            env=clean_environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )


RECORDED = re.compile(r"steps (\d+) to (\d+) were recorded on ranks? (.+)")


def test_requests_from_another_terminal_and_by_signal(tmp_path):
    jobs = start(job(), tmp_path, **BY_REQUEST)
    wait_for(lambda: logged(tmp_path, 0, 20) and logged(tmp_path, 1, 20), jobs)
    several = [trigger(tmp_path, "--steps", str(steps)) for steps in (3, 4)]
    # What was promised is kept: each ends when its steps are recorded on both ranks, later ones if need be.
    texts = [each.communicate(timeout=TIMEOUT_S) for each in several]
    assert [each.returncode for each in several] == [0, 0], texts
    found = [RECORDED.search(output) for output, _ in texts]
    assert [each[3] for each in found] == ["0-1", "0-1"]
    asked = sorted((int(each[1]), int(each[2])) for each in found)
    assert sorted(last - first + 1 for first, last in asked) == [3, 4]
    assert recorded(tmp_path, 0) == recorded(tmp_path, 1)
    assert recorded(tmp_path, 0)[1:] == asked

    one = rankscope(tmp_path, "trigger", "run", "--steps", "1", "--ranks", "1")
    assert one.returncode == 0, one.stderr
    assert RECORDED.search(one.stdout)[3] == "1"
    assert (len(recorded(tmp_path, 0)), len(recorded(tmp_path, 1))) == (3, 4)
    assert list((tmp_path / "run" / "watch" / "requests").iterdir()) == []

    jobs[1].send_signal(signal.SIGUSR2)
    wait_for(lambda: len(recorded(tmp_path, 0)) == 4 and len(recorded(tmp_path, 1)) == 5, jobs)
    assert recorded(tmp_path, 0)[-1] == recorded(tmp_path, 1)[-1]
    assert any("SIGUSR2 reached rank 1" in note for note in notes(tmp_path))
    stop(tmp_path, jobs)
    late = rankscope(tmp_path, "trigger", "run")
    assert late.returncode == 2
    assert "this job has ended" in late.stderr


OWN_PROFILER = """
    if (rank == 0 or {everywhere}) and step == 5:
        profiler = torch.profiler.profile()
        profiler.start()
    if step > 5 and os.path.exists("end_theirs") and 'profiler' in globals():
        profiler.stop()
        del profiler
"""


@pytest.mark.parametrize("everywhere", [True, False], ids=["on all ranks", "on one rank"])
def test_requests_wait_for_the_end_of_a_script_profiler(tmp_path, everywhere):
    inside = OWN_PROFILER.format(everywhere=everywhere).strip()
    jobs = start(job(inside=inside), tmp_path, **BY_REQUEST)
    try:
        wait_for(lambda: logged(tmp_path, 0, 20) and logged(tmp_path, 1, 20), jobs)
        early = rankscope(tmp_path, "trigger", "run", "--steps", "2", "--timeout", "5")
        assert early.returncode == 1, early.stderr
        assert "once the script's own profiler has ended" in early.stderr
        assert "warning: torch.profiler.profile, job.py:" in early.stderr
        (tmp_path / "end_theirs").touch()
        wait_for(lambda: [len(recorded(tmp_path, rank)) for rank in (0, 1)] == [2, 1 + everywhere], jobs)
        late = rankscope(tmp_path, "trigger", "run", "--steps", "3")
        assert late.returncode == 0, late.stderr
        assert "the script has a profiler of its own (torch.profiler.profile, job.py:" in late.stderr
        wait_for(lambda: [len(recorded(tmp_path, rank)) for rank in (0, 1)] == [3, 2 + everywhere], jobs)
    finally:
        (tmp_path / "stop").touch()
    stop(tmp_path, jobs)
    requested = recorded(tmp_path, 1)[-2:]
    assert recorded(tmp_path, 0)[-2:] == requested
    assert [last - first + 1 for first, last in requested] == [2, 3]
    assert f"steps {requested[1][0]} to {requested[1][1]} will be recorded" in late.stdout


FAULT = "time.sleep(0.4) if rank == 1 and step >= 90 else None"


def with_a_slow_rank(folder):
    """The state of a job, from its logs, after a rank was slow for 40 steps and a window was recorded since."""
    jobs = start(job(inside=FAULT), folder, **WATCH, RANKSCOPE_WATCH_WINDOWS="10", RANKSCOPE_WATCH_PAUSE="0")
    wait_for(lambda: [each for each in recorded(folder, 0) if each[0] > 90] and logged(folder, 1, 130), jobs)
    stop(folder, jobs)
    logs = WatchLogs(folder / "run")
    if not logs.latest()[0].calls:
        pytest.skip("this torch's flight recorder has nothing of gloo")
    return read_status(folder / "run", logs, 30)


def dropped(folder):
    """The windows that no rank is to have, as any of them notes."""
    manifests = [read_rank_manifest(folder / "run" / "ranks" / f"rank{rank}.json") for rank in range(2)]
    return {each.first_step for manifest in manifests for each in manifest.skipped}


def test_a_slow_rank_makes_all_ranks_record_and_is_named_without_a_trace(tmp_path):
    status = with_a_slow_rank(tmp_path)
    windows = [
        [each for each in recorded(tmp_path, rank) if each[0] > 90 and each[0] not in dropped(tmp_path)]
        for rank in range(2)
    ]
    assert windows[0]
    assert windows[0] == windows[1]
    assert any("times the median" in note for note in notes(tmp_path))
    # A busy machine may delay the other rank too, but not by as much.
    assert status.late_ranks[0].rank == 1
    assert status.late_ranks[0].found.lasting
    assert status.last_arrivals[0].rank == 1


@pytest.mark.timing  # how long, where and since when: compares durations of a real job
def test_a_slow_rank_is_late_by_as_much_as_it_sleeps(tmp_path):
    late = with_a_slow_rank(tmp_path).late_ranks[0]
    assert late.phase == "loading, forward and backward"  # at the end of the loop, ranks wait for each other
    assert 200e6 < late.found.excess_ns < 500e6
    assert 85 <= late.since_step <= 95


HANDLER = "signal.signal(signal.SIGUSR2, lambda *_: print('theirs', flush=True))"


def test_a_handler_of_the_job_stays_and_sigterm_ends_the_log(tmp_path):
    jobs = start(job(before=HANDLER), tmp_path, **BY_REQUEST)
    wait_for(lambda: logged(tmp_path, 0, 20), jobs)
    jobs[0].send_signal(signal.SIGUSR2)
    wait_for(lambda: logged(tmp_path, 0, 200), jobs)
    for each in jobs:
        each.send_signal(signal.SIGTERM)
    outputs = [each.communicate(timeout=TIMEOUT_S) for each in jobs]
    assert -signal.SIGTERM in [each.returncode for each in jobs]
    assert "theirs" in outputs[0][0]
    assert not any("SIGUSR2" in note for note in notes(tmp_path))
    manifest = read_rank_manifest(tmp_path / "run" / "ranks" / "rank0.json")
    assert manifest.state == "interrupted"
    assert not read_status(tmp_path / "run", WatchLogs(tmp_path / "run")).running


def test_a_log_that_cannot_be_written_costs_one_warning(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "watch").write_text("in the way")
    plain = finish(start(job(steps=60), tmp_path / "plain", profiled=False))
    watched = finish(start(job(steps=120), tmp_path, **WATCH))
    assert [each.losses for each in watched] == [each.losses for each in plain]
    for rank, each in enumerate(watched):
        assert each.code == 0
        assert each.errors.count("the watch failed (log)") == 1
        manifest = read_rank_manifest(tmp_path / "run" / "ranks" / f"rank{rank}.json")
        assert any("the watch failed (log)" in warning for warning in manifest.warnings)


ALONE = """
import os, time, torch, rankscope
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
with rankscope.Profiler("run", run_id="one", watch=True, watch_windows=0, wait=2, warmup=1, active=1) as profiler:
    while not os.path.exists("stop"):
        time.sleep(0.05)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        profiler.step()
"""


def test_ranks_without_a_store_agree_through_the_run_directory(tmp_path):
    jobs = start(ALONE, tmp_path, profiled=False)
    wait_for(lambda: logged(tmp_path, 0, 20) and logged(tmp_path, 1, 20), jobs)
    done = rankscope(tmp_path, "trigger", "run", "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert recorded(tmp_path, 0) == recorded(tmp_path, 1)
    assert len(recorded(tmp_path, 0)) == 2
    stop(tmp_path, jobs)


RESTARTED = """
import os, time, torch
rank, first = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(30):
    time.sleep(0.05)
    optimizer.zero_grad(); model(torch.ones(2, 8)).square().sum().backward(); optimizer.step()
    if first and step == 25:
        if rank == "0":
            open("waiting", "w").close()
            time.sleep(600)  # torchrun ends this rank
        while not os.path.exists("waiting"): time.sleep(0.01)
        raise ValueError("theirs")
"""


def test_each_attempt_of_an_elastic_job_has_its_log(tmp_path):
    (tmp_path / "job.py").write_text(RESTARTED)
    options = ["--run-dir", "run", "--watch", "--nproc-per-node", "2", "--max-restarts", "1"]
    done = rankscope(tmp_path, "run", *options, "job.py")
    assert done.returncode == 0, done.stderr[-3000:]
    names = sorted(path.name for path in (tmp_path / "run" / "watch").glob("*.jsonl"))
    assert names == ["rank0.jsonl", "rank0_restart1.jsonl", "rank1.jsonl", "rank1_restart1.jsonl"]
    logs = WatchLogs(tmp_path / "run")
    assert logs.attempts() == 2
    assert [log.last_step for log in logs.latest().values()] == [29, 29]
    ended = [log.last_step for log in logs.logs() if log.header.restart_count == 0]
    assert all(step is not None and step >= 20 for step in ended)
    assert os.path.exists(tmp_path / "waiting")  # noqa: PTH110


def test_a_rank_that_hangs_is_named_and_the_job_goes_on(tmp_path):
    waiting = (
        "if rank == 1 and step == 60:\n"
        "        while not all(os.path.exists(f'run/hang/rank{r}.json') for r in (0, 1)): time.sleep(0.1)"
    )
    ended = finish(start(job(inside=waiting, steps=80), tmp_path, **BY_REQUEST, RANKSCOPE_HANG_TIMEOUT="2"))
    assert [each.code for each in ended] == [0, 0], ended[0].errors[-3000:] + ended[1].errors[-3000:]
    verdict = json.loads(rankscope(tmp_path, "hang", "run", "--format", "json").stdout)
    assert (verdict["culprits"], verdict["cause"]) == ([1], "python_code")
    assert verdict["collective"]["operation"] == "all_reduce"


def test_a_rank_that_hangs_ends_with_the_given_status(tmp_path):
    settings = {"RANKSCOPE_HANG_TIMEOUT": "2", "RANKSCOPE_HANG_EXIT_STATUS": "7"}
    ended = finish(start(job(inside="if step == 60: time.sleep(3600)", steps=80), tmp_path, **BY_REQUEST, **settings))
    assert [each.code for each in ended] == [7, 7], ended[0].errors[-3000:] + ended[1].errors[-3000:]
    verdict = json.loads(rankscope(tmp_path, "hang", "run", "--format", "json").stdout)
    assert (verdict["culprits"], verdict["cause"]) == ([0, 1], "python_code")


BEFORE_THE_FIRST_STEP = {**BY_REQUEST, "RANKSCOPE_HANG_EXIT_STATUS": "7"}
SOON = "from rankscope.capture import startup; startup.BEFORE_TIMEOUT = 0.003"
LATE = f"""{SOON}
if rank == 1:
    while not os.path.exists("run/hang/rank0.json"): time.sleep(0.1)
    import rankscope.answers.hang
    open("verdict.txt", "w").write(rankscope.answers.hang.read("run").summary)
"""


def test_a_rank_that_does_not_come_to_init_process_group_is_named(tmp_path):
    ended = finish(start(job(before=LATE, steps=20), tmp_path, **BEFORE_THE_FIRST_STEP))
    assert [each.code for each in ended] == [0, 0], ended[0].errors[-3000:] + ended[1].errors[-3000:]
    verdict = (tmp_path / "verdict.txt").read_text()
    assert verdict.startswith("Rank 1 is missing from init_process_group, where the others wait"), verdict
    assert "No hang found" in rankscope(tmp_path, "hang", "run").stdout  # it has made steps since


def test_a_hang_in_the_first_step_is_noticed_and_the_job_goes_on(tmp_path):
    waiting = (
        "if rank == 1 and step == 0:\n"
        "        while not all(os.path.exists(f'run/hang/rank{r}.json') for r in (0, 1)): time.sleep(0.1)"
    )
    ended = finish(start(job(before=SOON, inside=waiting, steps=20), tmp_path, **BEFORE_THE_FIRST_STEP))
    assert [each.code for each in ended] == [0, 0], ended[0].errors[-3000:] + ended[1].errors[-3000:]
    assert "the first step has not ended after" in ended[0].errors
    assert "No hang found" in rankscope(tmp_path, "hang", "run").stdout


ON_THEIR_OWN = """
import os, time
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
while not os.path.exists("stop"):
    time.sleep(0.05)
    optimizer.zero_grad(); model(torch.ones(2, 8)).square().sum().backward(); optimizer.step()
dist.destroy_process_group()
"""


def killed(each):
    each.kill()
    each.wait(TIMEOUT_S)


def test_a_rank_that_is_killed_ends_the_others_and_is_named(tmp_path):
    jobs = start(job(), tmp_path, **BY_REQUEST)
    wait_for(lambda: logged(tmp_path, 0, 20) and logged(tmp_path, 1, 20), jobs)
    killed(jobs[1])
    assert jobs[0].wait(TIMEOUT_S) != 0  # gloo's collective fails
    shown = json.loads(rankscope(tmp_path, "watch", "run", "--format", "json").stdout)
    assert not shown["running"]
    assert [each["state"] for each in shown["ranks"]] == ["interrupted", "dead"]
    assert any("rank 1 has died without having noted its end" in each for each in shown["warnings"])
    late = rankscope(tmp_path, "trigger", "run")
    assert (late.returncode, "this job has ended" in late.stderr) == (2, True)
    verdict = json.loads(rankscope(tmp_path, "hang", "run", "--format", "json").stdout)
    assert (verdict["cause"], verdict["culprits"]) == ("dead", [1])


def test_of_three_ranks_two_go_on_and_are_recorded(tmp_path):
    jobs = start(ON_THEIR_OWN, tmp_path, world_size=3, **BY_REQUEST)
    wait_for(lambda: all(logged(tmp_path, rank, 20) for rank in range(3)), jobs)
    # Promised before and dead then: the command says which rank has no trace, and does not wait for it.
    promised = trigger(tmp_path, "--steps", "2")
    wait_for(lambda: any("are to be recorded" in note for note in notes(tmp_path)))
    killed(jobs[2])
    output, errors = promised.communicate(timeout=TIMEOUT_S)
    assert RECORDED.search(output)[3] in ("0-1", "0-2"), errors
    if RECORDED.search(output)[3] == "0-1":
        assert promised.returncode == 1
        assert "not recorded on rank 2: its process is gone" in errors
    shown = json.loads(rankscope(tmp_path, "watch", "run", "--format", "json").stdout)
    assert shown["running"]
    assert [each["state"] for each in shown["ranks"]] == ["running", "running", "dead"]
    # Dead before: not promised.
    done = rankscope(tmp_path, "trigger", "run", "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert "warning: rank 2 is not recorded: it is dead" in done.stderr
    assert RECORDED.search(done.stdout)[3] == "0-1"
    alone = rankscope(tmp_path, "trigger", "run", "--steps", "1", "--ranks", "2")
    assert alone.returncode == 2
    assert "ranks 2 are dead" in alone.stderr
    verdict = json.loads(rankscope(tmp_path, "hang", "run", "--format", "json").stdout)
    assert (verdict["cause"], verdict["culprits"]) == ("dead", [2])
    (tmp_path / "stop").touch()
    assert [each.code for each in finish(jobs)] == [0, 0, -signal.SIGKILL]


def test_ranks_that_are_not_profiled_keep_a_step_log(tmp_path):
    slow = "time.sleep(0.03 * (rank == 1))"
    chosen = {**WATCH, "RANKSCOPE_RANKS": "0,2"}
    jobs = start(job(inside=slow, steps=200), tmp_path, world_size=4, **chosen)
    wait_for(lambda: all(logged(tmp_path, rank, 30) for rank in range(4)), jobs)
    one = rankscope(tmp_path, "trigger", "run", "--steps", "1", "--ranks", "1")
    assert (one.returncode, "rank 1 only logs its steps" in one.stderr) == (2, True), one.stderr
    some = rankscope(tmp_path, "trigger", "run", "--steps", "1")
    assert some.returncode == 0, some.stderr
    assert RECORDED.search(some.stdout)[3] == "0,2"
    ended = finish(jobs)
    assert [each.code for each in ended] == [0, 0, 0, 0]
    run = tmp_path / "run"
    assert sorted(path.name for path in (run / "ranks").iterdir()) == ["rank0.json", "rank2.json"]
    assert {name[:5] for name in traces(run)} == {"rank0", "rank2"}
    logs = WatchLogs(run)
    assert {rank: log.header.profiled for rank, log in logs.latest().items()} == {0: True, 1: False, 2: True, 3: False}
    status = read_status(run, logs)
    assert {each.state for each in status.ranks} == {"finished"}
    assert [each.rank for each in status.late_ranks] == [1]
    gathered = rankscope(tmp_path, "gather", "run")
    assert gathered.returncode == 0, gathered.stdout + gathered.stderr
    summary = rankscope(tmp_path, "summary", "run")
    assert "rank 1" in summary.stdout
    assert summary.stdout.count("as configured") <= 1


def test_a_rank_that_is_not_profiled_notes_that_it_was_interrupted(tmp_path):
    wrong = "1 / (step < 60)"
    jobs = start(job(inside=wrong), tmp_path, **{**WATCH, "RANKSCOPE_RANKS": "0"})
    assert all(each.code for each in finish(jobs))
    states = {each.rank: each.state for each in read_status(tmp_path / "run", WatchLogs(tmp_path / "run")).ranks}
    assert states == {0: "interrupted", 1: "interrupted"}


def test_a_run_directory_that_cannot_be_written_is_one_warning(tmp_path):
    (tmp_path / "run").write_text("in the way")
    chosen = {**WATCH, "RANKSCOPE_RANKS": "0,1", "TMPDIR": str(tmp_path)}
    ended = finish(start(job(steps=80), tmp_path, world_size=3, **chosen))
    assert [each.code for each in ended] == [0, 0, 0]
    said = [line for each in ended for line in each.errors.splitlines() if re.search("written|watch failed", line)]
    assert [line for line in said if "the run directory" not in line] == []
    assert len(said) == 1, said
