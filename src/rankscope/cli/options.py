"""Options that several subcommands share, and how a run is opened with them.

In: values of these options. Out: an opened run, with progress shown while it is read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rankscope.engine.pipeline import Run, open_run
from rankscope.errors import ConfigError
from rankscope.results import Analysis, Value

Source = Annotated[
    list[str], typer.Argument(metavar="DIR|TRACE…", help="A directory with traces, or traces, globs or URLs.")
]


@dataclass(frozen=True)
class RunOptions:
    """How a run is opened, the same for every command that reads one."""

    steps: Annotated[
        str | None, typer.Option("--steps", help="Only these steps: 10:12 (both included), 10:, :12 or 10.")
    ] = None
    run: Annotated[str | None, typer.Option("--run", help="Run id, if the directory has several runs.")] = None
    communication: Annotated[
        str | None,
        typer.Option("--communication", metavar="REGEX", help="Further kernel names that are communication."),
    ] = None
    executor: Annotated[
        str, typer.Option("--executor", help="Where tasks run: processes, serial, dask, dask:ADDRESS or mpi.")
    ] = "processes"
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Number of tasks to run at once. Default: one per core.")
    ] = None


DEFAULTS = RunOptions()


def analysis_options(analysis: Analysis, words: Sequence[str]) -> tuple[list[str], dict[str, Value]]:
    """Split the words that the command line does not know into sources and the analysis's options.

    Raises:
        ConfigError: an unknown option, an option without its value, or no source.
    """
    known = {parameter.name: parameter for parameter in analysis.parameters}
    sources: list[str] = []
    options: dict[str, Value] = {}
    values: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("-"):
            sources.append(word)
            continue
        option, has_value, value = word.partition("=")
        name = option.lstrip("-").replace("-", "_")
        if not option.startswith("--") or name not in known:
            names = ", ".join(f"--{known_name.replace('_', '-')}" for known_name in known) or "none"
            raise ConfigError(
                f"{analysis.name} has no option {option!r}",
                hint=f"its options: {names}; those of all analyses: rankscope analyze --help",
            )
        if known[name].kind == "flag" and not has_value:
            options[name] = True
            continue
        argument = value if has_value else next(remaining, None)
        if argument is None:
            raise ConfigError(f"{option} needs a value", hint=f"{known[name].usage}: {known[name].doc}")
        options[name] = argument
        values.append(f"{option} {argument!r}" if not has_value else "")
    analysis.choose(options)
    if not sources:
        # The directory may have been read as an option's value.
        note = f"; {values[-1]} was read as an option and its value" if values and values[-1] else ""
        raise ConfigError("there is no directory and no trace to read", hint=f"name one after the analysis{note}")
    return sources, options


@contextmanager
def opened(source: list[str], options: RunOptions) -> Iterator[Run]:
    """Open a run; if standard error is a terminal, show progress there."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress_bars:
        tasks: dict[str, tuple[TaskID, float]] = {}

        def on_progress(what: str, done: int, total: int, read: int) -> None:
            if what not in tasks:
                tasks[what] = progress_bars.add_task(what, total=total, speed=""), time.monotonic()
            task, since = tasks[what]
            elapsed = time.monotonic() - since
            speed = f"{read / 1e6 / elapsed:.0f} MB/s" if read and elapsed > 0.1 else ""
            progress_bars.update(task, completed=done, total=total, speed=speed)
            if done >= total:
                progress_bars.remove_task(tasks.pop(what)[0])

        yield open_run(
            source if len(source) > 1 else source[0],
            run_id=options.run,
            steps=options.steps,
            communication=options.communication,
            executor=options.executor,
            workers=options.workers,
            progress=on_progress,
        )
