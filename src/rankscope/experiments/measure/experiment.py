"""Run the jobs of an experiment and keep them in its output directory, so that an interrupted one can be resumed.

``DIR/jobs/NAME/settings.json`` holds the settings that the experiment was started with; a finished job's directory
next to it holds ``done``. The same command resumes it; with different settings it fails with an error that names them.

In: jobs with their settings. Out: the measurements of the finished ones.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rankscope.errors import ConfigError, LaunchError, RankscopeError
from rankscope.experiments.measure.jobs import Outcome, ProgressCallback, Start, Target, job_started, run
from rankscope.experiments.measure.results import TraceSummary
from rankscope.experiments.measure.resume_check import HINT, differing, refuse_edited, refuse_mixed, state_of
from rankscope.experiments.measure.sampling import Sampling, load_average
from rankscope.experiments.measure.trace_summary import summarize_trace
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.measurement import Plan, plan_path, read_measurements, read_plan

LINE = "line"
"""Progress ``within`` where ``job`` is a line that stays: jobs that are reused or failed, a result so far."""
_SETTINGS = "settings.json"
_DONE = "done"
_FIXED_SAMPLING = {
    "--blocks": "blocks",
    "--block-steps": "block_steps",
    "--settle": "settle_steps",
    "--warmup": "warmup_steps",
    "--trace-steps": "traced_steps",
    "--seed": "seed",
}
"""Options that must not change. Repeats may be added, and time limits do not affect the results."""


@dataclass(frozen=True)
class Job:
    """One job: what is run, how it is started, and its plan."""

    start: Start
    plan: Plan
    target: Target | None = None
    """None: the experiment's."""


@dataclass
class Jobs:
    """The results of an experiment's jobs so far."""

    wanted: Mapping[str, int]
    """The number of jobs to run, by name."""
    outcomes: dict[str, list[Outcome]]
    """By name, in the order of repeats."""
    errors: dict[str, str] = field(default_factory=dict)
    """By name: why it failed; it then has no outcomes."""
    enough: bool = False
    """Whether the result is precise enough without the jobs that are not finished."""

    @property
    def all_outcomes(self) -> list[Outcome]:
        """The outcomes of all names."""
        return [outcome for outcomes in self.outcomes.values() for outcome in outcomes]

    def state_of(self, name: str, repeats: int) -> str:
        """``failed``, ``done``, or ``pending`` while repeats are missing."""
        if name in self.errors:
            return "failed"
        return "done" if len(self.outcomes[name]) >= repeats else "pending"

    def notes(self) -> list[str]:
        """Notes on an unfinished experiment."""
        done, wanted = len(self.all_outcomes), sum(n for name, n in self.wanted.items() if name not in self.errors)
        notes = []
        if done < wanted and not self.enough:
            notes.append(f"{done} of {wanted} jobs are finished: run the same command with this -o to continue")
        if self.errors:
            notes.append(f"failed: {', '.join(self.errors)}; the same command with this -o tries again")
        return notes


def settings_of(start: Start) -> dict[str, Any]:
    """How the jobs of an experiment on one size are started, by option."""
    return {"--nproc": start.ranks, "--launcher": start.launcher, "--torchrun": shlex.join(start.torchrun) or None}


class Experiment:
    """One experiment in its output directory.

    Args:
        measurement: its name, such as ``overhead``.
        target: what is run.
        out: the output directory.
        sampling: blocks, repeats and limits.
        on_progress: called with the progress.
        settings: other settings that must not change, by option; None if an option was not given.
        enough: whether to stop, asked after each job, the reused ones too: the same jobs give the same answer.

    Raises:
        ConfigError: ``out`` holds an experiment with different settings.
        RankscopeError: ``out`` cannot be written to.
    """

    def __init__(
        self,
        measurement: str,
        target: Target,
        out: Path,
        sampling: Sampling,
        on_progress: ProgressCallback,
        settings: Mapping[str, Any],
        enough: Callable[[Jobs], bool] = lambda _: False,
    ) -> None:
        self.out = out
        self.sampling = sampling
        self._measurement = measurement
        self._enough = enough
        self.target = target
        self._on_progress = on_progress
        self._folder = out / "jobs" / measurement
        self._new_jobs: set[Path] = set()
        self._traced: dict[Path, tuple[TraceSummary | None, str | None]] = {}
        fixed = {option: getattr(sampling, name) for option, name in _FIXED_SAMPLING.items()}
        self._settings = {**state_of(target), **fixed, **settings}
        self._load = self._claim()

    @property
    def load(self) -> float | None:
        """The machine's load average at the start; the highest, if the experiment was resumed."""
        return self._load

    def folder_of(self, name: str, repeat: int) -> Path:
        """The directory of a job."""
        return self._folder / f"{re.sub(r'[^A-Za-z0-9._]+', '-', name)}-{repeat}"

    def run(
        self,
        order: Sequence[tuple[int, str]],
        job: Callable[[str, int, Path], Job],
        *,
        on_result: Callable[[Jobs], object] = lambda _: None,
        check: Callable[[str, Outcome], object] = lambda _name, _outcome: None,
        label: Callable[[str], str] = str,
        go_on_after_failure: bool = True,
        announce_kept: bool = True,
    ) -> Jobs:
        """Run the jobs that are not finished yet.

        Args:
            order: (repeat, name) of each job, in the order to run them.
            job: makes a job from its name, its repeat and its directory.
            on_result: called with the results so far after each new job except the last.
            check: raises if a job did not run as its name states.
            label: the text for a name in progress messages.
            go_on_after_failure: whether to run the other jobs after one failed.
            announce_kept: whether to report how many jobs are already finished.

        Raises:
            ConfigError: another process is running them.
            LaunchError: a job failed, and ``go_on_after_failure`` is false.
            KeyboardInterrupt: Ctrl-C; finished jobs are kept.
            SystemExit: the same, after another signal.
        """
        with _exclusive(self._folder, f"rankscope measure {self._measurement}"):
            planned = {(repeat, name): job(name, repeat, self.folder_of(name, repeat)) for repeat, name in order}
            kept = {key: outcome for key, job in planned.items() if (outcome := _finished(job.plan)) is not None}
            self._check_kept(kept.values(), len(order), announce=announce_kept)
            jobs = Jobs(Counter(name for _, name in order), {name: [] for _, name in order})
            for number, (repeat, name) in enumerate(order):
                if name in jobs.errors:
                    continue
                outcome = kept.get((repeat, name))
                try:
                    if outcome is None:
                        text = f"{label(name)}, repeat {repeat + 1}"
                        within = job_started(self._on_progress, text, number, len(order))
                        outcome = self._run(planned[repeat, name], within)
                    check(name, outcome)
                except RankscopeError as error:
                    if not go_on_after_failure:
                        raise
                    # Its other repeats would fail as well, and the finished ones would be a biased sample.
                    jobs.errors[name] = str(error)
                    jobs.outcomes[name] = []
                    reason = error.what.splitlines()[0].removesuffix("; its last lines:")
                    self._on_progress(f"{label(name)} failed: {reason}", number, len(order), LINE)
                    continue
                refuse_mixed(outcome, jobs.all_outcomes, self.out)
                (outcome.folder / _DONE).touch()
                jobs.outcomes[name].append(outcome)
                jobs.enough = self._enough(jobs)
                if (repeat, name) not in kept:
                    self._new_jobs.add(outcome.folder)
                    if number + 1 < len(order) and not jobs.enough:
                        on_result(jobs)
                if jobs.enough:
                    break
            self._on_progress("", len(order), len(order), "")
            return jobs

    def _check_kept(self, kept: Collection[Outcome], total: int, *, announce: bool) -> None:
        """Check that finished jobs may be reused, and report how many of them are from an earlier run."""
        refuse_edited(kept, self.out, self._measurement)
        before = sum(outcome.folder not in self._new_jobs for outcome in kept)
        if before and announce:
            jobs_are = "job is" if total == 1 else "jobs are"
            self._on_progress(f"{before} of {total} {jobs_are} finished from before", len(kept), total, LINE)
        if len(kept) < total:
            self._note_load()

    def traced(self, outcome: Outcome) -> tuple[TraceSummary | None, str | None]:
        """The summary of a job's recorded window, or None and why. Read once."""
        if outcome.folder not in self._traced:
            self._traced[outcome.folder] = summarize_trace(outcome.folder, self.out)
        return self._traced[outcome.folder]

    def _run(self, job: Job, within: Callable[[str], None]) -> Outcome:
        folder = Path(job.plan.out)
        if plan_path(folder).exists():
            # An interrupted job, or one with another plan: its traces would mix with the new ones.
            shutil.rmtree(folder)
        return run(job.target or self.target, job.start, job.plan, timeout_s=self.sampling.timeout_s, within=within)

    def _claim(self) -> float | None:
        path = self._folder / _SETTINGS
        load = load_average()
        try:
            before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
            if before is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                _write(path, {"settings": self._settings, "load": load})
                return load
        except OSError as error:
            raise RankscopeError(f"cannot be written: {error.strerror}", path=path, hint="choose another -o") from error
        except ValueError as error:
            raise RankscopeError(f"cannot be read: {error}", path=path, hint="choose another -o") from error
        known = before if isinstance(before, dict) else {}
        settings = known.get("settings")
        others = differing(settings if isinstance(settings, dict) else {}, json.loads(json.dumps(self._settings)))
        if others:
            raise ConfigError(
                f"holds jobs of `measure {self._measurement}` that were started differently: {'; '.join(others)}",
                path=self.out,
                hint=HINT,
            )
        first = known.get("load")
        return float(first) if isinstance(first, int | float) else None

    def _note_load(self) -> None:
        loads = [load for load in (self._load, load_average()) if load is not None]
        self._load = max(loads, default=None)
        _write(self._folder / _SETTINGS, {"settings": self._settings, "load": self._load})


@contextmanager
def _exclusive(folder: Path, command: str) -> Iterator[None]:
    """Lock the directory: two processes that run the same experiment would remove each other's jobs.

    Raises:
        ConfigError: another process holds the lock.
    """
    with (folder / "lock").open("w", encoding="utf-8") as file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another `{command}` is running in this directory",
                    path=folder,
                    hint="wait until it has finished, or give another -o",
                ) from None
            except OSError:
                pass  # a file system without locks
        yield


def count_finished_jobs(out: Path, measurement: str) -> int:
    """The number of finished jobs of an experiment in its output directory."""
    return len(list((out / "jobs" / measurement).glob(f"*/{_DONE}")))


def _finished(plan: Plan) -> Outcome | None:
    """The outcome of a finished job with the same plan; None if there is none."""
    folder = Path(plan.out)
    if not (folder / _DONE).exists():
        return None
    try:
        if _comparable(read_plan(plan_path(folder))) != _comparable(plan):
            return None
        ranks = read_measurements(folder)
    except RankscopeError:
        return None
    return Outcome(folder, tuple(ranks)) if ranks else None


def _comparable(plan: Plan) -> dict[str, Any]:
    """A plan without its output directory and time limit."""
    fields: dict[str, Any] = json.loads(json.dumps(asdict(plan)))
    return {name: value for name, value in fields.items() if name not in ("out", "limit_s")}


def no_job(jobs: Jobs, out: Path, what: str) -> LaunchError:
    """The error of an experiment in which no job succeeded."""
    return LaunchError(f"{what}:\n" + "\n".join(f"{name}: {why}" for name, why in jobs.errors.items()), path=out)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    try:
        write_atomic(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=path, hint="choose another -o") from error
