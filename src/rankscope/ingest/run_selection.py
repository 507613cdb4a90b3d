"""Resolve the user's choice of run and steps.

In: the traces of each run (`runs.group_by_run`) and the user's choice. Out: the name of one run, or an error that
lists all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from rankscope.errors import ConfigError, RunSelectionError
from rankscope.ingest.runs import NAMELESS
from rankscope.rundir.plurals import counted
from rankscope.store.trace_info import TraceInfo, utc

LATEST = "latest"
# Runs that the error lists: a directory may hold hundreds.
_SHOWN = 40

Runs = Mapping[str | None, Sequence[TraceInfo]]
"""The traces of each run by its name (`runs.Grouping`)."""


@dataclass(frozen=True)
class KnownRun:
    """A run that has traces among the files.

    Attributes:
        name: its id, else its label among the runs without one; None for the only run, if it has no id.
        began_ns: its first instant on the hosts' clocks, ns.
        ranks: how many ranks have traces.
        id: the run id in its traces.
        path: the directory of its traces (``before/night``), relative to the searched directory; None if it is that
            directory, or outside of it.
        alone: whether no other run has traces in the same directory.
    """

    name: str | None
    began_ns: int
    ranks: int
    id: str | None = None
    path: str | None = None
    alone: bool = True

    @property
    def folder(self) -> str | None:
        """The directory that holds this run only."""
        return self.path if self.alone else None

    @property
    def label(self) -> str:
        """Its name for display: its directory, else its name."""
        return self.folder or self.name or NAMELESS

    @property
    def choice(self) -> str:
        """What the user can type to choose it: its directory, with its name if that differs; else its name."""
        name = self.name or NAMELESS
        if self.folder in (None, self.name):
            return name
        return f"{self.folder} ({name})" if self.name else str(self.folder)

    @property
    def started(self) -> str:
        """When it began; empty if its clock has no date."""
        return utc(self.began_ns)


def known_runs(runs: Runs, searched: str) -> tuple[KnownRun, ...]:
    """The runs, the oldest first.

    Args:
        searched: the directory that was searched for traces.
    """
    folders = {name: _folder(infos, searched) for name, infos in runs.items()}
    count = Counter(folders.values())
    found = [
        KnownRun(
            name,
            min(info.host_start_ns for info in infos),
            len({info.path if info.rank is None else info.rank for info in infos}),
            next((info.run_id for info in infos if info.run_id is not None), None),
            folders[name],
            count[folders[name]] == 1,
        )
        for name, infos in runs.items()
    ]
    return tuple(sorted(found, key=lambda run: run.began_ns))


def choose_run(runs: Runs, wanted: str | None, path: str, reasons: Sequence[str] = ()) -> str | None:
    """The name of the chosen run.

    Args:
        wanted: the start of an id or name, the run's directory (all of it, or its last part), or ``latest``; None if
            there is only one run.
        path: where the traces were searched.
        reasons: why traces without an id are several runs.

    Raises:
        RunSelectionError: there are several runs and none was chosen, or there is no such run.
    """
    known = known_runs(runs, path)
    if wanted is None:
        if len(known) > 1:
            error = RunSelectionError(_several(known, runs, reasons), path=path, hint=_HINT)
            error.known = known
            raise error
        return known[0].name
    if wanted == LATEST:
        return known[-1].name
    wanted = wanted.rstrip("/")
    matches: list[KnownRun] = []
    for matches in (
        [run for run in known if (run.name or NAMELESS) == wanted],
        [run for run in known if run.folder == wanted],
        [run for run in known if f"{run.folder}".endswith(f"/{wanted}") or f"{run.name}".endswith(f"/{wanted}")],
        [run for run in known if (run.name or NAMELESS).startswith(wanted)],
    ):
        if len(matches) == 1:
            return matches[0].name
        if matches:
            break
    what = "several runs have the name, id or directory" if matches else "no run has the name, id or directory"
    choices = ", ".join(run.choice for run in matches or known)
    hint = "there is only one run, so leave out --run (run_id)" if len(known) == 1 else f"choose one of: {choices}"
    error = RunSelectionError(f"{what} {wanted!r}", path=path, hint=hint)
    error.known = known
    raise error


_HINT = (
    f"choose one by directory or id, or the newest with {LATEST!r}: --run {LATEST} on the command line, "
    f"run_id={LATEST!r} in rankscope.open"
)


def _several(known: Sequence[KnownRun], runs: Runs, reasons: Sequence[str]) -> str:
    older = [f"({counted(len(known) - _SHOWN, 'older run')})"] if len(known) > _SHOWN else []
    listed = [
        f"{run.choice}: {', '.join(filter(None, (run.started, counted(len(runs[run.name]), 'trace'))))}"
        for run in known[-_SHOWN:]
    ]
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return "\n".join([f"there are {len(known)} runs in here, the oldest first{why}:", *older, *listed])


def _folder(infos: Sequence[TraceInfo], searched: str) -> str | None:
    """The common directory of a run's traces, relative to the searched one; None if it is that one, or outside."""
    paths = [PurePath(info.path).parent.parts for info in infos]
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]
    root = list(PurePath(searched).parts)
    return "/".join(shared[len(root) :]) or None if shared[: len(root)] == root else None


def check_steps(infos: Sequence[TraceInfo], steps: tuple[int | None, int | None] | None) -> None:
    """Check that the traces have some of the chosen steps: results of no steps would look valid.

    Raises:
        ConfigError: they have none.
    """
    if steps is None or steps == (None, None):
        return
    spans = [(i.first_step, i.last_step) for i in infos if i.first_step is not None and i.last_step is not None]
    low, high = steps
    if any(incomplete["step"] in steps for info in infos for incomplete in info.incomplete_steps):
        return
    if any((low is None or last >= low) and (high is None or first <= high) for first, last in spans):
        return
    chosen = f"{'' if low is None else low}:{'' if high is None else high}" if low != high else str(low)
    if not spans:
        raise ConfigError(
            f"there are no steps {chosen}: the traces have no ProfilerStep# ranges", hint="leave out --steps"
        )
    first, last = min(first for first, _ in spans), max(last for _, last in spans)
    raise ConfigError(f"there is no step {chosen} in these traces", hint=f"they have steps {first} to {last}")
