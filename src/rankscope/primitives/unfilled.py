"""Time of kernels on multiprocessors without a block.

In: device events. Out: for each the time that part of its device had nothing to do while it ran.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.intervals import covered_once


def unfilled_time(device: pl.DataFrame) -> pl.Series:
    """The time on SMs without a block, less what another event overlaps: it may use them.

    Args:
        device: start_ns, end_ns, device, blocks_per_sm.

    Returns:
        ns, of each event; null where blocks are not recorded.
    """
    start, end = (device[name].to_numpy() for name in ("start_ns", "end_ns"))
    number = device["device"].fill_null(-1).to_numpy()
    alone = np.zeros(device.height)
    for each in np.unique(number):
        rows = np.flatnonzero(number == each)
        alone[rows] = covered_once(start[rows], end[rows]).within(start[rows], end[rows])
    blocks = device["blocks_per_sm"].cast(pl.Float64)
    # Without a grid the field is 0 in some files: no kernel has none.
    empty = pl.when(blocks > 0).then((1 - blocks).clip(lower_bound=0))
    return pl.select((pl.Series(alone) * empty).alias("unfilled")).to_series()
