"""Detect changes of the machine's speed during a measurement.

The load average does not show them: other guests slow a virtual machine down without adding to its load, and a CPU
lowers its clock.

In: the measured blocks. Out: notes for the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rankscope.experiments.measure.jobs import Outcome, series
from rankscope.experiments.measure.statistics import between_jobs, correlation, stretch
from rankscope.rundir.measurement import RankMeasurement

_LEAST_STRETCH = 1.5
"""Reported from this factor on the width of intervals; smaller factors are mostly noise of the estimate itself."""
_LEAST_SHARE, _LEAST_RANGE = 0.8, 0.05
"""Reported if jobs make up four fifths of the variance and differ by more than a twentieth of a step."""


def drift_note(ranks: Sequence[RankMeasurement]) -> str | None:
    """The note on rounds that correlate with the round before; None if they do not, or are too few.

    Args:
        ranks: the measurements of all jobs.
    """
    rounds = []
    for rank in ranks:
        for name in {block.condition for block in rank.blocks}:
            blocks = sorted((b for b in rank.blocks if b.condition == name), key=lambda block: block.round)
            rounds.append(np.array([np.median(block.step_ns) for block in blocks if block.step_ns]))
    correlated = correlation(rounds)
    if stretch(correlated) < _LEAST_STRETCH:
        return None
    return (
        f"the machine's speed drifted: each round of blocks resembles the one before it (correlation "
        f"{correlated:.2f}), which makes the intervals of times {stretch(correlated):.1f} times as wide; differences "
        "within one job are less affected. --repeats spreads the jobs over more time; other programs, or other guests "
        "of the host, are the usual cause"
    )


def job_to_job_notes(outcomes: Mapping[str, Sequence[Outcome]], condition: str) -> list[str]:
    """The note on jobs of one kind that differ by more than their rounds explain, for the kind with the widest range.

    Args:
        outcomes: the jobs of each kind.
        condition: the condition whose steps are compared.
    """
    widest: tuple[float, str] | None = None
    for name, jobs in outcomes.items():
        times = series(jobs, condition) if len(jobs) > 1 else None
        if times is None or between_jobs(times) < _LEAST_SHARE:
            continue
        medians = [float(np.median(job)) for job in times.rounds()]
        spread = (max(medians) - min(medians)) / times.median() if times.median() > 0 else 0.0
        if spread < _LEAST_RANGE or (widest is not None and widest[0] >= spread):
            continue
        kind = f" of {name}" if len(outcomes) > 1 else ""
        between = f"from {min(medians) / 1e6:.4g} to {max(medians) / 1e6:.4g} ms"
        note = (
            f"the {len(medians)} jobs{kind} differ by more than their rounds explain, {between}: the machine's speed "
            "changed between them. Intervals include this, but not what may change at another time"
        )
        widest = (spread, note)
    return [] if widest is None else [widest[1]]
