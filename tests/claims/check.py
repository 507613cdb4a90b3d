"""Every finding of a run, recomputed from its raw traces."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.claims import (
    communication_rules,
    device_rules,
    file_findings,
    host_rules,
    memory_rules,
    run_findings,
    step_rules,
)
from tests.claims.anchors import anchored
from tests.claims.claim import Claim, FalseClaimError
from tests.claims.raw import Raw
from tests.claims.registry import CHECKS

import rankscope
from rankscope.answers.diagnosis.rules import all_rules
from rankscope.results import Finding, with_symptoms

MODULES = (communication_rules, device_rules, file_findings, host_rules, memory_rules, run_findings, step_rules)
"""Importing them registers their checks."""
WARNING = 0.05


def raw_of(run: rankscope.Run) -> Raw:
    """The raw traces of a run, under the ranks that it gives them."""
    raw = Raw.of((info.rank, Path(info.path), [e["step"] for e in info.incomplete_steps]) for info in run.traces)
    lacking = (info.rank for info in run.traces if info.rank is not None and not info.account.is_clean)
    return replace(raw, unclean=frozenset(lacking))


def ranks_are_their_own(raw: Raw) -> list[str]:
    """Files that say another rank than they were given."""
    return [
        f"{file.path.name} is of rank {file.rank} and was read as rank {rank}"
        for rank, files in raw.files.items()
        for file in files
        if file.rank not in (None, rank)
    ]


def invariants(finding: Finding, raw: Raw) -> None:
    """What must hold of any finding."""
    claim = Claim(finding)
    present = set(raw.ranks) | set(range(raw.world))
    claim.require(set(finding.ranks) <= present, f"ranks that are not there: {set(finding.ranks) - present}")
    of_files = finding.id in ("window-gap", "incomplete-step")
    claim.require(of_files or set(finding.steps) <= raw.steps, "steps that no file has")
    claim.require(finding.ranks == tuple(sorted(set(finding.ranks))), "ranks in disorder")
    for rank in re.findall(r"[Rr]ank (\d+)", finding.title):
        claim.require(int(rank) in present, f"the title names rank {rank}")
    if finding.saving_ns is not None:
        step = max(raw.step_ns(), raw.longest_ns() if "some steps" in finding.title else 0)
        step = raw.mean_step_ns() if claim.of_mean else step
        claim.require(0 <= finding.saving_ns <= step + 1, f"the saving exceeds the step of {step:.0f} ns")
        claim.require(finding.severity != "error", "an error that saves time")


def false_claims(run: rankscope.Run, raw: Raw | None = None) -> list[str]:
    """What a run's findings say that its raw traces do not have."""
    raw = raw or raw_of(run)
    diagnosis = run.diagnosis()
    stated = [each for each in run.loaded.findings if each not in diagnosis.stated] + list(diagnosis.stated)
    return [*ranks_are_their_own(raw), *_false(stated, raw), *_falsely_merged(run, raw)]


def _falsely_merged(run: rankscope.Run, raw: Raw) -> list[str]:
    """Merging invents nothing: each finding, and each symptom once, is one that was stated, and saves no more."""
    diagnosis = run.diagnosis()
    stated = Counter((each.id, each.title) for each in diagnosis.stated)
    wrong = []
    shown = with_symptoms(diagnosis.findings)
    if Counter((each.id, each.title) for each in shown) != stated:
        wrong.append(f"merged are {[each.id for each in shown]}, stated {[each.id for each in diagnosis.stated]}")
    alone = {(each.id, each.title): each for each in diagnosis.stated}
    for each in shown:
        before = alone.get((each.id, each.title), each)
        if (each.saving_ns or 0) > (before.saving_ns or 0):
            wrong.append(f"{each.id} saves {each.saving_ns} merged, {before.saving_ns} alone")
        if each.ranks != before.ranks or each.steps != before.steps:
            wrong.append(f"{each.id} is about other ranks or steps when merged")
        for evidence in each.evidence:
            if evidence not in before.evidence and evidence.value != before.saving_ns:
                wrong.append(f"{each.id}: {evidence} appears by merging")
    wrong += [
        f"{each.id} is a symptom of nothing" for f in diagnosis.findings for each in f.symptoms if not each.because
    ]
    promised = sum(each.saving_ns or 0 for each in diagnosis.findings)
    step = max(raw.step_ns(), diagnosis.step_ns or 0)
    if any(Claim(each).of_mean for each in diagnosis.findings):
        step = max(step, raw.mean_step_ns())
    if promised > step + 1:
        wrong.append(f"the savings add up to {promised} ns, and the step has {step:.0f}")
    return wrong


def _false(findings: Sequence[Finding], raw: Raw) -> list[str]:
    found = []
    for finding in findings:
        check = CHECKS.get(finding.id)
        try:
            invariants(finding, raw)
            if check is None:
                raise FalseClaimError(f"{finding.id}: nothing recomputes it")
            claim = Claim(finding)
            check(claim, raw.without_cut() if finding.id in all_rules() else raw)
            claim.close()
            anchored(Claim(finding), raw)
        except FalseClaimError as error:
            found.append(str(error))
        except Exception as error:
            found.append(f"{finding.id}: the check itself failed: {error!r}\n  “{finding.title}” {finding.evidence}")
    return found
