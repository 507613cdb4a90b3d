"""All-to-all exchanges: bytes that each rank sends to each other rank, separately for dispatch and combine.

One row per group, role, rank and peer, over the chosen steps. NCCL's kernels, or else `record_param_comms` on the host,
record how many rows each rank sends to and receives from every rank of the group (`In split size`, `Out split size`):

    bytes to peer p = rows to p / all rows sent · elements sent · size of an element

Without splits every peer gets the same, 1 / n of the elements. Lists that the profiler shortened (more than 30 ranks)
are left out, and so are libraries that record no sizes (DeepEP) and calls whose group's ranks are not recorded. What a
rank keeps for itself counts, as `peer` = `rank`.

An expert-parallel layer sends tokens to their experts (dispatch) and their results back (combine), which has the same
splits the other way round. So of consecutive calls of a group with mirrored splits the first is a dispatch, the next a
combine, and so on alternately, through the backward; several calls in a row with equal splits (tokens and their
weights) have one role. Anything else has no role: even exchanges, as those of sizes, and splits without a mirrored
partner, as of embeddings. A file that begins between a dispatch and its combine may have the two roles of that layer
swapped; one that begins with a step does not.

How to read it: the column sums of a dispatch are the load of each rank's experts. `imbalance` is the receiver's load
divided by the mean of its group; every rank of the group waits for the one with the largest.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.collectives import collective_kind
from rankscope.primitives.shapes import element_bytes, parsed_list
from rankscope.results import Analysis, Column, Finding, Headline, Inputs, Tables, by_window, chosen_starts, schema_of

COLUMNS = (
    Column("group", pl.String, "", "the process group: its description, else its name"),
    Column("group_ranks", pl.String, "", "its ranks, as recorded"),
    Column("role", pl.String, "", "`dispatch` or `combine`, if the order of calls shows it; else null"),
    Column("rank", pl.Int64, "", "the sender"),
    Column("peer", pl.Int64, "", "the receiver"),
    Column("calls", pl.Int64, "count", "exchanges that the sender took part in"),
    Column("uneven_calls", pl.Int64, "count", "those of them with a split that is not even"),
    Column("sent_bytes", pl.Int64, "bytes", "sent to the peer"),
    Column("received_bytes", pl.Int64, "bytes", "received from the peer"),
    Column(
        "imbalance",
        pl.Float64,
        "ratio",
        "bytes that the peer receives, divided by the mean of the group; null if a rank of the group has no trace",
    ),
)
DISPATCH, COMBINE = "dispatch", "combine"
_MOST = 1 << 40  # beyond it a number is damaged
_PART = pl.Schema(
    {
        "group": pl.String, "group_ranks": pl.String, "role": pl.String, "rank": pl.Int64, "peer": pl.Int64,
        "calls": pl.Int64, "uneven_calls": pl.Int64, "sent_bytes": pl.Int64, "received_bytes": pl.Int64,
    }
)  # fmt: skip
_KEY = ("group", "group_ranks", "role", "rank", "peer")
_SUMMED = ("calls", "uneven_calls", "sent_bytes", "received_bytes")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """What a rank sends to and receives from each of its peers."""
    parts = [pl.DataFrame(schema=_PART)]
    for window in by_window(tables, inputs):
        calls = _calls(window, inputs)
        if calls.height:
            parts.append(_by_peer(_with_roles(calls), inputs.rank))
    return pl.concat(parts).group_by(_KEY, maintain_order=True).agg(pl.col(_SUMMED).sum())


def _calls(window: Tables, inputs: Inputs) -> pl.DataFrame:
    """The all-to-all calls of a file in the order of their start; from kernels, else from the host.

    Returns:
        start_ns, group, group_ranks, ranks, sent and received (rows by peer; null if even), and element counts.
    """
    found = window["collectives"].filter(pl.col("group_ranks").is_not_null())
    kinds = {name: collective_kind(name) for name in found["collective"].drop_nulls().unique()}
    exchanges = [name for name, kind in kinds.items() if kind == "all_to_all"]
    found = found.filter(pl.col("collective").is_in(exchanges))
    for source, starts in (("device_events", pl.coalesce("launch_ns", "start_ns")), ("host_ops", pl.col("start_ns"))):
        of_source = found.filter(pl.col("source") == source)
        if of_source.height:
            times = window[source].select(starts.alias("start_ns"))["start_ns"].gather(of_source["row"])
            calls = of_source.with_columns(start_ns=times)
            break
    else:
        return pl.DataFrame()
    calls = calls.filter(chosen_starts(calls, window["annotations"], inputs)).sort("start_ns", maintain_order=True)
    lists = {
        name: pl.Series(name, [_whole_numbers(text) for text in calls[column].to_list()], dtype=pl.List(pl.Int64))
        for name, column in (("ranks", "group_ranks"), ("sent", "in_split"), ("received", "out_split"))
    }
    size = {name: element_bytes(name) for name in calls["dtype"].drop_nulls().unique()}
    named = pl.coalesce(pl.col("group_description").replace("undefined", None), "group_name", pl.lit(""))
    calls = calls.with_columns(
        *lists.values(), group=named, width=pl.col("dtype").replace_strict(size, default=None, return_dtype=pl.Int64)
    ).filter(pl.col("ranks").list.len() > 1, pl.col("width").is_not_null())
    n = pl.col("ranks").list.len()
    # An empty list means even; one of another length was shortened by the profiler.
    even = (pl.col("sent").list.len() == 0) & (pl.col("received").list.len() == 0)
    known = (pl.col("sent").list.len() == 0) | (pl.col("sent").list.len() == n)
    known &= (pl.col("received").list.len() == 0) | (pl.col("received").list.len() == n)
    return calls.filter(known).with_columns(even=even)


def _whole_numbers(text: str | None) -> list[int] | None:
    """A list of whole numbers as recorded; None if it is not one, or was shortened."""
    numbers = parsed_list(text)
    if numbers is None or not all(type(number) is int and 0 <= number < _MOST for number in numbers):
        return None
    return numbers


def _with_roles(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls with their role: of consecutive ones of a group with mirrored splits, dispatch and combine in turn."""
    by = ["group", "group_ranks"]
    text = [pl.col(name).cast(pl.List(pl.String)).list.join(",").alias(f"{name}_text") for name in ("sent", "received")]
    calls = calls.with_columns(text)
    sent, received = pl.col("sent_text"), pl.col("received_text")
    # Equal splits in a row are one exchange of several tensors.
    differs = (sent != sent.shift(1)) | (received != received.shift(1))
    calls = calls.with_columns(differs.fill_null(True).cum_sum().over(by).alias("run"))
    runs = calls.group_by(*by, "run", maintain_order=True).agg(sent.first(), received.first(), pl.col("even").all())
    mirrored = (
        (sent == received.shift(1)) & (received == sent.shift(1)) & (sent != received) & ~pl.col("even")
    ).fill_null(False)
    runs = runs.with_columns((~mirrored).cum_sum().over(by).alias("chain"))
    position = pl.int_range(pl.len()).over(*by, "chain")
    several = pl.len().over(*by, "chain") > 1
    role = pl.when(several).then(pl.when(position % 2 == 0).then(pl.lit(DISPATCH)).otherwise(pl.lit(COMBINE)))
    return calls.join(runs.select(*by, "run", role=role), on=[*by, "run"], how="left", maintain_order="left")


def _by_peer(calls: pl.DataFrame, rank: int) -> pl.DataFrame:
    """Bytes to and from each peer, summed over the calls of a role."""
    n = pl.col("ranks").list.len()
    long = calls.with_row_index("call").with_columns(
        # Rows of one element each, if the split is even.
        *(
            pl.when(pl.col(name).list.len() == 0)
            .then(pl.lit(1, pl.Int64).repeat_by(n))
            .otherwise(pl.col(name))
            .alias(name)
            for name in ("sent", "received")
        )
    )
    elements = {"sent": "in_elements", "received": "out_elements"}
    rows = long.select(
        "call", "group", "group_ranks", "role", "even", "width", *elements.values(),
        pl.col("ranks").alias("peer"), "sent", "received",
    ).explode("peer", "sent", "received")  # fmt: skip
    amounts = [
        (pl.col(name) / pl.col(name).sum().over("call").clip(1) * pl.col(count).fill_null(0) * pl.col("width")).alias(
            f"{name}_bytes"
        )
        for name, count in elements.items()
    ]
    return (
        rows.with_columns(amounts)
        .group_by("group", "group_ranks", "role", "peer", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            (~pl.col("even")).sum().cast(pl.Int64).alias("uneven_calls"),
            *(pl.col(f"{name}_bytes").sum().round().cast(pl.Int64, strict=False) for name in elements),
        )
        .with_columns(rank=pl.lit(rank, pl.Int64))
        .select(_PART.names())
    )


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """All pairs, with the load of each receiver."""
    del inputs
    frame = pl.concat([pl.DataFrame(schema=_PART), *parts])
    by = ["group", "group_ranks", "role"]
    members = pl.col("group_ranks").str.count_matches(r"\d+")
    complete = pl.col("rank").n_unique().over(by) == members
    load = pl.col("sent_bytes").sum().over(*by, "peer")
    mean = pl.col("sent_bytes").sum().over(by) / members
    with_load = frame.with_columns(imbalance=pl.when(complete & (mean > 0)).then(load / mean))
    return with_load.sort(*by, "rank", "peer", nulls_last=True).select(schema_of(COLUMNS).keys()), []


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    if frame.is_empty():
        return None
    uneven = frame.filter((pl.col("uneven_calls") > 0) & (pl.col("role").fill_null("") != COMBINE))
    known = uneven.drop_nulls("imbalance").sort("imbalance", "peer", descending=[True, False])
    if known.is_empty():
        text = "The ranks exchange {bytes} in all-to-alls"
        even = " with even splits" if not frame["uneven_calls"].sum() else ""
        return Headline.of(f"{text}{even}.", bytes=(int(frame["sent_bytes"].sum()), "bytes"))
    worst = known.row(0, named=True)
    what = "tokens" if worst["role"] == DISPATCH else "data"
    return Headline.of(
        f"Rank {{rank}} receives {{times}} times the mean of its group ({what} of all-to-alls).",
        rank=(worst["peer"], ""),
        times=(round(worst["imbalance"], 2), ""),
    )


analysis = Analysis(
    name="all_to_all",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={
        "collectives": (
            "source", "row", "collective", "dtype", "in_elements", "out_elements", "in_split", "out_split",
            "group_name", "group_description", "group_ranks",
        ),
        "device_events": ("start_ns", "launch_ns"),
        "host_ops": ("start_ns",),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    },
    headline=headline,
)  # fmt: skip
