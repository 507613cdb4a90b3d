"""Which ranks are late, from the local times of the logged steps alone.

The engine that compares ranks in traces (`primitives/stragglers`) finds who is late in each step, or in some more often
than by chance. Four things are peculiar to a log, which has many steps of a whole job:

- evaluations and checkpoints of one rank make the times vary so much that no mean stands out, but all long steps are of
  that rank;
- a mean that stands out can be due to a few steps;
- with so many steps differences stand out that are those of the cores of one machine;
- it has for how long each thread waited for a core: ranks are compared without that, too.

In: `LocalTimes`. Out: a `Judgment`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rankscope.answers.watch.device_times import BASIS
from rankscope.answers.watch.local_times import LocalTimes
from rankscope.primitives.statistics import Significance, Verdict
from rankscope.primitives.stragglers.detectors import late_at_times
from rankscope.primitives.stragglers.observations import Observations
from rankscope.primitives.stragglers.peers import excess_over_peers, mean_known
from rankscope.primitives.stragglers.stragglers import Comparison, Straggler
from rankscope.primitives.stragglers.with_log import LOADING

ENOUGH_STEPS = 15
"""Of fewer, nothing is said of the ranks: a job has more soon, and a busy machine makes some rank late in a few."""
LONG = 8.0
"""Robust standard deviations above the usual step, from which one is long."""
LONG_SHARE = 0.3
"""And at least this share of the usual step: in some jobs steps hardly vary."""
CORES_DIFFER = 0.06
"""Of a step: where hosts compute, a rank whose local time is longer by less is not late: of two equal ranks on idle
cores one took up to 5 % longer in all steps of most jobs (`python -m benchmarks plain`)."""
CORES_STEPS = 50
"""In fewer steps than these they differ by more, as means do."""
CORES_TAKEN = 0.25
"""Of a step, in `CORES_STEPS` steps, and by their root less in more: a rank that only waits for a core, and by less
than this longer, is not late. Of two equal ranks on two cores one waited longer by up to 38 % in 15 steps, 26 % in 30
and 18 % in 50 (`python -m benchmarks plain`)."""
_BY_CHANCE = 0.001
"""Long steps are no chance if it is less probable that so many are of one rank, and at such multiples of a number."""
_HALF = 0.5
"""Of an excess: a rank that is late at times and does so much itself does not wait for cores alone."""
_FEW_STEPS = 0.34
"""Of all steps: a rank that is late in so few of them is not late in each …"""
_MOST_OF_IT = 0.8
"""… if they have this share of its excess."""


@dataclass(frozen=True)
class Judgment:
    """What the steps of a log say of the ranks.

    Attributes:
        stragglers: the ranks that are late, and those that stalled once, by their numbers.
        verdicts: by rank, whether it is late.
        least_delay_ns: the least delay per step that these steps would show on any rank; None if they would show none.
    """

    stragglers: tuple[Straggler, ...]
    verdicts: Mapping[int, Verdict]
    least_delay_ns: int | None


def judge(times: LocalTimes) -> Judgment:
    """Judge the ranks."""
    if times.steps.size < ENOUGH_STEPS:
        too_few = Verdict(Significance.TOO_FEW, "", (times.steps.size,))
        return Judgment((), dict.fromkeys(times.ranks, too_few), None)
    compared = Comparison(_observations(times))
    alone = [each for each in compared.stragglers() or _at_times(compared) if len(each.ranks) == 1]
    found = [_numbered(_in_few_steps(each, compared), times) for each in alone]
    verdicts = {times.ranks[row]: verdict for row, verdict in compared.verdicts().items() if verdict is not None}
    verdicts |= {each.ranks[0]: each.verdict for each in found if not each.once}
    alike = 0.0
    if times.basis != BASIS:
        alike = CORES_DIFFER * max(CORES_STEPS / times.steps.size, 1) ** 0.5 * compared.seen.step_ns
    cores = [each for each in found if _is_of_cores(each, times, compared, alike)]
    found = [each for each in found if each not in cores]
    for each in cores:
        # Its peer had nobody else to be compared with.
        unknown = {rank for rank, verdict in verdicts.items() if verdict.n == (0,)}
        clean = ({*each.ranks} | unknown) - {rank for one in found if not one.once for rank in one.ranks}
        verdicts |= dict.fromkeys(clean, replace(each.verdict, significance=Significance.NOT_SIGNIFICANT))
    most = max(float(compared.least_delays.max()), alike)
    return Judgment(tuple(found), verdicts, round(most) if math.isfinite(most) else None)


def _is_of_cores(late: Straggler, times: LocalTimes, compared: Comparison, alike: float) -> bool:
    """Whether a rank is late by no more than equal ranks differ on the cores that they got.

    Args:
        late: the rank, by its number.
        times: the local times.
        compared: of the ranks.
        alike: by how much more equal ranks differ in what they do themselves, ns per step.
    """
    if times.basis == BASIS or times.ready_ns is None:  # devices do not wait for cores
        return late.lasting and late.excess_ns < alike
    row, taken = times.ranks.index(late.ranks[0]), CORES_TAKEN * (CORES_STEPS / times.steps.size) ** 0.5
    seen = compared.seen
    itself = excess_over_peers(seen.steady, seen.role, np.arange(seen.ranks.size) == row)[row]
    if mean_known(itself) >= alike:
        return False
    # What it does itself longer in its late steps, by all steps, as its excess is given.
    itself_ns = mean_known(np.where(late.lasting | np.isin(seen.steps, late.steps), itself, 0.0))
    if not late.lasting and itself_ns >= _HALF * late.excess_ns:
        return False
    return bool(late.excess_ns - itself_ns < taken * seen.step_ns)


def _observations(times: LocalTimes) -> Observations:
    loading = times.phases.get(LOADING, np.zeros_like(times.local_ns))
    loading = np.minimum(loading, times.local_ns)
    on_host = times.basis != BASIS
    parts = {"data_loading": loading, "operators" if on_host else "compute": times.local_ns - loading}
    seen = Observations.of(parts, float(np.median(times.step_ns)), on_host=on_host)
    if times.ready_ns is None:
        return replace(seen, steps=times.steps)
    # On a busy machine the threads of equal ranks wait for cores by turns: what a rank does itself varies far less.
    return replace(seen, steps=times.steps, steady=np.maximum(times.local_ns - times.ready_ns, 0).astype(np.float64))


def _at_times(compared: Comparison) -> list[Straggler]:
    """A rank that all long steps are of, as evaluations and checkpoints are, if that is no chance.

    With n steps of m ranks at multiples of g, this has the probability (m g)^(1 - n).
    """
    seen = compared.seen
    excess = np.nan_to_num(compared.excess)
    spread = 1.4826 * float(np.median(np.abs(excess - np.median(excess))))
    rows, columns = np.nonzero(excess > max(LONG * spread, LONG_SHARE * seen.step_ns))
    if len(set(rows.tolist())) != 1:
        return []
    apart = max(math.gcd(*np.diff(seen.steps[columns]).tolist()), 1)
    late = compared.of_rank(int(seen.ranks[rows[0]]), float(excess[rows, columns].min()))
    if late is None or (seen.ranks.size * apart) ** (1.0 - rows.size) > _BY_CHANCE:
        return []
    test = Verdict(Significance.SIGNIFICANT, "all long steps are of one rank", late.verdict.n)
    return [replace(late, kind=late_at_times.__name__, verdict=test)]


def _in_few_steps(found: Straggler, compared: Comparison) -> Straggler:
    """A rank that is late on average because of a few steps, as late in these."""
    excess = np.nan_to_num(compared.excess[found.ranks[0]]).clip(min=0)
    late = np.flatnonzero(excess > LONG_SHARE * compared.seen.step_ns)
    few = 0 < late.size <= _FEW_STEPS * excess.size and excess[late].sum() >= _MOST_OF_IT * excess.sum()
    if not found.lasting or not few:
        return found
    steps = tuple(int(step) for step in compared.seen.steps[late])
    return replace(found, kind=late_at_times.__name__, steps=steps, late_steps=len(steps))


def _numbered(found: Straggler, times: LocalTimes) -> Straggler:
    """A straggler by the numbers of ranks, which the comparison has by their places."""
    (rank,) = (times.ranks[row] for row in found.ranks)
    others = tuple(times.ranks[row] for row in found.together_with)
    return replace(found, ranks=(rank,), label=f"rank {rank}", together_with=others)
