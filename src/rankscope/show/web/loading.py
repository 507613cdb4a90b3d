"""Loads runs in the background: reads, analyses and draws them, and rereads them when new files appear.

In: the source of a run. Out: its results so far, for the requests of the page. One thread per run; it publishes
immutable values, each with a higher `version`, so that no request sees a value that is still being built.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from rankscope.answers.diagnosis.verdict import Diagnosis
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import RunClock, clock_of
from rankscope.errors import NoTracesError, RankscopeError, RunSelectionError, describe_error
from rankscope.ingest.discover import Found
from rankscope.ingest.run_selection import KnownRun
from rankscope.ingest.watch import Watch
from rankscope.results import Analysis, Finding, Headline, Result, by_severity
from rankscope.show.report.html_report import shown_analyses
from rankscope.show.timeline.build import draw_run
from rankscope.show.timeline.counters import Counters
from rankscope.show.timeline.critical_path import NEEDED, CriticalPaths
from rankscope.show.timeline.heat_map import heat_of
from rankscope.show.timeline.named_lanes import NameTracks
from rankscope.show.timeline.search import Search
from rankscope.show.timeline.timeline import Timeline

logger = logging.getLogger(__name__)

NEWS_EVERY = 16
"""Ranks: each of the first is announced to the page, then every 16th."""
# How often files are looked for, and how long nothing is done after reading again: as long as that took.
FOLLOW_S = 2.0


Make = Callable[[Callable[[str, int, int, int], None]], Run]


class StoppedError(BaseException):
    """Background work is canceled, because the server stops. A BaseException, so that no error handler continues."""


@dataclass(frozen=True)
class State:
    """How far a run is.

    Attributes:
        phase: `reading`, `analyzing`, `drawing`, `ready` or `failed`.
        what: what is being done, in words.
        done: tasks done.
        total: tasks in all.
        bytes: bytes of JSON read so far.
        error: what made it fail.
        version: grows when something new can be fetched.
        following: whether files that appear are read too.
        generation: grows if everything must be fetched again because the files changed.
    """

    phase: str = "reading"
    what: str = "reading"
    done: int = 0
    total: int = 0
    bytes: int = 0
    error: Mapping[str, Any] | None = None
    version: int = 0
    following: bool = False
    generation: int = 0


class LoadedRun:
    """A run that is being loaded for the page.

    Args:
        make: opens the run, given a progress callback; called in this run's thread.
        watch: looks for further files of the run; None if what there is at first is all.
        patient: wait for the first file, if there is none.
    """

    def __init__(self, make: Make, watch: Watch | None = None, *, patient: bool = False) -> None:
        self._make = make
        self._watch = watch
        self._patient = patient and watch is not None
        self._lock = threading.Lock()
        self._state = State(following=watch is not None)
        self._stopping = threading.Event()
        self._read = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rankscope-load", daemon=True)
        self.error: Exception | None = None
        self.known_runs: tuple[KnownRun, ...] = ()
        self.about: Mapping[str, Any] = {}
        self.run: Run | None = None
        self.findings: Sequence[Finding] = ()
        self.diagnosis: Diagnosis | None = None
        """Once all rules ran."""
        self.results: Mapping[str, Result] = {}
        self.failed: AbstractSet[str] = frozenset()
        self.timeline: Timeline | None = None
        self.search: Search | None = None
        self.name_tracks: NameTracks | None = None
        self.heat: Mapping[str, Any] | None = None
        self.paths: CriticalPaths | None = None
        self.clock: RunClock | None = None
        self.counters = Counters()
        self._lost: tuple[Finding, ...] = ()

    def start(self) -> None:
        """Start loading, once."""
        with self._lock:
            if not self._thread.is_alive() and self._thread.ident is None:
                self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is done; whether it is."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def wait_read(self, seconds: float | None = None) -> bool:
        """Wait until its files are read, or cannot be; whether that is so."""
        return self._read.wait(seconds)

    def stop(self) -> None:
        """Cancel before the next task."""
        self._stopping.set()

    @property
    def state(self) -> State:
        """The current progress."""
        return self._state

    @property
    def ready(self) -> list[str]:
        """What can be fetched."""
        parts = {"timeline": self.timeline, "heat": self.heat, "path": self.paths}
        return [*self.results, *(name for name, part in parts.items() if part is not None)]

    def analyses(self) -> dict[str, Analysis]:
        """The analyses of the page, in the order in which they are listed."""
        return {name: each for name, each in shown_analyses().items() if each.on_page}

    # -- the thread -----------------------------------------------------------------------------------------------

    def _publish(self, new: bool = False, **changes: Any) -> None:
        with self._lock:
            old = self._state
            merged = {**old.__dict__, **changes, "version": old.version + new}
            self._state = State(**merged)

    def _progress(self, what: str, done: int, total: int, read: int) -> None:
        if self._stopping.is_set():
            raise StoppedError
        self._publish(what=what, done=done, total=total, bytes=max(read, self._state.bytes))

    def _work(self) -> None:
        try:
            self._begin()
            self._follow()
        except StoppedError:
            return
        except RankscopeError as error:
            self.error = error
            if isinstance(error, RunSelectionError):
                self.known_runs = error.known  # no run of that name: the page offers those that there are
            self._fail(error.what, error.path, error.hint)
        except Exception as error:
            self.error = error
            logger.exception("loading failed")
            self._fail(f"{type(error).__name__}: {error}", None, "this is a bug in rankscope")
        finally:
            self._read.set()

    def _fail(self, what: str, path: str | None, hint: str | None) -> None:
        self._publish(new=True, phase="failed", error={"what": what, "path": path, "hint": hint})

    def _load(self) -> None:
        run = self._make(self._progress)
        self.run = run
        with run.keep_workers():
            self._fill(run)

    def _begin(self) -> None:
        """Load the run, as soon as one of its files can be read."""
        while True:
            try:
                self._load()
                return
            except NoTracesError:
                if not self._patient or self._watch is None:
                    raise
            self.run = None
            self._publish(what="waiting for the first trace")
            while self._watch.look() is None:
                self._pause(FOLLOW_S)

    def _follow(self) -> None:
        """Reread the run whenever more of its files are complete; the current results stay until then."""
        pause = FOLLOW_S
        while self._watch is not None and self.run is not None:
            self._pause(pause)
            found = self._watch.look()
            if found is None:
                continue
            began = time.monotonic()
            run = self.run
            fresh = LoadedRun(_again(run, found))
            fresh._stopping = self._stopping
            try:
                fresh._load()
            except RankscopeError as error:
                # The files may be incomplete at the moment; it is tried again with the next ones.
                logger.warning("what appeared in %s could not be read: %s", run.path, error)
                continue
            self._become(fresh)
            pause = max(FOLLOW_S, time.monotonic() - began)

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise StoppedError

    def _become(self, fresh: LoadedRun) -> None:
        """Replace the run by a new reading of it."""
        self.run, self.about, self.counters = fresh.run, fresh.about, fresh.counters
        self.failed, self.results, self.findings, self._lost = fresh.failed, fresh.results, fresh.findings, fresh._lost
        self.diagnosis = fresh.diagnosis
        self.timeline, self.search, self.heat = fresh.timeline, fresh.search, fresh.heat
        self.clock, self.paths, self.name_tracks = fresh.clock, fresh.paths, fresh.name_tracks
        self.known_runs = fresh.known_runs
        self._publish(new=True, generation=self._state.generation + 1, phase="ready", what="")

    def _fill(self, run: Run) -> None:
        run.load()
        self.known_runs = run.loaded.known_runs
        self.findings = by_severity([*run.findings, *self._lost])
        self.about = {**run.about(), "written_by": run.written_by}
        self._read.set()
        self._publish(new=True)
        self._publish(phase="analyzing")
        clock = self.clock = clock_of(run)
        self.results = run.results
        self._draw(run, clock)
        self._publish(phase="analyzing")
        # The verdict comes first: it answers what the page is opened for, and needs most of the analyses.
        self.diagnosis = run.diagnosis()
        self._learn(run)
        if {"collectives", "step_time"} <= set(self.results):
            self.heat = heat_of(run, clock)
        self._publish(new=True)
        for name in self.analyses():
            if name not in self.results and name not in self.failed:
                self._analyze(run, name)
        if self.timeline is not None and {*NEEDED, "critical_path"} <= set(self.results):
            frames = {name: self.results[name].frame for name in NEEDED}
            self.paths = CriticalPaths(self.timeline, frames, run.options.communication)
        self._publish(new=True, phase="ready", what="")

    def headline_of(self, result: Result) -> Headline | None:
        """An analysis's answer in one sentence; the diagnosis's once there is one."""
        return result.headline if self.diagnosis is None else self.diagnosis.headline_of(result)

    def _analyze(self, run: Run, name: str) -> None:
        if name not in run.attempt(name):
            # The reason is among the findings.
            self.failed = self.failed | {name}
        self._learn(run)
        self._publish(new=True)

    def _learn(self, run: Run) -> None:
        """Publish the results that the run has so far."""
        self.results = run.results
        self.findings = by_severity([*run.findings, *self._lost])

    def _draw(self, run: Run, clock: RunClock) -> None:
        self._publish(phase="drawing", what="drawing")
        arrived = 0

        def on_progress(timeline: Timeline, rank: int, error: BaseException | None) -> None:
            nonlocal arrived
            if error is not None:
                self._not_drawn(rank, error)
            self._show(timeline)
            arrived += 1
            # A page that laid out a thousand ranks again for each new one would do nothing else.
            if arrived < NEWS_EVERY or arrived % NEWS_EVERY == 0:
                self._publish(new=True)

        self._show(draw_run(run, clock, on_progress))
        self._publish(new=True)

    def _show(self, timeline: Timeline) -> None:
        if self.search is None:
            self.search, self.name_tracks = Search(timeline), NameTracks(timeline)
        self.timeline = timeline

    def _not_drawn(self, rank: int, error: BaseException) -> None:
        finding = Finding(
            id="rank-not-drawn",
            severity="error",
            title=f"Rank {rank} has no timeline: {describe_error(error)}",
            ranks=(rank,),
            advice="`rankscope cache --clear` removes its cached tables, so that they are rebuilt.",
        )
        self._lost = (*self._lost, finding)
        self.findings = by_severity([*self.findings, finding])


def _again(run: Run, found: Found) -> Make:
    return lambda progress: run.reopen(found, progress)
