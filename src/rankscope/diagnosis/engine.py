"""Runs the rules over results: from the frames of analyses to a run's findings.

In: rules, and a function that gives the results of analyses by name. Out: findings, the most severe first; a rule or an
analysis that fails becomes a finding and leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rankscope.errors import describe_error
from rankscope.results import Evidence, Finding, Inputs, Result, Rule, by_severity

Analyze = Callable[..., dict[str, Result]]


def diagnose(rules: Iterable[Rule], with_findings: Iterable[str], analyze: Analyze, inputs: Inputs) -> list[Finding]:
    """The findings of rules, the most severe first, and one for each rule or analysis that failed.

    Args:
        rules: the rules.
        with_findings: analyses that give findings themselves. They are run too, so that no finding on the page is
            missing here.
        analyze: gives the results of analyses by name; raises `RankscopeError`.
        inputs: what the rules get, without results.
    """
    chosen = list(rules)
    wanted = {*with_findings, *(name for rule in chosen for name in rule.requires)}
    results, findings = attempt(sorted(wanted), analyze)
    for rule in chosen:
        required = {name: results[name].frame for name in rule.requires if name in results}
        try:
            findings += rule.find(replace(inputs, results=required))
        except Exception as error:
            # A failing rule, perhaps of another package, must not take the others' findings with it.
            findings.append(_not_diagnosed(rule.name, error))
    return by_severity(findings)


def attempt(names: Sequence[str], analyze: Analyze) -> tuple[dict[str, Result], list[Finding]]:
    """The results of the analyses that succeed, and a finding for each that fails."""
    try:
        return analyze(*names), []
    except Exception:
        # Together they read a rank's tables once; separately, those that can be computed are.
        results: dict[str, Result] = {}
        lost: list[Finding] = []
        for name in names:
            try:
                results |= analyze(name)
            except Exception as error:
                lost.append(_not_diagnosed(name, error))
        return results, lost


def _not_diagnosed(name: str, error: Exception) -> Finding:
    return Finding(
        "not-diagnosed",
        "info",
        f"{name} could not be looked at, so what it would show is not among the findings",
        evidence=(Evidence("reason", describe_error(error)),),
    )
