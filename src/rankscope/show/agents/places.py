"""The place in the timeline that a call names: ranks, and a window on the run's clock.

In: arguments of a call. Out: ranks and a window, from a finding's event, a rank's step, or two instants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankscope.errors import ConfigError
from rankscope.show.agents.arguments import Argument
from rankscope.show.agents.run_tools import finding_numbered
from rankscope.show.agents.runs import OpenRun

MAX_RANKS = 64
_ROOM = 0.1
"""Around a finding's event and its peers, as share of the window that contains them."""

ARGUMENTS = (
    Argument("finding", "integer", "Number of a finding: the window of its event, on its ranks.", high=1_000_000),
    Argument("step", "integer", "Number of a step: its window."),
    Argument("from_ns", "integer", "First instant, ns on the run's clock; give to_ns as well.", low=-(1 << 53)),
    Argument("to_ns", "integer", "The instant after the last, ns on the run's clock.", low=-(1 << 53)),
    Argument("ranks", "integers", f"Only these ranks, at most {MAX_RANKS}. Default: those of the place."),
)


@dataclass(frozen=True)
class Place:
    """Where to look.

    Attributes:
        ranks: which ranks.
        from_ns: first instant on the run's clock.
        to_ns: the instant after the last.
        event: the finding's event: rank, start_ns, end_ns; None without one.
        left_out: how many ranks exceed the limit.
    """

    ranks: list[int]
    from_ns: int
    to_ns: int
    event: Mapping[str, Any] | None = None
    left_out: int = 0

    def params(self) -> dict[str, object]:
        """The place as parameters of the page's timeline."""
        shown: dict[str, object] = {"t": f"{self.from_ns}_{self.to_ns}", "open": self.ranks[0] if self.ranks else ""}
        if self.event is None:
            return shown
        return {**shown, "ev": f"{self.event['rank']}_{self.event['start_ns']}_{self.event['end_ns']}"}


def place_of(opened: OpenRun, given: Mapping[str, Any]) -> Place:
    """The place that the arguments name; without any the whole run.

    Raises:
        ConfigError: they contradict each other, or name nothing in the run.
    """
    event: Mapping[str, Any] | None = None
    drawn = sorted(opened.timeline.ranks)
    if not drawn:
        raise ConfigError("no rank of this run has a timeline", hint="the tool findings gives the reason")
    ranks, window = drawn, (0, max(1, opened.clock.span_ns))
    if given["finding"] is not None:
        event = (finding_numbered(opened, given["finding"]).get("place") or {}).get("event")
        if event is None:
            raise ConfigError(
                "this finding is not about one event", hint="give step, or from_ns and to_ns, and ranks instead"
            )
        room = round(_ROOM * (event["to_ns"] - event["from_ns"])) + 1
        ranks = [rank for rank in dict.fromkeys((event["rank"], *event["peers"])) if rank in opened.timeline.ranks]
        window = max(0, event["from_ns"] - room), event["to_ns"] + room
    chosen = given["ranks"]
    if chosen is not None:
        if missing := [rank for rank in chosen if rank not in opened.timeline.ranks]:
            raise ConfigError(f"rank {missing[0]} has no timeline", hint="list the ranks of the run with summary")
        ranks = list(dict.fromkeys(chosen))
    if given["step"] is not None:
        window = _step(opened, ranks, given["step"])
    if (given["from_ns"] is None) != (given["to_ns"] is None):
        raise ConfigError("from_ns and to_ns go together", hint="give both")
    if given["from_ns"] is not None:
        window = given["from_ns"], given["to_ns"]
    if window[1] <= window[0]:
        raise ConfigError("the window ends before it starts", hint="to_ns must be greater than from_ns")
    span = max(1, opened.clock.span_ns)
    window = max(0, window[0]), min(window[1], span)
    if window[1] <= window[0]:
        raise ConfigError("the window is outside of the run", hint=f"the run lasts from 0 to {span} ns")
    return Place(ranks[:MAX_RANKS], *window, event, max(0, len(ranks) - MAX_RANKS))


def _step(opened: OpenRun, ranks: list[int], number: int) -> tuple[int, int]:
    """The window that contains a step on all of the ranks."""
    found = [
        (start, end) for rank in ranks for step, start, end in opened.timeline.ranks[rank].lanes.steps if step == number
    ]
    if not found:
        raise ConfigError(f"these ranks have no step {number}", hint="summary lists the steps of the run")
    return min(start for start, _ in found), max(end for _, end in found)
