"""Which ranks' own time stands out from their peers', lastingly or in some steps, by more than chance has it.

The excess of a rank in a step is what it took less the median of its peers (the other ranks of its role). It is looked
at part by part, for what happens on the device is far more regular than what a host does: a device slower by 2 % shows
beside hosts that stumble by 20 %. The own time as a whole must be longer as well: what another part makes up for held
nobody up.

Chance is measured, not assumed: the root mean square of what is left of the others' excesses in that part when the
suspect, and those found before it, are taken out of the comparison. That has the machine's hiccups in it, as a
deviation about the median has not: a step of a few milliseconds can be a tenth longer for no reason that comes again.

- lasting: the mean over the steps exceeds `LASTING` standard errors, in which chance and the rank's own spread over
  the steps count alike (one long step is no lasting lateness)
- passing: in some steps the excess exceeds `PASSING` times chance, and chance would give any of the ranks so many
  steps like these in less than `BY_CHANCE` of all runs
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.primitives.intervals import Int64
from rankscope.primitives.lateness import median_of_others

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LASTING = 5.0  # standard errors
PASSING = 6.0  # times chance
TWICE = 2  # steps at least, of what a host does: in a single one it is a hiccup, however long
BY_CHANCE = 0.001  # cases expected among all ranks
TAIL = 1.5  # measured hiccups of hosts fall off so
LEAST = 0.01  # of a step: less is not worth a word
LEAST_PASSING = 0.03  # of a step, in each of its late steps
FLOOR = {
    "compute": 0.001,
    "copies": 0.001,
    "allocation": 0.002,
    "work": 0.001,
    "pace": 0.001,
}  # of a step: chance is not taken for less
FLOOR_HOST = 0.004
SHARE = 0.5  # of a part's excess must be left in the own time as a whole
FEW = 8  # values of others: with fewer, chance is not known from them, and is taken for more
FLOOR_FEW = 0.01  # of a step
FLOOR_HOSTS = 0.03  # where the hosts compute
CONSISTENT = 0.06  # of a step, in every step (on hosts that compute by as much more as their floor is)
BEYOND, BEYOND_FEW = 1.5, 2.0  # times chance, in every one of three steps or more, or of two
CANDIDATES = 3
MANY = 6  # steps, with which a few odd ones need not count
RECURS, RECURS_PASSING = 5.0, 8.0  # times chance
IDLE = ("host", "data_loading")
OF_HOST = 0.4  # of what a device was idle longer must recur on its host, or
OF_HOST_CHANCE = 2.5  # times what recurs on the others' by chance
FEW_STEPS = 3
RECURS_FEW = 4  # ranks to learn chance from
RECURS_FLOOR = 0.004  # of a step
OWN = "own"
RECURRING = "recurring"


@dataclass(frozen=True)
class Pairs:
    """The own time that recurs in each two steps (`recurrence`).

    Attributes:
        recurring: (ranks, pairs) ns.
        most: of it, the most at one place of the program beyond what is usual there.
        hiccup: the same in either of the two steps.
        known: where it is known.
        steps: (pairs, 2), which two.
    """

    recurring: Int64
    most: Int64
    hiccup: Int64
    known: Bool
    steps: Int64

    def by_chance(self, out: Bool) -> float:
        """What may come at one place of a rank in two steps by chance, ns: about the greatest hiccup of the others.

        A hiccup of which there are k among all ranks, steps and places falls on one place twice about k² / (2 n p)
        times, with n ranks and p places: of few ranks the greatest, of many a later one is what makes that unlikely.
        """
        greatest = np.where(self.known, self.hiccup, 0)[~out].max(axis=1, initial=0)
        place = max(int(np.sqrt(greatest.size / 20)), 1)
        return float(np.sort(greatest)[-place]) if greatest.size >= place else 0.0


@dataclass(frozen=True)
class Laggard:
    """A rank whose own time stands out.

    Attributes:
        row: its row.
        part: the part of its time that stands out most.
        late: by step, where it does.
        lasting: whether it does all the time.
        excess: by step, its own time less its peers' median, ns; nan where not compared.
        score: how many times chance, or standard errors, it stands out by.
        recurring_ns: what recurs of it in a step, where that told; its hiccups and the others' are not in it.
    """

    row: int
    part: str
    late: Bool
    lasting: bool
    excess: Float
    score: float
    recurring_ns: float = 0.0

    @property
    def weight(self) -> float:
        """What it takes in its late steps, ns in all."""
        taken = float(np.nansum(np.where(self.late, self.excess, 0.0)))
        return max(taken, self.recurring_ns * int(self.late.sum()))


def excesses(value: Int64, known: Bool, role: Int64, without: Bool) -> Float:
    """By rank and step, what it took less the median of the peers; nan where there is nothing to compare.

    Args:
        value: (ranks, steps) ns.
        known: where it was measured.
        role: of each rank, from 0.
        without: ranks that are no standard for others.
    """
    steps = value.shape[1]
    found = np.full(value.shape, np.nan)
    code = role[:, None] * steps + np.arange(steps)
    standard = known & ~without[:, None]
    if standard.any():
        event, taken = code[standard], value[standard]
        alone = np.bincount(event)[event] < 2
        found[standard] = np.where(alone, np.nan, taken - median_of_others(event, taken))
    for row in np.flatnonzero(without):
        alike = np.flatnonzero(role == role[row])
        peers = standard[alike]
        there = known[row] & peers.any(axis=0)
        if there.any():
            held = np.where(peers[:, there], value[alike][:, there].astype(np.float64), np.nan)
            found[row, there] = value[row, there] - np.nanmedian(held, axis=0)
    return found


def laggards(
    parts: Mapping[str, Int64],
    known: Bool,
    whole: Bool,
    role: Int64,
    step_ns: float,
    *,
    pairs: Pairs | None = None,
    host_pairs: Pairs | None = None,
    steady: bool = True,
    most: int = 64,
) -> list[Laggard]:
    """The ranks that stand out, the weightiest first.

    Args:
        parts: (ranks, steps) ns each: `own`, the own time as a whole, and the parts to look at.
        known: where it was measured.
        whole: where it was measured from the step's beginning; what lasts is judged by these.
        role: of each rank, from 0.
        step_ns: how long a step takes.
        pairs: the own time that recurs, where it is known.
        host_pairs: that of the hosts, which tells whether what a device waited for was a slow host's.
        steady: whether a device keeps the time; hosts that compute differ more by chance.
        most: no more than so many are looked for.
    """
    found: list[Laggard] = []
    without = np.zeros(known.shape[0], dtype=np.bool_)
    while len(found) < min(most, known.shape[0] - 1):
        best = _best(
            parts, known, whole, role, without, step_ns, FLOOR_FEW if steady else FLOOR_HOSTS, pairs, host_pairs
        )
        if not best:
            break
        found += best
        without[[each.row for each in best]] = True
    return sorted(found, key=lambda each: -each.weight)


def _best(
    parts: Mapping[str, Int64],
    known: Bool,
    whole: Bool,
    role: Int64,
    without: Bool,
    step_ns: float,
    few: float,
    pairs: Pairs | None,
    host_pairs: Pairs | None,
) -> list[Laggard]:
    rows: dict[int, None] = {}
    looked_at = [(value, known) for value in parts.values()]
    looked_at += [(each.recurring, each.known) for each in (pairs, host_pairs) if each is not None and each.known.any()]
    for value, there in looked_at:
        excess = excesses(value, there, role, without)
        filled = np.where(np.isfinite(excess) & ~without[:, None], excess, -np.inf)
        mean = np.where(np.isfinite(filled), filled, 0.0).mean(axis=1)
        ranked_steps = np.sort(filled, axis=1)
        for order in (mean, ranked_steps[:, -1], ranked_steps[:, -min(2, filled.shape[1])]):
            ranked = [row for row in np.argsort(-order)[:CANDIDATES].tolist() if np.isfinite(filled[row]).any()]
            rows.update(dict.fromkeys(row for row in ranked if order[row] > 0))
    tested = [_test(parts, known, whole, role, without, step_ns, row, few, pairs, host_pairs) for row in rows]
    sure = [each for each in tested if each is not None]
    # Those of like weight together: a slow host has many.
    return [each for each in sure if each.weight >= SHARE * max(other.weight for other in sure)]


def _test(
    parts: Mapping[str, Int64],
    known: Bool,
    whole: Bool,
    role: Int64,
    without: Bool,
    step_ns: float,
    row: int,
    few: float,
    pairs: Pairs | None,
    host_pairs: Pairs | None,
) -> Laggard | None:
    out = without.copy()
    out[row] = True
    own = excesses(parts[OWN], known, role, out)[row]
    if not np.isfinite(own).any():
        return None
    found: list[Laggard] = []
    for name, value in parts.items():
        excess = excesses(value, known, role, out)
        late, lasting, score = _stands_out(
            excess[row],
            excess[~out],
            own,
            whole[row],
            step_ns,
            FLOOR.get(name, FLOOR_HOST),
            few,
            1 if name in FLOOR else TWICE,
        )
        if late.any():
            found.append(Laggard(row, name, late, lasting, own, score))
    for each in (pairs, host_pairs):
        if each is not None and (again := _recurs(each, role, out, row, own, step_ns, few)) is not None:
            found.append(again)
    if host_pairs is not None:
        # What stands out as a whole needs no other witness.
        found = [
            each for each in found if each.part != RECURRING or _of_its_host(each, parts, known, role, out, host_pairs)
        ]
    # What lasts explains more than what passes; of the same kind, what is surest.
    return max(found, key=lambda each: (each.lasting, each.score), default=None)


def _recurs(pairs: Pairs, role: Int64, out: Bool, row: int, own: Float, step_ns: float, few: float) -> Laggard | None:
    """Whether, and in which steps, more of a rank's own time recurs than of its peers'."""
    excess = excesses(pairs.recurring, pairs.known, role, out)
    mine, others = excess[row], excess[~out]
    seen = np.isfinite(mine)
    if not seen.any():
        return None
    # Chance is that of as many pairs.
    alike = others[np.isfinite(others[:, seen]).any(axis=1)][:, seen]
    means = np.nanmedian(alike, axis=1)
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


def _of_its_host(
    late: Laggard, parts: Mapping[str, Int64], known: Bool, role: Int64, out: Bool, host_pairs: Pairs
) -> bool:
    """Whether the host takes longer, and again, where the device was idle longer; true where that is not known."""
    idle = sum(
        float(np.nanmean(excesses(parts[part], known, role, out)[late.row][late.late]))
        for part in IDLE
        if part in parts
    )
    own = float(np.nanmean(late.excess[late.late]))
    inside = late.late[host_pairs.steps].all(axis=1) & host_pairs.known[late.row]
    if idle < SHARE * own or not inside.any():
        return True
    host = excesses(host_pairs.recurring, host_pairs.known, role, out)[:, inside]
    mine, others = host[late.row], host[~out]
    others = others[np.isfinite(others).any(axis=1)]
    if not np.isfinite(mine).any():
        return True
    chance = float(np.sqrt(np.mean(np.nanmedian(others, axis=1) ** 2))) if len(others) >= RECURS_FEW else 0.0
    least = OF_HOST * min(idle, late.recurring_ns or idle)
    return float(np.nanmedian(mine)) > (min(least, OF_HOST_CHANCE * chance) if chance > 0 else least)


def _again(row: int, late: Bool, lasting: bool, own: Float, mean: float, score: float) -> Laggard | None:
    total = own[late & np.isfinite(own)]
    if not total.size:
        return None
    # What recurs must be left of the whole, as far as hiccups let that be told.
    usual, unsure = _centre_and_spread(total)
    if usual + 2 * unsure / np.sqrt(total.size) < SHARE * mean:
        return None
    return Laggard(row, RECURRING, late, lasting, own, score, mean)


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


def _stands_out(
    mine: Float, others: Float, own: Float, whole: Bool, step_ns: float, floor: float, few: float, least_steps: int
) -> tuple[Bool, bool, float]:
    """In which steps, whether in all, and by how much."""
    seen = np.isfinite(mine)
    values, total = mine[seen], own[seen]
    judged = values[whole[seen]] if whole[seen].any() else values
    pool = others[np.isfinite(others)]
    if pool.size < FEW:
        # Nobody to learn chance from: then from how the rank itself differs from step to step.
        pool, floor = np.concatenate([pool, judged - np.median(judged)]), max(floor, few)
    chance = max(float(np.sqrt(np.mean(pool**2))) if pool.size else 0.0, floor * step_ns)
    mean, spread = _centre_and_spread(judged)
    score = mean / np.sqrt((chance**2 + spread**2) / judged.size)
    usual, unsure = _centre_and_spread(total[whole[seen]] if whole[seen].any() else total)
    # What is sure of the part must be left of the whole, as far as that can be told.
    unsure /= np.sqrt(judged.size)
    if score > LASTING and mean > LEAST * step_ns and usual > 0 and usual + unsure > max(LEAST * step_ns, SHARE * mean):
        return seen, True, float(score)
    # Few steps that differ much, but all of them by far: their spread says nothing against it.
    known_chance = float(np.sqrt(np.mean(others[np.isfinite(others)] ** 2))) if np.isfinite(others).any() else 0.0
    far = max(CONSISTENT * few / FLOOR_FEW * step_ns, (BEYOND_FEW if judged.size <= TWICE else BEYOND) * known_chance)
    if judged.size >= TWICE and min(float(judged.min()), float(total[whole[seen]].min(initial=np.inf))) > far:
        return seen, True, float(judged.min() / far)
    late = seen.copy()
    late[seen] = (values > max(PASSING * chance, LEAST_PASSING * step_ns)) & (total > SHARE * values)
    count = int(late.sum())
    if count >= least_steps:
        least = float(mine[late].min())
        # How often chance alone would give any rank so many steps like these.
        expected = others.shape[0] * math.comb(values.size, count) * _exceeds(pool, least, chance) ** count
        if expected < BY_CHANCE:
            return late, False, least / chance
    return np.zeros_like(seen), False, 0.0


def _exceeds(pool: Float, value: float, chance: float) -> float:
    """How likely chance exceeds a value: as often as it did, and beyond what it did falling off by a power law."""
    greatest = max(float(pool.max()) if pool.size else 0.0, chance)
    if value <= greatest:
        return float((pool >= value).sum() + 1) / (pool.size + 1)
    return float((greatest / value) ** TAIL) / (pool.size + 1)


def _centre_and_spread(values: Float) -> tuple[float, float]:
    """Mean and standard deviation; of many values those of a normal distribution through their quartiles."""
    if values.size < MANY:
        return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(middle), float(high - low) / 1.349
