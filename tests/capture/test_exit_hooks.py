"""Forks, and Ctrl-C at any moment: the job ends as it would have, and torch is left as it was found."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.soak import some_of

import rankscope.capture
from rankscope import Profiler
from rankscope.capture.recording import GcRanges
from rankscope.capture.script_profilers import conflicts
from rankscope.capture.writer import Writer
from rankscope.jobs.exec import profiled_environment
from rankscope.rundir.manifest import read_rank_manifest

from .conftest import clean_environ, read_trace, steps_in, traces, train
from .test_never_harms import TIMEOUT_S, check_files, hidden, job, run, start

linux = pytest.mark.skipif(sys.platform != "linux", reason="forks and signals of Linux")
OURS = str(Path(rankscope.capture.__file__).parent)


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in a terminal: a shell that starts pytest in the background has it ignored, also in its children."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, found)


class Interrupting:
    """Presses Ctrl-C before the n-th line of capture's own code that this thread runs."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame, event, _arg):
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self


def interrupted(folder, at):
    """A short loop that is interrupted; whether it came to that before its end."""
    profiler = Profiler(folder, wait=1, warmup=1, active=1, repeat=2)
    profiler.start()
    tracer = Interrupting(at)
    try:
        try:
            sys.settrace(tracer)
            train(profiler, 7)
        finally:
            sys.settrace(None)
            profiler.stop()
    except KeyboardInterrupt:
        return True
    return tracer.left <= 0


@pytest.mark.slow
@linux
@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_before_any_line_of_capture_leaves_torch_free(tmp_path):
    found, at = [], 1
    while interrupted(tmp_path / str(at), at):
        assert not conflicts.another_profiler_runs(), at
        assert not conflicts._active, at
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, at
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, at
        assert not [each for each in gc.callbacks if isinstance(getattr(each, "__self__", None), GcRanges)], at
        for name in traces(tmp_path / str(at)):
            assert steps_in(read_trace(tmp_path / str(at) / name)), at
        found.append(at)
        at += 1 + at // 15  # every line of the start, then fewer
    assert len(found) > 30
    with Profiler(tmp_path / "after", wait=0, warmup=1, active=1) as profiler:
        train(profiler, 3)
    assert traces(tmp_path / "after") == ["rank0_iter1_1.trace.json.gz"]


@pytest.mark.slow
@linux
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("delay_ms", some_of([0, 20, 60, 150, 300, 600, 1200], usual=[0, 60, 300]))
def test_ctrl_c_during_an_export(tmp_path, delay_ms):
    before = "def at(step):\n    if step == 3: say('last')\n"
    arguments = "wait=1, warmup=1, active=2, with_stack=True"
    running = start(job(before, work=5000, arguments=arguments, steps=4, after="time.sleep(60)"), tmp_path)
    try:
        assert running.stdout.readline() == "last\n"
        time.sleep(delay_ms / 1000)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=TIMEOUT_S)
    finally:
        running.kill()
    # As Python ends without a profiler.
    assert running.returncode == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors
    check_files(tmp_path)
    assert not hidden(tmp_path / "run")


@pytest.mark.slow
@linux
def test_sigterm_while_the_end_waits_for_the_last_trace(tmp_path):
    before = """
from rankscope.capture import trace_queue
original = trace_queue.finish_trace
def slow(*given, **named):
    say('writing')
    while not os.path.exists('go'): time.sleep(0.01)
    return original(*given, **named)
trace_queue.finish_trace = slow
def settle(prof): pass
"""
    running = start(job(before, steps=4), tmp_path)
    try:
        assert running.stdout.readline() == "writing\n"
        time.sleep(0.5)
        running.terminate()
        (tmp_path / "go").touch()  # not before: it could be at its end
        _, errors = running.communicate(timeout=TIMEOUT_S)
    finally:
        running.kill()
    assert running.returncode == -signal.SIGTERM, errors
    assert check_files(tmp_path / "run") == ["rank0_iter2_3.trace.json.gz"]
    assert not hidden(tmp_path)


@pytest.mark.slow
@linux
def test_sigterm_while_another_thread_is_in_capture_ends_the_job(tmp_path):
    code = """
import os, signal, threading
from rankscope.capture import signals
signals.arm(lambda name: print("saved", name, flush=True), print, window=False)
inside, leave = threading.Event(), threading.Event()
def other():
    with signals.DeferredSignals():
        inside.set()
        leave.wait()
thread = threading.Thread(target=other)
thread.start()
inside.wait()
threading.Timer(0.5, leave.set).start()
os.kill(os.getpid(), signal.SIGTERM)
thread.join()
"""
    found, output, errors = run(code, tmp_path)
    assert (found, output, errors) == (-signal.SIGTERM, "saved SIGTERM\n", "")


@pytest.mark.slow
@linux
def test_sigterm_ends_a_hung_job_though_its_run_directory_hangs_too(tmp_path):
    code = """
import ctypes, os, signal, threading, time
from rankscope.capture import signals
signals.HANG_LIMIT_S = 0.5
signals.arm(print, lambda name: time.sleep(600), window=False)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
lock = ctypes.create_string_buffer(64)  # a mutex of pthreads
ctypes.CDLL(None).pthread_mutex_lock(lock)
ctypes.CDLL(None).pthread_mutex_lock(lock)
"""
    running = start(code, tmp_path)
    try:
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert (running.returncode, errors) == (-signal.SIGTERM, "")


@pytest.mark.slow
@linux
def test_a_loop_that_ended_with_its_thread_does_not_shorten_the_end_of_the_process(tmp_path):
    code = """
import threading, time, torch, rankscope
from rankscope.capture import trace_queue, writer
def loop(run_dir):
    profiler = rankscope.Profiler(run_dir, wait=0, warmup=1, active=2, repeat=1)
    profiler.start()
    for _ in range(5):
        torch.ones(3) + 1; profiler.step()
    return profiler
thread = threading.Thread(target=loop, args=("first",))
thread.start()
thread.join()
began = time.monotonic
time.monotonic = lambda: began() + writer.EXIT_LIMIT_S
finish = trace_queue.finish_trace
def slow(*given, **named):
    time.sleep(0.5)
    return finish(*given, **named)
trace_queue.finish_trace = slow
profiler = loop("second")
"""
    found, _, errors = run(code, tmp_path)
    assert found == 0, errors
    assert "slow" not in errors
    assert [check_files(tmp_path / each) for each in ("first", "second")] == [["rank0_iter1_2.trace.json.gz"]] * 2


@linux
@pytest.mark.parametrize("awaited", [True, False])
def test_a_writer_that_is_waited_for_keeps_its_priority(awaited):
    writer, seen = Writer(), []

    def work():
        while awaited and not writer._awaited:
            time.sleep(0.01)
        writer.lower_priority()
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    writer.submit(work)
    if awaited:
        assert writer.drain(TIMEOUT_S)
    else:
        while writer.busy:
            time.sleep(0.01)
    assert seen == [os.getpriority(os.PRIO_PROCESS, 0) if awaited else 19]


FORK = """
def settle(prof): pass
from rankscope.capture import trace_queue
original = trace_queue.finish_trace
def slow(*given, **named):
    time.sleep(3)
    return original(*given, **named)
trace_queue.finish_trace = slow
def at(step):
    if step == {step}:
        child = os.fork()
        if not child:
            torch.ones(3) + 1
            {end}
        began = time.monotonic()
        _, status = os.waitpid(child, 0)
        say(f"{{os.waitstatus_to_exitcode(status)}} {{time.monotonic() - began < 100}}")
"""


@pytest.mark.slow
@linux
@pytest.mark.parametrize("stack", some_of([False, True], usual=[True]))
@pytest.mark.parametrize(("moment", "step"), [("warm-up", 1), ("recording", 3), ("writing", 4)])
def test_a_child_that_the_job_forks_ends_by_itself(tmp_path, moment, step, stack):
    """It has neither the thread that writes nor the locks that this one may hold."""
    # Not sys.exit: after any torch profiler, Kineto's own thread makes a forked child hang in its C library's exit.
    before = FORK.format(step=step, end="import atexit; atexit._run_exitfuncs(); os._exit(5)")
    arguments = f"wait=1, warmup=1, active=2, with_stack={stack}"
    code, output, errors = run(job(before, steps=6, arguments=arguments), tmp_path)
    assert (code, output) == (0, "5 True\ndone\n"), errors
    assert check_files(tmp_path / "run") == ["rank0_iter2_3.trace.json.gz"]


SPAWNING = """
import os, sys, torch
import torch.multiprocessing as mp
def train(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward(); optimizer.step()
if __name__ == "__main__":
    mp.start_processes(train, nprocs=2, start_method=sys.argv[1])
"""


@pytest.mark.slow
@linux
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ranks_that_the_script_starts_itself(tmp_path, method):
    """A forked one leaves by os._exit, in the middle of a window: it is written all the same."""
    (tmp_path / "job.py").write_text(SPAWNING)
    variables = {"WAIT": "1", "WARMUP": "1", "ACTIVE": "9", "RUN_DIR": "run", "RUN_ID": "one"}
    done = subprocess.run(
        [sys.executable, "job.py", method],
        cwd=tmp_path,
        env=profiled_environment(clean_environ() | {f"RANKSCOPE_{name}": value for name, value in variables.items()}),
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,  # three processes that load torch
    )
    assert done.returncode == 0, done.stderr
    assert check_files(tmp_path / "run") == [f"rank{rank}_iter3_4.trace.json.gz" for rank in (0, 1)]
    # The process that started them made no step, and is no job of its own.
    assert "no optimizer step" not in done.stderr
    assert not hidden(tmp_path / "run")


@linux
def test_a_profiler_made_before_a_fork_belongs_to_the_child(tmp_path):
    code = """
import os, sys, torch, rankscope
profiler = rankscope.Profiler("run", wait=0, warmup=1, active=1)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with profiler:
    for _ in range(3):
        torch.ones(3) + 1; profiler.step()
os._exit(0)
"""
    found, _, errors = run(code, tmp_path)
    assert found == 0, errors
    assert check_files(tmp_path / "run") == ["rank0_iter1_1.trace.json.gz"]


@pytest.mark.parametrize(
    ("code", "state", "ended_by"),
    [
        (None, "finished", None),
        (0, "finished", None),
        (3, "interrupted", "SystemExit"),
        ("no", "interrupted", "SystemExit"),
    ],
)
def test_an_exit_out_of_the_loop_is_a_failure_if_its_status_is(tmp_path, code, state, ended_by):
    with pytest.raises(SystemExit), Profiler(tmp_path, wait=9) as profiler:
        profiler.step()
        sys.exit(code)
    manifest = read_rank_manifest(tmp_path / "ranks" / "rank0.json")
    assert (manifest.state, manifest.ended_by) == (state, ended_by)
