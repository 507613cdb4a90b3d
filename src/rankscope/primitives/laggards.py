"""Which ranks' own time stands out from their peers', lastingly or in some steps, by more than chance has it.

The excess of a rank in a step is its own time less the median of its peers' (the other ranks of its role). Chance is
measured, not assumed: the root mean square of what is left of the others' excesses when the suspect, and those found
before it, are taken out of the comparison. That has the machine's hiccups in it, as a deviation about the median has
not: a step of few milliseconds can be a tenth longer for no reason that comes again.

- lasting: the mean over the steps exceeds `LASTING` standard errors, and most steps have it.
- passing: in a step the excess exceeds `PASSING` times that root mean square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.primitives.intervals import Int64
from rankscope.primitives.lateness import median_of_others

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LASTING = 6.0
PASSING = 8.0
LEAST = 0.01  # of a step: less is not worth a word
LEAST_PASSING = 0.04  # of a step, in each of the steps
FLOOR = 0.002  # of a step: chance is not taken for less
FEW = 8  # values of others: with fewer, chance is not known from them
CANDIDATES = 4


@dataclass(frozen=True)
class Laggard:
    """A rank whose own time stands out.

    Attributes:
        row: its row.
        late: by step, where it does.
        lasting: whether it does all the time.
        excess: by step, its own time less its peers' median, ns; nan where not compared.
        score: how many standard errors it stands out by.
    """

    row: int
    late: Bool
    lasting: bool
    excess: Float
    score: float


def excesses(own: Int64, known: Bool, role: Int64, without: Bool) -> Float:
    """By rank and step the own time less the median of the peers'; nan where there is nothing to compare.

    Args:
        own: (ranks, steps) ns.
        known: where it was measured.
        role: of each rank.
        without: ranks that are no standard for others.
    """
    ranks, steps = own.shape
    found = np.full(own.shape, np.nan)
    code = (np.unique(role, return_inverse=True)[1].reshape(-1, 1) * steps + np.arange(steps)).astype(np.int64)
    standard = known & ~without[:, None]
    if standard.any():
        event, value = code[standard], own[standard]
        alone = np.bincount(event, minlength=int(code.max()) + 1)[event] < 2
        less = (value - median_of_others(event, value)).astype(np.float64)
        less[alone] = np.nan
        found[standard] = less
    rows = np.flatnonzero(without)
    if rows.size:
        for row in rows:
            peers = standard & (role == role[row])[:, None]
            for step in np.flatnonzero(known[row] & peers.any(axis=0)):
                found[row, step] = own[row, step] - np.median(own[peers[:, step], step])
    return found


def laggards(own: Int64, known: Bool, role: Int64, step_ns: float, most: int = 16) -> list[Laggard]:
    """The ranks that stand out, the weightiest first.

    Args:
        own: (ranks, steps) ns.
        known: where it was measured.
        role: of each rank.
        step_ns: how long a step takes.
        most: no more than so many are looked for.
    """
    found: list[Laggard] = []
    without = np.zeros(own.shape[0], dtype=np.bool_)
    for _ in range(min(most, own.shape[0] - 1)):
        best = _best(own, known, role, without, step_ns)
        if best is None:
            break
        found.append(best)
        without[best.row] = True
    return found


def _best(own: Int64, known: Bool, role: Int64, without: Bool, step_ns: float) -> Laggard | None:
    first = excesses(own, known, role, without)
    open_ = ~without & np.isfinite(first).any(axis=1)
    if not open_.any():
        return None
    filled = np.where(np.isfinite(first), first, 0.0)
    count = np.maximum(np.isfinite(first).sum(axis=1), 1)
    mean = np.where(open_, filled.sum(axis=1) / count, -np.inf)
    most = np.where(open_, filled.max(axis=1), -np.inf)
    rows = dict.fromkeys([*np.argsort(-mean)[:CANDIDATES].tolist(), *np.argsort(-most)[:CANDIDATES].tolist()])
    tested = [_test(own, known, role, without, step_ns, row) for row in rows if open_[row]]
    sure = [each for each in tested if each is not None]
    return max(sure, key=lambda each: float(np.nansum(np.where(each.late, each.excess, 0.0))), default=None)


def _test(own: Int64, known: Bool, role: Int64, without: Bool, step_ns: float, row: int) -> Laggard | None:
    out = without.copy()
    out[row] = True
    excess = excesses(own, known, role, out)
    mine = excess[row]
    seen = np.isfinite(mine)
    if not seen.any():
        return None
    others = excess[~out]
    pool = others[np.isfinite(others)]
    if pool.size < FEW:
        # Nobody to learn chance from: then from how the rank itself differs from step to step.
        centred = mine[seen] - np.median(mine[seen])
        pool = np.concatenate([pool, centred])
    chance = max(float(np.sqrt(np.mean(pool**2))) if pool.size else 0.0, FLOOR * step_ns)
    values = mine[seen]
    score = float(values.mean()) / (chance / np.sqrt(values.size))
    usual = float(np.median(values))
    if score > LASTING and usual > max(LEAST * step_ns, 0.5 * float(values.mean())):
        return Laggard(row, seen, True, mine, score)
    late = seen & (np.where(seen, mine, 0) > max(PASSING * chance, LEAST_PASSING * step_ns))
    if late.any():
        return Laggard(row, late, False, mine, float(mine[late].max() / chance))
    return None


def by_mean(found: Sequence[Laggard]) -> list[int]:
    """Their rows, by what they take from a step on average."""
    weight = [float(np.nansum(np.where(each.late, each.excess, 0.0))) for each in found]
    return [found[i].row for i in np.argsort(weight)[::-1]]
