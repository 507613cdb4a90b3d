"""Run one job of an experiment: start it with its plan, follow its progress, and read its ranks' measurements.

In: a script, a plan and a launcher. Out: the measurements of all ranks, or the reason why there are none.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from rankscope.errors import ConfigError, LaunchError
from rankscope.experiments.measure.statistics import Series
from rankscope.jobs.exec import profiled_environment
from rankscope.jobs.run import JobResult, run_command, run_job
from rankscope.rundir.measurement import (
    FAILED,
    PLAN_VARIABLE,
    Plan,
    RankMeasurement,
    progress_path,
    read_measurements,
    write_plan,
)

_FUNCTION = "rankscope.capture.workloads.function"
WORKLOADS = ("resnet18", "transformer", "fsdp")
STEP = "step"
_POLL_S = 0.5
_USAGE = re.compile(r".*: error: .+")
"""The error line of argparse and click."""
_EXCEPTION = re.compile(
    r"(?:\[(?:rank)?(?P<rank>\d+)\]:\s?)?(?P<what>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b(?::.*)?)$"
)
"""The last line of a traceback, with the rank prefix that torch adds."""
THREADS = "OMP_NUM_THREADS"
THREADS_NOTE = f"{THREADS}=1 in every job, as torchrun sets it for several ranks; set it for another number of threads"


class ProgressCallback(Protocol):
    """Called with the progress of an experiment."""

    def __call__(self, job: str, done: int, total: int, within: str) -> None:
        """``done`` of ``total`` jobs are finished; ``job`` is running, and ``within`` is its own progress."""


def no_progress(job: str, done: int, total: int, within: str) -> None:
    """Report nothing."""


def job_started(on_progress: ProgressCallback, job: str, done: int, total: int) -> Callable[[str], None]:
    """Report that a job starts; returns the callback for the progress of its rounds."""
    on_progress(job, done, total, "starting")
    return lambda text: on_progress(job, done, total, f"round {text}")


@dataclass(frozen=True)
class Target:
    """What is run: a script, a module, or a function."""

    words: tuple[str, ...]
    """The script or module, and its arguments."""
    module: bool
    label: str

    @property
    def file(self) -> str:
        """The file of the script or function; for a module its name."""
        if self.words[0] == _FUNCTION and len(self.words) > 1:
            return self.words[1].rpartition(":")[0]
        return self.words[0]

    def with_arguments(self, *further: str) -> Target:
        """The same target with more arguments."""
        return Target((*self.words, *further), self.module, self.label)


def target_of(words: Sequence[str]) -> Target:
    """Parse what the user named: a built-in workload, ``train.py``, ``train.py:train_step``, ``package.mod:train_step``
    or ``-m package.module``, with its arguments.

    Raises:
        ConfigError: nothing was named.
        LaunchError: there is no such script.
    """
    if not words:
        raise ConfigError(
            "no script to measure", hint=f"name a script, FILE.py:FUNCTION, or a workload: {', '.join(WORKLOADS)}"
        )
    first, *arguments = words
    label = shlex.join(words)
    if first == "-m":
        if not arguments:
            raise ConfigError("-m needs a module")
        return Target(tuple(arguments), True, label)
    if first in WORKLOADS and not Path(first).exists():
        return Target(
            (f"rankscope.capture.workloads.{first}", "--no-profile", "--steps", "1000000", *arguments), True, label
        )
    if re.fullmatch(r".+:[A-Za-z_]\w*", first) and not Path(first).exists():
        _check_function(first)
        return Target((_FUNCTION, first, *arguments), True, label)
    if not Path(first).is_file():
        raise LaunchError(
            "no such script", path=first, hint=f"a path, FILE.py:FUNCTION, -m MODULE, or one of {', '.join(WORKLOADS)}"
        )
    return Target((first, *arguments), False, label)


def _check_function(target: str) -> None:
    """Check in the source that the file defines the name: otherwise a script that trains on import would be measured
    instead of the function.

    Raises:
        LaunchError: there is no such file, or it does not define the name.
    """
    file, _, name = target.rpartition(":")
    if not file.endswith(".py"):
        return  # a module: found on import
    try:
        tree = ast.parse(Path(file).read_bytes())
    except OSError:
        raise LaunchError("no such script", path=file, hint="FILE.py:FUNCTION") from None
    except (SyntaxError, ValueError) as error:
        raise LaunchError(f"is not valid Python: {error}", path=file) from None
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if name not in bound and "*" not in bound:
        functions = sorted(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
        hint = f"it has {', '.join(functions[:8])}" if functions else "name the script alone, without a function"
        raise LaunchError(f"has no function {name}", path=file, hint=hint)


@dataclass(frozen=True)
class Start:
    """How the ranks of a job are started."""

    ranks: int = 1
    nodes: int = 1
    plain: bool = False
    """As a single process, without a launcher."""
    launcher: str | None = None
    """Instead of torchrun: a command with ``{ranks}``, ``{nodes}`` and ``{per_node}``."""
    torchrun: tuple[str, ...] = ()
    """Further options of torchrun."""


@dataclass(frozen=True)
class Outcome:
    """A job that succeeded."""

    folder: Path
    ranks: tuple[RankMeasurement, ...]

    @property
    def sources(self) -> Mapping[str, str]:
        """Digests of the training's own source files, by their paths."""
        return self.ranks[0].sources

    @property
    def rounds(self) -> list[int]:
        """The rounds in which every rank has every condition."""
        names = {block.condition for rank in self.ranks for block in rank.blocks}
        sets = [
            {r for r in {b.round for b in rank.blocks} if {b.condition for b in rank.blocks if b.round == r} == names}
            for rank in self.ranks
        ]
        return sorted(set.intersection(*sets)) if sets else []


def run(target: Target, start: Start, plan: Plan, *, timeout_s: float, within: Callable[[str], None]) -> Outcome:
    """Run one job by its plan.

    Args:
        target: what is run.
        start: how it is started.
        plan: what it does; its directory is created.
        timeout_s: the time limit.
        within: called with its progress.

    Raises:
        LaunchError: it failed or measured nothing; with the cause if it is known.
        KeyboardInterrupt: Ctrl-C, which ends the experiment and not only this job.
        SystemExit: the same, after another signal.
    """
    folder = Path(plan.out)
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / "measured").glob("*"):
        old.unlink()
    environ = profiled_environment({THREADS: "1", **os.environ, PLAN_VARIABLE: str(write_plan(plan))})
    lines: list[str] = []
    with _watched(progress_path(folder), within):
        result = _start(target, start, environ, folder, lines.append, timeout_s)
    (folder / "output.log").write_text("".join(lines), encoding="utf-8", errors="replace")
    if result.signal is not None:
        # The signal was meant for the experiment: nothing failed, and no other job must run.
        raise KeyboardInterrupt if result.signal == signal.SIGINT else SystemExit(128 + result.signal)
    ranks = read_measurements(folder)
    for rank in ranks:
        if rank.ended == FAILED:
            raise LaunchError(f"rank {rank.rank}: {rank.error}", path=folder)
    if result.exit_code != 0:
        raise LaunchError(
            f"the job ended with exit code {result.exit_code}{_cause(lines)}; its last lines:\n{result.log_tail}",
            path=folder,
            hint=_hint(result.log_tail, start),
        )
    if not ranks:
        raise LaunchError(
            "the script ended without an optimizer step: there is nothing to measure",
            path=folder,
            hint="is it the training script? One without a torch.optim.Optimizer can be measured as FILE.py:FUNCTION",
        )
    outcome = Outcome(folder, tuple(ranks))
    if len(ranks) != ranks[0].world_size:
        raise LaunchError(f"only {len(ranks)} of {ranks[0].world_size} ranks measured anything", path=folder)
    if not start.plain and ranks[0].world_size != start.ranks:
        raise LaunchError(
            f"{start.ranks} ranks were started, but the script made a job of {ranks[0].world_size}",
            path=folder,
            hint="does it call init_process_group with the values from the launcher?",
        )
    measured = {block.condition for rank in ranks for block in rank.blocks}
    if not outcome.rounds or any(name not in measured for names in plan.rounds for name in names):
        # A script that ended within the first round has not measured all conditions of the plan.
        raise LaunchError(
            f"the script ended after {ranks[0].steps} steps, before one round of blocks was complete",
            path=folder,
            hint="let it make more steps, or choose a smaller --block-steps or --warmup",
        )
    return outcome


def series(outcomes: Sequence[Outcome], condition: str, phase: str = STEP, looks: int = 1) -> Series | None:
    """The times of a condition over jobs; None if a step of any rank lacks them.

    Args:
        outcomes: the jobs.
        condition: whose times.
        phase: of the whole step, or of a part of it.
        looks: of :class:`~rankscope.experiments.measure.statistics.Series`.
    """
    jobs = []
    for outcome in outcomes:
        blocks = {(b.round, rank.rank): b for rank in outcome.ranks for b in rank.blocks if b.condition == condition}
        ranks = [rank.rank for rank in outcome.ranks]
        values = [
            [getattr(blocks[r, k], f"{phase}_ns") for k in ranks] for r in outcome.rounds if (r, ranks[0]) in blocks
        ]
        lengths = {len(steps) for rank in values for steps in rank}
        if len(lengths) != 1 or 0 in lengths:
            return None
        jobs.append(np.asarray(values, dtype=np.float64))
    return Series(tuple(jobs), looks) if jobs else None


def _start(
    target: Target, start: Start, environ: dict[str, str], folder: Path, output: Callable[[str], object], timeout: float
) -> JobResult:
    script = [*(["-m"] if target.module else []), *target.words]
    if start.plain or start.launcher is not None:
        prefix: list[str] = []
        if start.launcher is not None and not start.plain:
            per_node = -(-start.ranks // start.nodes)
            try:
                words = start.launcher.format(ranks=start.ranks, nodes=start.nodes, per_node=per_node)
            except (KeyError, IndexError, ValueError) as error:
                raise ConfigError(
                    f"{start.launcher!r} has an unknown placeholder: {error}",
                    hint="known: {ranks}, {nodes} and {per_node}",
                ) from None
            prefix = shlex.split(words)
        return run_command(
            [*prefix, sys.executable, *script], environ, run_dir=folder, output=output, timeout_s=timeout
        )
    per_node = -(-start.ranks // start.nodes)
    options = [f"--nproc-per-node={per_node}", *start.torchrun, *(["-m"] if target.module else [])]
    if start.nodes > 1:
        options.insert(0, f"--nnodes={start.nodes}")
    return run_job(options, target.words, run_dir=folder, env=environ, output=output, timeout_s=timeout)


def _cause(lines: Sequence[str]) -> str:
    """The first exception that a rank printed: those of other ranks mostly follow from it."""
    for line in lines:
        found = _EXCEPTION.match(line)
        if found:
            rank = "" if found["rank"] is None else f"rank {found['rank']}: "
            return f": {rank}{found['what'].strip()[:300]}"
    usage = next((line.strip() for line in lines if _USAGE.match(line)), None)
    return "" if usage is None else f": {usage[:300]}"


def _hint(tail: str, start: Start) -> str:
    if re.search(r"EADDRINUSE|address already in use", tail, re.IGNORECASE):
        return "the port is used by another job: leave it to torchrun, or choose another --master-port"
    if re.search(r": error: (ambiguous option|unrecognized arguments)", tail, re.MULTILINE):
        return "arguments after the script are passed to it: put options of rankscope measure before it"
    if re.search(r"invalid device ordinal|CUDA_ERROR_INVALID_DEVICE|Duplicate GPU detected", tail, re.IGNORECASE):
        return f"there are fewer devices here than {start.ranks} ranks"
    if start.launcher is not None and not start.plain:
        return "does the launcher command work on its own?"
    return "the first error of the first rank that failed is usually the cause"


@contextmanager
def _watched(path: Path, within: Callable[[str], None]) -> Iterator[None]:
    ended = threading.Event()

    def watch() -> None:
        last = ""
        while not ended.wait(_POLL_S):
            try:
                text = path.read_text(encoding="utf-8").strip()
            except OSError:
                continue
            if text != last:
                last = text
                within(text)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(5)
