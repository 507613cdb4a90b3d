"""Groups whose collectives move their data slower than those of their like, or than in other steps.

What a transfer takes is the least duration over a group's ranks, so waiting is not in it. A group's transfers of one
kind and size in a step (their mean, times as many as there usually are: some may be lost) are held against the same of
the other groups; where there is no other, against those of its other steps; where there are one or two, too few to
learn chance from, against theirs and its own together. What lasts and what passes is told as for ranks (`laggards`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.primitives.laggards import laggards
from rankscope.primitives.peers import LEAST_PASSING, Bool, Laggard

KEY = ("collective", "bytes", "group_size")
NETWORK = 0.1  # slower than its like by less than this is no finding
OWN_STEPS = 4  # steps at least, to be held against one another
FEWEST = 3  # of them the usual ones
FEW_GROUPS = 3  # of which chance is hardly known
TWICE = 2  # steps at least, of one of few groups
LEFT = 0.5  # of a step's transfers must be recorded, to tell what all take


@dataclass(frozen=True)
class SlowLink:
    """A group that is slow to move data.

    Attributes:
        group: its label.
        group_ranks: as written.
        excess_ns: by how much its transfers take longer, over all of its late steps.
        expected_ns: what they would take in those.
        steps: the late ones.
        lasting: whether all are.
        groups: how many groups it is held against; 0: its own other steps.
    """

    group: str
    group_ranks: str | None
    excess_ns: int
    expected_ns: int
    steps: tuple[int, ...]
    lasting: bool
    groups: int


def slow_links(rows: pl.DataFrame, step_ns: float) -> list[SlowLink]:
    """The groups that stand out, the slowest first.

    Args:
        rows: group, group_ranks, group_size, collective, bytes, match, step, transfer_ns.
        step_ns: how long a step takes.
    """
    each = (
        rows.filter(pl.col("transfer_ns").is_not_null() & pl.col("bytes").is_not_null())
        .group_by("match")
        .agg(pl.col("group", "group_ranks", *KEY, "transfer_ns").first(), pl.col("step").max())
        .drop_nulls("step")
        .group_by("group", "group_ranks", *KEY, "step")
        .agg(pl.col("transfer_ns").mean(), pl.len().alias("seen"))
        .with_columns(pl.struct("group", "group_ranks").rank("dense").alias("code"))
        .with_columns(pl.col("seen").mode().max().over("code", *KEY).alias("count"))
        # Of a step cut by the recording's edge a few are left: one slow place of the program would be its mean.
        .filter(pl.col("seen") > LEFT * pl.col("count"))
        .with_columns((pl.col("transfer_ns") * pl.col("count")).round().cast(pl.Int64).alias("taken"))
    )
    if each.is_empty():
        return []
    # Groups that do the same in a step are held against one another.
    does = each.group_by("code", "step").agg(
        pl.struct(*KEY, "count").sort().alias("does"),
        pl.col("taken").sum(),
        pl.col("group", "group_ranks").first(),
    )
    usual = does.with_columns(_kind(does))
    kinds = usual.group_by("code").agg(pl.col("kind").mode().min().alias("usual"))
    held = usual.join(kinds, on="code").filter(pl.col("kind") == pl.col("usual")).sort("code", "step")
    found: list[SlowLink] = []
    for _, part in held.group_by("kind", maintain_order=True):
        found += _of_kind(part, step_ns)
    return sorted(found, key=lambda link: (-link.excess_ns, link.group, link.group_ranks or ""))


def _kind(does: pl.DataFrame) -> pl.Series:
    texts = [repr(each) for each in does["does"].to_list()]
    codes = {text: code for code, text in enumerate(sorted(set(texts)))}
    return pl.Series("kind", [codes[text] for text in texts], pl.Int64)


def _of_kind(part: pl.DataFrame, step_ns: float) -> list[SlowLink]:
    codes, steps = part["code"].unique().sort().to_numpy(), part["step"].unique().sort().to_numpy()
    row = np.searchsorted(codes, part["code"].to_numpy())
    column = np.searchsorted(steps, part["step"].to_numpy())
    taken = np.zeros((codes.size, steps.size), dtype=np.int64)
    known = np.zeros(taken.shape, dtype=np.bool_)
    taken[row, column], known[row, column] = part["taken"].to_numpy(), True
    names = part.unique("code").sort("code").select("group", "group_ranks").rows()
    if codes.size > 1:
        role = np.zeros(codes.size, dtype=np.int64)
        late = laggards({"own": taken}, known, known, role, step_ns)
        found = [
            link for each in late if (link := _link(each, taken, steps, names[each.row], codes.size - 1)) is not None
        ]
        if found or codes.size > FEW_GROUPS:
            return found
    if steps.size < OWN_STEPS:
        return []
    slow: Bool = np.zeros(known.shape, dtype=np.bool_)
    slow[known] = _apart(taken[known], step_ns)
    rows = np.flatnonzero(slow.any(axis=1))
    # Several groups slow in some steps: none of them is the odd one.
    if rows.size != 1 or int(slow.sum()) < (TWICE if codes.size > 1 else 1):
        return []
    (place,) = rows.tolist()
    usual = int(np.median(taken[known & ~slow]))
    late_steps = tuple(steps[slow[place]].tolist())
    expected = usual * len(late_steps)
    excess = int(taken[place, slow[place]].sum()) - expected
    group, group_ranks = names[place]
    return [SlowLink(group, group_ranks, excess, expected, late_steps, False, codes.size - 1)]


def _apart(taken: Int64, step_ns: float) -> Bool:
    """Which steps' transfers lie apart from the others: by a gap twice as wide (as a ratio) as what the others span."""
    none = np.zeros(taken.size, dtype=np.bool_)
    order = np.argsort(taken)
    ratio = np.log(np.maximum(taken[order], 1).astype(np.float64))
    gaps = np.diff(ratio)
    place = int(gaps.argmax()) + 1
    usual = taken[order[:place]]
    if place < FEWEST or 2 * place <= taken.size or gaps[place - 1] < 2 * (ratio[place - 1] - ratio[0]):
        return none
    if taken[order[place]] < (1 + NETWORK) * usual.max() or taken[order[place]] - usual.max() < LEAST_PASSING * step_ns:
        return none
    none[order[place:]] = True
    return none


def _link(late: Laggard, taken: Int64, steps: Int64, name: tuple[str, str], others: int) -> SlowLink | None:
    excess = int(late.weight)
    expected = int(taken[late.row, late.late].sum()) - excess
    if excess <= NETWORK * expected:
        return None
    return SlowLink(name[0], name[1], excess, expected, tuple(steps[late.late].tolist()), late.lasting, others)
