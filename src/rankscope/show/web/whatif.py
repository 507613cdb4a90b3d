"""What a step would take without this: the replay of a run, kept for the page.

In: a request with scenarios as the options of `rankscope whatif`. Out: the step time and one step as lanes.
"""

from __future__ import annotations

import re
import threading
from typing import Any

from starlette.requests import Request

from rankscope.errors import ConfigError, RankscopeError
from rankscope.show.report.embed.whatif import answer_of, run_to_ask
from rankscope.show.web.responses import RefusedError
from rankscope.show.web.runs import ServedRun
from rankscope.whatif.options import scenarios_in
from rankscope.whatif.predictions import Predictions

MOST_CHARACTERS = 2_000
MOST_NUMBERS = 100_000
_RANGE = re.compile(r"(\d{1,9})\s*-\s*(\d{1,9})")
_Key = tuple[str, int]


class Replays:
    """Answers what-if questions; the graph of the run that was asked about last is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[_Key, Predictions | str] | None = None

    def ask(self, request: Request, served: ServedRun) -> dict[str, Any]:
        """The answer to `with`: options of `rankscope whatif`, none for the step as recorded.

        Raises:
            RefusedError: the run is not ready, cannot be replayed or is too large, or an option is not valid.
        """
        text = request.query_params.get("with", "")
        ranges = sum(max(int(last) - int(first), 0) for first, last in _RANGE.findall(text))
        if len(text) > MOST_CHARACTERS or ranges > MOST_NUMBERS:
            raise RefusedError(400, "these are too many scenarios", "`rankscope whatif RUN` has no such limit")
        loaded = served.loaded
        if loaded.state.phase != "ready" or loaded.run is None:
            raise RefusedError(409, "the run is not ready yet", "api/state has the progress")
        late = loaded.diagnosis.stragglers.ranks if loaded.diagnosis is not None else ()
        try:
            scenarios = scenarios_in(text)
            with self._lock:  # one at a time: each takes memory for the graph's nodes
                replayed = self._replayed(served)
                if not isinstance(replayed, str):
                    return answer_of(replayed, scenarios, late)
        except ConfigError as error:
            raise RefusedError(400, error.what, error.hint) from error
        except RankscopeError as error:
            raise RefusedError(404, f"the run cannot be replayed: {error.what}", error.hint) from error
        raise RefusedError(404, f"the run cannot be replayed: {replayed}")

    def _replayed(self, served: ServedRun) -> Predictions | str:
        key = served.key, served.loaded.state.generation
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # before the next one is made: both would take twice the memory
            run = served.loaded.run
            self._kept = key, run_to_ask(run) if run is not None else "it is not read yet"
        return self._kept[1]
