"""Groups that transfer data slower than comparable groups, or than in their other steps.

The transfer is the shortest duration over a group's ranks, so it contains no waiting. A group's transfers of one kind
and size in a step (their mean times their usual number, since some may be lost) are compared with those of the other
groups; if there is no other group, with those of its other steps; if there are only one or two, too few to estimate
random variation, with theirs and its own together. Lasting and passing delays are distinguished as for ranks
(`find_late_ranks`).

In: the groups' transfers by step. Out: the groups that are slow, in which steps, and what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.primitives.statistics import rank_sum_score
from rankscope.primitives.stragglers.detectors import find_late_ranks
from rankscope.primitives.stragglers.measures import LOCAL
from rankscope.primitives.stragglers.observations import Observations
from rankscope.primitives.stragglers.peers import Bool
from rankscope.primitives.stragglers.stragglers import Straggler
from rankscope.primitives.stragglers.suspects import Late
from rankscope.primitives.stragglers.thresholds import Thresholds

KEY = ("collective", "bytes", "group_size")
NETWORK = 0.1  # a group that is slower by a smaller share is no finding
LEAST = 0.03  # of a step, in each of its late steps
OWN_STEPS = 4  # least steps to compare a group with itself
FEWEST = 3  # least usual steps among them
FEW_GROUPS = 3  # groups; from so few, random variation is hardly known
TWICE = 2  # least late steps: a single one need not happen again
LEFT = 0.5  # least share of a step's transfers that must be recorded to estimate all
APART = 2.0  # least gap, in ranges of the usual steps, with one transfer per step
RANK_SUM = 4.0  # standard deviations by which the late steps' transfers must rank above the others
LIMITS = Thresholds()


@dataclass(frozen=True)
class SlowLink:
    """A group that transfers data slowly.

    Attributes:
        group: its label.
        group_ranks: as written.
        excess_ns: by how much its transfers take longer, over all of its late steps.
        expected_ns: the expected time of its transfers in these steps.
        steps: the late ones.
        lasting: whether all steps are late.
        groups: how many groups it is compared with; 0: its other steps.
    """

    group: str
    group_ranks: str | None
    excess_ns: int
    expected_ns: int
    steps: tuple[int, ...]
    lasting: bool
    groups: int


_WithSteps = TypeVar("_WithSteps", Straggler, SlowLink)


def with_numbers(found: Sequence[_WithSteps], named: Mapping[int, int]) -> list[_WithSteps]:
    """Replace the numbers of steps by those in the traces, once for each window that has the number.

    Args:
        found: with steps as `distinct_steps` numbers them.
        named: the number in the traces by that number.
    """
    return [replace(each, steps=tuple(named.get(step, step) for step in each.steps)) for each in found]


def slow_links(rows: pl.DataFrame, step_ns: float) -> list[SlowLink]:
    """The slow groups, the slowest first.

    Args:
        rows: group, group_ranks, group_size, collective, bytes, match, step, transfer_ns.
        step_ns: how long a step takes.
    """
    each = (
        rows.select("match", "group", "group_ranks", *KEY, "step", "transfer_ns")
        .filter(pl.col("transfer_ns").is_not_null() & pl.col("bytes").is_not_null())
        .group_by("match")
        .agg(pl.col("group", "group_ranks", *KEY, "transfer_ns").first(), pl.col("step").max())
        .drop_nulls("step")
        .with_columns((pl.col("transfer_ns") / _median_of_like("transfer_ns")).alias("ratio"))
        .group_by("group", "group_ranks", *KEY, "step")
        .agg(pl.col("transfer_ns").mean(), pl.len().alias("seen"), pl.col("ratio"))
        .with_columns(pl.struct("group", "group_ranks").rank("dense").alias("code"))
        .with_columns(pl.col("seen").mode().max().over("code", *KEY).alias("count"))
        # A step cut by the recording's edge has few transfers left, and one slow one would dominate their mean.
        .filter(pl.col("seen") > LEFT * pl.col("count"))
        .with_columns((pl.col("transfer_ns") * pl.col("count")).round().cast(pl.Int64).alias("taken"))
    )
    if each.is_empty():
        return []
    # Groups that do the same in a step are compared with each other.
    does = each.group_by("code", "step").agg(
        pl.struct(*KEY, "count").sort().alias("does"),
        pl.col("taken").sum(),
        pl.col("ratio").explode(),
        pl.col("group", "group_ranks").first(),
    )
    usual = does.with_columns(_kind(does))
    kinds = usual.group_by("code").agg(pl.col("kind").mode().min().alias("usual"))
    held = usual.join(kinds, on="code").filter(pl.col("kind") == pl.col("usual")).sort("code", "step")
    found: list[SlowLink] = []
    for _, part in held.group_by("kind", maintain_order=True):
        found += _of_kind(part, step_ns)
    return sorted(found, key=lambda link: (-link.excess_ns, link.group, link.group_ranks or ""))


def _median_of_like(name: str) -> pl.Expr:
    return pl.max_horizontal(pl.col(name).median().over("group", "group_ranks", *KEY), 1)


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
        late = find_late_ranks(replace(Observations.of({LOCAL: taken}, step_ns), known=known, whole=known), LIMITS)
        found = [
            link for each in late if (link := _link(each, taken, steps, names[each.row], codes.size - 1)) is not None
        ]
        if found or codes.size > FEW_GROUPS:
            return found
    if steps.size < OWN_STEPS:
        return []
    slow: Bool = np.zeros(known.shape, dtype=np.bool_)
    ratios = dict(zip(zip(row.tolist(), column.tolist(), strict=True), part["ratio"].to_list(), strict=True))
    slow[known] = _apart(taken[known], [ratios[i, j] for i, j in np.argwhere(known).tolist()], step_ns)
    rows = np.flatnonzero(slow.any(axis=1))
    # If several groups are slow, none stands out. A group that is slow in all steps has no steps to compare with.
    if rows.size != 1 or slow[rows[0]].sum() == known[rows[0]].sum():
        return []
    (place,) = rows.tolist()
    usual = int(np.median(taken[known & ~slow]))
    late_steps = tuple(steps[slow[place]].tolist())
    expected = usual * len(late_steps)
    excess = int(taken[place, slow[place]].sum()) - expected
    group, group_ranks = names[place]
    return [SlowLink(group, group_ranks, excess, expected, late_steps, False, codes.size - 1)]


def _apart(taken: Int64, ratios: Sequence[Sequence[float]], step_ns: float) -> Bool:
    """The steps whose transfers are apart from the others.

    1. The level of a step is the logarithm of its transfer; with several transfers, the mean logarithm of each relative
       to the median of its kind. The widest gap divides the steps: at least half of them, and three, are usual, and at
       least two are late.
    2. The late steps take a tenth longer than the usual ones, and longer by a least share of a step.
    3. With one transfer per step, the gap is at least twice the range of the usual steps.
    4. With several, the gap is at least the distance of the slowest usual step from their median, and the late steps'
       transfers rank above the others (Wilcoxon, Mann and Whitney): where hosts move the data, they vary several-fold.

    Args:
        taken: by step, ns.
        ratios: by step, each transfer divided by the median of its kind.
        step_ns: how long a step takes.
    """
    none = np.zeros(taken.size, dtype=np.bool_)
    single = max(map(len, ratios)) == 1
    level = np.log(taken.clip(1)) if single else np.array([np.log(np.maximum(each, 1e-9)).mean() for each in ratios])
    order = np.argsort(level, kind="stable")
    gaps = np.diff(level[order])
    place = int(gaps.argmax()) + 1
    usual, late = order[:place], order[place:]
    if late.size < TWICE or place < FEWEST or 2 * place < taken.size:
        return none
    if taken[late].min() - taken[usual].max() < max(NETWORK * taken[usual].max(), LEAST * step_ns):
        return none
    if single:
        is_apart = gaps[place - 1] >= APART * np.ptp(level[usual])
    else:
        score = rank_sum_score(*(np.concatenate([ratios[i] for i in part]) for part in (late, usual)))
        is_apart = gaps[place - 1] >= level[usual].max() - np.median(level[usual]) and score >= RANK_SUM
    none[late] = is_apart
    return none


def _link(late: Late, taken: Int64, steps: Int64, name: tuple[str, str], others: int) -> SlowLink | None:
    excess = int(late.weight)
    expected = int(taken[late.row, late.steps].sum()) - excess
    if excess <= NETWORK * expected:
        return None
    return SlowLink(name[0], name[1], excess, expected, tuple(steps[late.steps].tolist()), late.lasting, others)
