"""Memory by the place in the program that allocated it: by category at the peak, and in total.

In: the tables of a rank's trace files. Out: a row per device and place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from rankscope.primitives.allocation_sites import allocation_sites
from rankscope.primitives.memory_categories import CATEGORIES, EARLIER, categorized_samples

RECORDED = tuple(name for name in CATEGORIES if name != EARLIER)
"""Categories of what was allocated while recording."""


def memory_by_place(windows: Sequence[Mapping[str, pl.DataFrame]], place: str, kept: pl.Expr | None) -> pl.DataFrame:
    """Allocations by device and place, largest at the peak first.

    Args:
        windows: memory_events, host_ops, annotations and python_frames of each file.
        place: `module` or `call_site` (see `allocation_sites`).
        kept: a filter of allocations by their ``step``; None for all.

    Returns:
        device, the place, peak_bytes, the categories `RECORDED` (bytes at the peak of the file with the highest), their
        sum peak_bytes, allocations, and allocated_bytes.
    """
    parts, peaks = [], []
    for number, window in enumerate(windows):
        if not window["memory_events"].height:
            continue
        samples = categorized_samples(window)
        peak = samples.filter("at_peak").select("memory", pl.col("held").alias("most"))
        peaks.append(peak.with_columns(pl.lit(number).alias("file")))
        allocated = samples.filter(pl.col("bytes") > 0)
        sites = allocation_sites(allocated, window["host_ops"], window["python_frames"])
        allocated = allocated.select("memory", "bytes", "category", "live", "step").with_columns(
            sites[place], pl.lit(number).alias("file")
        )
        parts.append(allocated if kept is None else allocated.filter(kept))
    schema = {"device": pl.String, place: pl.String, **dict.fromkeys(("peak_bytes", *RECORDED), pl.Int64)}
    counts = {"allocations": pl.Int64, "allocated_bytes": pl.Int64}
    if not parts:
        return pl.DataFrame(schema={**schema, **counts})
    highest = pl.concat(peaks).sort("most", "file", descending=[True, False]).unique("memory", keep="first")
    all_files = pl.concat(parts).join(
        highest.select("memory", pl.col("file").alias("peak_file")), on="memory", how="left"
    )
    size, live = pl.col("bytes"), pl.col("live") & (pl.col("file") == pl.col("peak_file"))
    return (
        all_files.group_by("memory", place)
        .agg(
            size.filter(live).sum().alias("peak_bytes"),
            *(size.filter(live & (pl.col("category") == name)).sum().alias(name) for name in RECORDED),
            pl.len().cast(pl.Int64).alias("allocations"),
            size.sum().alias("allocated_bytes"),
        )
        .rename({"memory": "device"})
        .sort("device", "peak_bytes", "allocated_bytes", place, descending=[False, True, True, False], nulls_last=True)
    )
