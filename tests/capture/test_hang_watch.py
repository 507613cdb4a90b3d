"""When a step counts as a hang, with a fake clock; and what a watch leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from tests.capture.conftest import clean_environ
from torch.testing._internal.distributed.fake_pg import FakeStore

from rankscope.capture.hang import watch as hang_watch
from rankscope.capture.hang.watch import HangWatch, start_provisional
from rankscope.capture.notices import CaptureWarning
from rankscope.capture.profiler import Profiler
from rankscope.errors import ConfigError
from rankscope.rundir.hang_dump import Heartbeat


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watch(tmp_path, clock, monkeypatch):
    """A watch whose thread does not run: the test checks."""
    monkeypatch.setattr(HangWatch, "_watch", lambda self: None)
    monkeypatch.setattr(hang_watch, "monotonic", clock)
    watch = HangWatch(tmp_path, timeout_s=60, factor=10, first_timeout_s=600).start()
    yield watch
    watch.close()


def step(watch, clock, seconds, count=1):
    for _ in range(count):
        clock.now += seconds
        watch.heartbeat()


def test_the_first_steps_have_more_time(watch, clock):
    clock.now += 599
    assert watch.check() is None
    clock.now += 2
    assert watch.check() is not None


def test_a_hang_takes_longer_than_the_timeout(watch, clock):
    step(watch, clock, 1, 5)
    clock.now += 60
    assert watch.check() is None
    clock.now += 1
    assert watch.check() == watch.directory / "hang" / "rank0.json"


def test_a_hang_takes_longer_than_several_usual_steps(watch, clock):
    step(watch, clock, 300)
    step(watch, clock, 20, 5)
    assert watch.limit_s() == 200
    clock.now += 201
    assert watch.check() is not None


def test_one_slow_step_does_not_change_what_is_usual(watch, clock):
    step(watch, clock, 20, 5)
    step(watch, clock, 500)
    assert watch.limit_s() == 200


def test_a_hang_is_reported_once_and_the_next_one_again(watch, clock):
    step(watch, clock, 1, 5)
    clock.now += 100
    assert watch.check() is not None
    clock.now += 1000
    assert watch.check() is None
    step(watch, clock, 1, 5)
    clock.now += 100
    assert watch.check() is not None
    assert json.loads(watch.dumps[-1].read_text())["step"] == 10


def test_only_the_latest_steps_are_kept(watch, clock):
    step(watch, clock, 1, 10_000)
    assert len(watch._times) == hang_watch._KEPT_STEPS


def heartbeat_of(folder):
    return Heartbeat.from_json(json.loads((folder / "hang" / "rank0.heartbeat.json").read_text()))


def test_the_heartbeat_says_how_the_loop_ended(tmp_path):
    with HangWatch(tmp_path / "a") as watch:
        watch.heartbeat()
    ended = heartbeat_of(tmp_path / "a")
    assert (ended.ended, ended.exception, ended.step) == (True, "", 1)
    assert not (tmp_path / "a" / "hang" / "rank0.json").exists()
    with pytest.raises(ValueError, match="bad batch"), HangWatch(tmp_path / "b"):
        raise ValueError("bad batch")
    ended = heartbeat_of(tmp_path / "b")
    assert (ended.ended, ended.exception) == (True, "ValueError: bad batch")
    dump = json.loads((tmp_path / "b" / "hang" / "rank0.json").read_text())
    assert dump["uncaught"] == "ValueError: bad batch"
    assert dump["threads"][0]["frames"][0]["text"] == 'raise ValueError("bad batch")'


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_does_not_end_its_parents_watch(tmp_path):
    with HangWatch(tmp_path) as watch:
        watch._write_heartbeat()
        child = os.fork()
        if not child:
            watch.close("ValueError: of the child")
            os._exit(0)
        os.waitpid(child, 0)
        found = heartbeat_of(tmp_path)
        assert (found.pid, found.ended, found.exception) == (os.getpid(), False, "")
    assert heartbeat_of(tmp_path).ended


def test_a_rank_stays_itself_when_its_process_group_is_gone(tmp_path, monkeypatch):
    """What torch.multiprocessing has spawned knows its rank from torch alone."""
    monkeypatch.setattr(HangWatch, "_watch", lambda self: None)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        watch = HangWatch(tmp_path).start()
    finally:
        torch.distributed.destroy_process_group()
    watch.close("ValueError: mine")
    files = sorted(path.name for path in (tmp_path / "hang").iterdir())
    assert files == ["rank1.heartbeat.json", "rank1.json"]
    assert json.loads((tmp_path / "hang" / "rank1.heartbeat.json").read_text())["world_size"] == 2


def test_a_watch_that_hands_over_leaves_no_heartbeat(watch, tmp_path):
    watch._write_heartbeat()
    assert heartbeat_of(tmp_path)
    watch.hand_over()
    assert list((tmp_path / "hang").iterdir()) == []


def test_the_jobs_own_watch_replaces_a_provisional_one(tmp_path):
    provisional = HangWatch(tmp_path)
    start_provisional(provisional)
    with HangWatch(tmp_path) as watch:
        watch.heartbeat()
        assert [thread.name for thread in threading.enumerate()].count("rankscope-hang-watch") == 1
    provisional.hand_over()
    provisional.close()
    assert heartbeat_of(tmp_path).step == 1


def test_ctrl_c_is_no_exception_of_the_job(tmp_path):
    script = f"import rankscope; rankscope.HangWatch({str(tmp_path)!r}).start(); raise KeyboardInterrupt"
    subprocess.run([sys.executable, "-c", script], env=clean_environ(), capture_output=True, timeout=300)
    assert (heartbeat_of(tmp_path).ended, heartbeat_of(tmp_path).exception) == (True, "")
    assert not (tmp_path / "hang" / "rank0.json").exists()


SPAWNED = """
import sys
import torch.multiprocessing as mp
import rankscope

def rank(_index, directory):
    rankscope.HangWatch(directory).start()
    raise ValueError("mine")

if __name__ == "__main__":
    mp.start_processes(rank, (sys.argv[1],), start_method=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_exception_that_ends_a_spawned_rank_is_in_its_dump(tmp_path, method):
    script = tmp_path / "job.py"
    script.write_text(SPAWNED)
    command = [sys.executable, str(script), str(tmp_path), method]
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=300)
    assert "ValueError: mine" in done.stderr
    assert heartbeat_of(tmp_path).exception == "ValueError: mine"
    dump = json.loads((tmp_path / "hang" / "rank0.json").read_text())
    assert dump["threads"][0]["frames"][0]["text"] == 'raise ValueError("mine")'


def no_thread(_thread):
    raise RuntimeError("can't start new thread")


def test_without_a_new_thread_the_end_is_written_all_the_same(tmp_path, monkeypatch):
    """As at the end of the interpreter, from Python 3.12 on."""
    with HangWatch(tmp_path) as watch:
        watch.heartbeat()
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert heartbeat_of(tmp_path).ended


def test_without_a_thread_nothing_is_watched_and_the_job_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.warns(CaptureWarning, match="not watched for hangs: can't start new thread"):
        watch = HangWatch(tmp_path).start()
    watch.heartbeat()
    watch.close()


def test_heartbeats_that_cannot_be_written_are_one_warning(tmp_path, caplog):
    (tmp_path / "hang").write_text("no folder")
    watch = HangWatch(tmp_path)
    for _ in range(3):
        watch._write_heartbeat()
    assert caplog.text.count("the heartbeat could not be written") == 1


def test_the_exception_that_ends_a_watched_loop_is_in_its_dump(tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "one"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="bad batch"), Profiler(tmp_path, ranks="all"):
        raise ValueError("bad batch")
    ended = heartbeat_of(tmp_path)
    assert (ended.ended, ended.exception, ended.ranks) == (True, "ValueError: bad batch", "all")
    dump = json.loads((tmp_path / "hang" / "rank0.json").read_text())
    assert dump["threads"][0]["frames"][0]["text"] == 'raise ValueError("bad batch")'


def test_an_exception_that_ends_a_hang_does_not_replace_its_dump(watch, clock):
    step(watch, clock, 1, 5)
    clock.now += 100
    path = watch.check()
    watch.close("RuntimeError: Connection closed by peer")
    # Its calls may get their stacks meanwhile.
    dump = json.loads(path.read_text())
    assert (dump["reason"], dump["uncaught"]) == ("no step for 100 s", "")


def test_a_hung_process_ends_with_the_chosen_status(tmp_path):
    script = f"""
        import time, rankscope
        watch = rankscope.HangWatch({str(tmp_path)!r}, timeout_s=0.5, first_timeout_s=0.5, exit_status=77).start()
        time.sleep(600)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=clean_environ(), timeout=300)
    assert done.returncode == 77
    dump = json.loads((tmp_path / "hang" / "rank0.json").read_text())
    assert dump["threads"][0]["frames"][0]["text"] == "" or "sleep" in dump["threads"][0]["frames"][0]["text"]


def test_an_exit_status_that_the_system_would_cut_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="exit_status=256 must be a whole number, 0 to 255"):
        HangWatch(tmp_path, exit_status=256)
    assert HangWatch(tmp_path, exit_status=0).exit_status is None  # as `--hang-exit-status 0`: the job continues


def test_a_directory_that_cannot_be_written_harms_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with HangWatch(tmp_path / "file" / "run") as watch:
        watch.heartbeat()
    assert watch.dumps == []


def test_a_signal_leaves_a_dump_of_what_it_interrupted(tmp_path):
    script = f"""
        import os, signal, threading, time, rankscope
        def tokenize():
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
            time.sleep(600)
        with rankscope.HangWatch({str(tmp_path)!r}):
            tokenize()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=clean_environ(), timeout=300)
    assert done.returncode == -signal.SIGTERM
    dump = json.loads((tmp_path / "hang" / "rank0.json").read_text())
    assert (dump["signal"], dump["threads"][0]["frames"][0]["function"]) == ("SIGTERM", "tokenize")
    assert (heartbeat_of(tmp_path).ended, heartbeat_of(tmp_path).signal) == (True, "SIGTERM")


def test_ctrl_c_leaves_no_dump(tmp_path):
    with pytest.raises(KeyboardInterrupt), HangWatch(tmp_path):
        raise KeyboardInterrupt
    assert (heartbeat_of(tmp_path).signal, heartbeat_of(tmp_path).exception) == ("SIGINT", "")
    assert not (tmp_path / "hang" / "rank0.json").exists()
