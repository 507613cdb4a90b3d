"""What every output says about stragglers, to compare: each state has its own words."""

from __future__ import annotations

import io
import json
from html import unescape
from typing import Any

from rich.console import Console

from rankscope.answers.diagnosis.verdict import Diagnosis
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import clock_of
from rankscope.results import rank_state, with_symptoms
from rankscope.show.report.formatting import sentence
from rankscope.show.report.html_report import payload
from rankscope.show.report.notebook import run_html
from rankscope.show.report.summary import summary
from rankscope.show.report.terminal import findings_list, not_judged_list
from rankscope.show.timeline.heat_map import heat_of

WORDS = {
    "straggler": ("delays the other ranks", "delay the other ranks", "is the straggler", "are stragglers"),
    "none": (
        "none by more than",
        "none stands out",
        "no rank delays",
        "no single rank delays",
        "show why",
        "cause unclear",
    ),
    "too-few-steps": ("too few steps to tell",),
    "not-compared": ("not compared", "cannot be compared", "could not be compared"),
    "one-rank": ("one rank: ",),
}


def printed(*parts: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=100, highlight=False).print(*parts)
    return out.getvalue()


def states_in(text: str) -> set[str]:
    """The states whose words a text has."""
    text = " ".join(text.lower().split())
    return {state for state, words in WORDS.items() if any(each in text for each in words)}


def said_by(run: Run, diagnosis: Diagnosis) -> dict[str, str]:
    """What each output says about stragglers, by output; none of memory snapshots alone, which have no times."""
    lines = printed(summary(run, 100)).splitlines()
    if all(info.is_snapshot for info in run.traces):
        assert not any(line.startswith("stragglers") for line in lines)
        return {}
    first = next(number for number, line in enumerate(lines) if line.startswith("stragglers"))
    last = next(number for number, line in enumerate(lines) if number > first and not line.startswith(" " * 12))
    verdict = diagnosis.stragglers
    terminal = " ".join(" ".join(lines[first:last]).removeprefix("stragglers").split())
    if verdict.state == "straggler":
        # The line names the ranks instead of the state.
        assert terminal.startswith(("rank ", "ranks "))
        terminal = f"{terminal.partition(':')[0]} delays the other ranks"
    found = {"summary": terminal, "sentence": sentence(verdict.sentence)}
    html = unescape(run_html(run))
    assert terminal.split(": ")[0].removesuffix(" delays the other ranks") in html
    result = run.analyze("stragglers")["stragglers"]
    if verdict.state != "one-rank":
        assert rank_state(result.frame) == verdict.state
        answer = diagnosis.headline_of(result)
        assert answer == verdict.sentence
        # The analysis by itself is silent if a single rank's trace is complete.
        found |= {"analysis": sentence(result.headline)} if result.headline is not None else {}
    return found


def agree(run: Run, *, page: bool = False) -> str:
    """Fails unless all outputs show one state.

    Args:
        page: compare what the page gets too, for which all analyses are made.

    Returns:
        The state.
    """
    diagnosis, found = run.diagnosis(), run.diagnose()
    state = diagnosis.stragglers.state
    for output, text in said_by(run, diagnosis).items():
        assert states_in(text) == {state}, (output, text, state)
        assert "{" not in text, (output, text)
    late = sorted({rank for each in with_symptoms(found) if each.id == "straggler" for rank in each.ranks})
    assert sorted(set(diagnosis.stragglers.ranks)) == late
    assert (state == "straggler") == bool(late)
    with_cause = run.stragglers().filter(run.stragglers()["cause"].is_not_null())["rank"].to_list()
    assert sorted(with_cause) == late
    # Findings of clocks say of single ranks that they cannot be compared.
    about_some = {state, "not-compared"}
    titles = ". ".join(each.title for each in with_symptoms(found))
    for text in (sentence(diagnosis.headline), titles):
        assert states_in(text) <= about_some, text
    steps = run.about()["steps"]
    printed(findings_list(found, steps, with_evidence=True), not_judged_list(diagnosis))
    json.dumps(diagnosis.to_json(), allow_nan=False)
    mean = run.overview()["mean_step_ns"].to_list()
    assert diagnosis.saving_ns <= max(diagnosis.step_ns or 0, *(each or 0 for each in mean))
    heat = heat_of(run, clock_of(run))
    if heat is not None and state == "not-compared" and not run.stragglers()["steps"].sum():
        # No step was compared: the map's color would say who is late.
        assert set(heat["waited_ns"]) | set(heat["lateness_ns"]) <= {None}
    if page:
        shown = payload(run)
        assert shown["diagnosis"] == diagnosis.to_json()
        embedded = shown["analyses"].get("stragglers", {}).get("headline")
        if embedded is not None:
            assert state == "one-rank" or embedded == diagnosis.stragglers.sentence.to_json()
    return state
