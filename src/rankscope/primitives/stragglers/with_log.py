"""One verdict of traces and log: the log of many steps decides which rank is late, the traces say what takes longer.

- A rank that is late in the log is a straggler, however few steps the traces have. Its delay is that of the log, unless
  the traces have more steps.
- One that is late in the traces alone, where the log rules out a delay, was late in passing.
- Where the log cannot tell, or there is none, the traces decide.

In: the comparison of traces, what the hosts did by name, and the log. Out: stragglers with named causes, and a verdict
for each rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from rankscope.primitives.statistics import Significance, Verdict
from rankscope.primitives.stragglers.causes import Cause, duration
from rankscope.primitives.stragglers.reasons import excesses, named, recurs
from rankscope.primitives.stragglers.step_log import LateRank, StepLog
from rankscope.primitives.stragglers.stragglers import Comparison, Straggler

LOADING = "data loading"
"""The log's phase in which a rank waits for its data."""
LEAST_COST = 0.01
"""Of a step: the saving of a straggler, at least."""
LEAST_RECURRING = 3
"""Steps. One place in every one of fewer may be chance."""
_HALF = 0.5
"""Of the log's delay per late step: a recorded step with so much is one of the late ones."""


def judged(
    comparison: Comparison, items: pl.DataFrame, log: StepLog | None
) -> tuple[list[Straggler], dict[int, Verdict | None]]:
    """The stragglers, the largest excess first, be it that they cost nothing; and whether each rank is one.

    Args:
        comparison: of the traces.
        items: rank, step, kind, label, ns, count, as `host_items` gives them.
        log: the log's verdict; None without one.
    """
    verdicts: dict[int, Verdict | None] = dict(comparison.verdicts())
    of_traces = comparison.late_ranks()
    if not of_traces:
        of_traces = _recurring(comparison, items, verdicts)
        verdicts |= {each.ranks[0]: each.verdict for each in of_traces}
    of_traces = [_named(each, comparison, items, log) for each in of_traces]
    if log is None:
        return of_traces, verdicts
    logged = {each.rank: each for each in log.late if not each.found.once and _costs(each, log)}
    found = [_logged(each, of_traces, comparison, items) for each in logged.values()]
    for each in of_traces:
        rank = each.ranks[0]
        if rank in logged and not each.once:
            continue
        verdict = log.verdicts.get(rank)
        ruled_out = verdict is not None and verdict.significance is Significance.NOT_SIGNIFICANT
        found.append(replace(each, passing=True) if ruled_out and not each.once else each)
    decided = {rank: each for rank, each in log.verdicts.items() if each.significance is not Significance.TOO_FEW}
    return sorted(found, key=lambda each: -each.excess_ns), verdicts | decided


def _recurring(comparison: Comparison, items: pl.DataFrame, verdicts: Mapping[int, Verdict | None]) -> list[Straggler]:
    """Ranks that are late at one place in every step, where there are too few steps to tell by the times alone."""
    found = []
    for rank, verdict in verdicts.items():
        if verdict is None or verdict.significance is not Significance.TOO_FEW:
            continue
        row = int(np.searchsorted(comparison.seen.ranks, rank))
        excess, steps = comparison.excess[row], comparison.seen.steps
        known = np.isfinite(excess)
        peers, least = comparison.peers(rank), comparison.limits.least_recurring * comparison.seen.step_ns
        if known.sum() < LEAST_RECURRING or not peers or not bool((excess[known] > 0).all()):
            continue
        longer = recurs(items, rank, peers, steps[known].tolist(), least)
        mean = float(excess[known].mean())
        straggler = comparison.of_rank(rank, 1.0) if _HALF * mean <= longer <= mean / _HALF else None
        if straggler is not None and (straggler.saving_ns or 0) >= least:
            test = Verdict(Significance.SIGNIFICANT, "at one place in every step, where no other rank is", verdict.n)
            found.append(replace(straggler, verdict=test))
    return found


def of_log(log: StepLog) -> list[Straggler]:
    """The stragglers of the log alone, where the traces cannot be compared."""
    late = (each for each in log.late if not each.found.once and _costs(each, log))
    return [replace(each.found, cause=logged_cause(each)) for each in late]


def _costs(late: LateRank, log: StepLog) -> bool:
    """Whether a rank's delay costs anything: behind a later rank it does not."""
    return (late.found.saving_ns or 0) >= LEAST_COST * log.step_ns


def _logged(late: LateRank, of_traces: Sequence[Straggler], comparison: Comparison, items: pl.DataFrame) -> Straggler:
    """A straggler of the log, with what the traces show of it."""
    found = late.found
    same = next((each for each in of_traces if each.ranks == (late.rank,) and not each.once), None)
    if same is not None and same.compared >= found.compared:
        return same
    per_late_step = found.excess_ns * found.compared / max(len(found.steps), 1)
    recorded = same or comparison.of_rank(late.rank, _HALF * per_late_step)
    if found.lasting:
        found = replace(found, steps=tuple(comparison.seen.steps.tolist()))
    if recorded is None or not recorded.steps:
        return replace(found, cause=logged_cause(late))
    return replace(found, cause=_cause(recorded, comparison, items, late))


def _named(each: Straggler, comparison: Comparison, items: pl.DataFrame, log: StepLog | None) -> Straggler:
    late = next((one for one in log.late if one.rank == each.ranks[0]), None) if log is not None else None
    return replace(each, cause=_cause(each, comparison, items, late))


def _cause(each: Straggler, comparison: Comparison, items: pl.DataFrame, late: LateRank | None) -> Cause:
    rank = each.ranks[0]
    row = int(np.searchsorted(comparison.seen.ranks, rank))
    here = np.isin(comparison.seen.steps, list(each.steps))
    known = here & np.isfinite(comparison.excess[row])
    excess = float(np.percentile(comparison.excess[row, known], 50, method="lower")) if known.any() else 0.0
    peers = comparison.peers(rank)
    steps = comparison.seen.steps[known].tolist()
    of_items = excesses(items, rank, peers, steps, on_host=comparison.seen.on_host) if peers and excess > 0 else None
    thread, logged_ns = (late.thread, float(late.found.excess_ns)) if late is not None else (None, 0.0)
    return named(each.cause, excess, of_items, thread, logged_ns=logged_ns)


def logged_cause(late: LateRank) -> Cause:
    """The cause as far as the log knows it, without a trace."""
    excess = float(late.found.excess_ns)
    share = min(late.phase_ns / max(excess, 1.0), 1.0)
    where = f"{duration(late.phase_ns)} per step of it in {late.phase}" if late.phase else "no phase has half of it"
    if late.phase == LOADING:
        return named(Cause("data_loading", share, where), 0.0, None, late.thread, logged_ns=excess)
    found = named(Cause("unclear", 0.0, where), 0.0, None, late.thread, logged_ns=excess)
    if found.named or late.phase is None:
        return found
    return replace(found, share=share, named=f"it takes longer in {late.phase}")
