"""A run's diagnosis: the one value that the summary, the findings, the report and the page show.

In: merged findings and results of analyses. Out: the headline, whether there is a straggler, and what the traces
cannot tell, with the reason and what to record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from rankscope.answers.diagnosis.effects import STRAGGLER
from rankscope.answers.diagnosis.step_costs import (
    MEAN_STEP,
    StepWords,
    number_of_steps,
    on_device,
    step_of,
    step_words,
    unrecorded_ranks,
    usual,
)
from rankscope.primitives.activity import HOST_ACTIVITY, IDLE
from rankscope.results import (
    AMONG_RECORDED,
    ENOUGH_STEPS,
    Evidence,
    Finding,
    Headline,
    Inputs,
    RankState,
    Result,
    enough,
    incomplete_ranks,
    judged_by_log,
    late_unexplained,
    longest_wait,
    rank_state,
    ruled_out,
    undecided,
    without_straggler,
)
from rankscope.results.finding import TOGETHER_WITH
from rankscope.rundir.plurals import counted, plural
from rankscope.store.account import Account
from rankscope.whatif.run import ReplayedRun

UNEXPLAINED = 0.05
"""Of a step: if the device is idle for longer and no finding explains it, the headline does not deny it."""
JUDGED = ("stragglers",)
"""Analyses whose question the diagnosis answers: they have no sentence of their own."""

_LABELS: dict[RankState, str] = {
    "straggler": "",
    "none": "none stands out",
    "too-few-steps": "too few steps to tell",
    "not-compared": "not compared",
    "one-rank": "one rank: nothing to compare it with",
}


@dataclass(frozen=True)
class RankVerdict:
    """Whether a rank delays the others.

    Attributes:
        state: a significant straggler; none; too few steps to tell; nothing to compare ranks by; or a single rank.
        ranks: the stragglers, those of the most costly finding first.
        sentence: the same in words.
        longest: for which rank the others waited longest, as a clause: an indication; None if they waited for none.
        unexplained: the rank that is significantly late in some steps, if these traces do not show why; else None.
        detail: the label with how large a delay is ruled out, or how many steps would do.
        ranks_missing: whether the job has ranks without a complete trace, which no state is about.
    """

    state: RankState
    ranks: tuple[int, ...]
    sentence: Headline
    longest: Headline | None = None
    ranks_missing: bool = False
    unexplained: int | None = None
    detail: str = ""

    @property
    def label(self) -> str:
        """The state in a few words, as a line begins; empty where stragglers are named instead."""
        if self.unexplained is not None:
            return f"rank {self.unexplained} in some steps, cause unclear"
        if self.detail:
            return self.detail
        return _LABELS[self.state] + (AMONG_RECORDED if self.ranks_missing and self.state == "none" else "")

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "state": self.state,
            "label": self.label,
            "ranks": list(self.ranks),
            "sentence": self.sentence.to_json(),
            "longest": None if self.longest is None else self.longest.to_json(),
        }


@dataclass(frozen=True)
class NotJudged:
    """What these traces cannot tell.

    Attributes:
        what: the question.
        why: the reason.
        record: what to record instead; empty if nothing would help.
    """

    what: str
    why: str
    record: str = ""

    def to_json(self) -> dict[str, str]:
        """A JSON object."""
        return {"what": self.what, "why": self.why, "record": self.record}


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a run, made once.

    Attributes:
        findings: causes with their symptoms, by severity and cost; their savings add up to the mean step at most.
        stated: the same findings as each rule and analysis states it, neither merged nor limited.
        headline: the most costly cause in one sentence.
        stragglers: whether a rank delays the others.
        step_ns: the step time that shares refer to; the recorded window without steps; None if there is neither.
        basis: what that is: `step time (median, slowest rank)`.
        not_judged: what the traces cannot tell.
    """

    findings: tuple[Finding, ...]
    stated: tuple[Finding, ...]
    headline: Headline
    stragglers: RankVerdict
    step_ns: int | None
    basis: str
    not_judged: tuple[NotJudged, ...]

    @property
    def saving_ns(self) -> int:
        """The potential saving of all findings together, ns per step: the mean step at most."""
        return sum(finding.saving_ns or 0 for finding in self.findings)

    def headline_of(self, result: Result) -> Headline | None:
        """An analysis's answer in one sentence, as the diagnosis has it if it judges the same question."""
        if result.name in JUDGED and self.stragglers.state != "one-rank":
            return self.stragglers.sentence
        return result.headline

    def answered(self, result: Result) -> Result:
        """An analysis's result with the sentence and the severities that the diagnosis has."""
        headline = self.headline_of(result)
        merged = {(one.id, one.ranks): one for each in self.findings for one in (*each.symptoms, each)}
        findings = tuple(merged.get((each.id, each.ranks), each) for each in result.findings)
        return replace(result, analysis=replace(result.analysis, headline=lambda _: headline), findings=findings)

    def to_json(self) -> dict[str, Any]:
        """A JSON object without the findings, which results list with those of the files."""
        return {
            "headline": self.headline.to_json(),
            "stragglers": self.stragglers.to_json(),
            "step_ns": self.step_ns,
            "basis": self.basis,
            "saving_ns": self.saving_ns,
            "not_judged": [each.to_json() for each in self.not_judged],
        }


def diagnosis_of(
    findings: Sequence[Finding],
    stated: Sequence[Finding],
    inputs: Inputs,
    step: int | None,
    run: ReplayedRun | None,
    without_steps: frozenset[int] = frozenset(),
) -> Diagnosis:
    """The diagnosis.

    Args:
        findings: merged, the most severe and costly first.
        stated: as they were before.
        inputs: results of the analyses that were made.
        step: the step time, ns; None if it is not known.
        run: its replay; None if there is nothing to replay.
        without_steps: ranks whose files have no steps although others have: the results have no rows of them.
    """
    unit = step_words(inputs)
    return Diagnosis(
        tuple(findings),
        tuple(stated),
        _headline(findings, unit, step, _nothing_measured(inputs), _unexplained_idle(findings, inputs, step)),
        _rank_verdict(findings, inputs),
        step,
        unit.length,
        (*_not_judged(stated, inputs, without_steps), *_savings_not_judged(findings, run)),
    )


def _nothing_measured(inputs: Inputs) -> str:
    """Why no trace tells what the time was spent on; empty if one does."""
    if inputs.traces and all(info.is_snapshot for info in inputs.traces):
        return "Only memory was recorded: snapshots hold no durations."
    if inputs.traces and all(info.account.lacks_device for info in inputs.traces):
        return "The device was not recorded, although kernels were launched: what it did is not known."
    if inputs.traces and all(info.account.hides_work for info in inputs.traces):
        return f"What the time was spent on is not known: {_account(inputs).hidden}."
    return ""


def _account(inputs: Inputs) -> Account:
    return Account.of(info.account for info in inputs.traces)


_ACTIVITIES = {
    "runtime_ns": ("runtime", "synchronisation"),
    "data_loading_ns": ("data_loading",),
    "host_op_ns": ("operator",),
    "other_ns": ("nothing", "python"),
}
"""The activities of `idle` that are in each idle part of a step."""


def _unexplained_idle(findings: Sequence[Finding], inputs: Inputs, step: int | None) -> tuple[int, str] | None:
    """How long the device is idle in a step for a reason that no finding has, and what its host does meanwhile; None if
    that is little, or nothing is known of a device."""
    frame = inputs.results.get("step_time")
    if step is None or frame is None or not on_device(inputs):
        return None
    frame = frame.filter(pl.col(IDLE[0]).is_not_null())
    if frame.is_empty():
        return None
    idle = usual(frame.with_columns(pl.sum_horizontal(IDLE).alias("idle")), "idle", *IDLE)
    worst = idle.sort("idle", "rank", descending=[True, False]).row(0, named=True)
    left = round(worst["idle"]) - sum(each.saving_ns or 0 for each in findings)
    if left < UNEXPLAINED * step:
        return None
    most = max(IDLE, key=lambda name: worst[name])
    return left, f", mostly while {HOST_ACTIVITY[_host_activity(most, worst['rank'], inputs)]}"


def _host_activity(column: str, rank: int, inputs: Inputs) -> str:
    """What the host does in a part of the step's idle time: of several activities, that with most of `idle`, which has
    no time before the first device event."""
    possible = _ACTIVITIES[column]
    causes = inputs.results.get("idle")
    if causes is None:
        return possible[0]
    own = causes.filter((pl.col("rank") == rank) & pl.col("stream").is_null() & pl.col("cause").is_in(possible))
    most = own.group_by("cause").agg(pl.col("idle_ns").sum()).sort("idle_ns", "cause", descending=[True, False])
    return possible[0] if most.is_empty() else str(most["cause"][0])


def _headline(
    findings: Sequence[Finding],
    unit: StepWords,
    step: int | None,
    nothing_measured: str,
    unexplained: tuple[int, str] | None = None,
) -> Headline:
    """The most costly cause, and what it costs; where none is a warning, idle time that nothing explains.

    Args:
        nothing_measured: as `_nothing_measured` gives it.
        unexplained: as `_unexplained_idle` gives it.
    """
    if step is None:
        no_event = "Nothing can be measured: these traces contain no event with a duration."
        return Headline.of(nothing_measured or no_event)
    values: dict[str, tuple[int | float | str, str]] = {"step": (step, "ns")}
    if nothing_measured:
        return Headline.of(f"{nothing_measured} The {unit.noun} is {{step}}.", **values)
    top = next((each for each in findings if each.weight_ns and each.severity != "info"), None)
    top = top or next((each for each in findings if each.severity != "info"), None)
    small = top is None
    top = top or max((each for each in findings if each.saving_ns), key=lambda each: each.saving_ns or 0, default=None)
    # A cost of which no part can be called a saving still answers where the time goes.
    open_cost = next((each for each in findings if any(one.name == unit.length for one in each.evidence)), None)
    if top is None and open_cost is not None:
        return Headline.of("{finding}.", finding=(open_cost.title, ""))
    if small and unexplained is not None and (top is None or unexplained[0] > (top.saving_ns or 0)):
        idle, doing = unexplained
        text = (
            f"No finding explains why the device is idle for {{idle}} of the {{step}} {unit.noun} ({{share}}){doing}."
        )
        return Headline.of(text, **values, idle=(idle, "ns"), share=(idle / step, "ratio"))
    if top is None:
        return Headline.of(f"No finding saves 1 % or more of the {{step}} {unit.noun}.", **values)
    values["finding"] = (top.title, "")
    if not top.weight_ns:
        return Headline.of("{finding}.", finding=values["finding"])
    step, is_mean = step_of(top, step)
    if is_mean:
        unit, values["step"] = MEAN_STEP, (step, "ns")
    saving = top.saving_ns or 0
    values |= {"saving": (saving, "ns"), "share": (saving / step, "ratio")}
    if small:
        text = (
            f"No performance warnings. The most costly note: {{finding}} (up to {{share}} of the {{step}} {unit.noun})."
        )
        return Headline.of(text, step=values["step"], finding=values["finding"], share=values["share"])
    text = f"up to {{saving}} of the {{step}} {unit.noun} ({{share}}) can be saved."
    if top.id != STRAGGLER or saving:
        return Headline.of("{finding}. U" + text[1:], **values)
    values["cost"] = (top.weight_ns, "ns")
    del values["saving"]
    values["share"] = (top.weight_ns / step, "ratio")
    return Headline.of(f"{{finding}}. {_cost_of(top, f'the {{step}} {unit.noun} ({{share}})')}.", **values)


def _cost_of(straggler: Finding, of_what: str) -> str:
    """What a straggler costs that saves nothing alone, as a clause: another rank is as late, or it is not known."""
    with_ranks = next((each.value for each in straggler.evidence if each.name == TOGETHER_WITH), None)
    if with_ranks is None:
        return f"Other ranks wait up to {{cost}} of {of_what} for it"
    return f"Only with ranks {with_ranks} fixed too, up to {{cost}} of {of_what} can be saved"


def _rank_verdict(findings: Sequence[Finding], inputs: Inputs) -> RankVerdict:
    """Whether a rank delays the others, with its evidence."""
    frame = inputs.results.get("stragglers")
    logged = frame is not None and judged_by_log(frame)
    if len({info.rank for info in inputs.traces}) < 2 and not logged:
        return RankVerdict("one-rank", (), Headline.of("One rank: there is nothing to compare it with."))
    longest = None if frame is None else longest_wait(frame)
    found = [each for each in findings if each.id == STRAGGLER]
    ranks = tuple(dict.fromkeys(rank for each in found for rank in each.ranks))
    if found:
        return RankVerdict("straggler", ranks, _straggler_sentence(found, step_words(inputs)), longest)
    if frame is None:
        sentence = Headline.of("The ranks could not be compared: the analysis of stragglers failed.")
        return RankVerdict("not-compared", (), sentence)
    missing = unrecorded_ranks(inputs) > 0 and frame["log_steps"].count() < (inputs.world_size or 0)
    sentence = without_straggler(frame, ranks_missing=missing)
    state = rank_state(frame)
    unexplained = late_unexplained(frame) if state == "none" else None
    detail = f"{undecided(frame)} ({enough(frame)})" if state == "too-few-steps" else ""
    if state == "none" and unexplained is None and (bound := ruled_out(frame)):
        detail = f"none{bound}{AMONG_RECORDED if missing else ''}"
    return RankVerdict(state, (), sentence, longest, missing, unexplained, detail)


def _straggler_sentence(found: Sequence[Finding], unit: StepWords) -> Headline:
    """The most costly straggler, what it costs as in the headline, and which others there are."""
    first, *others = found
    values: dict[str, tuple[int | float | str, str]] = {"finding": (first.title, "")}
    text = "{finding}"
    saving = first.saving_ns or 0
    if saving:
        text += f"; up to {{saving}} {unit.per} can be saved"
        values["saving"] = (saving, "ns")
    elif first.weight_ns:
        cost = _cost_of(first, unit.one)
        text += f"; {cost[:1].lower()}{cost[1:]}"
        values["cost"] = (first.weight_ns, "ns")
    more = [str(rank) for each in others for rank in each.ranks]
    if more:
        shown = ", ".join(more[:8]) + (", …" if len(more) > 8 else "")
        text += f". So {'does' if len(more) == 1 else 'do'} {plural('rank', len(more))} {{more}}"
        values["more"] = (shown, "")
    return Headline(f"{text}.", tuple(Evidence(name, value, of) for name, (value, of) in values.items()))


def _not_judged(stated: Sequence[Finding], inputs: Inputs, without_steps: frozenset[int]) -> list[NotJudged]:
    """What these traces cannot tell."""
    if all(info.is_snapshot for info in inputs.traces):
        why = "memory snapshots hold no durations"
        return [NotJudged("Steps, ranks, communication", why, "Put the traces of the same job next to them.")]
    found: list[NotJudged] = []
    steps, ranks = number_of_steps(inputs), len({info.rank for info in inputs.traces})
    if not steps:
        span = "device event" if "step_time" in inputs.results and on_device(inputs) else "event"
        found.append(
            NotJudged(
                "Time per step",
                f"no step is marked: figures are of the recorded span, from the first to the last {span}",
                "Call step() of the profiler once per iteration, or use `rankscope run`.",
            )
        )
    elif steps < ENOUGH_STEPS:
        why = f"only {counted(steps, 'step')} recorded"
        found.append(NotJudged("Whether a difference lasts", why, "Record more steps: --active 5."))
    empty = {info.rank for info in inputs.traces if info.is_empty}
    if lacking := sorted(without_steps - incomplete_ranks(inputs.traces) - empty):
        why = "no step is marked there, as on other ranks"
        record = "Call the profiler's step() on every rank."
        found.append(NotJudged(f"{_named(lacking)}: time per step", why, record))
    found += _ranks_not_judged(stated, inputs, ranks)
    if "step_time" in inputs.results and not on_device(inputs):
        why = "no device event is recorded: compute is operators, communication is Gloo's ranges"
        if any(info.account.lacks_device for info in inputs.traces):
            why = "kernels were launched, and no device event is recorded"
        elif any(info.account.hides_work for info in inputs.traces):
            why = _account(inputs).hidden
        found.append(NotJudged("Device idle time, launches and kernels", why, "On a GPU, record device activity."))
    for each in stated:
        if each.id == "not-diagnosed":
            reason = "; ".join(str(one.value) for one in each.evidence if one.name == "reason")
            found.append(NotJudged(each.title.partition(" could not")[0], reason))
    return found


def _savings_not_judged(findings: Sequence[Finding], run: ReplayedRun | None) -> list[NotJudged]:
    """Why savings are no more than bounds: the replay is too far off the recorded steps."""
    if run is None or run.fidelity.is_judged or not any(each.weight_ns for each in findings):
        return []
    why = f"the replay explains {100 * run.fidelity.explained:.0f} % of the step ({run.fidelity.reason})"
    return [NotJudged("What findings save together, and what late ranks cost", why)]


def _ranks_not_judged(stated: Sequence[Finding], inputs: Inputs, ranks: int) -> list[NotJudged]:
    """What these traces do not show about the ranks among themselves."""
    size = inputs.world_size or ranks
    if size < 2:
        return []
    frame = inputs.results.get("stragglers")
    logged = frame is not None and judged_by_log(frame)
    what = "Waiting in communication" if logged else "Which rank delays the others"
    record = _record_missing(inputs, size)
    if ranks < 2:
        why = f"1 of {size} ranks has a trace here"
        what = what if logged else f"{what}, and waiting in communication"
        return [NotJudged(what, why, record)]
    if "collectives" not in inputs.results or inputs.columns("collectives", "rank").is_empty():
        return [NotJudged(what, "no collective is recorded", "Record device activity, or Gloo's ranges on the CPU.")]
    complete = ranks - len(incomplete_ranks(inputs.traces))
    if complete < 2:
        why = f"{complete} of {ranks} ranks {plural('has', complete, 'have')} a complete trace"
        return [NotJudged(what, why, "Record the other ranks again.")]
    if frame is None or not frame["waited_ns"].drop_nulls().len():
        return [NotJudged(what, "no collective was matched across ranks", "Record all ranks in the same steps.")]
    found = []
    if rank_state(frame) == "not-compared":
        alone = frame["significance"].null_count() == frame.height
        whose = "no two ranks run the same program" if alone else "no other rank runs the program of the one waited for"
        why = f"{whose}, as in pipeline stages of one rank"
        found.append(NotJudged(what, why, "Record a job with several replicas of the pipeline."))
    if ranks < size:
        why = f"{size - ranks} of {size} ranks {plural('has', size - ranks, 'have')} no trace here"
        found.append(NotJudged("Waiting for the ranks without a trace", why, record))
    for each in stated:
        if each.id == "not-judged" and each.ranks:
            found.append(NotJudged(_named(each.ranks), "incomplete trace", "Record it again."))
    return found


def _record_missing(inputs: Inputs, size: int) -> str:
    """How to get the traces of the ranks that have none: they may be elsewhere, or were not to be recorded."""
    without = set(range(size)) - {info.rank for info in inputs.traces}
    if inputs.left_out is not None and without <= set(inputs.left_out.ranks):
        return inputs.left_out.record_all
    return "Gather the traces of all ranks."


def _named(ranks: Sequence[int]) -> str:
    """Some ranks by number: `Ranks 1, 2, 3`."""
    return f"{plural('Rank', len(ranks))} {', '.join(map(str, ranks[:8]))}{', …' if len(ranks) > 8 else ''}"
