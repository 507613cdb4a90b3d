"""The runs that a server shows, under opaque keys.

In: the files that the server was started with. Out: loaded runs by key, and the list of runs.

A key is a hash of the run's id, or without one of its folder and start time, so that links stay valid across restarts
and added runs. Until the first run is read the keys are unknown: any well-formed key is taken for the run that is being
read, and checked afterwards. If the run chosen on the command line is not among the files, the page reports it and
still lists the others.

The output directory of `rankscope measure` is a study: its result is shown first, and its jobs get readable names.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankscope.engine.pipeline import Progress, Run, open_run
from rankscope.ingest.run_selection import LATEST, KnownRun
from rankscope.ingest.watch import Watch
from rankscope.show.report.experiments.tables import jobs_of
from rankscope.show.web.loading import LoadedRun
from rankscope.show.web.responses import RefusedError

_KEY = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class ServedRun:
    """A run and its opaque key."""

    key: str
    loaded: LoadedRun


class Runs:
    """The runs. The first one is loaded at the start, the others on request.

    Args:
        source: as for `open_run`.
        run_id: which run is shown first: the start of its id; None for the latest.
        follow: whether new files are read too; None: if they can be watched.
        options: further arguments of `open_run`.
    """

    def __init__(
        self, source: list[str], run_id: str | None = None, *, follow: bool | None = False, **options: Any
    ) -> None:  # fmt: skip
        self._lock = threading.Lock()

        def shown(progress: Progress) -> Run:
            return open_run(source, run_id=run_id or LATEST, progress=progress, **options)

        watch = Watch(source) if follow or (follow is None and Watch.supports(source)) else None
        # The latest run is not known yet: until it is, the key is derived from the request, and stays valid.
        self._asked_key = _key("asked", *map(_absolute, source), run_id or LATEST)
        self.shown = ServedRun(self._asked_key, LoadedRun(shown, watch, patient=bool(follow)))
        self._others: dict[str, tuple[KnownRun, ServedRun]] = {}
        self._chosen = run_id is not None
        self.source = source
        """What the server was started with."""

    def start(self) -> None:
        """Start loading the run that is shown first."""
        self.shown.loaded.start()

    def stop(self) -> None:
        """Cancel all loading."""
        for served in [self.shown, *(served for _, served in self._others.values())]:
            served.loaded.stop()

    def get(self, key: str | None) -> ServedRun:
        """The run with a key, whose loading starts now; without a key the first.

        Raises:
            RefusedError: there is no such run.
        """
        if key is None:
            return self.shown
        self._find_others()
        if key in (self.shown.key, self._asked_key) or self._may_be(key):
            return self.shown
        if key not in self._others:
            raise RefusedError(404, "there is no such run", "api/runs lists them")
        served = self._others[key][1]
        served.loaded.start()
        return served

    def listed(self, asked: str | None = None) -> dict[str, Any]:
        """The response of `api/runs`.

        Args:
            asked: the key in the page's address.
        """
        self._find_others()
        study = self._study()
        about = {"place": self._place(), "study": study is not None and not self._chosen}
        if asked is not None and self._may_be(asked):
            return {"runs": [self._row(asked, None, study)], "shown": asked, **about}
        others = [(served.key, known) for known, served in self._others.values()]
        if self._missed():
            rows = [self._row(*row, study) for row in sorted(others, key=_began)]
            return {"runs": rows, "shown": self.shown.key, **about}
        own = self._own() if self._known() else None
        # The page finds the key of its address in the list, even if that is the one from before the files were read.
        shown = self._asked_key if asked == self._asked_key else self.shown.key
        rows = [self._row(*row, study) for row in sorted([*others, (shown, own)], key=_began)]
        return {"runs": rows, "shown": shown, **about}

    def _row(self, key: str, known: KnownRun | None, study: Mapping[str, str] | None) -> dict[str, Any]:
        if known is None or self.shown.loaded.run is None:
            return {"key": key, "name": "", "ranks": None, "started": None, "folder": None}
        name = (study or {}).get(known.folder or "") or known.label if self._others else self._place()
        began = known.started or None
        return {"key": key, "name": name, "ranks": known.ranks, "started": began, "folder": known.folder}

    def _place(self) -> str:
        """The name of the directory that the runs are in."""
        run = self.shown.loaded.run
        if run is None or not (self._known() or self.shown.loaded.error is not None):
            return ""
        if self.shown.loaded.error is not None:
            return Path(run.path).name
        return run.name.removesuffix(f": {run.loaded.label}")

    def _study(self) -> Mapping[str, str] | None:
        """The jobs' names by folder, in an output directory of `rankscope measure`; else None."""
        return jobs_of(self.source[0]) if len(self.source) == 1 else None

    def _own(self) -> KnownRun | None:
        run = self.shown.loaded.run
        loaded = run.loaded if run is not None else None
        return next((k for k in loaded.known_runs if k.name == loaded.chosen), None) if loaded else None

    def _known(self) -> bool:
        return self.shown.loaded.run is not None and bool(self.shown.loaded.about)

    def _missed(self) -> bool:
        """Whether the files were read and the requested run is not among them."""
        return self.shown.loaded.error is not None and bool(self.shown.loaded.known_runs)

    def _may_be(self, key: str) -> bool:
        """Whether it could be a run's key, while the runs are unknown."""
        return not (self._known() or self._missed()) and _KEY.fullmatch(key) is not None

    def _find_others(self) -> None:
        run = self.shown.loaded.run
        if run is None or not (self._known() or self._missed()):
            return
        place = _absolute(run.path)
        with self._lock:
            own = None if self._missed() else self._own()
            chosen = set() if self._missed() else {run.loaded.chosen}
            keys = run_keys(self.shown.loaded.known_runs, place)
            if own is not None and self.shown.key == self._asked_key:
                self.shown = replace(self.shown, key=keys[own.name])
            there = {known.name for known, _ in self._others.values()}
            for known in self.shown.loaded.known_runs:
                if known.name not in chosen and known.name not in there:
                    key = keys[known.name]
                    self._others[key] = known, ServedRun(key, LoadedRun(_other(run, known)))


def _began(row: tuple[str, KnownRun | None]) -> int:
    return row[1].began_ns if row[1] is not None else 0


def _key(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode("utf-8", "replace"), digest_size=6).hexdigest()


def run_keys(runs: Sequence[KnownRun], place: str) -> dict[str | None, str]:
    """The key of each run by its name.

    Args:
        runs: all runs of a directory.
        place: the directory, absolute.
    """
    keys: dict[str | None, str] = {}
    for known in runs:
        # The name of a run without an id depends on which others there are: it is used only if nothing else identifies
        # it.
        identity = ("id", known.id) if known.id is not None else ("place", place, known.path, known.began_ns)
        key = _key(*identity)
        keys[known.name] = _key(*identity, known.name) if key in keys.values() else key
    return keys


def _absolute(source: str) -> str:
    return source if "://" in source else str(Path(source).expanduser().resolve())


def _other(run: Run, known: KnownRun) -> Any:
    return lambda progress: run.other_run(known, progress)
