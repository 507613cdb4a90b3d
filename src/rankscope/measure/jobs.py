"""One job of an experiment: started with its plan, watched, and what its ranks measured."""

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
from rankscope.jobs.exec import profiled_environment
from rankscope.jobs.run import JobResult, run_command, run_job
from rankscope.measure.statistics import Series
from rankscope.rundir.measurement import (
    FAILED,
    PLAN_VARIABLE,
    Plan,
    RankMeasurement,
    progress_path,
    read_measurements,
    write_plan,
)

_FUNCTION = "rankscope.workloads.function"
WORKLOADS = ("resnet18", "transformer", "fsdp")
STEP = "step"
_POLL_S = 0.5
_USAGE = re.compile(r".*: error: .+")
"""How argparse and click refuse a command line."""
_EXCEPTION = re.compile(
    r"(?:\[(?:rank)?(?P<rank>\d+)\]:\s?)?(?P<what>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b(?::.*)?)$"
)
"""A traceback's last line, with the rank that torch writes before it."""
THREADS = "OMP_NUM_THREADS"
THREADS_NOTE = f"{THREADS}=1 in every job, as torchrun sets it for several ranks; set it for another number of threads"


class Told(Protocol):
    """Is told how far an experiment is."""

    def __call__(self, job: str, done: int, total: int, within: str) -> None:
        """Of ``total`` jobs ``done`` are over; ``job`` runs, and is at ``within``."""


def silent(job: str, done: int, total: int, within: str) -> None:
    """Say nothing."""


def begun(told: Told, job: str, done: int, total: int) -> Callable[[str], None]:
    """Say that a job starts; gives what is to be told of its rounds."""
    told(job, done, total, "starting")
    return lambda text: told(job, done, total, f"round {text}")


@dataclass(frozen=True)
class Target:
    """What is run: a script, a module, or a function."""

    words: tuple[str, ...]
    """The script or module, and its arguments."""
    module: bool
    label: str

    @property
    def file(self) -> str:
        """The script's file, or that of the function; a module's name where it is one."""
        if self.words[0] == _FUNCTION and len(self.words) > 1:
            return self.words[1].rpartition(":")[0]
        return self.words[0]

    def with_arguments(self, *further: str) -> Target:
        """The same with more arguments."""
        return Target((*self.words, *further), self.module, self.label)


def target_of(words: Sequence[str]) -> Target:
    """What the user named: a workload of rankscope's, ``train.py``, ``train.py:train_step``, ``package.mod:train_step``
    or ``-m package.module``; with its arguments.

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
        return Target((f"rankscope.workloads.{first}", "--no-profile", "--steps", "1000000", *arguments), True, label)
    if re.fullmatch(r".+:[A-Za-z_]\w*", first) and not Path(first).exists():
        _check_function(first)
        return Target((_FUNCTION, first, *arguments), True, label)
    if not Path(first).is_file():
        raise LaunchError(
            "no such script", path=first, hint=f"a path, FILE.py:FUNCTION, -m MODULE, or one of {', '.join(WORKLOADS)}"
        )
    return Target((first, *arguments), False, label)


def _check_function(target: str) -> None:
    """Whether the file binds the name, as far as its text says: else a script that trains while it is loaded would be
    measured in the function's place.

    Raises:
        LaunchError: there is no such file, or nothing in it is called so.
    """
    file, _, name = target.rpartition(":")
    if not file.endswith(".py"):
        return  # a module; it is found when it is loaded
    try:
        tree = ast.parse(Path(file).read_bytes())
    except OSError:
        raise LaunchError("no such script", path=file, hint="FILE.py:FUNCTION") from None
    except (SyntaxError, ValueError) as error:
        raise LaunchError(f"is no Python: {error}", path=file) from None
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {each.asname or each.name.partition(".")[0] for each in node.names}
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
    """As a process alone, without any launcher."""
    launcher: str | None = None
    """Instead of torchrun: a command with ``{ranks}``, ``{nodes}`` and ``{per_node}``."""
    torchrun: tuple[str, ...] = ()
    """Further options of torchrun."""


@dataclass(frozen=True)
class Outcome:
    """A job that went through."""

    folder: Path
    ranks: tuple[RankMeasurement, ...]

    @property
    def sources(self) -> Mapping[str, str]:
        """Digests of the training's own source files, by their paths."""
        return self.ranks[0].sources

    @property
    def rounds(self) -> list[int]:
        """Those in which every rank has every condition."""
        names = {block.condition for each in self.ranks for block in each.blocks}
        sets = [
            {r for r in {b.round for b in each.blocks} if {b.condition for b in each.blocks if b.round == r} == names}
            for each in self.ranks
        ]
        return sorted(set.intersection(*sets)) if sets else []


def run(target: Target, start: Start, plan: Plan, *, timeout_s: float, within: Callable[[str], None]) -> Outcome:
    """Run one job by its plan.

    Args:
        target: what is run.
        start: how.
        plan: what it does; its directory is made.
        timeout_s: how long it may take.
        within: is told how far it is.

    Raises:
        LaunchError: it failed, or measured nothing; with the cause as far as it can be told.
        KeyboardInterrupt: somebody pressed Ctrl-C: not this job alone is to end.
        SystemExit: likewise, by another signal.
    """
    folder = Path(plan.out)
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / "measured").glob("*"):
        old.unlink()
    environ = profiled_environment({THREADS: "1", **os.environ, PLAN_VARIABLE: str(write_plan(plan))})
    lines: list[str] = []
    with _watched(progress_path(folder), within):
        done = _start(target, start, environ, folder, lines.append, timeout_s)
    (folder / "output.log").write_text("".join(lines), encoding="utf-8", errors="replace")
    if done.signal is not None:
        # It was meant for the experiment: no size or variant failed, and none of the others is to be run.
        raise KeyboardInterrupt if done.signal == signal.SIGINT else SystemExit(128 + done.signal)
    ranks = read_measurements(folder)
    for each in ranks:
        if each.ended == FAILED:
            raise LaunchError(f"rank {each.rank}: {each.error}", path=folder)
    if done.exit_code != 0:
        raise LaunchError(
            f"the job ended with exit code {done.exit_code}{_cause(lines)}; its last lines:\n{done.log_tail}",
            path=folder,
            hint=_hint(done.log_tail, start),
        )
    if not ranks:
        raise LaunchError(
            "the script ended without a step of an optimizer: there is nothing to measure",
            path=folder,
            hint="is it the training script? One without a torch.optim.Optimizer is measured as FILE.py:FUNCTION",
        )
    outcome = Outcome(folder, tuple(ranks))
    if len(ranks) != ranks[0].world_size:
        raise LaunchError(f"{len(ranks)} of {ranks[0].world_size} ranks measured anything", path=folder)
    if not start.plain and ranks[0].world_size != start.ranks:
        raise LaunchError(
            f"{start.ranks} ranks were started, and the script made a job of {ranks[0].world_size}",
            path=folder,
            hint="does it call init_process_group with what the launcher gave it?",
        )
    measured = {block.condition for each in ranks for block in each.blocks}
    if not outcome.rounds or any(name not in measured for names in plan.rounds for name in names):
        # A round of the plan's conditions: a script that ended within the first one has a round of fewer.
        raise LaunchError(
            f"the script ended after {ranks[0].steps} steps, before one round of blocks was complete",
            path=folder,
            hint="let it make more steps, or choose a smaller --block-steps or --warmup",
        )
    return outcome


def series(outcomes: Sequence[Outcome], condition: str, phase: str = STEP) -> Series | None:
    """The times of a condition over jobs; None where not all steps of all ranks have them."""
    jobs = []
    for outcome in outcomes:
        blocks = {(b.round, each.rank): b for each in outcome.ranks for b in each.blocks if b.condition == condition}
        ranks = [each.rank for each in outcome.ranks]
        values = [
            [getattr(blocks[r, k], f"{phase}_ns") for k in ranks] for r in outcome.rounds if (r, ranks[0]) in blocks
        ]
        lengths = {len(steps) for each in values for steps in each}
        if len(lengths) != 1 or 0 in lengths:
            return None
        jobs.append(np.asarray(values, dtype=np.float64))
    return Series(tuple(jobs)) if jobs else None


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
                    f"{start.launcher!r} cannot be filled in: {error}",
                    hint="it may hold {ranks}, {nodes} and {per_node}",
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
    """The first exception that a rank printed: what follows it in other ranks is mostly its consequence."""
    for line in lines:
        found = _EXCEPTION.match(line)
        if found:
            rank = "" if found["rank"] is None else f"rank {found['rank']}: "
            return f": {rank}{found['what'].strip()[:300]}"
    usage = next((line.strip() for line in lines if _USAGE.match(line)), None)
    return "" if usage is None else f": {usage[:300]}"


def _hint(tail: str, start: Start) -> str:
    if re.search(r"EADDRINUSE|address already in use", tail, re.IGNORECASE):
        return "a port is in use: another job has it; leave the port to torchrun, or choose another --master-port"
    if re.search(r": error: (ambiguous option|unrecognized arguments)", tail, re.MULTILINE):
        return "what stands behind the script goes to it: options of rankscope measure stand before it"
    if re.search(r"invalid device ordinal|CUDA_ERROR_INVALID_DEVICE|Duplicate GPU detected", tail, re.IGNORECASE):
        return f"{start.ranks} ranks are more than there are devices here"
    if start.launcher is not None and not start.plain:
        return "does the launcher's command work by itself?"
    return "the first error of the first rank that failed is usually the cause"


@contextmanager
def _watched(path: Path, within: Callable[[str], None]) -> Iterator[None]:
    over = threading.Event()

    def watch() -> None:
        last = ""
        while not over.wait(_POLL_S):
            try:
                now = path.read_text(encoding="utf-8").strip()
            except OSError:
                continue
            if now != last:
                last = now
                within(now)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(5)
