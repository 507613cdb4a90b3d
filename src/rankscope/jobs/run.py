"""Run a job to its end: a run directory, the processes, their output, their exit code, and no process left behind.

In: a script with its arguments and options. Out: its result, with the run directory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rankscope.errors import ConfigError, LaunchError
from rankscope.jobs.gather.merge import rank_manifests
from rankscope.jobs.gather.traces import find_traces
from rankscope.jobs.torchrun import (
    RUN_DIR_VARIABLE,
    RUN_ID_VARIABLE,
    command,
    has_more_nodes,
    refuse_to_nest,
    store_settings,
)
from rankscope.rundir.config import variable_of
from rankscope.rundir.directory import absolute_directory, is_store_url
from rankscope.rundir.manifest import RankManifest

UPLOAD_VARIABLE = variable_of("upload_to")
_TAIL_LINES = 40
_GRACE_S = 45.0
"""How long a job may take to end after it was asked to; torchrun itself gives its workers 30 s, then kills them."""
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@dataclass(frozen=True)
class JobResult:
    """A job that has ended."""

    exit_code: int
    """0 if all went well; 128 + the signal's number if a signal ended it, as a shell has it."""
    run_dir: Path
    run_id: str
    log_tail: str
    """The last lines that the job printed; empty where the output went straight to the terminal."""
    signal: int | None = None
    """The first signal that reached this process during the job and was passed on to it."""
    upload_to: str | None = None
    """The URL that the ranks upload to."""
    earlier: frozenset[Path] = frozenset()
    """The files that the run directory had before the job."""

    def traces(self) -> list[Path]:
        """The traces in the run directory that are new."""
        return sorted(find_traces(self.run_dir, known=self.earlier).values())

    def manifests(self) -> list[RankManifest]:
        """The manifests of its ranks."""
        return rank_manifests(self.run_dir, known=self.earlier)

    def is_in(self, folder: Path) -> bool:
        """Whether its ranks have written traces to another directory."""
        own = (each for each in rank_manifests(folder) if each.run_id == self.run_id or not self.run_id)
        return any(each.written for each in own)

    def not_uploaded(self) -> list[str]:
        """The traces, by their path in the run directory, that this host's ranks could not upload."""
        written = (each for manifest in self.manifests() for each in manifest.written)
        return [each.file for each in written if each.uploaded is False]


def launch(  # noqa: PLR0913  # each is an option that users give by name
    script: str | os.PathLike[str],
    *args: object,
    nproc: int | str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    run_id: str | None = None,
    env: Mapping[str, str] | None = None,
    module: bool = False,
    torchrun: Sequence[str] = (),
    timeout_s: float | None = None,
    check: bool = True,
    echo: bool = True,
) -> JobResult:
    """Run a training script on this machine and wait for its end; for notebooks and scripts.

    Args:
        script: the script's path, or a module's name with ``module=True``.
        args: the script's arguments.
        nproc: how many ranks; one for each accelerator, or one on the CPU, by default.
        run_dir: the run directory; ``rankscope_run_<time>`` by default.
        run_id: what names the run; by default generated or, on several nodes, agreed on by the ranks.
        env: variables to set for the job, added to this process's.
        module: run ``script`` as a module.
        torchrun: further options of torchrun.
        timeout_s: end the job after this many seconds.
        check: raise if the job fails; otherwise look at ``exit_code``.
        echo: print what the job prints.

    Raises:
        LaunchError: the job could not be started, failed or took too long; with its last lines.
        LauncherError: this process's launcher variables contradict each other.
    """
    options = [*torchrun, *(["-m"] if module else [])]
    if nproc is not None:
        options = [f"--nproc-per-node={nproc}", *options]
    result = run_job(
        options,
        [os.fspath(script), *(str(arg) for arg in args)],
        run_dir=run_dir,
        run_id=run_id,
        env=env,
        output=sys.stdout.write if echo else lambda _line: None,
        timeout_s=timeout_s,
    )
    if check and result.exit_code != 0:
        raise LaunchError(
            f"{os.fspath(script)} ended with exit code {result.exit_code}; its last lines:\n{result.log_tail}",
            hint="the first error of the first rank that failed is usually the cause",
        )
    return result


def run_job(
    options: Sequence[str],
    script: Sequence[str],
    *,
    run_dir: str | os.PathLike[str] | None = None,
    run_id: str | None = None,
    env: Mapping[str, str] | None = None,
    output: Callable[[str], object] | None = None,
    timeout_s: float | None = None,
) -> JobResult:
    """Run ``torchrun options script`` with a run directory, and wait for its end.

    SIGINT, SIGTERM and SIGHUP are passed on to the job, and this process ends after it.

    Args:
        options: torchrun's options.
        script: the script and its arguments.
        run_dir: the run directory, made if it can be; ``RANKSCOPE_RUN_DIR``, else ``rankscope_run_<time>``.
        run_id: the run's id; ``RANKSCOPE_RUN_ID``, else generated or, on several nodes, agreed on by the ranks.
        env: variables to add.
        output: called with each line of the job's output; ``None`` leaves the terminal to the job.
        timeout_s: end the job after this many seconds.

    Raises:
        LaunchError: it could not be started, or took too long.
    """
    environ = {**os.environ, **(env or {})}
    refuse_to_nest(environ)
    line = command(options, script, environ)
    environ = {**store_settings(line[: len(line) - len(script)], environ), **environ}
    return run_command(line, environ, run_dir=run_dir, run_id=run_id, output=output, timeout_s=timeout_s)


def run_command(
    line: Sequence[str],
    environ: Mapping[str, str],
    *,
    run_dir: str | os.PathLike[str] | None = None,
    run_id: str | None = None,
    output: Callable[[str], object] | None = None,
    timeout_s: float | None = None,
) -> JobResult:
    """Run a command that starts a job, whatever it is, as :func:`run_job` runs torchrun.

    Args:
        line: the command and its arguments.
        environ: all variables of the job; the run directory and the run's id are added.
        run_dir, run_id, output, timeout_s: as of :func:`run_job`.

    Raises:
        LaunchError: it could not be started, or took too long.
    """
    wanted = run_dir or environ.get(RUN_DIR_VARIABLE) or None
    if is_store_url(wanted):
        # The ranks write here, and upload from here.
        environ, wanted = {UPLOAD_VARIABLE: str(wanted), **environ}, None
    try:
        folder = make_run_dir(wanted)
    except ConfigError as error:
        if run_dir:
            raise
        folder = make_run_dir(None)  # as a rank does that a launcher started
        print(f"rankscope: {RUN_DIR_VARIABLE}: {error.what}: the traces go to {folder}", file=sys.stderr)
    name = run_id or environ.get(RUN_ID_VARIABLE)
    if not name and not has_more_nodes(line, environ):
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
    environ = {**environ, RUN_DIR_VARIABLE: str(folder), **({RUN_ID_VARIABLE: name} if name else {})}
    earlier = _files(folder)
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        job = subprocess.Popen(
            line,
            env=environ,
            stdout=None if output is None else subprocess.PIPE,
            stderr=None if output is None else subprocess.STDOUT,
            text=True,
            errors="replace",
            # Its own group: a Ctrl-C in the terminal would reach torchrun and its workers twice, from there and from
            # us.
            start_new_session=True,
        )
    except OSError as error:
        hint = "is it installed, and found in PATH?"
        raise LaunchError(f"{line[0]} could not be started: {error.strerror}", hint=hint) from error
    reader = None
    if job.stdout is not None and output is not None:
        reader = threading.Thread(target=_read, args=(job.stdout, tail, output), daemon=True)
        reader.start()
    with _forwarded(job) as received:
        try:
            code = job.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise LaunchError(
                f"the job was ended after {timeout_s:.0f} s; its last lines:\n{''.join(tail)}",
                hint="a hang at the start is often a rank that never connected, or a script that starts its ranks "
                "itself (mp.spawn); at the end, a collective not all ranks call",
            ) from None
        finally:
            _end(job)
            if reader is not None:
                reader.join(_GRACE_S)
                if job.stdout is not None and not reader.is_alive():
                    job.stdout.close()
    return JobResult(
        code if code >= 0 else 128 - code,
        folder,
        name or next((m.run_id for m in rank_manifests(folder, known=earlier) if m.run_id), ""),
        "".join(tail),
        received[0] if received else None,
        environ.get(UPLOAD_VARIABLE),
        earlier,
    )


def make_run_dir(wanted: str | os.PathLike[str] | None) -> Path:
    """The run directory, by default a new ``rankscope_run_<time>`` in the working directory.

    One that cannot be made is no reason not to start a job: its ranks warn, and keep their traces elsewhere.

    Raises:
        ConfigError: what was named is no directory.
    """
    if wanted is not None:
        folder = Path(absolute_directory(wanted))
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        return folder
    base = Path(absolute_directory(f"rankscope_run_{time.strftime('%Y%m%d_%H%M%S')}"))
    for attempt in range(1000):
        folder = base if attempt == 0 else base.with_name(f"{base.name}_{attempt + 1}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError:
            pass
        return folder
    return base.with_name(f"{base.name}_{uuid.uuid4().hex}")


def _files(folder: Path) -> frozenset[Path]:
    """All files of a directory, by their names alone: it may be large, and its disk slow."""
    return frozenset(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


def _read(stream: Iterator[str], tail: deque[str], output: Callable[[str], object]) -> None:
    for line in stream:
        tail.append(line)
        with suppress(Exception):  # a closed pipe, or a terminal without this character: a job that is not read hangs
            output(line)


@contextmanager
def _forwarded(job: subprocess.Popen[str]) -> Iterator[list[int]]:
    """Signals to this process are passed on to the job; yields those that were received.

    Those that are ignored stay so: ``nohup`` has SIGHUP ignored.
    """
    received: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if job.poll() is None:
            job.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread can set handlers; in a notebook's thread the kernel keeps its own
        return
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in heeded}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(job: subprocess.Popen[str]) -> None:
    """Leave no process behind: ask torchrun to end, which ends its workers, then end the whole group."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
    if sys.platform != "win32":
        # torchrun may or may not start workers in sessions of their own; what is left of the group is killed.
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
