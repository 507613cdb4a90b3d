"""Compare several ways to run one job with a base, and recommend the fastest.

In: measurements of a base and its variants. Out: a comparison, and a recommendation if one is significant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.experiments.measure.jobs import Outcome, series
from rankscope.experiments.measure.results import Recommendation, Share, Time
from rankscope.experiments.measure.statistics import (
    Float,
    Series,
    affine,
    beyond_chance,
    ratio_of,
    replicates,
    time_of,
    widening,
)


@dataclass(frozen=True)
class Comparison:
    """A variant's step, compared with the base."""

    step: Time
    difference: Share | None
    """(T - T_base) / T_base; None for the base."""
    beyond_chance: bool | None


def compare_jobs(jobs: Mapping[str, Sequence[Outcome]], condition: str, base: str, seed: int) -> dict[str, Comparison]:
    """Compare variants that ran as separate jobs.

    Args:
        jobs: by variant.
        condition: the condition whose steps are compared.
        base: the variant that the others are compared with.
        seed: of the bootstrap.
    """
    times = {name: steps for name, outcomes in jobs.items() if outcomes and (steps := series(outcomes, condition))}
    drawn = {name: replicates({name: steps}, seed, salt)[name] for salt, (name, steps) in enumerate(times.items())}
    return _compared(times, drawn, base, lambda a, b: max(widening(a), widening(b)))


def compare_conditions(
    outcomes: Sequence[Outcome], names: Sequence[str], base: str, seed: int
) -> dict[str, Comparison]:
    """Compare variants that ran as conditions of the same jobs."""
    times = {name: steps for name in names if (steps := series(outcomes, name)) is not None}
    return _compared(times, replicates(times, seed), base, widening)


def _compared(
    times: Mapping[str, Series], drawn: Mapping[str, Float], base: str, widened: Callable[[Series, Series], float]
) -> dict[str, Comparison]:
    compared = {}
    for name, steps in times.items():
        difference = None
        if name != base and base in times:
            t0, spread = times[base].median(), np.empty(0)
            if len(drawn[name]) == len(drawn[base]):
                spread = drawn[name] / drawn[base]
            difference = affine(ratio_of(steps.median() / t0, spread, widened(steps, times[base])), 1, -1)
        significant = beyond_chance(difference) if difference is not None else None
        compared[name] = Comparison(time_of(steps, drawn[name]), difference, significant)
    return compared


def recommend(compared: Mapping[str, Comparison], base: str, how: Mapping[str, str]) -> Recommendation:
    """Recommend the fastest variant that is significantly faster than the base, if there is one.

    Args:
        compared: all variants.
        base: the current setting.
        how: how to set a variant.
    """
    if base not in compared:
        return Recommendation(None, None, "nothing to compare with: the base failed")
    better = [
        name
        for name, comparison in compared.items()
        if comparison.beyond_chance and comparison.difference is not None and comparison.difference.value < 0
    ]
    t0 = compared[base].step.median_ns
    if not better:
        unknown = all(comparison.beyond_chance is None for name, comparison in compared.items() if name != base)
        text = (
            "too few steps to tell the variants apart"
            if unknown
            else "keep the current setting: no variant is significantly faster"
        )
        return Recommendation(None, None, text)
    best = min(better, key=lambda name: compared[name].step.median_ns)
    difference = compared[best].difference
    if difference is None or difference.high is None or difference.low is None:
        return Recommendation(None, None, "too few steps to tell the variants apart")
    text = (
        f"{how.get(best, best)}: {-100 * difference.value:.1f} % faster "
        f"({-100 * difference.high:.1f} to {-100 * difference.low:.1f} %)"
    )
    return Recommendation(best, t0 - compared[best].step.median_ns, text)
