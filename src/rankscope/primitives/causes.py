"""Why a rank is late: what its stretches held more of than the others', and what its steps launched more of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.primitives.lateness import median_of_others

# Which parts of a stretch speak for which cause, on a device and without one.
PARTS_OF_CAUSE = {
    "data_loading": ("data_loading",),
    "memory": ("allocation", "copies"),
    "slow_host": ("runtime", "operators", "nothing"),
    "slow_network": ("communication",),
}
WORDS = {
    "data_loading": "in its data loader",
    "allocation": "allocating or freeing device memory",
    "copies": "copying",
    "runtime": "in the device's runtime",
    "operators": "in operators",
    "nothing": "with nothing recorded on the host: asleep, descheduled, or in Python",
    "communication": "in the collectives of another group",
}
EXPLAINS = 0.5  # of the lateness: less explains nothing
FRESH = 0.2  # of the lateness must be held against parts at least
MORE = 0.05  # work counts as more beyond this share of the others' median


@dataclass(frozen=True)
class Cause:
    """Why a rank is late.

    Attributes:
        cause: one of the causes, or `unclear`.
        share: how much of the lateness it explains, 0 to 1.
        evidence: the numbers behind it, as a sentence.
    """

    cause: str
    share: float
    evidence: str


def excess(event: Int64, parts: Mapping[str, Int64]) -> dict[str, Int64]:
    """Each part of each row less the median of the other rows' of its event."""
    return {name: value - median_of_others(event, value) for name, value in parts.items()}


def work_excess(work: pl.DataFrame) -> pl.DataFrame:
    """What each rank's steps launched, with the medians of the other ranks' same steps.

    Args:
        work: rank, step, work_ns, pieces, size.
    """
    if work.is_empty():
        return work.with_columns(pl.lit(0, pl.Int64).alias(f"{name}_others") for name in ("work_ns", "pieces", "size"))
    step = (work["step"].rank("dense").cast(pl.Int64) - 1).to_numpy()
    return work.with_columns(
        pl.Series(f"{name}_others", median_of_others(step, work[name].to_numpy().astype(np.int64)))
        for name in ("work_ns", "pieces", "size")
    )


def cause_of(late: int, more: Mapping[str, int], work: pl.DataFrame, *, on_host: bool) -> Cause:
    """The cause that explains most of a rank's lateness.

    Args:
        late: lateness summed over the collectives where the rank came last by itself, ns.
        more: by part, what its stretches before them held more of than the others', ns, summed alike.
        work: of the steps they are in: lateness_ns, and the columns of `work_excess`.
        on_host: the job computes on the host: slow operators are a slow host.
    """
    # Compute that took no longer than elsewhere, but had not been done yet, hands on a delay from before.
    fresh = max(late - max(more.get("compute", 0), 0), round(FRESH * late))
    found = [each for each in (_by_work(work, on_host=on_host), *_by_parts(fresh, more)) if each is not None]
    # Work launched comes first: a device that has more to do also leaves the host waiting.
    chosen = next((each for each in found if each.cause in ("slow_device", "more_work")), None)
    if chosen is None and found:
        chosen = max(found, key=lambda each: each.share)
    if chosen is not None and chosen.share >= EXPLAINS:
        return chosen
    if not found:
        return Cause("unclear", 0.0, "nothing that was recorded took longer than on the other ranks")
    best = max(found, key=lambda each: each.share)
    return Cause("unclear", best.share, f"at most {best.share:.0%} is explained: {best.evidence}")


def _by_parts(late: int, more: Mapping[str, int]) -> list[Cause]:
    causes = []
    for cause, names in PARTS_OF_CAUSE.items():
        total = sum(more.get(name, 0) for name in names)
        if total <= 0 or late <= 0:
            continue
        main = max(names, key=lambda name: more.get(name, 0))
        words = f"{_ms(total)} more than the others' median {_place(cause)}, most of it {WORDS[main]}"
        causes.append(Cause(cause, min(total / late, 1.0), words))
    return causes


def _place(cause: str) -> str:
    return "of its stretches" if cause in ("slow_network", "memory") else "of its device's idle time"


def _by_work(work: pl.DataFrame, *, on_host: bool) -> Cause | None:
    if work.is_empty():
        return None
    total = work.sum().row(0, named=True)
    late, mine, others = total["lateness_ns"], total["work_ns"], total["work_ns_others"]
    if late <= 0 or others <= 0 or mine <= others:
        return None
    longer = mine / others - 1
    more = max(_ratio(total["pieces"], total["pieces_others"]), _ratio(total["size"], total["size_others"]))
    share = min((mine - others) / late, 1.0)
    if longer <= MORE or share < EXPLAINS:
        return None
    what = "operators" if on_host else "kernels"
    words = f"{what} launched in its late steps take {_ms(mine - others)} more than the others' median (+{longer:.0%})"
    counts = f"{total['pieces']} against {total['pieces_others']}"
    if more > MORE and more >= longer / 2:
        return Cause("more_work", share, f"{words}; there are more or larger ones (+{more:.0%}; {counts})")
    if on_host:
        return None
    return Cause("slow_device", share, f"{words}; they are as many ({counts}) and as large")


def _ratio(mine: int, others: int) -> float:
    return mine / others - 1 if others > 0 else 0.0


def _ms(nanoseconds: int) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds / 1e3:.3g} µs"


def slow_groups(rows: pl.DataFrame) -> pl.DataFrame:
    """Groups that move the same data slower than others of their size do.

    Args:
        rows: group, group_ranks, group_size, collective, bytes, match, transfer_ns.

    Returns:
        group, group_ranks, excess_ns (over all), expected_ns, groups (that it was held against), slowest first.
    """
    key = ["collective", "bytes", "group_size"]
    one = ["group", "group_ranks"]
    each = (
        rows.filter(pl.col("transfer_ns").is_not_null() & pl.col("bytes").is_not_null())
        .unique("match")
        .group_by(*one, *key)
        .agg(pl.col("transfer_ns").median().alias("typical"), pl.len().alias("count"))
    )
    # Medians of groups are held against the median of all groups of the key: one slow one of three moves it little.
    held = each.with_columns(
        pl.col("typical").median().over(key).alias("expected"), pl.len().over(key).alias("groups")
    ).filter(pl.col("groups") >= 3)
    return (
        held.group_by(one)
        .agg(
            ((pl.col("typical") - pl.col("expected")) * pl.col("count")).sum().cast(pl.Int64).alias("excess_ns"),
            (pl.col("expected") * pl.col("count")).sum().cast(pl.Int64).alias("expected_ns"),
            pl.col("groups").max(),
        )
        .sort("excess_ns", *one, descending=[True, False, False])
    )
