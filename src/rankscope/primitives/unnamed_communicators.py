"""Communicators without a name in the trace: which kernels of a rank belong to one, and which ranks it has.

NCCL before torch 2.3 and the kernels of other libraries (DeepEP, NVSHMEM, custom all_reduces) do not name their group.
Stream numbers differ between ranks, and the kernels of a captured graph run on the graph's streams. So kernels of two
ranks belong together if they are of the same kind and end together (`rankscope.primitives.matching`). Streams only
separate communicators of one rank that run at the same time, and only if the ends show which stream of one rank
corresponds to which of another.

In: kernels of ranks, as timelines or rows. Out: links between streams, offsets, and the ranks of each communicator.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import numpy as np
import polars as pl

from rankscope.primitives.collective_sizes import fill_gathered_sizes
from rankscope.primitives.communicators import ONE_SIDED, POINT_TO_POINT, UNEVEN
from rankscope.primitives.intervals import Int64
from rankscope.primitives.offset_estimation import Bool, OffsetEstimate, Timeline, alignment_evidence, nearest_ends

# Streams of two ranks are linked if at least the first share of either's kernels, or the second share of both, end with
# a kernel of the other's.
MOST_OF, PART_OF = 0.5, 0.2
TOGETHER = 0.5  # the share of a rank's kernels that must fit their partners
AT_WORST = 100_000  # ns: ends of a synchronizing collective differed by at most 85 µs
CLOSE = 32_000  # ns: ends agree to 31 µs (median) with NCCL
SHARE = 90  # the percentile of the differences of ends that is used as blur
WHOLE = 0.8  # the share of a communicator's collectives that must be found on all of its ranks
CONTRAST = 4  # if ends of two ranks agree this much worse than each does with its nearest, they may be of two groups
LEAST = 4  # collectives; fewer are not enough to decide
MOST = 32  # the number of ranks that are compared, evenly chosen


def link_streams(
    a: Timeline, a_stream: Int64, b: Timeline, b_stream: Int64, shift: Int64, blur: int
) -> list[tuple[int, int]]:
    """Which streams of two ranks run the same communicator, judged by the ends of their kernels.

    Args:
        a: the kernels of a rank.
        a_stream: the number of each one's stream.
        b: the kernels of another rank.
        b_stream: the number of each one's stream; no number is used on both ranks.
        shift: the offset of each end of `b` to the clock of `a`, ns.
        blur: how well ends agree, ns.

    Returns:
        pairs of stream numbers.
    """
    at, residual = nearest_ends(a, b, shift)
    near = np.searchsorted(a.end, b.end[at] + shift[at] + residual)
    close = np.abs(residual) <= max(4 * blur, CLOSE)
    pairs, counts = np.unique(np.stack([a_stream[near[close]], b_stream[at[close]]]), axis=1, return_counts=True)
    end = b.end + shift
    shares = np.array(
        [
            counts / _count(a_stream[(a.end >= end[0]) & (a.end <= end[-1])], pairs[0]),
            counts / _count(b_stream[(end >= a.end[0]) & (end <= a.end[-1])], pairs[1]),
        ]
    )
    linked = (shares.max(axis=0) >= MOST_OF) | (shares.min(axis=0) >= PART_OF)
    return [(int(one), int(other)) for one, other in pairs[:, linked].T]


def _count(streams: Int64, numbers: Int64) -> Int64:
    """How often each number is in the streams, at least 1."""
    known, counts = np.unique(streams, return_counts=True)
    table = dict(zip(known.tolist(), counts.tolist(), strict=True))
    return np.array([table.get(number, 1) for number in numbers.tolist()], dtype=np.int64)


def order_offset(a: Timeline, b: Timeline) -> OffsetEstimate | None:
    """The offset that pairs the kernels of each name in order: the first with the first, and so on.

    None if the ranks have different counts, or the ends of pairs agree no better than those of neighboring kernels.
    """
    if len(a) != len(b) or len(a) < 2:
        return None
    keys = [np.where(line.full >= 0, line.full, -1 - line.kind) for line in (a, b)]
    orders = [np.lexsort((line.end, key)) for line, key in zip((a, b), keys, strict=True)]
    if (keys[0][orders[0]] != keys[1][orders[1]]).any():
        return None
    differences = a.end[orders[0]] - b.end[orders[1]]
    offset = int(np.median(differences))
    blur = int(np.percentile(np.abs(differences - offset), SHARE))
    strict = ~b.uneven & ~b.one_sided
    if 2 * blur > np.median(np.diff(a.end)) or (blur > AT_WORST and strict.any()):
        return None
    shift = np.full(len(b), offset, dtype=np.int64)
    return OffsetEstimate(shift, max(blur, CLOSE), alignment_evidence(a, b, shift)[0], "order")


def runs_together(a: Timeline, b: Timeline, partner: Int64, shift: Int64) -> bool:
    """Whether a rank's kernels and their partners can belong to one communicator.

    No rank ends a collective before the last one has begun it, and all ends of a synchronizing one are within 100 µs.
    Broadcasts and the like are no evidence.

    Args:
        a: the kernels of a rank.
        b: the kernels of another.
        partner: for each kernel of `b` the index of its partner in `a`, −1 for none.
        shift: the offset of each kernel of `b` to the clock of `a`, ns.
    """
    end, start = b.end + shift, b.start + shift
    relevant = ~b.one_sided & (end >= a.end[0] - AT_WORST) & (end <= a.end[-1] + AT_WORST)
    relevant |= (partner >= 0) & ~b.one_sided
    if not relevant.any():
        return bool((partner >= 0).any())
    at = np.maximum(partner, 0)
    meet = np.minimum(a.end[at], end) - np.maximum(a.start[at], start)
    fits: Bool = (partner >= 0) & (meet >= -np.where(b.uneven, AT_WORST, CLOSE))
    fits &= b.uneven | (np.abs(a.end[at] - end) <= AT_WORST)
    return bool(fits[relevant].mean() >= TOGETHER)


def label_unnamed(
    rows: pl.DataFrame, recorded: int, world_size: int | None, doubtful: Collection[int]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Label communicators without a name in the trace, and infer their ranks.

    Args:
        rows: the collectives of all ranks with their matches; group is null if the trace names none.
        recorded: the number of ranks with a trace.
        world_size: ranks of the job, None if unknown.
        doubtful: communicators whose matches are ambiguous.

    Returns:
        the rows with `unnamed`, and with group, group_size and group_ranks as far as they can be inferred; and the
        result of `infer_groups`.
    """
    unnamed = pl.col("unnamed")
    rows = rows.with_columns(pl.col("group").is_null().alias("unnamed"))
    nameless = rows.filter(unnamed)
    inferred = infer_groups(_ends(nameless), recorded, world_size, doubtful)
    if not nameless.height:
        return rows, inferred
    first = (
        nameless.filter(pl.col("communicator") >= 0)
        .drop_nulls("match")
        .group_by("communicator")
        .agg(pl.col("match").min())
        .sort("match")
    )
    numbers = first.select("communicator", pl.format("unnamed {}", pl.int_range(1, pl.len() + 1)).alias("label"))
    found = inferred.select("communicator", pl.col("group_size", "group_ranks").name.prefix("inferred_"))
    labeled = rows.join(numbers, on="communicator", how="left", maintain_order="left").join(
        found, on="communicator", how="left", maintain_order="left"
    )
    ranks = pl.col("inferred_group_ranks").cast(pl.Categorical)
    labeled = labeled.with_columns(
        pl.when(unnamed).then(pl.coalesce("group_size", "inferred_group_size")).otherwise("group_size")
        .alias("group_size"),
        pl.when(unnamed).then(pl.coalesce("group_ranks", ranks)).otherwise("group_ranks").alias("group_ranks"),
        pl.coalesce("group", "label", pl.format("stream {}", pl.col("stream")), pl.lit("unknown")).alias("group"),
    )  # fmt: skip
    return fill_gathered_sizes(labeled).drop(*found.columns[1:], "label"), inferred


def _ends(rows: pl.DataFrame) -> pl.DataFrame:
    names = ("communicator", "match", "rank", "group_size", "collective")
    return rows.select(*names, (pl.col("end_ns") + pl.col("base_ns")).alias("end_ns"))


def infer_groups(
    rows: pl.DataFrame, recorded: int, world_size: int | None, doubtful: Collection[int] = ()
) -> pl.DataFrame:
    """The ranks of unnamed communicators, if the traces show that there can be no others.

    They are known if the kernels' names contain the number of ranks and as many match; or if every rank of the job is
    recorded, and the collectives match on the same ranks throughout. They are unknown if ends agree much better within
    parts of the ranks than between them, or if collectives match equally well at two positions, because then it is
    unknown which rank waits for which.

    Args:
        rows: all rows without a named group: communicator, match (null for none), rank, group_size (null if not in the
            kernel's name), collective, end_ns on the wall clock.
        recorded: the number of ranks with a trace.
        world_size: ranks of the job, None if unknown.
        doubtful: communicators whose matches are ambiguous.

    Returns:
        a row per communicator with matches: communicator, group_size, group_ranks (JSON; both null if unknown), ranks
        (how many match), reason (why they are unknown; else null).
    """
    found: list[tuple[int, int | None, str | None, int, str | None]] = []
    alone = rows.filter(pl.col("match").is_null())
    matched = rows.filter(pl.col("communicator") >= 0).drop_nulls("match").sort("communicator", "match", "rank")
    for part in matched.partition_by("communicator", maintain_order=True):
        ranks = part["rank"].unique().sort()
        others = alone.filter(~pl.col("rank").is_in(ranks.implode()) & pl.col("group_size").is_null())
        others = others.filter(pl.col("collective").is_in(part["collective"].unique().implode()))
        reason = _unknown(part, ranks.len(), recorded, world_size, others.height > 0)
        if part["communicator"][0] in doubtful:
            reason = "its collectives match equally well at two positions"
        known = ranks.len() if reason is None else None
        text = json.dumps(ranks.to_list()) if reason is None else None
        found.append((part["communicator"][0], known, text, ranks.len(), reason))
    schema = {
        "communicator": pl.Int64, "group_size": pl.Int64, "group_ranks": pl.String, "ranks": pl.Int64,
        "reason": pl.String,
    }  # fmt: skip
    return pl.DataFrame(found, schema=schema, orient="row")


def _unknown(part: pl.DataFrame, ranks: int, recorded: int, world_size: int | None, others: bool) -> str | None:
    """Why the ranks of a communicator are unknown; None if they are known."""
    size = part["group_size"].max()
    if size is not None:
        return None if ranks == size else "not as many ranks were found as its kernels name"
    if world_size is None:
        return "the number of ranks of the job is not recorded"
    if recorded < world_size:
        return "ranks of the job have no trace"
    uneven = part["collective"].is_in([*ONE_SIDED, *UNEVEN, *POINT_TO_POINT]).all()
    if others or (uneven and ranks < recorded):
        return "other ranks may take part in its collectives"
    if _share_found(part, ranks) < WHOLE:
        return "not all of its ranks were found in most collectives"
    return "ends agree much better within parts of its ranks" if _in_parts(part) else None


def _share_found(part: pl.DataFrame, ranks: int) -> float:
    """The share of collectives found on all ranks, among those within the recordings of all of them."""
    events = part.group_by("match").agg(pl.col("rank").n_unique().alias("ranks"))
    seen = part.group_by("rank").agg(pl.col("match").min().alias("first"), pl.col("match").max().alias("last"))
    inside = events.filter(pl.col("match").is_between(*seen.select(pl.col("first").max(), pl.col("last").min()).row(0)))
    return float((inside["ranks"] == ranks).to_numpy().mean()) if inside.height else 0.0


def _in_parts(part: pl.DataFrame) -> bool:
    """Whether the ends of some ranks agree far worse with each other than each does with its nearest rank."""
    strict = part.filter(~pl.col("collective").is_in([*ONE_SIDED, *UNEVEN, *POINT_TO_POINT]))
    if strict["match"].n_unique() < LEAST or strict["rank"].n_unique() < 3:
        return False
    wide = strict.sort("match", "rank").pivot("rank", index="match", values="end_ns", aggregate_function="first")
    wide = wide.drop("match").drop_nulls()
    if wide.height < LEAST:
        return False
    few = wide.columns[:: max(wide.width // MOST, 1)]
    ends = wide.select(few).to_numpy()
    # Changes from one collective to the next are free of clock offset and drift.
    change = np.abs(np.diff(ends[:, :, None] - ends[:, None, :], axis=0))
    spread = np.median(change, axis=0)
    nearest = np.median(np.where(np.eye(len(few), dtype=np.bool_), np.inf, spread).min(axis=1))
    return bool(spread.max() > max(CLOSE, CONTRAST * nearest))
