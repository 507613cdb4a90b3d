"""`rankscope trigger` where no job answers."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.requested import read_progress
from rankscope.answers.watch.status import read_status
from rankscope.cli import make_app, trigger
from rankscope.errors import ConfigError, LaunchError
from rankscope.rundir.manifest import RankManifest, to_json
from rankscope.rundir.watch_files import Answer

from .jobs import SimulatedJob


def test_ranks_that_the_job_does_not_have_are_an_error(tmp_path):
    SimulatedJob(ranks=2).write(tmp_path)
    with pytest.raises(ConfigError, match="the job has no rank 5: its ranks are 0-1"):
        CliRunner().invoke(make_app(["trigger"]), ["trigger", str(tmp_path), "--ranks", "5"], catch_exceptions=False)
    assert not (tmp_path / "watch" / "requests").exists()


def restart(folder):
    """A job whose attempt has failed, and which is to be started again from another host."""
    SimulatedJob(ranks=2).write(folder)
    (folder / "ranks").mkdir()
    for rank in range(2):
        manifest = RankManifest(run_id="one", rank=rank, pid=rank + 1, state="interrupted")
        (folder / "ranks" / f"rank{rank}.json").write_bytes(to_json(manifest))
        path = folder / "watch" / f"rank{rank}.jsonl"
        path.write_text(path.read_text().replace('"max_restarts":0', '"max_restarts":1'))


def test_a_job_that_restarts_has_not_ended(tmp_path):
    restart(tmp_path)
    with pytest.raises(LaunchError, match="the job restarts after a failure, and has made no step within 0 s"):
        CliRunner().invoke(make_app(["trigger"]), ["trigger", str(tmp_path), "--timeout", "0"], catch_exceptions=False)


def test_the_next_attempt_is_waited_for(tmp_path, monkeypatch):
    restart(tmp_path)
    monkeypatch.setattr("time.sleep", lambda _seconds: SimulatedJob(ranks=2).write(tmp_path, restart=1))
    logs = WatchLogs(tmp_path)
    status = trigger._running(tmp_path, logs, 60)
    assert (status.running, status.attempts) == (True, 2)


def test_a_request_to_an_attempt_that_failed_is_not_waited_for(tmp_path):
    restart(tmp_path)
    logs, answer = WatchLogs(tmp_path), Answer("a", 70, 72)
    failed = read_progress(tmp_path, logs, read_status(tmp_path, logs), [0, 1], answer)
    assert failed.settled
    assert set(failed.lost.values()) == {"the job has failed before, and restarts"}
    SimulatedJob(ranks=2).write(tmp_path, restart=1)
    logs.look()
    assert read_progress(tmp_path, logs, read_status(tmp_path, logs), [0, 1], answer).lost == failed.lost
    asked_now = Answer("b", 70, 72, restart_count=1)
    assert read_progress(tmp_path, logs, read_status(tmp_path, logs), [0, 1], asked_now).waiting == (0, 1)
