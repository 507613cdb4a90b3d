"""Options and progress reports that the experiments share.

In: values of these options. Out: the experiment's settings, its progress on the terminal, and its printed result.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from rankscope.cli.writing import TextFormat, write
from rankscope.cli.writing import show as show_text
from rankscope.errors import ConfigError, LaunchError
from rankscope.experiments.measure.experiment import LINE, count_finished_jobs
from rankscope.experiments.measure.files import path_in
from rankscope.experiments.measure.jobs import ProgressCallback, Start, Target, target_of
from rankscope.experiments.measure.results import AnyResult
from rankscope.jobs.torchrun import accelerators
from rankscope.rundir.manifest import redact
from rankscope.show.report.experiments.terminal import measured
from rankscope.show.report.formatting import plain

R = TypeVar("R", bound=AnyResult)


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="SCRIPT|FILE.py:FUNCTION|WORKLOAD [ARGS]…",
        help="A training script; a function that makes one step; or resnet18, transformer, fsdp.",
    ),
]


Form = Annotated[
    TextFormat, typer.Option("--format", "-f", help="What is printed; the output directory gets JSON in any case.")
]


@dataclass(frozen=True)
class JobOptions:
    """How the jobs of an experiment are started, and where their results go."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Directory for the results; the same command continues there. Default: rankscope_measure/NAME_{time}.",
        ),
    ] = None
    nproc: Annotated[int | None, typer.Option("--nproc", min=1, help="Ranks; one per device, or 2, by default.")] = None
    launcher: Annotated[
        str | None,
        typer.Option(
            "--launcher",
            metavar="COMMAND",
            help="Instead of torchrun, e.g. 'srun -n {ranks}'; also {nodes}, {per_node}.",
        ),
    ] = None
    torchrun: Annotated[
        str, typer.Option("--torchrun", metavar="OPTIONS", help="Further options of torchrun, quoted as one argument.")
    ] = ""
    oversubscribe: Annotated[bool, typer.Option("--oversubscribe", help="Run more ranks than there are devices.")] = (
        False
    )
    form: Form = TextFormat.table

    def start(self) -> Start:
        """How the ranks of an experiment on one host are started.

        Raises:
            ConfigError: more ranks than there are devices.
        """
        devices = accelerators()
        ranks = self.nproc if self.nproc is not None else (devices or 2)
        if devices and ranks > devices and self.launcher is None and not self.oversubscribe:
            raise ConfigError(
                f"{ranks} ranks are more than the {devices} devices here",
                hint="choose a smaller --nproc, or --oversubscribe if the script shares devices or runs on the CPU",
            )
        return Start(ranks=ranks, launcher=self.launcher, torchrun=words_of(self.torchrun))


DEFAULTS = JobOptions()

# Options that training scripts rarely have.
_RANKSCOPE_OPTIONS = {
    *("--nproc", "--blocks", "--block-steps", "--settle", "--repeats", "--oversubscribe", "--launcher"),
    *("--torchrun", "--no-switches", "--affinities", "--trace-steps"),
}


def target_of_words(words: list[str]) -> Target:
    """The job to measure. Options of rankscope after it go to the script; this prints a warning.

    Raises:
        ConfigError: there is no script.
        LaunchError: there is no such script.
    """
    target = target_of(words)
    misplaced = [word for word in words[1:] if word.partition("=")[0] in _RANKSCOPE_OPTIONS]
    if misplaced:
        sys.stderr.write(
            plain(f"note: {', '.join(misplaced)} after {words[0]} is passed to it; put rankscope's options before it")
        )
        sys.stderr.write("\n")
    return target


def words_of(text: str) -> tuple[str, ...]:
    """Split options as a shell does.

    Raises:
        ConfigError: quotes that do not close.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{text!r}: {error}") from None


def numbers_of(text: str, option: str) -> list[int]:
    """Parse a list of whole numbers: ``1,2,4``.

    Raises:
        ConfigError: it is not such a list.
    """
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not a list of whole numbers", hint=f"write {option} 1,2,4") from None
    if min(numbers) < 1:
        raise ConfigError(f"{option} counts from 1", hint=f"write {option} 1,2,4")
    return numbers


def experiment(name: str, run: Callable[[Path, ProgressCallback], R], options: JobOptions) -> R:
    """Run an experiment in its output directory, and print its result.

    Args:
        name: name of the experiment.
        run: called with the output directory and the progress callback.
        options: the command line's.
    """
    folder = options.output or Path("rankscope_measure") / f"{name}_{time.strftime('%Y%m%d-%H%M%S')}"
    with progress(name, folder, options.output) as on_progress:
        result = run(folder, on_progress)
    finish(result, folder, options.form)
    return result


@contextmanager
def progress(name: str, folder: Path, output: Path | None) -> Iterator[ProgressCallback]:
    """Report an experiment's progress: a status line on a terminal, else a line per job. If interrupted, say how to
    continue.

    Args:
        name: name of the experiment.
        folder: its output directory.
        output: the value of `--output`.
    """
    with _progress(name) as on_progress:
        try:
            yield on_progress
            return
        except (KeyboardInterrupt, SystemExit):
            _say(f"{name}: interrupted")
            _say_how_to_continue(name, folder, output)
            raise
        except LaunchError:
            _say_how_to_continue(name, folder, output)
            raise


def _say_how_to_continue(name: str, folder: Path, output: Path | None) -> None:
    finished = count_finished_jobs(folder, name)
    if finished:
        kept = "1 finished job is kept" if finished == 1 else f"{finished} finished jobs are kept"
        _say(f"{name}: {kept}\n  → to continue: {_command_to_continue(name, folder, output)}")


def _command_to_continue(name: str, folder: Path, output: Path | None) -> str:
    """The command line that continues the experiment; in words if the original may contain secrets."""
    words = sys.argv[1:]
    if name not in words or redact(words) != words:
        return f"the same command with -o {shlex.quote(str(folder))}"
    if output is None:
        at = words.index(name) + 1
        words = [*words[:at], "-o", str(folder), *words[at:]]
    return shlex.join(["rankscope", *words])


def _say(text: str) -> None:
    sys.stderr.write("\n".join(plain(line, limit=4000) for line in text.split("\n")) + "\n")


@contextmanager
def _progress(name: str) -> Iterator[ProgressCallback]:
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with Status(name, console=console) as status:

            def on_progress(job: str, done: int, total: int, within: str) -> None:
                if within == LINE:
                    console.print(plain(f"{name}: {job}"), markup=False)
                    return
                count = f"{done} of {total} jobs done; " if total else ""
                status.update(Text(plain(f"{name}: {count}{job} {within}")))

            yield on_progress
        return

    def print_progress(job: str, done: int, total: int, within: str) -> None:
        if within == LINE:
            _say(f"{name}: {job}")
        elif job and not within.startswith("round"):
            _say(f"{name}: {job} ({done + 1} of {max(total, done + 1)})")

    yield print_progress


def finish(result: AnyResult | list[AnyResult], folder: Path, form: TextFormat) -> None:
    """Print a result, and the path of its file."""
    if form is TextFormat.json:
        write(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n", None)
        return
    for one in result if isinstance(result, list) else [result]:
        show_text(measured(one), None)
        _say(f"written: {path_in(folder, one.measurement)}")
