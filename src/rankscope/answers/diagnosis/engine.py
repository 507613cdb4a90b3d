"""Runs the rules over results: from the frames of analyses to a run's diagnosis.

In: rules, and a function that gives the results of analyses by name. Out: the run's diagnosis; a rule or an analysis
that fails becomes a finding and leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import polars as pl

from rankscope.answers.diagnosis.anchors import with_anchors
from rankscope.answers.diagnosis.merging import merge
from rankscope.answers.diagnosis.recurring_costs import of_mean_step
from rankscope.answers.diagnosis.step_costs import step_ns
from rankscope.answers.diagnosis.verdict import Diagnosis, diagnosis_of
from rankscope.errors import describe_error
from rankscope.results import (
    Evidence,
    Finding,
    Inputs,
    Result,
    Rule,
    by_severity,
    each_once,
    files_without_steps,
    incomplete_ranks,
    ranks_without_steps,
)
from rankscope.results.compressed_frames import Frames, stored
from rankscope.results.failures import FAILURES
from rankscope.results.replays import SEGMENTS, replayed

Analyze = Callable[..., dict[str, Result]]
FOR_ALL = ("job_kind",)
"""Analyses whose results every rule gets: advice depends on the kind of the job."""
STRAGGLERS = "stragglers"
_PLACE = {"rank": pl.Int64, "window": pl.Int64, "step": pl.Int64}
BASIS = ("overview", STRAGGLERS, "step_time", "evidence_events", SEGMENTS)
"""Analyses that the diagnosis itself reads."""


def diagnose(rules: Iterable[Rule], with_findings: Iterable[str], analyze: Analyze, inputs: Inputs) -> Diagnosis:
    """The diagnosis: what rules and analyses find, merged, and a finding for each rule or analysis that failed.

    Args:
        rules: the rules.
        with_findings: analyses that give findings themselves. They are run too, so that no finding on the page is
            missing here.
        analyze: gives the results of analyses by name; raises `RankscopeError`.
        inputs: what the rules get, without results.
    """
    chosen = list(rules)
    wanted = {*BASIS, *FOR_ALL, *with_findings, *(name for rule in chosen for name in rule.requires)}
    results, stated = attempt(sorted(wanted), analyze)
    for name in sorted(results):
        stated += [each for each in results[name].findings if not each.all_clear]
    times = results["step_time"].frame if "step_time" in results else pl.DataFrame(schema=_PLACE)
    without_steps = ranks_without_steps(times, inputs.traces)
    frames = _judged(results, inputs, times)
    hiding = frozenset(info.rank for info in inputs.traces if info.rank is not None and info.account.hides_work)
    timed = _judged(results, inputs, times, hiding) if hiding else frames
    for rule in chosen:
        required = (timed if rule.parts else frames).only((*FOR_ALL, *rule.requires))
        try:
            stated += rule.find(replace(inputs, results=required))
        except FAILURES as error:
            # A failing rule, perhaps of another package, must not take the others' findings with it.
            stated.append(_not_diagnosed(rule.name, error))
    known = replace(inputs, results=frames)
    stated = [of_mean_step(each, known) for each in each_once(stated)]
    try:
        stated = with_anchors(stated, known)
    except FAILURES as error:
        stated.append(_not_diagnosed("where findings can be seen", error))
    try:
        step, run = _step_ns(known), replayed(known) if SEGMENTS in known.results else None
        merged = merge(stated, chosen, known, step, run if run is not None and run.fidelity.is_judged else None)
        return diagnosis_of(merged, by_severity(stated), known, step, run, without_steps)
    except FAILURES as error:
        every = by_severity([*stated, _not_diagnosed("which findings have the same cause", error)])
        return diagnosis_of(every, every, replace(inputs, results={}), None, None)


def _step_ns(inputs: Inputs) -> int | None:
    """The step time as `overview` has it; None without one."""
    frame = inputs.results.get("overview")
    found = None if frame is None or frame.is_empty() else frame["step_ns"][0]
    return int(found) if found else step_ns(inputs)


def _judged(
    results: Mapping[str, Result], inputs: Inputs, times: pl.DataFrame, never: frozenset[int] = frozenset()
) -> Frames:
    """The frames of the ranks that can be judged, as long as there are any: of all ranks otherwise.

    Lost events look like a waiting device, or a rank with less work: rules would report problems that do not exist. And
    where other files have steps, one without any is not one step.

    Args:
        times: the result of `step_time`.
        never: incomplete ranks that are left out even if no others remain.
    """
    ranks = {info.rank for info in inputs.traces}
    left_out = incomplete_ranks(inputs.traces) | ranks_without_steps(times, inputs.traces)
    left_out = never if ranks <= left_out else left_out
    files = files_without_steps(times)
    if not left_out and files.is_empty():
        return Frames({name: result.rows for name, result in results.items()})

    def kept(frame: pl.DataFrame) -> pl.DataFrame:
        if _PLACE.keys() <= set(frame.columns):
            frame = frame.join(files, on=["rank", "window"], how="anti", maintain_order="left")
        return frame.filter(~pl.col("rank").is_in(list(left_out))) if "rank" in frame.columns else frame

    # The analysis of stragglers chooses itself which ranks it compares: the verdict and the replay are about these.
    own = (STRAGGLERS, SEGMENTS)
    return Frames(
        {name: result.rows if name in own else stored(kept(result.frame)) for name, result in results.items()}
    )


def attempt(names: Sequence[str], analyze: Analyze) -> tuple[dict[str, Result], list[Finding]]:
    """The results of the analyses that succeed, and a finding for each that fails."""
    try:
        return analyze(*names), []
    except FAILURES:
        # Together they read a rank's tables once; separately, those that can be computed are.
        results: dict[str, Result] = {}
        lost: list[Finding] = []
        for name in names:
            try:
                results |= analyze(name)
            except FAILURES as error:
                lost.append(_not_diagnosed(name, error))
        return results, lost


def _not_diagnosed(name: str, error: BaseException) -> Finding:
    return Finding(
        "not-diagnosed",
        "info",
        f"{name} could not be checked, so its findings are missing",
        evidence=(Evidence("reason", describe_error(error)),),
    )
