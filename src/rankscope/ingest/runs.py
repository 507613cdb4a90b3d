"""Which run, where a directory holds several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import takewhile
from pathlib import PurePath

from rankscope.errors import ConfigError, RunSelectionError
from rankscope.ingest.windows import start_of
from rankscope.rundir.plurals import counted
from rankscope.store.trace_info import TraceInfo

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
        path: the folder in which they lie (``before/night``), below the place where all were looked for; None where
            they lie in that itself, or not in it.
        alone: whether no other run's traces lie in the same folder.
    """

    name: str | None
    began_ns: int
    ranks: int
    id: str | None = None
    path: str | None = None
    alone: bool = True

    @property
    def folder(self) -> str | None:
        """The folder that is this run's alone."""
        return self.path if self.alone else None

    @property
    def label(self) -> str:
        """What to call it beside others: its folder, else its id, or what tells it from others without one."""
        return self.folder or self.name or NAMELESS


def known_runs(runs: Runs, place: str) -> tuple[KnownRun, ...]:
    """What is to be known of some runs, the oldest first.

    Args:
        place: the directory in which they were looked for.
    """
    folders = {name: _folder(infos, place) for name, infos in runs.items()}
    count = Counter(folders.values())
    found = [
        KnownRun(
            name,
            min(map(start_of, infos)),
            len({info.path if info.rank is None else info.rank for info in infos}),
            next((info.run_id for info in infos if info.run_id is not None), None),
            folders[name],
            count[folders[name]] == 1,
        )
        for name, infos in runs.items()
    ]
    return tuple(sorted(found, key=lambda run: run.began_ns))


def choose_run(runs: Runs, wanted: str | None, path: str, how: str = "") -> str | None:
    """The id of the run to look at.

    Args:
        wanted: the start of an id, the run's folder (all of it, or its last part), or ``latest``; None where there is
            but one.
        how: how runs without an id were told apart.

    Raises:
        RunSelectionError: there are several and none was chosen, or what was chosen is not one of them.
    """
    known = known_runs(runs, path)
    if wanted is None:
        if len(known) > 1:
            shown = [_shown(run, len(runs[run.name])) for run in known]
            left = f"{counted(len(known) - _SHOWN, 'older one')}; " if len(known) > _SHOWN else ""
            raise RunSelectionError(
                f"there are {len(known)} runs in here, the oldest first: {left}" + "; ".join(shown[-_SHOWN:]) + how,
                path=path,
                hint=f"choose one by its folder or its id, or the last by {LATEST!r}: --run {LATEST} on the command "
                f"line, run_id={LATEST!r} in rankscope.open",
            )
        return known[0].name
    if wanted == LATEST:
        return known[-1].name
    folder = wanted.rstrip("/")
    for chosen in (
        [run for run in known if (run.name or NAMELESS) == wanted],
        [run for run in known if run.folder == folder],
        [run for run in known if run.folder is not None and run.folder.endswith(f"/{folder}")],
        [run for run in known if (run.name or NAMELESS).startswith(wanted)],
    ):
        if len(chosen) == 1:
            return chosen[0].name
        if chosen:
            break
    raise RunSelectionError(
        f"{'more than one' if chosen else 'no'} run here has an id that starts with {wanted!r}, or such a folder",
        path=path,
        hint=f"there are: {', '.join(_called(run) for run in known)}",
    )


def _called(run: KnownRun) -> str:
    """By what it can be chosen."""
    if run.folder in (None, run.name):
        return run.name or NAMELESS
    return f"{run.folder} ({run.name})" if run.name else str(run.folder)


def _shown(run: KnownRun, traces: int) -> str:
    return f"{_called(run)}: {when_of(run.began_ns)}{counted(traces, 'trace')}"


def _folder(infos: Sequence[TraceInfo], place: str) -> str | None:
    """The folder that holds all of a run's traces, from a place on; None where it is that place, or none within it."""
    paths = [PurePath(info.path).parent.parts for info in infos]
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]
    root = list(PurePath(place).parts)
    return "/".join(shared[len(root) :]) or None if shared[: len(root)] == root else None


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
