"""Logs the numbers of a watched job where its other numbers are: TensorBoard, Weights & Biases, MLflow, or a function.

::

    with watch_logger.wandb("run", wandb.run), rankscope.Profiler("run") as profiler:
        ...

On rank 0; on the others it does nothing. The numbers are computed by `rankscope monitor`, a process of its own that
reads the run directory; a thread passes on what it prints. At the end the report is made, in a process too, and
attached. Whatever fails is reported once, and the job continues.

In: a run directory, and a logger. Out: scalars and a report in it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankscope.capture.notices import warn
from rankscope.capture.process import this_process
from rankscope.rundir.directory import absolute_directory

_STOP_S = 30.0
_REPORT_S = 600.0
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")
_OF_THE_JOB = re.compile(r"RANKSCOPE_.*|RANK|LOCAL_RANK|WORLD_SIZE|TORCHELASTIC_.*|PMI_.*|OMPI_.*|SLURM_.*")


class WatchLogger:
    """Logs the numbers of a watched job, and attaches its report.

    Args:
        run_dir: the run directory.
        log: gets names with their values, and the step.
        attach: gets the report, a file of HTML, at the end; none is made by default.
        interval_s: seconds between two looks.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        log: Callable[[dict[str, float], int], object],
        attach: Callable[[Path], object] | None = None,
        interval_s: float = 10.0,
    ) -> None:
        self._run_dir = absolute_directory(run_dir)
        self._log, self._attach, self._interval_s = log, attach, interval_s
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._warned = False

    def __enter__(self) -> WatchLogger:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self) -> WatchLogger:
        """Begin, on rank 0."""
        process = this_process()[0]
        if self._process is None and (process is None or process.rank == 0):
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "rankscope", "monitor", self._run_dir, "--interval", str(self._interval_s)],
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            except OSError as error:
                self._warn("cannot be started", error)
                return self
            self._thread = threading.Thread(target=self._pass_on, name="rankscope-watch-logger", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Log the latest numbers, attach the report, and end."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.terminate()  # it looks once more
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        if process.stdout is not None:
            process.stdout.close()
        if self._attach is not None:
            try:
                self._attach_report(self._attach)
            except Exception as error:
                self._warn("could not attach the report", error)

    def _pass_on(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        try:
            for line in process.stdout:
                values, step = flattened(json.loads(line)["numbers"])
                self._log(values, step)
        except Exception as error:
            self._warn("has stopped", error)

    def _attach_report(self, attach: Callable[[Path], object]) -> None:
        with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
            report = Path(folder, "rankscope-report.html")
            line = [sys.executable, "-m", "rankscope", "report", self._run_dir, "-o", str(report)]
            done = subprocess.run(
                line,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_REPORT_S,
                check=False,
            )
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip().partition("\n")[0] or f"exit status {done.returncode}")
            attach(report)

    def _warn(self, what: str, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            warn(f"the logger of the watch {what}: {type(error).__name__}: {error}; the job continues")


def flattened(numbers: list[Mapping[str, Any]]) -> tuple[dict[str, float], int]:
    """Numbers by names such as ``rankscope/rank_step_seconds/rank_3``, and the step that they are of."""
    values: dict[str, float] = {}
    for each in numbers:
        labels = "".join(f"/{name}_{_ODD.sub('-', str(value))}" for name, value in each["labels"].items())
        values[f"rankscope/{each['name']}{labels}"] = float(each["value"])
    return values, int(values.get("rankscope/job_step", 0))


def tensorboard(run_dir: str | os.PathLike[str], writer: Any, interval_s: float = 10.0) -> WatchLogger:
    """Into a ``torch.utils.tensorboard.SummaryWriter``. The report becomes a file in its folder."""

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def attach(report: Path) -> None:
        target = Path(writer.get_logdir(), report.name)
        target.write_bytes(report.read_bytes())
        writer.add_text("rankscope/report", str(target))
        writer.flush()

    return WatchLogger(run_dir, log, attach, interval_s)


def wandb(run_dir: str | os.PathLike[str], run: Any, interval_s: float = 10.0) -> WatchLogger:
    """Into a run of Weights & Biases. The numbers have an axis of their own, ``rankscope/job_step``."""
    run.define_metric("rankscope/*", step_metric="rankscope/job_step")

    def attach(report: Path) -> None:
        target = Path(run.dir, report.name)
        target.write_bytes(report.read_bytes())
        run.save(str(target), base_path=run.dir, policy="now")

    # Without a step: W&B takes none that is before the latest of the job's own.
    return WatchLogger(run_dir, lambda values, _step: run.log(values), attach, interval_s)


def mlflow(run_dir: str | os.PathLike[str], client: Any, run_id: str, interval_s: float = 10.0) -> WatchLogger:
    """Into a run of MLflow, by an ``mlflow.MlflowClient``."""

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            client.log_metric(run_id, name, value, step=step)

    return WatchLogger(run_dir, log, lambda report: client.log_artifact(run_id, str(report)), interval_s)


def _environment() -> dict[str, str]:
    """Without what makes a process a rank of the job."""
    return {name: value for name, value in os.environ.items() if not _OF_THE_JOB.fullmatch(name)}
