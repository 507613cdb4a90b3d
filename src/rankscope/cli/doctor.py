"""`rankscope doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankscope.doctor import run_checks
from rankscope.doctor.__main__ import report
from rankscope.report.formatting import plain
from rankscope.store.cache import cache_root


def doctor(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run directory to look at, too.")] = None,
    log: Annotated[
        list[Path] | None, typer.Option("--log", help="What a job printed; those in the run directory are read anyway.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of words.")] = False,
    only_wrong: Annotated[bool, typer.Option("--only-wrong", help="Leave out what is well.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that torch may take to answer.")] = 120.0,
) -> None:
    """Say whether this machine, and a run, are fit for profiling: what is wrong, and how to mend it.

    Versions, devices, communication, launcher variables, names, clocks, limits, permissions, room; of a run, what is
    missing or was lost, and what NCCL warned of in its logs. Exit code 1: something does not work.
    """
    checks = run_checks(run, more_logs=log or (), cache=cache_root(), timeout_s=timeout)
    raise typer.Exit(report(checks, as_json=as_json, only_wrong=only_wrong, clean=lambda text: plain(text, limit=600)))
