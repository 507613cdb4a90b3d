"""Ranks whose local time is significantly longer than their peers', always or in some steps.

The excess of a rank in a step is its time less the median of its peers (the other ranks with the same program). It is
tested part by part, because device times vary far less than host times: a device slower by 2 % is visible even if hosts
vary by 20 %. The total local time must be longer as well: an excess that another part compensates delays nobody.

Chance is measured, not assumed: the root mean square of the others' remaining excesses in that part, without the
suspect and the outliers found before it. Unlike a deviation about the median, it includes the machine's hiccups: a step
of a few milliseconds can be a tenth longer for no lasting reason.

- lasting: the mean over the steps exceeds `LASTING` standard errors, which include both chance and the rank's own
  spread over the steps (one long step is not a lasting delay)
- passing: in some steps the excess exceeds `PASSING` times chance, and chance would give any of the ranks that many
  such steps in less than `BY_CHANCE` of all runs
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.primitives.peer_baseline import (
    BY_CHANCE,
    LEAST_PASSING,
    LOCAL,
    RECURRING,
    SHARE,
    Bool,
    Float,
    Outlier,
    centre_and_spread,
    excess_over_peers,
)
from rankscope.primitives.recurring_delay import (
    Pairs,
    delayed_by_host,
    recurring_outlier,
    slow_host_outlier,
    slow_steps_outlier,
    slowest_hosts,
)

LASTING, LASTING_SINGLE = 5.0, 10.0  # standard errors; of a single step of a device
PASSING = 6.0  # times chance
TWICE = 2  # steps at least, of what a host does: in a single one it is a hiccup, however long
SINGLE, SINGLE_NS = 0.25, 2_000_000  # of a step, or ns: so much of it, where a single one is all that there is
TAIL = 1.5  # measured hiccups of hosts fall off so
TAIL_ON_DEVICE = 3.0  # a device's long kernels take 1.25 times their median at most (measured)
LEAST = 0.01  # of a step: less is not worth a word
FLOOR = {
    "compute": 0.001,
    "copies": 0.001,
    "allocation": 0.002,
    "work": 0.001,
    "pace": 0.001,
}  # of a step: chance is not taken for less
FLOOR_HOST = 0.004
DRAINS = "allocation"  # its calls wait for the device: they cost more than they take, and mostly elsewhere
ON_DEVICE = ("compute", "copies", "work", "pace")
FEW = 8  # values of others: with fewer, chance is not known from them, and is taken for more
FLOOR_FEW = 0.01  # of a step
FLOOR_HOSTS = 0.03  # where the hosts compute
CONSISTENT = 0.06  # of a step, in every step (on hosts that compute by as much more as their floor is)
BEYOND, BEYOND_FEW = 1.5, {2: 2.5, 3: 2.0}  # times chance, in every step, of so many
BEYOND_MASKED = 4.0  # likewise, of two ranks that are late at once
CANDIDATES = 3
OTHERS = 3  # ranks, of which one can be left out; and steps, to judge by those that are left


def find_outliers(
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
) -> list[Outlier]:
    """The outliers, the largest first.

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
    found: list[Outlier] = []
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
) -> list[Outlier]:
    rows: dict[int, None] = {}
    looked_at = [(value, known) for value in parts.values()]
    looked_at += [(each.recurring, each.known) for each in (pairs, host_pairs) if each is not None and each.known.any()]
    for value, there in looked_at:
        excess = excess_over_peers(value, there, role, without)
        filled = np.where(np.isfinite(excess) & ~without[:, None], excess, -np.inf)
        mean = np.where(np.isfinite(filled), filled, 0.0).mean(axis=1)
        ranked_steps = np.sort(filled, axis=1)
        for order in (mean, ranked_steps[:, -1], ranked_steps[:, -min(2, filled.shape[1])]):
            ranked = [row for row in np.argsort(-order)[:CANDIDATES].tolist() if np.isfinite(filled[row]).any()]
            rows.update(dict.fromkeys(row for row in ranked if order[row] > 0))
    if host_pairs is not None:
        rows.update(dict.fromkeys(slowest_hosts(host_pairs, role, without, CANDIDATES)))
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
) -> Outlier | None:
    out = without.copy()
    out[row] = True
    own = excess_over_peers(parts[LOCAL], known, role, out)[row]
    if not np.isfinite(own).any():
        return None
    found: list[Outlier] = []
    for name, value in parts.items():
        excess = excess_over_peers(value, known, role, out)
        late, lasting, score = _stands_out(
            excess[row],
            excess[~out],
            own,
            whole[row],
            step_ns,
            FLOOR.get(name, FLOOR_HOST),
            few,
            1 if name in FLOOR else TWICE,
            TAIL_ON_DEVICE if name in ON_DEVICE and few < FLOOR_HOSTS else TAIL,
            *((LEAST, LEAST_PASSING) if name == DRAINS else (LEAST_PASSING, 0.0)),
        )
        if late.any():
            found.append(Outlier(row, name, late, lasting, own, score))
    for each in (pairs, host_pairs):
        if each is not None and (again := recurring_outlier(each, role, out, row, own, step_ns, few)) is not None:
            # What a host takes longer is lost only as far as its device waits for it.
            found.append(again if each is pairs else replace(again, recurring_ns=0.0))
    slow: list[Outlier] = []
    if host_pairs is not None:
        by_host = (rule(host_pairs, role, out, row, own, step_ns) for rule in (slow_host_outlier, slow_steps_outlier))
        slow = [each for each in by_host if each is not None]
    if (
        not (found or slow)
        and (masked := _behind_another(parts[LOCAL], known, role, out, row, step_ns, few)) is not None
    ):
        found.append(masked)
    if host_pairs is not None and not slow:
        # A host that waits for its device in every step begins each anew: what stands out there needs no other witness.
        begins_anew = host_pairs.waits(row)
        found = [
            each
            for each in found
            if (begins_anew and each.part != RECURRING) or delayed_by_host(each, parts, known, role, out, host_pairs)
        ]
    # What lasts explains more than what passes; of the same kind, what is surest.
    return max([*found, *slow], key=lambda each: (each.lasting, each.score), default=None)


def _behind_another(
    value: Int64, known: Bool, role: Int64, out: Bool, row: int, step_ns: float, few: float
) -> Outlier | None:
    """A rank that becomes an outlier once the most different of the other ranks is left out too.

    Two that are late at once, now the one and now the other, are each the other's chance. Without the other it must be
    late in every step by far more than what is left of chance.
    """
    left = excess_over_peers(value, known, role, out)
    alike = np.flatnonzero((role == role[row]) & ~out & np.isfinite(left).any(axis=1))
    if alike.size < OTHERS:
        return None
    without = out.copy()
    without[alike[np.nanmean(left[alike] ** 2, axis=1).argmax()]] = True
    excess = excess_over_peers(value, known, role, without)
    own, others = excess[row], excess[~without & (role == role[row])]
    seen = np.isfinite(own)
    far = max(2 * CONSISTENT * few / FLOOR_FEW * step_ns, BEYOND_MASKED * float(np.sqrt(np.nanmean(others**2))))
    if seen.sum() < OTHERS or float(own[seen].min()) <= far:
        return None
    return Outlier(row, LOCAL, seen, True, own, float(own[seen].min()) / far)


def _stands_out(
    mine: Float,
    others: Float,
    own: Float,
    whole: Bool,
    step_ns: float,
    floor: float,
    few: float,
    least_steps: int,
    tail: float,
    least_part: float,
    least_whole: float,
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
    mean, spread = centre_and_spread(judged)
    score = mean / np.sqrt((chance**2 + spread**2) / judged.size)
    usual, unsure = centre_and_spread(total[whole[seen]] if whole[seen].any() else total)
    # What is sure of the part must be left of the whole, as far as that can be told.
    unsure /= np.sqrt(judged.size)
    of_host, single = least_steps == TWICE, judged.size < TWICE
    least = min(SINGLE * step_ns, SINGLE_NS) if of_host and single else LEAST * step_ns
    if (
        score > (LASTING_SINGLE if single and not of_host else LASTING)
        and mean > least
        and usual > 0
        and usual + unsure > max(LEAST * step_ns, SHARE * mean)
    ):
        return seen, True, float(score)
    # Few steps that differ much, but all of them by far: their spread says nothing against it.
    known_chance = float(np.sqrt(np.mean(others[np.isfinite(others)] ** 2))) if np.isfinite(others).any() else 0.0
    far = max(CONSISTENT * few / FLOOR_FEW * step_ns, BEYOND_FEW.get(judged.size, BEYOND) * known_chance)
    if judged.size >= TWICE and min(float(judged.min()), float(total[whole[seen]].min(initial=np.inf))) > far:
        return seen, True, float(judged.min() / far)
    late = seen.copy()
    apart = values > max(PASSING * chance, least_part * step_ns)
    late[seen] = apart & (total > np.maximum(SHARE * values, least_whole * step_ns))
    count = int(late.sum())
    if count >= least_steps:
        least = float(mine[late].min())
        # How often chance alone would give any rank so many steps like these.
        expected = others.shape[0] * math.comb(values.size, count) * _exceeds(pool, least, chance, tail) ** count
        if expected < BY_CHANCE:
            return late, False, least / chance
    return np.zeros_like(seen), False, 0.0


def _exceeds(pool: Float, value: float, chance: float, tail: float) -> float:
    """The probability that chance exceeds a value: its observed frequency, extrapolated by a power law."""
    greatest = max(float(pool.max()) if pool.size else 0.0, chance)
    if value <= greatest:
        return float((pool >= value).sum() + 1) / (pool.size + 1)
    return float((greatest / value) ** tail) / (pool.size + 1)
