"""Whether the machine kept its speed while it was measured: what a reader is told where it did not.

The load average does not know it: a virtual machine is slowed by guests that it does not see, a clock steps down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rankscope.measure.jobs import Outcome, series
from rankscope.measure.statistics import between_jobs, correlation, stretch
from rankscope.rundir.measurement import RankMeasurement

_DRIFTS = 1.5
"""An interval that is so many times as wide for it is spoken of; less is mostly the noise of the estimate itself."""
_UNLIKE, _FAR = 0.8, 0.05
"""Jobs are spoken of that make four fifths of the variance and lie further apart than a twentieth of a step."""


def within_jobs(ranks: Sequence[RankMeasurement]) -> str | None:
    """Of rounds that are like the ones before them; None where they are not, or too few.

    Args:
        ranks: what was measured, of all jobs.
    """
    rounds = []
    for each in ranks:
        for name in {block.condition for block in each.blocks}:
            blocks = sorted((b for b in each.blocks if b.condition == name), key=lambda block: block.round)
            rounds.append(np.array([np.median(block.step_ns) for block in blocks if block.step_ns]))
    alike = correlation(rounds)
    if stretch(alike) < _DRIFTS:
        return None
    return (
        f"the machine's speed drifted: each round of blocks is like the one before it (correlation {alike:.2f}), which "
        f"makes the intervals of times {stretch(alike):.1f} times as wide; differences within one job suffer less. "
        "--repeats spreads the jobs over more time; other programs, or other guests of the host, are the usual cause"
    )


def from_job_to_job(outcomes: Mapping[str, Sequence[Outcome]], condition: str) -> list[str]:
    """Of jobs of one kind that differ by more than their rounds explain, of the kind whose jobs lie furthest apart.

    Args:
        outcomes: the jobs of each kind.
        condition: which of their steps are compared.
    """
    furthest: tuple[float, str] | None = None
    for name, jobs in outcomes.items():
        found = series(jobs, condition) if len(jobs) > 1 else None
        if found is None or between_jobs(found) < _UNLIKE:
            continue
        medians = [float(np.median(job)) for job in found.rounds()]
        apart = (max(medians) - min(medians)) / found.median() if found.median() > 0 else 0.0
        if apart < _FAR or (furthest is not None and furthest[0] >= apart):
            continue
        which = f" of {name}" if len(outcomes) > 1 else ""
        between = f"from {min(medians) / 1e6:.4g} to {max(medians) / 1e6:.4g} ms"
        said = (
            f"the {len(medians)} jobs{which} differ by more than their rounds explain, {between}: the machine's speed "
            "changed from one to the next. Intervals hold that; what another hour brings they cannot"
        )
        furthest = (apart, said)
    return [] if furthest is None else [furthest[1]]
