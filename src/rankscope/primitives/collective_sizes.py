"""Kind and size of collectives, from the recorded labels, elements and ranks of kernels or calls.

In: rows with a label and the recorded numbers of elements. Out: the rows with kind, elements in and out, and bytes.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.collectives import collective_kind
from rankscope.primitives.shapes import element_bytes

_GATHERS = pl.col("collective") == "all_gather"
_SIZE = pl.col("group_size")
# Elements out, if they follow from elements in and the group's size.
_OUT = (
    pl.when(_GATHERS).then(pl.col("in_elements") * _SIZE)
    .when((pl.col("collective") == "reduce_scatter") & (_SIZE > 0)).then(pl.col("in_elements") // _SIZE)
)  # fmt: skip


def with_sizes(rows: pl.DataFrame, rank: int) -> pl.DataFrame:
    """Kind, full size and peers of a rank's collectives.

    Args:
        rows: label, dtype, in_elements, out_elements, group_size, source_rank, destination_rank.
        rank: the rank.

    Returns:
        the rows with collective, bytes (of the full operation) and peers; out_elements and ranks filled if they follow
        from the rest.
    """
    kinds = {name: collective_kind(name) for name in rows["label"].unique().drop_nulls()}
    kind = pl.col("label").replace_strict(kinds, default=None, return_dtype=pl.String)
    elements = pl.when(_GATHERS).then("out_elements").otherwise("in_elements")
    derived = _OUT.when(~pl.col("collective").is_in(["reduce_scatter", "unknown"])).then("in_elements")
    known = (pl.col("source_rank") >= 0) & (pl.col("destination_rank") >= 0)
    return (
        rows.with_columns(kind.fill_null("unknown").alias("collective"))
        .with_columns(
            # torch writes only the other end of a send or receive (`Dst Rank`, `Src Rank`).
            pl.when((pl.col("collective") == end) & (pl.col(name).fill_null(-1) < 0))
            .then(pl.lit(rank, pl.Int64))
            .otherwise(name)
            .alias(name)
            for name, end in (("source_rank", "send"), ("destination_rank", "recv"))
        )
        .with_columns(pl.coalesce("out_elements", derived).alias("out_elements"))
        .with_columns(
            (elements * _width(rows)).alias("bytes"),
            pl.when(pl.col("collective").is_in(["send", "recv"]) & known)
            .then(pl.format("{} → {}", "source_rank", "destination_rank"))
            .alias("peers"),
        )
    )


def fill_gathered_sizes(rows: pl.DataFrame) -> pl.DataFrame:
    """Fill in sizes of all_gather and reduce_scatter that follow from a group size found later.

    Args:
        rows: collective, group_size, dtype, in_elements, out_elements, bytes.
    """
    if not rows.select((pl.col("out_elements").is_null() & _OUT.is_not_null()).any()).item():
        return rows
    gathered = pl.when(_GATHERS).then(pl.col("out_elements") * _width(rows))
    return rows.with_columns(pl.coalesce("out_elements", _OUT).alias("out_elements")).with_columns(
        pl.coalesce("bytes", gathered).alias("bytes")
    )


def _width(rows: pl.DataFrame) -> pl.Expr:
    """Bytes per element."""
    widths = {dtype: element_bytes(dtype) for dtype in rows["dtype"].unique().drop_nulls()}
    return pl.col("dtype").replace_strict(widths, default=None, return_dtype=pl.Int64)
