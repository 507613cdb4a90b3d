"""Labels of collectives for matching, before any clock is known: communicator, kind and size, as numbers.

A communicator is a group with its ranks, so groups that share a name but not their ranks are separate. A point-to-point
channel is a separate communicator in each direction. Kernels without a group form one pool per group size that their
names show; stream numbers differ between ranks, so `rankscope.primitives.unnamed_communicators` divides the pools.
Sizes are those of the full operation, which are equal on all ranks even if the parts are uneven; if the trace has none,
the kernel's name is used instead.

In: collectives in the form of `rank_collectives`. Out: their labels, −1 if unknown.
"""

from __future__ import annotations

import json

import polars as pl

from rankscope.primitives.shapes import parsed_list
from rankscope.rundir import fields

ONE_SIDED = ("broadcast", "reduce", "gather", "scatter", "p2p")
POINT_TO_POINT = ("send", "recv")
UNNAMED = "unnamed communicator"
# Each rank may have a different size here, so sizes cannot identify the operation.
UNEVEN = ("all_to_all", "gather", "scatter", "send_recv", "dispatch", "combine", "notify", "coalesced", "unknown")

COLUMNS = (
    "rank",
    "group",
    "group_ranks",
    "group_size",
    "stream",
    "collective",
    "name",
    "dtype",
    "in_elements",
    "out_elements",
    "step",
    "recorded",
    "start_ns",
    "end_ns",
    "source_rank",
    "destination_rank",
    "source",
)


def encode_communicators(rows: pl.DataFrame) -> pl.DataFrame:
    """Labels as numbers: communicator, kind, full (kind, type and size), step, recorded; −1 if unknown.

    A null group is one without a name in the trace (`unnamed`).
    """
    p2p = pl.col("collective").is_in(POINT_TO_POINT)
    ranks = rows["rank"].n_unique()
    members, texts = _members(rows["group_ranks"])
    rows = rows.with_columns(members)
    listed = {code: parse_group_ranks(text) for code, text in enumerate(texts)}
    pairs = {code: json.dumps(ids) for code, ids in listed.items() if ids is not None and len(ids) == 2}
    only_two = json.dumps(rows["rank"].unique().sort().to_list()) if ranks == 2 else None
    ends = pl.col("members").replace_strict(pairs, default=None, return_dtype=pl.String)
    # A group without listed ranks may be the two ranks that exist.
    ends = pl.when(pl.col("group_ranks").is_null()).then(pl.lit(only_two, pl.String)).otherwise(ends)
    known_ends = pl.col("source_rank").is_not_null() & pl.col("destination_rank").is_not_null()
    known_ends = known_ends & (pl.col("source_rank") >= 0) & (pl.col("destination_rank") >= 0)
    first = pl.col("rank") == ends.str.json_decode(pl.List(pl.Int64)).list.first()
    sends = pl.col("collective") == "send"
    channel = (
        pl.when(p2p & known_ends)
        .then(pl.format("{}>{}", "source_rank", "destination_rank"))
        .when(p2p & ends.is_not_null())
        .then(pl.format("{} {}", ends, first == sends))
        .when(~p2p)
        .then(pl.lit(""))
    )
    unnamed = pl.col("group").is_null()
    name = pl.col("group").fill_null(UNNAMED)
    uneven = pl.col("collective").is_in(UNEVEN)
    size = pl.when(pl.col("collective") == "all_gather").then("out_elements").otherwise("in_elements")
    size = pl.when(uneven).then(pl.lit(0, pl.Int64)).when(p2p).then(pl.col("in_elements")).otherwise(size)
    # An all_to_all runs as SendRecv: without the kernel's call, only that name is known.
    kind = pl.when(p2p).then(pl.lit("p2p")).otherwise(pl.col("collective").replace("send_recv", "all_to_all"))
    full = pl.struct(kind.alias("kind"), pl.col("dtype").str.to_lowercase(), size.alias("size"))
    known = pl.col("dtype").is_not_null() & size.is_not_null()
    size_code = pl.when(known).then(_code(full))
    group = pl.struct(name.alias("name"), pl.col("members"), pl.col("group_size"), channel.alias("channel"))
    return rows.select(
        pl.col("rank").cast(pl.Int64),
        "start_ns",
        "end_ns",
        _code(pl.col("stream").fill_null(-1)).alias("stream"),
        pl.when(channel.is_not_null()).then(_code(group)).otherwise(-1).alias("communicator"),
        _code(kind).alias("kind"),
        pl.coalesce(size_code, size_code.max().fill_null(-1) + 1 + _named_alike(rows, known), -1).alias("full"),
        pl.col("step").cast(pl.Int64).fill_null(-1).alias("step"),
        pl.col("recorded").cast(pl.Int64).fill_null(-1).alias("recorded"),
        kind.is_in(ONE_SIDED).alias("one_sided"),
        uneven.alias("uneven"),
        p2p.alias("p2p"),
        unnamed.alias("unnamed"),
        (pl.col("source") == "gloo").fill_null(False).alias("on_host"),
        name.alias("label"),
    )


def _named_alike(rows: pl.DataFrame, sized: pl.Expr) -> pl.Series:
    """A number for the name of each kernel of an unnamed group without sizes; null if the name cannot be a label.

    All ranks run a collective with the same kernel. A name is a label if all ranks have it, and none has it with sizes.
    """
    ranks = pl.col("rank").n_unique()
    alike = (
        rows.lazy()
        .filter(pl.col("group").is_null() & pl.col("name").is_not_null())
        .select("rank", "group_size", "collective", "name", sized.alias("sized"))
        .with_columns(ranks.over("group_size").alias("all"))
        .group_by("group_size", "collective", "name")
        .agg(((ranks == pl.col("all").first()) & ~pl.col("sized").any()).alias("alike"))
        .filter("alike")
        .sort("group_size", "collective", "name")
        .select("group_size", "collective", "name", pl.int_range(pl.len(), dtype=pl.Int64).alias("alike"))
        .collect()
    )
    if not alike.height:
        return pl.repeat(None, rows.height, dtype=pl.Int64, eager=True)
    key = ["group_size", "collective", "name"]
    found = rows.select("group", *key).join(alike, on=key, how="left", nulls_equal=True, maintain_order="left")
    return found.select(pl.when(pl.col("group").is_null()).then("alike")).to_series()


def _members(group_ranks: pl.Series) -> tuple[pl.Series, list[str]]:
    """Each row's list of group ranks as a number, in the order of their texts, and the texts.

    The lists are texts, of 5 kB for a thousand ranks, so they are compared once per distinct text and not row by row.
    """
    seen = pl.DataFrame({"code": group_ranks.cast(pl.Categorical).to_physical()}).with_row_index()
    first = seen.drop_nulls("code").unique("code", keep="first")
    distinct = first.with_columns(group_ranks.gather(first["index"]).alias("text")).sort("text")
    numbers = dict(zip(distinct["code"], range(distinct.height), strict=True))
    members = seen["code"].replace_strict(numbers, return_dtype=pl.Int64).alias("members")
    return members, distinct["text"].to_list()


def _code(expression: pl.Expr) -> pl.Expr:
    return expression.rank("dense").cast(pl.Int64) - 1


NAMED_BY = ("group", "group_ranks")
"""The columns that `named_group_ranks` reads."""


def named_group_ranks(collectives: pl.DataFrame) -> list[tuple[str, tuple[int, ...]]]:
    """Name and ranks of each process group that collectives record, sorted by name.

    Args:
        collectives: the result of `collectives`: group, group_ranks.
    """
    groups = collectives.select("group", "group_ranks").unique().drop_nulls().sort("group")
    return [(name, ranks) for name, text in groups.iter_rows() if (ranks := parse_group_ranks(text)) is not None]


def parse_group_ranks(text: str) -> tuple[int, ...] | None:
    """The ranks of a group as recorded, ascending; None if the list is incomplete, or has something else in it."""
    listed = parsed_list(text)
    ranks = fields.items(listed, fields.rank)
    return None if listed is None or len(ranks) < len(listed) else tuple(sorted(ranks))
