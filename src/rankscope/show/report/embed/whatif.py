"""What-if answers for the page, and those of a report: each single scenario and the waterfall.

In: a run that is replayed, and scenarios. Out: JSON values, as `api/whatif` sends them; a block of a report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from rankscope.analyses.whatif import AS_RECORDED
from rankscope.engine.pipeline import Run
from rankscope.rundir.ranges import as_ranges
from rankscope.show.report.embed.encoding import json_block
from rankscope.whatif.lanes import KINDS, LANES, Lanes
from rankscope.whatif.options import options_in, scenarios_in
from rankscope.whatif.predictions import Predictions
from rankscope.whatif.scenarios import COMPONENTS, AsPeers, Scenario

MOST_BYTES = 60_000
"""Of a report's answers, compressed: beyond, they have the step time without its lanes."""
MOST_NODES = 400_000
"""Of a graph that is asked; about 400 bytes each."""


def answer_of(asked: Predictions, scenarios: Sequence[Scenario], named: Sequence[int] = ()) -> dict[str, Any]:
    """What a step takes with some scenarios; of a run that is not judged the replay as recorded.

    Args:
        asked: the run.
        scenarios: all at once.
        named: ranks whose lanes are shown first.

    Raises:
        ConfigError: the run cannot tell.
    """
    run = asked.run
    judged = run.fidelity.is_judged
    found = asked.predict(scenarios if judged else [], named)
    return {
        "options": [each.option for each in scenarios],
        "names": [each.name for each in scenarios],
        "recorded_ns": round(run.fidelity.recorded_ns),
        "replayed_ns": round(run.step_ns),
        "step_ns": round(found.step_ns) if judged else None,
        "explained": run.fidelity.explained,
        "judged": judged,
        "note": run.note,
        "step": None if asked.shown_step < 0 else asked.shown_step,
        "steps": int(run.steps.index.size),
        "ranks": list(found.ranks),
        "of": len(asked.all_ranks),
        "recorded": _lanes(found.recorded),
        "replayed": _lanes(found.replayed),
        "offers": {
            "ranks": as_ranges(asked.comparable_ranks),
            "components": list(COMPONENTS),
            "scenarios": [{"option": each.option, "name": each.name} for each in asked.applicable] if judged else [],
        },
    }


def _lanes(lanes: Lanes) -> dict[str, Any]:
    times = {f"{name}_ns": getattr(lanes, name) for name in ("start", "end", "busy")}
    return {
        "duration_ns": round(lanes.duration_ns),
        "rank": lanes.rank.tolist(),
        "lane": [LANES[lane] for lane in lanes.lane.tolist()],
        "kind": [KINDS[kind] for kind in lanes.kind.tolist()],
        **{name: np.rint(values).astype(np.int64).tolist() for name, values in times.items()},
    }


def run_to_ask(run: Run) -> Predictions | str:
    """The replay of a run for the page, or why there is none.

    Raises:
        AnalysisError: what it needs cannot be computed.
    """
    replayed = run.replayed()
    if replayed is None:
        return "no step of recorded work is the same on most of the ranks"
    if replayed.graph.line.size > MOST_NODES:
        return "it is too large for the page: ask `rankscope whatif RUN`"
    return Predictions(replayed)


def whatif_blocks(run: Run) -> dict[str, bytes]:
    """The answers that a report has: as recorded, each scenario of `whatif` alone, and its waterfall up to each place.

    Nothing if the run cannot be replayed.
    """
    result = run.attempt("whatif").get("whatif")
    replayed = run_to_ask(run) if result is not None else ""
    if result is None or isinstance(replayed, str):
        return {}
    sets = [scenarios_in(text) for text in _sets(result.frame)]
    fixed = [rank for each in sets for scenario in each if isinstance(scenario, AsPeers) for rank in scenario.ranks]
    named = list(dict.fromkeys([*run.diagnosis().stragglers.ranks, *fixed]))
    answers: list[dict[str, Any]] = []
    size = 0
    for scenarios in sets:
        answer = answer_of(replayed, scenarios, named)
        if answers:  # the first has what all have in common
            answer = {name: answer[name] for name in ("options", "names", "step_ns", "replayed")}
        size += len(json_block(answer))
        answers.append(answer if size <= MOST_BYTES or not answers else {**answer, "replayed": None})
    return {"whatif": json_block(answers)}


def _sets(frame: pl.DataFrame) -> list[str]:
    """The options of each set of scenarios: none, the waterfall up to each place, each alone."""
    commands = frame.filter(pl.col("scenario") != AS_RECORDED).sort("order", nulls_last=True)
    options = list(map(options_in, commands["command"]))
    placed = options[: commands["order"].drop_nulls().len()]
    return list(dict.fromkeys(["", *(" ".join(placed[: n + 1]) for n in range(len(placed))), *options]))
