"""Rules over results: what to do about a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rankscope.analyses import all_analyses
from rankscope.errors import RankscopeError, describe_error
from rankscope.results import Evidence, Finding, Inputs, Options, Result, Rule, by_weight
from rankscope.rundir.manifest import RankManifest
from rankscope.store.trace_info import TraceInfo

Analyze = Callable[..., dict[str, Result]]


def diagnose(
    rules: Iterable[Rule],
    analyze: Analyze,
    options: Options,
    infos: tuple[TraceInfo, ...],
    world_size: int | None,
    capture: tuple[RankManifest, ...] = (),
) -> list[Finding]:
    """What rules find in a run, weightiest first; what a rule could not see, for it or an analysis failed, is told.

    Args:
        rules: the rules.
        analyze: gives the results of analyses by name; raises `RankscopeError`.
        options: the user's choices.
        infos: the trace files of the run.
        world_size: ranks in the job, if any file says so.
        capture: what each rank said of its capture.
    """
    chosen = list(rules)
    # With those that have findings themselves, there is nothing on the page that is missing here.
    with_findings = (name for name, analysis in all_analyses().items() if analysis.has_findings)
    wanted = {*with_findings, *(name for rule in chosen for name in rule.requires)}
    results, findings = attempt(sorted(wanted), analyze)
    frames = {name: result.frame for name, result in results.items()}
    for rule in chosen:
        own = {name: frames[name] for name in rule.requires if name in frames}
        try:
            findings += rule.find(Inputs(options, infos, own, world_size=world_size, capture=capture))
        except Exception as error:
            # One rule, perhaps another package's, must not take the others' findings with it.
            findings.append(_silent(rule.name, error))
    return by_weight(findings)


def attempt(names: Sequence[str], analyze: Analyze) -> tuple[dict[str, Result], list[Finding]]:
    """The results of those analyses that can be made, and a finding for each that cannot."""
    try:
        return analyze(*names), []
    except Exception:
        # Together they read a rank's tables once; one by one those that can be made are.
        found: dict[str, Result] = {}
        lost: list[Finding] = []
        for name in names:
            try:
                found |= analyze(name)
            except Exception as error:
                lost.append(_silent(name, error))
        return found, lost


def _silent(name: str, error: Exception) -> Finding:
    reason = error.what if isinstance(error, RankscopeError) else describe_error(error)
    return Finding(
        "not-diagnosed",
        "info",
        f"{name} could not be looked at, so what it would show is not among the findings",
        evidence=(Evidence("reason", reason),),
    )
