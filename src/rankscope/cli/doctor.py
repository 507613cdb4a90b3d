"""`rankscope doctor`.

In: a run directory, or nothing. Out: the checks; status 1 if one fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from rankscope.cli.options import DEFAULTS, opened
from rankscope.errors import RankscopeError, describe_error
from rankscope.jobs.doctor import run_checks
from rankscope.jobs.doctor.__main__ import report
from rankscope.jobs.doctor.check import Check
from rankscope.show.report.formatting import plain, sentence
from rankscope.store.cache import cache_root

_MOST_RANKS = 8


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
    what is missing or was lost, what became of the events of its traces, and NCCL's warnings in its logs. Exit code 1:
    a check failed.
    """
    checks = run_checks(run, more_logs=log or (), cache=cache_root(), timeout_s=timeout)
    if run is not None:
        checks = chain(checks, _account(run))
    raise typer.Exit(report(checks, as_json=as_json, only_wrong=only_wrong, clean=lambda text: plain(text, limit=600)))


def _account(run: Path) -> Iterator[Check]:
    """What became of the events of a run's traces: of all together, and of the ranks of which too much is missing."""
    try:
        with opened([str(run)], DEFAULTS) as opened_run:
            result = opened_run.analyze("account")["account"]
    except RankscopeError as error:
        yield Check("traces", "read", "warn", describe_error(error), error.hint or "")
        return
    incomplete = result.frame.filter(~result.frame["clean"])
    if result.headline is not None:
        yield Check("traces", "account", "warn" if incomplete.height else "ok", sentence(result.headline))
    for row in incomplete.head(_MOST_RANKS).iter_rows(named=True):
        lost = f"{row['lost_launches']:,} of {row['launches']:,} launches have no device event"
        missing = [row["reasons"], lost if row["lost_launches"] else None]
        what = "; ".join(filter(None, missing)) or "a file is empty or ends too early"
        yield Check("traces", "account", "warn", f"rank {row['rank']}: {what}", "rankscope findings shows each file")
