"""The ranks that stand out, always or in some steps.

1. Each `Measure` is a matrix of ranks and steps: the local time, its parts, its steady part, the host's time. Device
   times vary far less than host times, so a device slower by 2 % shows in its part even if hosts vary by 20 %.
2. The excess of a rank in a step is its time less the median of its peers (the other ranks with the same program).
3. Random variation ("chance" below) is measured, not assumed: the root mean square of the other ranks' excesses in
   that measure, without the suspect and the ranks found before it. Unlike a deviation about a median, it includes
   hiccups of the machine.
4. Each detector of `DETECTORS` looks at one rank in one measure, and returns the steps in which it is late.
5. The local time as a whole must be longer, too: an excess that another part compensates delays no rank.
6. Two late ranks add to each other's random variation. So if no rank stands out, the rank with the greatest excess is
   left out on trial, and the others are judged without it (B. Rosner, Technometrics 25, 1983: many-outlier procedure).
7. How far a host runs ahead of its device is a matter of chance, and one that falls behind stays behind, although it is
   no slower. Whether a rank whose device waits longer costs anything is for the replay to tell (`rankscope.whatif`). Of
   two ranks, nothing shows by how much that differs: there the host itself must take longer.

In: measures, as matrices of ranks and steps. Out: the ranks that stand out, in which steps and by how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from rankscope.primitives.statistics import student_quantile
from rankscope.primitives.stragglers.measures import ALLOCATION, LOCAL, Measure, measures
from rankscope.primitives.stragglers.observations import Observations
from rankscope.primitives.stragglers.peers import (
    Bool,
    Float,
    center_and_spread,
    excess_over_peers,
    mean_known,
    root_mean_square,
)
from rankscope.primitives.stragglers.suspects import TOO_FEW, Late, Suspect
from rankscope.primitives.stragglers.thresholds import Thresholds

TRIALS = 2  # most ranks left out on trial; with one, two slow hosts with two ranks each are missed
ENOUGH_LEFT = 3  # ranks that must remain besides one that is left out on trial
MOST = 64  # most ranks found, which bounds the running time
MANY_RANKS = 64  # leaving out one of so many hardly changes their median
CANDIDATES = 3  # by each measure, for speed: 1 and 100 give the same findings


def always_late(suspect: Suspect, limits: Thresholds) -> tuple[Bool, float] | None:
    """Late in every step: the mean excess is larger than chance and the rank's own spread allow (`least_mean`).

    1. Of a single complete step only a device's work is judged, and it must be half of the delay: a hiccup in that step
       looks like a slow host, and shifted boundaries bring other kernels into it.
    2. The local time must be longer, too, where it is known.
    """
    values, total = suspect.excess[suspect.judged], suspect.own[suspect.judged & np.isfinite(suspect.own)]
    if not total.size:
        return None
    measure, (mean, _), (left, unsure) = suspect.measure, center_and_spread(values), center_and_spread(total)
    if values.size == 1 and not (measure.device and measure.once and mean >= limits.left * left):
        return None
    unsure /= math.sqrt(total.size)
    least = limits.least * suspect.step_ns
    if measure.of_host:
        # A slow host costs only the time that its device waits for it.
        enough = left - (unsure if suspect.few else 0) > least
    else:
        enough = left + unsure > max(least, limits.left * mean)
    score = (float(values.mean()) if suspect.few else mean) / least_mean(suspect, limits)
    return (np.isfinite(suspect.own), score) if score > 1 and mean > least and enough else None


def least_mean(suspect: Suspect, limits: Thresholds) -> float:
    """The mean excess from which on a rank is late in every step, ns; infinite if no excess would do.

    1. Chance is that of the other ranks. The standard error of the mean includes it and the rank's own spread, so one
       long step is not enough.
    2. If there are too few others to estimate chance from, the quantile of Student's distribution, with the variance of
       the rank's own steps pooled with that of the others. Two or three steps must all be far beyond hiccups.
    """
    values = suspect.excess[suspect.judged]
    if not suspect.few:
        needed = limits.standard_errors_single if values.size == 1 else limits.standard_errors
        return needed * math.hypot(suspect.chance(limits), center_and_spread(values)[1]) / math.sqrt(values.size)
    floor = suspect.floor_few(limits) * suspect.step_ns
    error, freedom = suspect.error(values)
    if suspect.too_few or not freedom or (values.size < TOO_FEW and values.min() <= limits.chance * floor):
        return math.inf
    alpha = limits.significance if suspect.measure.name == LOCAL else limits.significance_part
    return max(student_quantile(freedom, 1 - 2 * alpha) * error, floor)


def late_at_times(suspect: Suspect, limits: Thresholds) -> tuple[Bool, float] | None:
    """Late in some steps, and in more of them than chance explains.

    1. Late steps are those whose excess is several times chance, and a least share of a step. A slow host
       counts only where its device waited for it.
    2. A host needs two of them: a single one is a stall. Work and calls for memory have a reason, and once will do.
    3. It must be improbable that any rank has so many steps with the least of these excesses, in any choice of steps.
       The probability of one is how often others exceed it, extrapolated by a power law.
    4. With few ranks, two or three steps are too few to estimate chance.
    """
    measure, step_ns = suspect.measure, suspect.step_ns
    seen = np.isfinite(suspect.excess) & np.isfinite(suspect.own)
    if not seen.any() or (suspect.few and seen.sum() < TOO_FEW):
        return None
    chance = suspect.chance(limits)
    calls = measure.name == ALLOCATION
    part = limits.least if calls else limits.least_passing
    excess, own = np.where(seen, suspect.excess, -np.inf), np.where(seen, suspect.own, -np.inf)
    late = (excess > max(limits.chance * chance, part * step_ns)) & (
        own > (limits.least * step_ns if measure.of_host else limits.left * excess)
    )
    count = int(late.sum())
    if count < (1 if measure.once else 2) or (calls and own[late].mean() <= limits.least_passing * step_ns):
        return None
    least = float(suspect.excess[late].min())
    pool = suspect.pool
    greatest = max(float(pool.max(initial=0.0)), chance)
    if least > greatest:
        probability = (greatest / least) ** limits.tail / (pool.size + 1)
    else:
        probability = float((pool >= least).sum() + 1) / (pool.size + 1)
    expected = suspect.others.shape[0] * math.comb(int(seen.sum()), count) * probability**count
    return (late, least / chance / limits.chance) if expected < limits.by_chance else None


def stalled_once(suspect: Suspect, limits: Thresholds) -> tuple[Bool, float] | None:
    """Late in a single step: a stall, which need not happen again.

    1. Only the local time is judged, and only if there are other steps to compare with.
    2. The step is longer than its peers' by a least share of a step or 20 ms, by several times chance, and by twice any
       other step of any rank.
    3. Few other values give a poor estimate of chance: then it must exceed what Student's test needs of one value among
       so many, 11 times chance with two ranks and five steps.
    """
    own, others = suspect.own[np.isfinite(suspect.own)], suspect.others[np.isfinite(suspect.others)]
    rest = np.concatenate([np.sort(own)[:-1], others])
    if suspect.measure.name != LOCAL or suspect.too_few or own.size < 3 or rest.size < TOO_FEW:
        return None
    step = int(np.nanargmax(suspect.own))
    most = float(suspect.own[step])
    long = max(limits.stall * suspect.step_ns, min(limits.stall_share * suspect.step_ns, limits.stall_ns))
    times = max(limits.chance, student_quantile(rest.size, 1 - 2 * limits.by_chance / (rest.size + 1)))
    least = max(times * root_mean_square(rest), 2 * float(rest.max()), long)
    return (np.arange(suspect.own.size) == step, most / least) if most > least else None


TESTS = {
    "always_late": "mean excess against its standard error",
    "late_at_times": "number of late steps, compared with that expected at random",
    "stalled_once": "one step against all others",
}


def detectable(seen: Observations, limits: Thresholds) -> Float:
    """(ranks,) The least mean excess of the local time that would make each rank `always_late`, ns; inf: none would."""
    found = np.full(seen.ranks.size, np.inf)
    local = next((each for each in measures(seen) if each.name == LOCAL), None)
    if local is None:
        return found
    excess = excess_over_peers(local.value, seen.role, np.zeros(seen.ranks.size, dtype=np.bool_))
    for row in range(seen.ranks.size):
        out = np.arange(seen.ranks.size) == row
        # Leaving out one of many hardly changes the others' median.
        if seen.ranks.size <= MANY_RANKS:
            excess = excess_over_peers(local.value, seen.role, out)
        suspect = Suspect(local, excess[row], excess[~out], excess[row], seen.whole[row], seen.step_ns, seen.on_host)
        if suspect.judged.sum() >= TOO_FEW:
            found[row] = least_mean(suspect, limits)
    return found


Detector = Callable[[Suspect, Thresholds], "tuple[Bool, float] | None"]
DETECTORS: tuple[Detector, ...] = (always_late, late_at_times, stalled_once)
"""In the order of preference: a lasting delay comes before a passing one."""


def find_late_ranks(seen: Observations, limits: Thresholds) -> list[Late]:
    """The ranks that stand out from their peers, the largest excess first."""
    found: list[Late] = []
    every = measures(seen)
    out = np.zeros(seen.ranks.size, dtype=np.bool_)
    trial: list[int] = []
    while len(found) < min(MOST, seen.ranks.size - 1):
        sure = list(_judge(seen, every, out, limits))
        found += sure
        odd = _oddest(seen, out) if not sure and len(trial) < TRIALS else None
        if not sure and odd is None:
            break
        trial = [*trial, odd] if odd is not None else []
        out[:] = False
        out[[*(each.row for each in found), *trial]] = True
    return sorted(found, key=lambda each: -each.weight)


def _oddest(seen: Observations, out: Bool) -> int | None:
    """The rank with the greatest excess of local time, if enough others remain to compare with."""
    excess = excess_over_peers(np.where(seen.known, seen.local, np.nan), seen.role, out)
    total = np.where(out, 0.0, np.nan_to_num(excess).clip(min=0).sum(axis=1))
    row = int(total.argmax())
    # Itself, somebody to compare it with, and others that show by how much ranks differ: of its program or of another.
    alike = int(((seen.role == seen.role[row]) & ~out).sum())
    return row if total[row] > 0 and alike > 1 and (~out).sum() > ENOUGH_LEFT else None


def _judge(seen: Observations, every: list[Measure], out: Bool, limits: Thresholds) -> Iterator[Late]:
    """The ranks that stand out, besides those that are left out already."""
    rows: dict[int, None] = {}
    for measure in every:
        excess = excess_over_peers(measure.value, seen.role, out)
        more = np.where(out, 0.0, np.nan_to_num(excess).clip(min=0).sum(axis=1))
        rows.update(dict.fromkeys(row for row in np.argsort(-more)[:CANDIDATES].tolist() if more[row] > 0))
    for row in rows:
        without = out.copy()
        without[row] = True
        own = excess_over_peers(np.where(seen.known, seen.local, np.nan), seen.role, without)[row]
        late = _judge_rank(seen, every, without, row, own, limits)
        stall = next((each for each in late if each.kind == stalled_once.__name__), None)
        if stall is not None and late[0].lasting:
            # A rank that is always late may also stall once: it is judged again without that step.
            yield stall
            late = _judge_rank(seen, every, without, row, np.where(stall.steps, np.nan, own), limits)
        yield from late[:1]


def _judge_rank(
    seen: Observations, every: list[Measure], out: Bool, row: int, own: Float, limits: Thresholds
) -> list[Late]:
    """How a rank stands out, the best explanation first.

    Args:
        seen: what was observed.
        every: what to compare by.
        out: the ranks that others are not compared with, this one among them.
        row: its row.
        own: (steps,) its local time less its peers' median, ns; nan in steps to ignore.
        limits: the thresholds.
    """
    found = []
    for measure in every:
        excess = excess_over_peers(measure.value, seen.role, out)
        if not np.isfinite(excess[row] * own).any():
            continue
        # A host's own time is also known in steps in which the rank lost events and cannot be compared.
        mine: Float = np.where(np.isfinite(own) | measure.of_host, excess[row], np.nan)
        suspect = Suspect(measure, mine, excess[~out], own, seen.whole[row], seen.step_ns, seen.on_host)
        for order, detector in enumerate(DETECTORS):
            if (result := detector(suspect, limits)) is None:
                continue
            late, score = result
            lost = mean_known(excess[row, late]) if measure.name == "steady" else 0.0
            each = Late(row, measure.name, late, detector.__name__, own, score, lost)
            known = measure.of_host or measure.name == ALLOCATION or detector is stalled_once
            if known or not suspect.of_two or _host_takes_longer(each, seen, out, limits):
                found.append((-order, score, each))
    return [each[2] for each in sorted(found, key=lambda each: each[:2], reverse=True)]


def _host_takes_longer(late: Late, seen: Observations, out: Bool, limits: Thresholds) -> bool:
    """Whether the host takes longer where its device was idle for longer; true where something else made it late."""
    idle = np.where(seen.known, seen.host, np.nan)
    longer, slower = (
        mean_known(excess_over_peers(value, seen.role, out)[late.row, late.steps]) for value in (idle, seen.host_steady)
    )
    if not longer >= limits.left * mean_known(late.excess[late.steps]):
        return True
    return not math.isfinite(slower) or slower > limits.of_idle * longer
