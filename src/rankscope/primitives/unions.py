"""How much time a group of ranges covers, group by group."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl


def covered_by(frame: pl.DataFrame, keys: Sequence[str], name: str) -> pl.DataFrame:
    """The length of the union of each group's ranges, ns: one row a group, the keys and a column `name`.

    In the order of starts a range adds what of it lies beyond the end of all ranges before it in its group.

    Args:
        frame: start_ns, end_ns and the keys.
    """
    reach = pl.col("end_ns").cum_max().shift(1).over(keys)
    added = pl.col("end_ns") - pl.max_horizontal("start_ns", reach)
    return (
        frame.sort("start_ns")
        .with_columns(added.clip(lower_bound=0).alias(name))
        .group_by(keys, maintain_order=True)
        .agg(pl.col(name).sum())
    )
