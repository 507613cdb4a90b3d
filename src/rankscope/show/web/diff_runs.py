"""`rankscope diff` for the page.

In: two loaded runs, or two ranks of one. Out: their diff as JSON values, cached.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.errors import ConfigError
from rankscope.experiments.compare import Diff, diff_runs
from rankscope.show.report.html_report import table_of
from rankscope.show.web.responses import RefusedError
from rankscope.show.web.runs import ServedRun

MOST = 20_000
# Each holds a table of what two runs ran.
KEPT = 8
_Shown = tuple[str, int]
_Key = tuple[_Shown, _Shown | None, tuple[int, ...]]


class Comparisons:
    """Diffs that were requested, the latest kept: a loaded run changes only with its generation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[_Key, Mapping[str, Any]] = {}

    def ask(self, first: ServedRun, second: ServedRun | None, ranks: Sequence[int]) -> Mapping[str, Any]:
        """What differs between two runs, or without a second one between two ranks of the first.

        Raises:
            RefusedError: one of them is not read yet, could not be read, or has no such rank.
        """
        for served in (first, *((second,) if second is not None else ())):
            _check(served)
        key = _shown(first), None if second is None else _shown(second), tuple(ranks)
        with self._lock:
            if key not in self._made:
                one, two = first.loaded.run, second.loaded.run if second is not None else None
                if one is None:
                    raise RefusedError(409, "the run is still being read", "api/state has the progress")
                try:
                    self._made[key] = _to_json(diff_runs(one, two, ranks=ranks or None))
                except ConfigError as error:
                    raise RefusedError(404, error.what, error.hint) from error
                while len(self._made) > KEPT:
                    del self._made[next(iter(self._made))]
            return self._made[key]


def _shown(served: ServedRun) -> _Shown:
    return served.key, served.loaded.state.generation


def _check(served: ServedRun) -> None:
    state = served.loaded.state
    if state.phase == "failed":
        raise RefusedError(404, "one of the two runs could not be read", "choose another run")
    if state.phase != "ready":
        raise RefusedError(409, "one of the two runs is still being read", "api/state has the progress")


def _to_json(diff: Diff) -> dict[str, Any]:
    return {
        "a": dict(diff.a),
        "b": dict(diff.b),
        "table": table_of(diff.result(), MOST, headline=None),
        "gained": [finding.to_json() for finding in diff.gained],
        "lost": [finding.to_json() for finding in diff.lost],
    }
