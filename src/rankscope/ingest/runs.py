"""Which run, where a directory holds several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from rankscope.errors import ConfigError, RunSelectionError
from rankscope.rundir.plurals import counted
from rankscope.store.info import TraceInfo

LATEST = "latest"
NAMELESS = "(no id)"
# Runs that the error lists: a folder may hold hundreds.
_SHOWN = 40


Runs = Mapping[str | None, Sequence[TraceInfo]]
"""Traces by what their run is called: its id, or what tells it from others; None for the only one without an id."""


@dataclass(frozen=True)
class KnownRun:
    """A run whose traces are among some files.

    Attributes:
        name: its id, or what tells it from others that no id does; None where it is the only one without.
        began_ns: its first instant on the hosts' clocks, ns.
        ranks: how many ranks' traces there are.
        id: the id that its traces carry.
    """

    name: str | None
    began_ns: int
    ranks: int
    id: str | None = None


def known_runs(runs: Runs) -> tuple[KnownRun, ...]:
    """What is to be known of some runs, the oldest first."""
    found = [
        KnownRun(
            name,
            min(info.base_time_ns + (info.start_ns or 0) for info in infos),
            len({info.path if info.rank is None else info.rank for info in infos}),
            next((info.run_id for info in infos if info.run_id is not None), None),
        )
        for name, infos in runs.items()
    ]
    return tuple(sorted(found, key=lambda run: run.began_ns))


def choose_run(runs: Runs, wanted: str | None, path: str, how: str = "") -> str | None:
    """The id of the run to look at.

    Args:
        wanted: the start of an id, or ``latest``; None where there is but one.
        how: how runs without an id were told apart.

    Raises:
        RunSelectionError: there are several and none was chosen, or what was chosen is not one of them.
    """
    began = {run: min(info.base_time_ns + (info.start_ns or 0) for info in infos) for run, infos in runs.items()}
    ordered = sorted(began, key=lambda run: began[run])
    if wanted is None:
        if len(ordered) > 1:
            shown = [f"{run or NAMELESS}: {when_of(began[run])}{counted(len(runs[run]), 'trace')}" for run in ordered]
            left = f"{counted(len(ordered) - _SHOWN, 'older one')}; " if len(ordered) > _SHOWN else ""
            raise RunSelectionError(
                f"there are {len(ordered)} runs in here, the oldest first: {left}" + "; ".join(shown[-_SHOWN:]) + how,
                path=path,
                hint=f"choose one by its id, or the last by {LATEST!r}: --run {LATEST} on the command line, "
                f"run_id={LATEST!r} in rankscope.open",
            )
        return ordered[0]
    if wanted == LATEST:
        return ordered[-1]
    chosen = [run for run in ordered if (run or NAMELESS) == wanted]
    chosen = chosen or [run for run in ordered if (run or NAMELESS).startswith(wanted)]
    if len(chosen) != 1:
        raise RunSelectionError(
            f"{'more than one' if chosen else 'no'} run here has an id that starts with {wanted!r}",
            path=path,
            hint=f"there are: {', '.join(run or NAMELESS for run in ordered)}",
        )
    return chosen[0]


def when_of(nanoseconds: int) -> str:
    """When a run began, if its clock tells: older traces count from the host's start."""
    if nanoseconds < 10**18:
        return ""
    return f"{datetime.fromtimestamp(nanoseconds // 10**9, timezone.utc):%Y-%m-%d %H:%M:%S} UTC, "


def check_steps(infos: Sequence[TraceInfo], steps: tuple[int | None, int | None] | None) -> None:
    """See that some of the chosen steps are there: numbers of no steps would look like numbers.

    Raises:
        ConfigError: none is.
    """
    if steps is None or steps == (None, None):
        return
    spans = [(i.first_step, i.last_step) for i in infos if i.first_step is not None and i.last_step is not None]
    low, high = steps
    if any((low is None or last >= low) and (high is None or first <= high) for first, last in spans):
        return
    asked = f"{'' if low is None else low}:{'' if high is None else high}" if low != high else str(low)
    if not spans:
        raise ConfigError(
            f"there are no steps {asked}: the traces have no ProfilerStep# ranges", hint="leave out --steps"
        )
    first, last = min(first for first, _ in spans), max(last for _, last in spans)
    raise ConfigError(f"there is no step {asked} in these traces", hint=f"they have steps {first} to {last}")
