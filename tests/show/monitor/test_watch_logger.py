"""The numbers of a watched job in TensorBoard, W&B and MLflow: read back from what each has on disk."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from tests.answers.watch.jobs import SimulatedJob
from typer.testing import CliRunner

from rankscope.capture.integrations import watch_logger
from rankscope.cli import make_app
from rankscope.show.monitor.job import WatchedJob
from rankscope.show.monitor.numbers import numbers_of

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path):
    """A run with traces, and the logs of a job that runs."""
    folder = tmp_path / "run"
    done = CliRunner().invoke(make_app(["simulate"]), ["simulate", str(folder), "--ranks", "2", "--steps", "2"])
    assert done.exit_code == 0, done.output
    SimulatedJob(ranks=2).write(folder)
    return folder


def expected(run):
    values, step = watch_logger.flattened([vars(each) for each in numbers_of(WatchedJob(run).read())])
    assert (step, values["rankscope/rank_step/rank_1"]) == (59, 59)
    return values


class First:
    """Wraps a logger's function: waits for the first numbers."""

    def __init__(self, logger):
        self.arrived, self._log = threading.Event(), logger._log
        logger._log = self

    def __call__(self, values, step):
        self._log(values, step)
        self.arrived.set()


def logged(logger):
    first = First(logger)
    with logger:
        assert first.arrived.wait(120)


def is_report(text):
    return "<html" in text and "rankscope" in text


def test_tensorboard(run, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "board"))
    logged(watch_logger.tensorboard(run, writer))
    writer.close()
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    found = {name: events.Scalars(name)[0] for name in events.Tags()["scalars"]}
    assert {name: each.value for name, each in found.items()} == pytest.approx(expected(run))
    assert {each.step for each in found.values()} == {59}
    assert is_report((tmp_path / "board" / "rankscope-report.html").read_text())


def test_mlflow(run, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", exc_type=ImportError)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # skinny has no database
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.create_experiment("test", artifact_location=(tmp_path / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    logged(watch_logger.mlflow(run, client, run_id))
    assert client.get_run(run_id).data.metrics == pytest.approx(expected(run))
    assert {client.get_metric_history(run_id, "rankscope/job_step_seconds")[0].step} == {59}
    (report,) = (tmp_path / "artifacts").rglob("*.html")
    assert is_report(report.read_text())


def test_wandb(run, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    started = wandb.init(mode="offline", project="test", dir=str(tmp_path))
    logged(watch_logger.wandb(run, started))
    summary = dict(started.summary)
    folder = Path(started.dir)
    started.finish()
    found = {name: value for name, value in summary.items() if name.startswith("rankscope/")}
    assert found == pytest.approx(expected(run))
    assert is_report((folder / "rankscope-report.html").read_text())
    assert list((folder.parent).glob("*.wandb"))


def test_a_logger_that_fails_costs_one_warning(run, caplog):
    calls = []

    def broken(values, step):
        calls.append(step)
        raise ConnectionError("no network")

    logger = watch_logger.WatchLogger(run, broken, interval_s=0.2)
    with logger:
        logger._thread.join(120)
    assert calls == [59]
    assert caplog.text.count("the logger of the watch has stopped: ConnectionError: no network") == 1


def test_other_ranks_do_nothing(run, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with watch_logger.WatchLogger(run, lambda *_: None) as logger:
        assert logger._process is None


def test_names_have_no_odd_characters():
    numbers = [{"name": "last_arrival_share", "value": 1, "labels": {"group": "a b/<c>", "rank": "1"}}]
    assert watch_logger.flattened(json.loads(json.dumps(numbers))) == (
        {"rankscope/last_arrival_share/group_a-b-c-/rank_1": 1.0},
        0,
    )
