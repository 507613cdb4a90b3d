"""The table of faults, with real processes: exit codes and losses are those of the job without rankscope, nothing cut
lies under a final name, and every finished file can be read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from tests.soak import some_of

from rankscope.jobs.gather import completeness, gather, parse_source
from rankscope.rundir.manifest import read_rank_manifest

from . import two_ranks
from .conftest import clean_environ, read_trace, steps_in, traces

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="signals and tmpfs of Linux")]
DROP = "del model; gc.collect(); dist.destroy_process_group()"
TIMEOUT_S = 300
"""Nothing takes so long, even on a machine with ten times the work that it has cores for."""

# Steps of `work` small operators; `at(step)` is the test's own.
JOB = """
import os, signal, sys, threading, time, torch, rankscope
def work(n={work}):
    x = torch.ones(4)
    for _ in range(n):
        x = x + 1
def say(text):
    print(text, flush=True)
def at(step):
    pass
def settle(prof):
    while prof._queue is not None and prof._queue.busy: time.sleep(0.01)
{before}
with rankscope.Profiler("run", {arguments}) as prof:
    for step in range({steps}):
        at(step)
        work()
        prof.step()
        settle(prof)
say("done")
{after}
"""


def job(before="", *, arguments="wait=1, warmup=1, active=2", steps=6, work=10, after=""):
    return JOB.format(before=before, arguments=arguments, steps=steps, work=work, after=after)


def start(code, cwd, **variables):
    (cwd / "job.py").write_text(code)
    return subprocess.Popen(
        [sys.executable, "job.py"],
        cwd=cwd,
        env=clean_environ() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code, cwd, **variables):
    running = start(code, cwd, **variables)
    try:
        output, errors = running.communicate(timeout=TIMEOUT_S)
    finally:
        running.kill()
    return running.returncode, output, errors


def check_files(folder):
    """Every file under a final name is complete; returns the names."""
    names = traces(folder)
    for name in names:
        assert steps_in(read_trace(folder / name)), name
    return names


def hidden(*folders):
    return [path for folder in folders for path in folder.rglob(".*") if path.is_file()]


@contextmanager
def small_disk(folder, options):
    """A disk of its own, mounted in a folder."""
    folder.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    try:
        with (folder / "filler").open("wb", buffering=0) as file:
            while file.write(b"\0" * 4096):
                pass
    except OSError:
        pass


@pytest.mark.parametrize(
    "delay_ms", some_of([0, 30, 100, 200, 350, 500, 700, 1000, 1500, 2500], usual=[0, 100, 350, 1000])
)
def test_sigkill_during_an_export(tmp_path, delay_ms):
    before = "def at(step):\n    if step == 3: say('last')\n"
    code = job(
        before, work=7000, arguments="wait=1, warmup=1, active=2, with_stack=True", steps=4, after="time.sleep(60)"
    )
    (tmp_path / "tmp").mkdir()
    running = start(code, tmp_path, TMPDIR=str(tmp_path / "tmp"))
    try:
        assert running.stdout.readline() == "last\n"
        time.sleep(delay_ms / 1000)
        running.send_signal(signal.SIGKILL)
        assert running.wait(TIMEOUT_S) == -signal.SIGKILL
    finally:
        running.kill()
        running.communicate()
    check_files(tmp_path)
    # What is left is one saved trace and its compressed half at most.
    assert len(hidden(tmp_path)) <= 3


def test_sigterm_in_a_recording_saves_it(tmp_path):
    before = "def at(step):\n    if step == 4:\n        os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
    code, _, errors = run(job(before, arguments="wait=1, warmup=1, active=5", steps=20), tmp_path)
    assert code == -signal.SIGTERM, errors
    assert check_files(tmp_path / "run") == ["rank0_iter2_3.trace.json.gz"]
    assert not hidden(tmp_path)


def test_sigterm_outside_a_recording_ends_as_usual(tmp_path):
    before = "def at(step):\n    if step == 4: say('waiting'); time.sleep(600)\n"
    running = start(job(before, arguments="wait=10, warmup=1, active=5", steps=20), tmp_path)
    assert running.stdout.readline() == "waiting\n"
    running.terminate()
    assert running.wait(TIMEOUT_S) == -signal.SIGTERM
    running.communicate()


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_jobs_own_sigterm_handler_stays(tmp_path, when):
    handler = (
        "def leave(number, frame):\n    sys.exit(3)\n"
        "def chained(number, frame, old=signal.getsignal(signal.SIGTERM)):\n"
        "    if callable(old): old(number, frame)\n"
        "    say('mine'); sys.exit(3)\n"
    )
    if when == "before":
        handler += "signal.signal(signal.SIGTERM, leave)\n"
        setting = ""
    else:
        # One that finds ours, and calls it.
        setting = (
            "    if step == 3:\n        old = signal.getsignal(signal.SIGTERM); assert callable(old)\n"
            "        signal.signal(signal.SIGTERM, lambda n, f: chained(n, f, old))\n"
        )
    act = f"def at(step):\n{setting}    if step == 4: os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
    code, output, errors = run(job(handler + act, arguments="wait=1, warmup=1, active=5", steps=20), tmp_path)
    assert code == 3, errors
    assert ("mine" in output) == (when == "after")
    assert check_files(tmp_path / "run") == ["rank0_iter2_3.trace.json.gz"]


def test_a_full_disk(tmp_path):
    with small_disk(tmp_path / "run", "size=256k") as disk:
        fill(disk)
        code, output, errors = run(job(work=3000, arguments="wait=1, warmup=1, active=2, repeat=2", steps=12), tmp_path)
        assert (code, output) == (0, "done\n"), errors
        assert check_files(disk) == []
        assert [path.name for path in disk.rglob("*") if path.is_file()] == ["filler"]
        assert errors.count("CaptureWarning") <= 3, errors


def test_a_disk_that_becomes_full(tmp_path):
    """Others fill it while the job runs: the manifest still says how the job ended and what was lost."""
    before = f"""
from contextlib import suppress
def fill(folder):
    with suppress(OSError), open(folder + "/filler", "wb", buffering=0) as file:
        while file.write(bytes(4096)): pass
def at(step):
    if step == 2: prof._writer.drain(60); fill({str(tmp_path / "run")!r})
"""
    (tmp_path / "tmp").mkdir()
    with small_disk(tmp_path / "run", "size=256k") as disk:
        code, output, errors = run(
            job(
                before,
                work=3000,
                arguments="wait=1, warmup=1, active=2, repeat=2",
                steps=12,
            ),
            tmp_path,
            TMPDIR=str(tmp_path / "tmp"),
        )
        assert (code, output) == (0, "done\n"), errors
        manifest = read_rank_manifest(disk / "ranks" / "rank0.json")
        assert (manifest.state, manifest.steps, len(manifest.failed)) == ("finished", 12, 2)
        assert "the trace is kept as " in manifest.failed[0].reason
        (kept,) = (tmp_path / "tmp").rglob("kept-run-*")
        gather(tmp_path / "all", [parse_source(str(disk)), parse_source(str(kept))])
        found = completeness(tmp_path / "all")
        assert (found.whole, found.traces, found.running) == (True, 2, ())


def test_a_disk_that_is_full_halfway(tmp_path):
    with small_disk(tmp_path / "run", "size=64k") as disk:
        code, output, errors = run(job(work=20_000, arguments="wait=1, warmup=1, active=2", steps=6), tmp_path)
        assert (code, output) == (0, "done\n"), errors
        assert check_files(disk) == []
        assert not hidden(disk)
        assert "No space" in errors or "too little" in errors
        assert read_rank_manifest(disk / "ranks" / "rank0.json").failed


def test_a_directory_that_becomes_a_file(tmp_path):
    before = (
        "import shutil\ndef at(step):\n"
        "    if step == 3: prof._writer.drain(60); shutil.rmtree('run'); open('run', 'w').close()\n"
    )
    (tmp_path / "tmp").mkdir()
    code, output, errors = run(job(before), tmp_path, TMPDIR=str(tmp_path / "tmp"))
    assert (code, output) == (0, "done\n"), errors
    (kept,) = (tmp_path / "tmp").rglob("*.trace.json.gz")
    # The error names the place, and gather reads it.
    assert f"kept as {kept}" in errors
    assert "lost" not in errors
    gather(tmp_path / "new", [parse_source(str(kept.parent))])
    assert check_files(tmp_path / "new") == ["rank0_iter2_3.trace.json.gz"]


def test_a_run_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "run").write_text("a file")
    wanted = {
        "RANKSCOPE_RUN_DIR": "run/a",
        "RANKSCOPE_WAIT": "1",
        "RANKSCOPE_WARMUP": "1",
        "TMPDIR": str(tmp_path / "tmp"),
    }
    ended = two_ranks.run(two_ranks.TRAIN.format(before="", after=f"train(9)\n{DROP}"), tmp_path, **wanted)
    (kept,) = (tmp_path / "tmp" / f"rankscope-{os.getuid()}").glob("kept-a-????????")
    assert [(each.code, len(each.losses)) for each in ended] == [(0, 9)] * 2
    errors = "".join(each.errors for each in ended)
    assert errors.count("CaptureWarning") == 1, errors  # one rank of the host warns
    assert f"{tmp_path}/run/a cannot be written: [Errno 20] Not a directory" in errors
    assert f"rankscope gather RUN {kept}" in errors
    gather(tmp_path / "all", [parse_source(str(kept))])
    names = [f"rank{rank}_iter3_5.trace.json.gz" for rank in range(2)]
    assert traces(kept) == check_files(tmp_path / "all") == names
    assert completeness(tmp_path / "all").whole


def test_a_full_temporary_directory(tmp_path):
    with small_disk(tmp_path / "tmp", "size=128k") as disk:
        fill(disk)
        code, output, errors = run(job(work=3000), tmp_path, TMPDIR=str(disk))
        assert (code, output) == (0, "done\n"), errors
        assert check_files(tmp_path / "run") == ["rank0_iter2_3.trace.json.gz"]
        assert not hidden(tmp_path / "run")


def test_a_read_only_directory(tmp_path):
    with small_disk(tmp_path / "run", "size=1m,ro") as disk:
        code, output, errors = run(job(), tmp_path)
        assert (code, output) == (0, "done\n"), errors
        assert list(disk.iterdir()) == []
        assert "CaptureWarning" in errors


def test_a_directory_that_vanishes(tmp_path):
    before = "import shutil\ndef at(step):\n    if step in (2, 5): shutil.rmtree('run', ignore_errors=True)\n"
    code, output, errors = run(job(before, arguments="wait=1, warmup=1, active=2, repeat=2", steps=12), tmp_path)
    assert (code, output) == (0, "done\n"), errors
    assert "rank0_iter6_7.trace.json.gz" in check_files(tmp_path / "run")


@pytest.mark.parametrize("moment", ["warmup", "recording", "writing"])
def test_a_profiler_of_the_job_that_starts_after_ours(tmp_path, moment):
    step = {"warmup": 1, "recording": 3, "writing": 4}[moment]
    before = f"""
import torch.profiler as tp
theirs = []
def at(step):
    if step == {step}:
        theirs.append(tp.profile(activities=[tp.ProfilerActivity.CPU])); theirs[0].start()
    if step == 6:
        theirs[0].stop(); theirs[0].export_chrome_trace('theirs.json')
"""
    code, output, errors = run(job(before, arguments="wait=1, warmup=1, active=2, repeat=3", steps=14), tmp_path)
    assert (code, output) == (0, "done\n"), errors
    assert read_trace(tmp_path / "theirs.json")["traceEvents"]
    names = check_files(tmp_path / "run")
    assert "rank0_iter10_11.trace.json.gz" in names
    assert ("rank0_iter2_3.trace.json.gz" in names) == (moment == "writing")
    reasons = {lost.reason for lost in read_rank_manifest(tmp_path / "run" / "ranks" / "rank0.json").skipped}
    assert moment == "writing" or "the job started a torch profiler of its own" in reasons


@pytest.mark.parametrize("state", ["warmup", "recording"])
def test_a_profiler_of_the_job_that_was_there_before(tmp_path, state):
    before = f"""
import torch.profiler as tp
theirs = []
def at(step):
    if step == 0:
        wait = 9 if {state == "warmup"} else 0
        schedule = tp.schedule(wait=0, warmup=wait, active=50, repeat=1)
        theirs.append(tp.profile(activities=[tp.ProfilerActivity.CPU], schedule=schedule)); theirs[0].start()
    if step == 4:
        theirs[0].stop()
"""
    code, output, errors = run(job(before, arguments="wait=1, warmup=1, active=2, repeat=2", steps=12), tmp_path)
    assert (code, output) == (0, "done\n"), errors
    assert check_files(tmp_path / "run") == ["rank0_iter6_7.trace.json.gz"]


def test_forked_loader_workers(tmp_path):
    before = """
from torch.utils.data import DataLoader
loader = []
def at(step):
    if not loader:
        data = torch.arange(400.0)
        loader.append(iter(DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context='fork')))
    next(loader[0])
    if step == 4: loader.clear()
"""
    code, output, errors = run(job(before, steps=8), tmp_path)
    assert (code, output) == (0, "done\n"), errors
    assert check_files(tmp_path / "run") == ["rank0_iter2_3.trace.json.gz"]
    assert "CaptureWarning" not in errors


@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("raise ValueError('theirs')", 1), ("os._exit(9)", 9)])
@pytest.mark.parametrize("step", [1, 3])
def test_an_end_in_the_middle(tmp_path, end, code, step):
    before = f"def at(step):\n    if step == {step}: {end}\n"
    found, _, errors = run(job(before), tmp_path)
    assert found == code, errors
    expected = ["rank0_iter2_2.trace.json.gz"] if step == 3 and code != 9 else []
    assert check_files(tmp_path / "run") == expected


LATE = """
from rankscope.capture import trace_queue
begun, held, original = threading.Event(), threading.Event(), trace_queue.finish_trace
def late(*given, **options):
    begun.set()
    held.wait(60)
    return original(*given, **options)
trace_queue.finish_trace = late
prof = rankscope.Profiler("run", wait=1, warmup=1, active=2)
prof.start()
def loop():
    for _ in range(8):
        work()
        prof.step()
def let_go():
    # Begun when the interpreter already ends: nothing was written before.
    threading._register_atexit(held.set)
"""
IN_A_THREAD = """
def other():
    loop()
    sys.exit(7)
thread = threading.Thread(target=other)
thread.start()
thread.join()
let_go()
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("loop(); let_go(); sys.exit(7)", 7),
        ("loop(); let_go(); raise ValueError('theirs')", 1),
        (IN_A_THREAD, 0),
        ("loop(); begun.wait(60); os._exit(9)", 9),
    ],
    ids=["sys.exit", "an exception", "sys.exit in a thread", "os._exit"],
)
def test_an_end_while_a_trace_is_being_written(tmp_path, end, code):
    setup = JOB.partition("with rankscope")[0].format(work=10, before=LATE)
    found, _, errors = run(setup + end, tmp_path)
    assert found == code, errors
    said = read_rank_manifest(tmp_path / "run" / "ranks" / "rank0.json")
    if code == 9:
        # It asks for no clean-up: what was not written yet goes with it. The manifest says that capture had not ended.
        assert check_files(tmp_path / "run") == []
        assert said.state == "running"
    else:
        assert check_files(tmp_path / "run") == ["rank0_iter2_3.trace.json.gz"]
        # An exit, even with a code, is how scripts end; an exception is not.
        assert said.state == ("interrupted" if "raise" in end else "finished")


def test_a_restart_by_torchrun(tmp_path):
    before = """
if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':
    def at(step):
        if step == 5: sys.exit(4)
"""
    (tmp_path / "job.py").write_text(job(before, steps=8))
    arguments = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "job.py"]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    names = check_files(tmp_path / "run")
    assert [name for name in names if "restart1" in name] == [
        "rank0_restart1_iter2_3.trace.json.gz",
        "rank1_restart1_iter2_3.trace.json.gz",
    ]
    assert (tmp_path / "run" / "ranks" / "rank1_restart1.json").exists()


def test_a_run_directory_that_never_answers(tmp_path):
    """The loop goes on, later windows are counted as lost, and the process ends within its limit."""
    before = """
from rankscope.capture import writer
from rankscope.capture import trace_queue
writer.EXIT_LIMIT_S = 2.0
trace_queue.finish_trace = lambda *a, **k: time.sleep(600)
def settle(prof):
    if step == 19: prof.stop(1.0)
"""
    code = job(before, arguments="wait=1, warmup=1, active=2, repeat=4", steps=20)
    found, output, errors = run(code, tmp_path)
    assert (found, output) == (0, "done\n"), errors
    assert "still being written" in errors
    assert check_files(tmp_path / "run") == []
