"""How often the interval of `rankscope measure overhead` holds the truth if the measurement stops once it is narrow.

An interval that ends a measurement by its width is narrow by chance more often than one of a fixed number of jobs. Here
plain NumPy draws jobs from a known overhead: jobs differ, blocks differ, steps are delayed, and disturbances of a round
hit both conditions. The product makes its intervals of them, and its rule decides after which job to stop: with 99 % at
each look, which is too little, and with 99 % over all looks, as the product does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.experiments.measure.overhead import LEAST_JOBS, SHORT_JOBS, is_narrow, overhead_share
from rankscope.experiments.measure.results import Share
from rankscope.experiments.measure.statistics import Float, Series, replicates

REMAINING = 0.8
"""T_no_sync / T_sync of the typical job: an overhead of 20 %."""
RUNS = 400
PRECISIONS = (0.02, 0.03)
_REPLICATES = 400
_TRUTH_JOBS = 6000
_ROUNDS, _STEPS, _RANKS = 5, SHORT_JOBS.block_steps, 2
MOST = SHORT_JOBS.repeats


@dataclass(frozen=True)
class Noise:
    """Standard deviations of logarithms."""

    between: float
    """Of the overhead, between jobs."""
    block: float = 0.003
    step: float = 0.01
    """Delays of single steps: only positive."""
    common: float = 0.01
    """Of a round, in both conditions."""

    def job(self, rng: np.random.Generator) -> tuple[Float, Float]:
        """The steps of one job with and without synchronization: (rounds, ranks, steps)."""
        level, remaining = 1e8 * np.exp(rng.normal(0, 0.05)), REMAINING * np.exp(rng.normal(0, self.between))
        rounds = rng.normal(0, self.common, (_ROUNDS, 1, 1))

        def steps(share: float) -> Float:
            delays = np.abs(rng.normal(0, self.step, (_ROUNDS, _RANKS, _STEPS)))
            times: Float = level * share * np.exp(rounds + rng.normal(0, self.block, (_ROUNDS, 1, 1)) + delays)
            return times

        return steps(1.0), steps(remaining)


NOISES = {
    "jobs are alike": Noise(0.0),
    "jobs differ by 0.4 %": Noise(0.004),
    "jobs differ by 1 %": Noise(0.01),
    "jobs differ by 2 %": Noise(0.02),
    "jobs differ by 4 %": Noise(0.04),
}


def main() -> None:
    """Simulate and print."""
    rules = [
        (f"{MOST} jobs", [MOST], 1),
        ("stops from 2 on, 99 % at each look", list(range(2, MOST + 1)), 1),
        (f"stops from {LEAST_JOBS} on, 99 % at each look", list(range(LEAST_JOBS, MOST + 1)), 1),
        (f"stops from {LEAST_JOBS} on, 99 % over all looks", list(range(LEAST_JOBS, MOST + 1)), MOST - LEAST_JOBS + 1),
    ]
    for name, noise in NOISES.items():
        truth = _truth(noise)
        for precision in PRECISIONS:
            for rule, numbers, looks in rules:
                ended = [_measured(noise, seed, numbers, looks, precision) for seed in range(RUNS)]
                holds = np.mean([_holds(share, truth) for share, _ in ended])
                jobs = np.mean([number for _, number in ended])
                print(
                    f"{name}, to {100 * precision:g} points, {rule}: {holds:.1%} hold the truth, {jobs:.1f} jobs",
                    flush=True,
                )


def _measured(noise: Noise, seed: int, numbers: Sequence[int], looks: int, precision: float) -> tuple[Share, int]:
    """The interval at which a measurement ends, and after how many jobs."""
    rng = np.random.default_rng([7, seed])
    jobs: list[tuple[Float, Float]] = []
    while True:
        jobs.append(noise.job(rng))
        if len(jobs) not in numbers:
            continue
        on, off = (Series(tuple(job[condition] for job in jobs), looks) for condition in (0, 1))
        drawn = replicates({"on": on, "off": off}, seed, count=_REPLICATES)
        share = overhead_share(on, off, drawn["on"], drawn["off"])
        if len(jobs) == numbers[-1] or is_narrow(share, precision):
            return share, len(jobs)


def _truth(noise: Noise) -> float:
    """What a measurement of very many jobs gives."""
    rng = np.random.default_rng(1)
    jobs = [noise.job(rng) for _ in range(_TRUTH_JOBS)]
    on, off = (Series(tuple(job[condition] for job in jobs)).median() for condition in (0, 1))
    return 1 - off / on


def _holds(share: Share, truth: float) -> bool:
    return share.low is not None and share.high is not None and share.low <= truth <= share.high
