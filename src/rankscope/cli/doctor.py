"""`rankscope doctor`.

In: a run directory, or nothing. Out: the checks; status 1 if one fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankscope.doctor import run_checks
from rankscope.doctor.__main__ import report
from rankscope.report.formatting import plain
from rankscope.store.cache import cache_root


def doctor(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run directory to check, too.")] = None,
    log: Annotated[
        list[Path] | None, typer.Option("--log", help="A job's output; logs in the run directory are read anyway.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    only_wrong: Annotated[bool, typer.Option("--only-wrong", help="Show only warnings and failures.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for torch.")] = 120.0,
) -> None:
    """Check this machine, and a run, for what profiling needs: what is wrong, and how to fix it.

    Versions, devices, communication, launcher variables, host names, clocks, limits, permissions, disk space; in a run,
    what is missing or was lost, and NCCL's warnings in its logs. Exit code 1: a check failed.
    """
    checks = run_checks(run, more_logs=log or (), cache=cache_root(), timeout_s=timeout)
    raise typer.Exit(report(checks, as_json=as_json, only_wrong=only_wrong, clean=lambda text: plain(text, limit=600)))
