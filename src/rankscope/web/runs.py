"""The runs that a server shows: those whose traces are among what it was started with, under keys of its own."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from typing import Any

from rankscope.ingest.runs import LATEST, KnownRun, when_of
from rankscope.pipeline import Progress, Run, open_run
from rankscope.web.answers import RefusedError
from rankscope.web.loading import LoadedRun


@dataclass(frozen=True)
class ServedRun:
    """A run and its key, which says nothing of it."""

    key: str
    loaded: LoadedRun


class Runs:
    """The runs. The one that is shown first is loaded from the start, another when it is asked for.

    Args:
        source: as for `open_run`.
        run_id: which run is shown first: the start of its id; None for the latest.
        options: further arguments of `open_run`.
    """

    def __init__(self, source: list[str], run_id: str | None = None, **options: Any) -> None:
        self._lock = threading.Lock()

        def shown(progress: Progress) -> Run:
            return open_run(source, run_id=run_id or LATEST, progress=progress, **options)

        self.shown = ServedRun(secrets.token_hex(6), LoadedRun(shown))
        self._others: dict[str, tuple[KnownRun, ServedRun]] = {}

    def start(self) -> None:
        """Begin to load the one that is shown first."""
        self.shown.loaded.start()

    def stop(self) -> None:
        """Give up whatever is being loaded."""
        for served in [self.shown, *(served for _, served in self._others.values())]:
            served.loaded.stop()

    def get(self, key: str | None) -> ServedRun:
        """The run of a key, which is loaded from now on; without one the first.

        Raises:
            RefusedError: there is no such run.
        """
        if key is None or key == self.shown.key:
            return self.shown
        self._find_others()
        if key not in self._others:
            raise RefusedError(404, "there is no such run", "api/runs lists them")
        served = self._others[key][1]
        served.loaded.start()
        return served

    def listed(self) -> dict[str, Any]:
        """What `api/runs` says."""
        self._find_others()
        own = self._own() if self._known() else None
        others = [(served.key, known) for known, served in self._others.values()]
        rows = sorted([*others, (self.shown.key, own)], key=lambda row: row[1].began_ns if row[1] else 0)
        return {"runs": [self._row(key, known) for key, known in rows], "shown": self.shown.key}

    def _row(self, key: str, known: KnownRun | None) -> dict[str, Any]:
        run = self.shown.loaded.run
        if known is None or run is None:
            return {"key": key, "name": "", "ranks": None, "started": None}
        place = run.name.removesuffix(f": {run.loaded.label}")
        name = f"{place}: {known.name or 'without an id'}" if self._others else place
        return {"key": key, "name": name, "ranks": known.ranks, "started": when_of(known.began_ns).rstrip(", ") or None}

    def _own(self) -> KnownRun | None:
        run = self.shown.loaded.run
        loaded = run.loaded if run is not None else None
        return next((k for k in loaded.known_runs if k.name == loaded.chosen), None) if loaded else None

    def _known(self) -> bool:
        return self.shown.loaded.run is not None and bool(self.shown.loaded.about)

    def _find_others(self) -> None:
        run = self.shown.loaded.run
        if run is None or not self._known():
            return
        with self._lock:
            there = {known.name for known, _ in self._others.values()}
            for known in run.loaded.known_runs:
                if known.name != run.loaded.chosen and known.name not in there:
                    key = secrets.token_hex(6)
                    self._others[key] = known, ServedRun(key, LoadedRun(_other(run, known)))


def _other(run: Run, known: KnownRun) -> Any:
    return lambda progress: run.other(known, progress)
