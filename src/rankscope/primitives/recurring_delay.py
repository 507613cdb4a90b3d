"""Outliers by the local time that recurs in two steps, checked against the times of their hosts.

Hosts that run ahead of their devices are each as far ahead as chance left them, and a host that falls behind stays
behind: its device waits for launches step after step, although the host is no slower than the others. So for a host
that does not wait for its device in every step, and for an outlier by recurring time only, the host's own recurring
time is checked, and its usual pace compared with its peers'. A host that is clearly slow causes what it loses, even in
a single step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.primitives.peer_baseline import (
    BY_CHANCE,
    LEAST_PASSING,
    RECURRING,
    SHARE,
    Bool,
    Float,
    Outlier,
    centre_and_spread,
    excess_over_peers,
    medians,
)

RECURS, RECURS_PASSING = 5.0, 8.0  # times chance
IDLE = ("host", "data_loading")
OF_HOST = 0.4  # of what a device was idle longer must recur on its host; where there are ranks to learn chance from
OF_IDLE_AND_CHANCE = ((0.35, 1.5), (0.1, 4.5))  # so much of it, and so many times what recurs on the others': either
TWO_STEPS = 3.0  # times that at least, of two steps alone
FEW_STEPS = 3
RECURS_FEW = 4  # ranks to learn chance from
RECURS_FLOOR = 0.004  # of a step
SLOW_HOST, SLOW_AND_BEHIND = 5.0, 2.5  # times chance, by a host's usual step: of any, and of one that is behind
LEAST_OWN = 0.01  # of a step must be lost by a slow host
SLOW_STEP = 1.5  # times chance, in each of its slow steps
SURELY = 1.3  # times what chance would have in `BY_CHANCE` of all runs
LEAST_LOG = -600.0  # of a probability, as far as it can be told as a number


@dataclass(frozen=True)
class Pairs:
    """The local time that recurs in each pair of steps (`step_alignment`).

    Attributes:
        recurring: (ranks, pairs) ns.
        most: of it, the most at one place of the program beyond what is usual there.
        hiccup: the same in either of the two steps.
        waited: what is not own time, in the step that has less of it.
        usual: (ranks,) ns, own time of a step without the hiccups of single steps; nan where it is not known.
        paced: (ranks, steps) ns, own time of each step if all went as fast as its places do on the geometric mean;
            nan where it is not known.
        known: where it is known.
        steps: (pairs, 2), which two.
    """

    recurring: Int64
    most: Int64
    hiccup: Int64
    waited: Int64
    usual: Float
    paced: Float
    known: Bool
    steps: Int64

    def waits(self, row: int) -> bool:
        """Whether a rank waited in the most of its steps."""
        return bool(np.median(self.waited[row, self.known[row]]) > 0) if self.known[row].any() else True

    def by_chance(self, out: Bool) -> float:
        """What may come at one place of a rank in two steps by chance, ns: about the greatest hiccup of the others.

        A hiccup of which there are k among all ranks, steps and places falls on one place twice about k² / (2 n p)
        times, with n ranks and p places: of few ranks the greatest, of many a later one is what makes that unlikely.
        """
        greatest = np.where(self.known, self.hiccup, 0)[~out].max(axis=1, initial=0)
        place = max(int(np.sqrt(greatest.size / 20)), 1)
        return float(np.sort(greatest)[-place]) if greatest.size >= place else 0.0


def recurring_outlier(
    pairs: Pairs, role: Int64, out: Bool, row: int, own: Float, step_ns: float, few: float
) -> Outlier | None:
    """Whether, and in which steps, more of a rank's local time recurs than of its peers'."""
    excess = excess_over_peers(pairs.recurring, pairs.known, role, out)
    mine, others = excess[row], excess[~out]
    seen = np.isfinite(mine)
    if not seen.any():
        return None
    # Chance is that of as many pairs.
    alike = others[np.isfinite(others[:, seen]).any(axis=1)][:, seen]
    means = medians(alike.T)
    each = others[np.isfinite(others)]
    floor = RECURS_FLOOR
    if means.size < RECURS_FEW:
        left = mine[seen] - np.nanmean(mine)
        means, each, floor = np.concatenate([means, left]), np.concatenate([each, left]), max(floor, few)
    # Of n steps each is in n − 1 of the pairs: their mean varies as that of n / 2 of them would.
    fewer = float(np.sqrt(2 / np.unique(pairs.steps[seen]).size))
    chance = max(float(np.sqrt(np.mean(means**2))), float(np.sqrt(np.mean(each**2))) * fewer, floor * step_ns)
    mean = float(np.nanmedian(mine))
    steps = np.zeros(own.size, dtype=np.bool_)
    steps[pairs.steps[seen].reshape(-1)] = True
    late, some = _recurring_in(mine, pairs.steps, own.size)
    if mean > RECURS * chance and float(np.nanmin(mine)) > SHARE * mean:
        late, lasting = steps, True
    else:
        mean, lasting = some, bool((late >= steps).all())
        chance = max(float(np.sqrt(np.mean(each**2))), chance)
        if mean <= max(RECURS_PASSING * chance, LEAST_PASSING * step_ns):
            return None
    inside = late[pairs.steps].all(axis=1) & seen
    place = float(np.median(pairs.most[row, inside]))
    # What lies at one place alone must be more than hiccups are: in few steps they may fall there twice.
    if late.sum() <= FEW_STEPS and place > SHARE * mean and place < pairs.by_chance(out):
        return None
    return _again(row, late, lasting, own, mean, mean / chance)


def slow_host_outlier(pairs: Pairs, role: Int64, out: Bool, row: int, own: Float, step_ns: float) -> Outlier | None:
    """Whether a rank's host usually takes longer than its peers' do, and the rank lost time by it in some step.

    A host that runs ahead hides what it loses until it falls behind; that may be in one step of many.
    """
    slower, times = usually_slower(pairs.usual, role, out, row)
    seen = np.isfinite(own)
    if not times > SLOW_HOST or slower < LEAST_PASSING * step_ns or own[seen].mean() < LEAST_OWN * step_ns:
        return None
    return Outlier(row, RECURRING, seen, True, own, times)


def slow_steps_outlier(pairs: Pairs, role: Int64, out: Bool, row: int, own: Float, step_ns: float) -> Outlier | None:
    """The steps in which a rank's host went slower than its peers', place by place, and the rank lost time by it.

    Of n steps the k slowest are looked at, k from two up. They are slower by chance in as many runs as there are
    choices of k of n, and ranks, times the tail of a normal distribution: what a step takes is a mean over its places.
    """
    known = np.isfinite(pairs.paced)
    value = np.round(np.where(known, pairs.paced, 0.0)).astype(np.int64)
    beside = excess_over_peers(value, known, role, out)
    apart = beside / np.maximum(value - beside, 1)
    rest = apart[~out]
    rest = rest[np.isfinite(rest)]
    if rest.size < RECURS_FEW or not np.isfinite(apart[row]).any():
        return None
    chance = max(float(np.sqrt(np.mean(rest**2))), RECURS_FLOOR)
    order = [step for step in np.argsort(-np.nan_to_num(apart[row], nan=-np.inf)) if np.isfinite(apart[row, step])]
    best: tuple[float, int] | None = None
    for count in range(2, len(order) + 1):
        chosen = apart[row, order[:count]]
        if chosen[-1] < SLOW_STEP * chance:
            break
        choices = _log_choices(len(order), count) + math.log((~out).sum() + 1)
        tail = NormalDist().inv_cdf(math.exp(max(math.log(BY_CHANCE) - choices, LEAST_LOG)))
        times = float(chosen.mean()) * math.sqrt(count) / chance / -tail
        if best is None or times > best[0]:
            best = times, count
    if best is None or best[0] < SURELY:
        return None
    late = np.zeros(own.size, dtype=np.bool_)
    late[order[: best[1]]] = True
    slower = float(np.mean(beside[row, late]))
    # A host that runs ahead of its device makes up for it first: what is lost may come a step later.
    late[1:] |= late[:-1]
    late &= np.isfinite(own)
    if (
        slower < LEAST_PASSING * step_ns
        or not late.any()
        or own[late].mean() < max(LEAST_OWN * step_ns, SHARE * slower)
    ):
        return None
    return Outlier(row, RECURRING, late, bool(late.sum() == np.isfinite(own).sum()), own, best[0] * SLOW_HOST)


def _log_choices(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def usual_times(by_step: Float, role: Int64) -> Float:
    """What a step of each rank usually takes, ns, comparable within a program; nan where not known.

    Steps may do this or that in turn, and a lost event takes one out: on one rank more is known of the long steps, on
    the next of the short ones. So each is taken as a ratio to the others' of the same step.

    Args:
        by_step: (ranks, steps) ns, what steps that do what this one does usually take; nan where it is not known.
        role: of each rank.
    """
    found: Float = np.full(role.size, np.nan)
    for each in np.unique(role):
        rows = np.flatnonzero((role == each) & np.isfinite(by_step).any(axis=1))
        held = by_step[rows][:, np.isfinite(by_step[rows]).any(axis=0)]
        if held.size:
            middle = medians(held)
            found[rows] = medians((held / middle).T) * np.median(middle)
    return found


def slowest_hosts(pairs: Pairs, role: Int64, without: Bool, count: int) -> list[int]:
    """The rows whose usual step exceeds that of the median of their program most, and whose two slowest steps do."""
    each = np.column_stack([pairs.usual, pairs.paced])
    ratio = np.full(each.shape, -np.inf)
    for program in np.unique(role):
        rows = np.flatnonzero((role == program) & ~without)
        some = np.isfinite(each[rows]).sum(axis=0) > 1
        if some.any():
            found = each[np.ix_(rows, some)]
            ratio[np.ix_(rows, some)] = np.where(np.isfinite(found), found / medians(found), -np.inf)
    by_step = np.sort(ratio[:, 1:], axis=1)
    ranked = [ratio[:, 0], *([by_step[:, -2]] if by_step.shape[1] > 1 else [])]
    chosen = (row for value in ranked for row in np.argsort(-value, kind="stable")[:count] if np.isfinite(value[row]))
    return list(dict.fromkeys(int(row) for row in chosen))


def usually_slower(usual: Float, role: Int64, out: Bool, row: int) -> tuple[float, float]:
    """A rank's usual step less its peers' median, ns, and the ratio of that to chance.

    Chance is how ranks differ from their own peers, relative to these, those of other programs among them: what a
    host takes for a step varies alike whichever stage it serves. nan where there are too few to tell.

    Args:
        usual: (ranks,) ns; nan where it is not known.
        role: of each rank.
        out: ranks that are no standard for others; ``row`` is one.
        row: which.
    """
    known = np.isfinite(usual)
    beside = excess_over_peers(np.where(known, usual, 0).astype(np.int64)[:, None], known[:, None], role, out)[:, 0]
    standard = known & ~out
    peers = np.bincount(role[standard], minlength=int(role.max()) + 1)[role] - standard
    # A median of few varies by itself.
    apart = beside / (usual - beside) / np.sqrt(1 + 1 / np.maximum(peers, 1))
    rest = apart[standard & np.isfinite(apart)]
    if rest.size < RECURS_FEW or not np.isfinite(apart[row]):
        return np.nan, np.nan
    return float(beside[row]), float(apart[row]) / max(float(np.sqrt(np.mean(rest**2))), RECURS_FLOOR)


def delayed_by_host(
    late: Outlier, parts: Mapping[str, Int64], known: Bool, role: Int64, out: Bool, host_pairs: Pairs
) -> bool:
    """Whether the host is repeatedly slower where the device was idle longer; true where not known."""
    idle = sum(
        float(np.nanmean(excess_over_peers(parts[part], known, role, out)[late.row][late.late]))
        for part in IDLE
        if part in parts
    )
    own = float(np.nanmean(late.excess[late.late]))
    both = late.late[host_pairs.steps]
    # Where an event is lost two late steps may not be comparable, but each with another is.
    inside = both.all(axis=1) & host_pairs.known[late.row]
    inside = inside if inside.any() else both.any(axis=1) & host_pairs.known[late.row]
    if idle < SHARE * own or not inside.any():
        return True
    host = excess_over_peers(host_pairs.recurring, host_pairs.known, role, out)[:, inside]
    mine, others = host[late.row], host[~out]
    others = others[np.isfinite(others).any(axis=1)]
    if not np.isfinite(mine).any():
        return True
    chance = float(np.sqrt(np.mean(medians(others.T) ** 2))) if len(others) >= RECURS_FEW else 0.0
    slower = float(np.nanmedian(mine))
    if chance == 0:
        return slower > OF_HOST * min(idle, late.recurring_ns or idle)
    # The rank that is behind by chance has had the slower host of late: little of its idleness, or not by much.
    least = TWO_STEPS if inside.sum() == 1 else 0.0
    if any(slower > max(part * idle, max(times, least) * chance) for part, times in OF_IDLE_AND_CHANCE):
        return True
    return late.lasting and usually_slower(host_pairs.usual, role, out, late.row)[1] > SLOW_AND_BEHIND


def _again(row: int, late: Bool, lasting: bool, own: Float, mean: float, score: float) -> Outlier | None:
    total = own[late & np.isfinite(own)]
    if not total.size:
        return None
    # What recurs must be left of the whole, as far as hiccups let that be told.
    usual, unsure = centre_and_spread(total)
    if usual + 2 * unsure / np.sqrt(total.size) < SHARE * mean:
        return None
    return Outlier(row, RECURRING, late, lasting, own, score, mean)


def _recurring_in(mine: Float, steps: Int64, count: int) -> tuple[Bool, float]:
    """The steps that have something in common: the best pair, and those which share half as much with all of them."""
    table = np.full((count, count), np.nan)
    table[steps[:, 0], steps[:, 1]] = table[steps[:, 1], steps[:, 0]] = mine
    best = steps[int(np.nanargmax(mine))]
    least = SHARE * float(np.nanmax(mine))
    late = np.zeros(count, dtype=np.bool_)
    late[best] = True
    shared = np.where(np.isfinite(table), table, -np.inf)
    for step in np.argsort(-shared[best].min(axis=0)):
        if not late[step] and (shared[step, late] > least).all():
            late[step] = True
    return late, float(np.nanmean(table[np.ix_(late, late)]))
