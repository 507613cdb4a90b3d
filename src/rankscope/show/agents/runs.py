"""The runs below the directories, opened when an agent asks for them, under the keys that the page uses.

In: the directories. Out: runs by key, each with its clock, timeline and search, computed when first needed.
"""

from __future__ import annotations

import shlex
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rankscope.engine.pipeline import Progress, Run
from rankscope.engine.pipeline.clock import RunClock, clock_of
from rankscope.errors import ConfigError, NoTracesError, RankscopeError
from rankscope.ingest.run_selection import LATEST, KnownRun
from rankscope.results import Options
from rankscope.rundir.names import split_process
from rankscope.rundir.ranges import as_ranges
from rankscope.show.agents.roots import Root, Roots
from rankscope.show.timeline.build import draw_run
from rankscope.show.timeline.heat_map import heat_of
from rankscope.show.timeline.search import Search
from rankscope.show.timeline.timeline import Timeline
from rankscope.show.web.runs import run_keys

KEPT = 8
"""Runs that stay open: each holds its results and maps its lanes."""
_Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class KeyedRun:
    """A run among the traces of a directory, and its key."""

    key: str
    root: Root
    known: KnownRun


class OpenRun:
    """A run with what its tools need of it.

    Args:
        keyed: which run.
        run: the same, opened.
        page_url: the address of a `rankscope serve` that shows it; None if there is none.
    """

    def __init__(self, keyed: KeyedRun, run: Run, page_url: str | None = None) -> None:
        self.keyed, self.run = keyed, run
        self._page_url = page_url

    @cached_property
    def clock(self) -> RunClock:
        """The run's common clock."""
        return clock_of(self.run)

    @cached_property
    def timeline(self) -> Timeline:
        """The lanes of all ranks."""
        return draw_run(self.run, self.clock)

    @cached_property
    def search(self) -> Search:
        """Searches of the timeline."""
        return Search(self.timeline)

    @cached_property
    def heat(self) -> Mapping[str, Any] | None:
        """Waiting and lateness by rank and step, which place findings in the timeline."""
        return heat_of(self.run, self.clock)

    def about(self) -> dict[str, Any]:
        """Which run an answer is about."""
        about = self.run.about()
        return {
            "key": self.keyed.key,
            "name": about["name"],
            "id": about["id"],
            "ranks": as_ranges(about["ranks"]),
            "world_size": about["world_size"],
            "missing_ranks": as_ranges(about["missing_ranks"]),
            "steps": as_ranges(about["steps"]),
            "devices": about["devices"],
            "hosts": about["hosts"],
        }

    def page(self, view: str, params: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Where the page shows a view of this run: how to serve it, and what follows the printed address."""
        fragment = f"#/{view}?{urlencode({'run': self.keyed.key, **(params or {})})}"
        page = {"command": f"rankscope serve {shlex.quote(str(self.keyed.root.path))}", "fragment": fragment}
        if self._page_url is not None:
            page["url"] = f"{self._page_url.rstrip('/')}/{fragment}"
        return page

    def file_of(self, rank: int, window: int = 0) -> str:
        """The name of a rank's trace file; empty if there is none."""
        files = self.run.loaded.ranks.get(rank, ())
        return Path(files[window].info.path).name if window < len(files) else ""


class AgentRuns:
    """All runs below the directories.

    Args:
        roots: the directories.
        page_url: the address of a `rankscope serve`, for links.
        executor: where tasks run, as for `open_run`.
        progress: called with the progress of the work.
    """

    def __init__(
        self, roots: Roots, page_url: str | None = None, executor: str = "processes", progress: Progress | None = None
    ) -> None:  # fmt: skip
        self.roots = roots
        self._page_url, self._executor, self._progress = page_url, executor, progress
        self._first: dict[str, tuple[_Stamp, Run]] = {}
        self._open: OrderedDict[tuple[str, _Stamp], OpenRun] = OrderedDict()

    def listed(self) -> tuple[list[KeyedRun], list[dict[str, str]]]:
        """The runs, the latest first, and the directories whose traces cannot be read, with the reason."""
        found: list[KeyedRun] = []
        failed: list[dict[str, str]] = []
        for root in self.roots.all:
            try:
                _, run = self._read(root)
            except RankscopeError as error:
                failed.append({"directory": root.name, "reason": error.what})
                continue
            keys = run_keys(run.loaded.known_runs, str(root.path))
            found += [KeyedRun(keys[known.name], root, known) for known in run.loaded.known_runs]
        return sorted(found, key=lambda each: -each.known.began_ns), failed

    def get(self, key: str | None) -> OpenRun:
        """The run with a key; without one the latest.

        Raises:
            ConfigError: there is no such run.
            NoTracesError: there is no run at all.
        """
        found, failed = self.listed()
        if not found:
            reason = f": {failed[0]['reason']}" if failed else ""
            raise NoTracesError(f"there is no run with traces{reason}", hint="list_runs names jobs without traces")
        keyed = found[0] if key is None else next((each for each in found if each.key == key), None)
        if keyed is None:
            raise ConfigError("there is no run with this key", hint="list_runs has the keys")
        stamp, first = self._read(keyed.root)
        place = keyed.key, stamp
        if place not in self._open:
            own = keyed.known.name == first.loaded.chosen
            run = first if own else first.other_run(keyed.known, self._progress)
            self._open[place] = OpenRun(keyed, run, self._page_url)
        self._open.move_to_end(place)
        while len(self._open) > KEPT:
            self._open.popitem(last=False)
        return self._open[place]

    def _read(self, root: Root) -> tuple[_Stamp, Run]:
        """The latest run of a directory; read again if its files have changed."""
        found = self.roots.traces(root)
        stamp = tuple(map(_stamp, found.traces))
        if root.name not in self._first or self._first[root.name][0] != stamp:
            run = Run(found, Options(), LATEST, self._executor, progress=self._progress)
            self._first[root.name] = stamp, run.load()
        return self._first[root.name]


def _stamp(path: str) -> tuple[str, int, int]:
    try:
        status = Path(split_process(path)[0]).stat()
    except OSError:
        return path, 0, 0
    return path, status.st_size, status.st_mtime_ns
