"""The jobs of an experiment, kept in its output directory: what is finished is not run again, however it was ended.

``DIR/jobs/NAME/settings.json`` holds what the experiment was begun with; a job's directory beside it holds ``done``
once it went through. Who begins again with the same settings goes on; with others he is refused, and told which differ.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rankscope.errors import ConfigError, LaunchError, RankscopeError
from rankscope.measure.jobs import Outcome, Start, Target, Told, begun, run
from rankscope.measure.results import Traced
from rankscope.measure.resume_check import HINT, differing, refuse_edited, refuse_mixed, state_of
from rankscope.measure.sampling import Sampling, load_average
from rankscope.measure.trace_summary import read_traced
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.measurement import Plan, plan_path, read_measurements, read_plan

KEPT = "kept"
"""Told in the place of how far a job is, where jobs of an earlier time are taken over."""
_SETTINGS = "settings.json"
_DONE = "done"
_OF_SAMPLING = {
    "--blocks": "blocks",
    "--block-steps": "block_steps",
    "--settle": "settle_steps",
    "--warmup": "warmup_steps",
    "--trace-steps": "traced_steps",
    "--seed": "seed",
}
"""What may not change; further repeats may be added, and time limits change nothing of what is measured."""


@dataclass(frozen=True)
class Job:
    """One job: what is run, how, by which plan."""

    start: Start
    plan: Plan
    target: Target | None = None
    """None for the experiment's."""


@dataclass
class Jobs:
    """What has come of an experiment's jobs so far."""

    wanted: Mapping[str, int]
    """How many are to be run, by name."""
    outcomes: dict[str, list[Outcome]]
    """By name, each in the order of its repeats."""
    errors: dict[str, str] = field(default_factory=dict)
    """Why what is called so failed; it has no outcomes then."""

    @property
    def every(self) -> list[Outcome]:
        """All of them."""
        return [outcome for outcomes in self.outcomes.values() for outcome in outcomes]

    def state_of(self, name: str, repeats: int) -> str:
        """``failed``, ``done``, or ``pending`` as long as repeats are missing."""
        if name in self.errors:
            return "failed"
        return "done" if len(self.outcomes[name]) >= repeats else "pending"

    def notes(self) -> list[str]:
        """What a reader has to know of an experiment that is not over."""
        done, wanted = len(self.every), sum(n for name, n in self.wanted.items() if name not in self.errors)
        said = [f"{done} of {wanted} jobs are finished: the same command with this -o goes on"] if done < wanted else []
        if self.errors:
            said.append(f"what failed ({', '.join(self.errors)}) is tried again by the same command with this -o")
        return said


def settings_of(start: Start) -> dict[str, Any]:
    """What an experiment on one size was told of its start, by option."""
    return {
        "--nproc": start.ranks,
        "--launcher": start.launcher,
        "--torchrun": shlex.join(start.torchrun) or None,
    }


class Experiment:
    """One experiment in its output directory.

    Args:
        measurement: its name, ``overhead``.
        target: what is run.
        out: the output directory.
        sampling: how often.
        told: is told how far it is.
        settings: what else may not change, by the option that chooses it; None where it was not given.

    Raises:
        ConfigError: ``out`` holds one that was begun with other settings.
        RankscopeError: ``out`` cannot be written to.
    """

    def __init__(
        self,
        measurement: str,
        target: Target,
        out: Path,
        sampling: Sampling,
        told: Told,
        settings: Mapping[str, Any],
    ) -> None:
        self.out = out
        self.sampling = sampling
        self._measurement = measurement
        self._target = target
        self._told = told
        self._folder = out / "jobs" / measurement
        self._own: set[Path] = set()
        self._traced: dict[Path, tuple[Traced | None, str | None]] = {}
        own = {option: getattr(sampling, name) for option, name in _OF_SAMPLING.items()}
        self._settings = {**state_of(target), **own, **settings}
        self._load = self._claim()

    @property
    def load(self) -> float | None:
        """The machine's load average as it began, the highest where it was begun several times."""
        return self._load

    def folder_of(self, name: str, repeat: int) -> Path:
        """The directory of a job."""
        return self._folder / f"{re.sub(r'[^A-Za-z0-9._]+', '-', name)}-{repeat}"

    def run(
        self,
        order: Sequence[tuple[int, str]],
        job: Callable[[str, int, Path], Job],
        *,
        so_far: Callable[[Jobs], object] = lambda _: None,
        check: Callable[[str, Outcome], object] = lambda _name, _outcome: None,
        label: Callable[[str], str] = str,
        goes_on: bool = True,
        announced: bool = True,
    ) -> Jobs:
        """Run the jobs that are not finished yet.

        Args:
            order: repeat and name of each, in the order in which they are run.
            job: what one is, by its name, its repeat and its directory.
            so_far: is given what there is after each job that was run, but for the last.
            check: raises where a job was not what its name says.
            label: what a name is called where it is told how far all is.
            goes_on: whether the others are run where one failed.
            announced: whether it is told how many are finished; not where these are only the first of all.

        Raises:
            ConfigError: another process runs them already.
            LaunchError: one failed, and the others are not to be run.
            KeyboardInterrupt: somebody pressed Ctrl-C; what is finished is kept.
            SystemExit: likewise, by another signal.
        """
        with _alone(self._folder, f"rankscope measure {self._measurement}"):
            return self._run_all(order, job, so_far, check, label, goes_on=goes_on, announced=announced)

    def _run_all(
        self,
        order: Sequence[tuple[int, str]],
        job: Callable[[str, int, Path], Job],
        so_far: Callable[[Jobs], object],
        check: Callable[[str, Outcome], object],
        label: Callable[[str], str],
        *,
        goes_on: bool,
        announced: bool,
    ) -> Jobs:
        made = {(repeat, name): job(name, repeat, self.folder_of(name, repeat)) for repeat, name in order}
        kept = {key: found for key, each in made.items() if (found := _finished(each.plan)) is not None}
        refuse_edited(kept.values(), self.out, self._measurement)
        before = sum(each.folder not in self._own for each in kept.values())
        if before and announced:
            jobs_are = "job is" if len(order) == 1 else "jobs are"
            self._told(f"{before} of {len(order)} {jobs_are} finished from before", len(kept), len(order), KEPT)
        if len(kept) < len(order):
            self._note_load()
        jobs = Jobs(Counter(name for _, name in order), {name: [] for _, name in order})
        for number, (repeat, name) in enumerate(order):
            if name in jobs.errors:
                continue
            outcome = kept.get((repeat, name))
            try:
                if outcome is None:
                    within = begun(self._told, f"{label(name)}, repeat {repeat + 1}", number, len(order))
                    outcome = self._run(made[repeat, name], within)
                check(name, outcome)
            except RankscopeError as error:
                if not goes_on:
                    raise
                # The rest of it would fail as well, and what is measured of it would be an odd sample.
                jobs.errors[name] = str(error)
                jobs.outcomes[name] = []
                said = error.what.splitlines()[0].removesuffix("; its last lines:")
                self._told(f"{label(name)} failed: {said}", number, len(order), "")
                continue
            refuse_mixed(outcome, jobs.every, self.out)
            (outcome.folder / _DONE).touch()
            if (repeat, name) not in kept:
                self._own.add(outcome.folder)
            jobs.outcomes[name].append(outcome)
            if (repeat, name) not in kept and number + 1 < len(order):
                so_far(jobs)
        self._told("", len(order), len(order), "")
        return jobs

    def traced(self, outcome: Outcome) -> tuple[Traced | None, str | None]:
        """What a job's recorded window says, or None; and why None. Read once."""
        if outcome.folder not in self._traced:
            self._traced[outcome.folder] = read_traced(outcome.folder, self.out)
        return self._traced[outcome.folder]

    def _run(self, job: Job, within: Callable[[str], None]) -> Outcome:
        folder = Path(job.plan.out)
        if plan_path(folder).exists():
            # Of a job that was ended, or of another plan: its traces would be read with those that are to come.
            shutil.rmtree(folder)
        return run(job.target or self._target, job.start, job.plan, timeout_s=self.sampling.timeout_s, within=within)

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
                f"holds jobs of `measure {self._measurement}` that were begun otherwise: {'; '.join(others)}",
                path=self.out,
                hint=HINT,
            )
        first = known.get("load")
        return float(first) if isinstance(first, int | float) else None

    def _note_load(self) -> None:
        loads = [each for each in (self._load, load_average()) if each is not None]
        self._load = max(loads, default=None)
        _write(self._folder / _SETTINGS, {"settings": self._settings, "load": self._load})


@contextmanager
def _alone(folder: Path, command: str) -> Iterator[None]:
    """Nobody else runs jobs of this experiment in this directory meanwhile: he would remove the other's.

    Raises:
        ConfigError: somebody does.
    """
    with (folder / "lock").open("w", encoding="utf-8") as file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another `{command}` is at work in this directory",
                    path=folder,
                    hint="wait for its end, or give another -o",
                ) from None
            except OSError:
                pass  # a file system without locks
        yield


def finished_jobs(out: Path, measurement: str) -> int:
    """How many jobs of an experiment are finished in its output directory."""
    return len(list((out / "jobs" / measurement).glob(f"*/{_DONE}")))


def _finished(plan: Plan) -> Outcome | None:
    """What a job measured that went through by the same plan; None where none did."""
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
    """A plan without where its results go and how long it may take."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(plan)))
    return {name: value for name, value in found.items() if name not in ("out", "limit_s")}


def no_job(jobs: Jobs, out: Path, what: str) -> LaunchError:
    """The error of an experiment of which nothing went through."""
    return LaunchError(f"{what}:\n" + "\n".join(f"{name}: {why}" for name, why in jobs.errors.items()), path=out)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    try:
        write_atomic(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=path, hint="choose another -o") from error
