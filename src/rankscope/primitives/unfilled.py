"""Time of kernels on multiprocessors without a block.

In: device events. Out: for each the time in which part of its device was idle while it ran.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.intervals import covered_once


def unfilled_time(device: pl.DataFrame) -> pl.Series:
    """The time on SMs without a block, without the time in which another event may use them.

    Args:
        device: start_ns, end_ns, device, blocks_per_sm.

    Returns:
        ns, for each event; null if blocks are not recorded.
    """
    start, end = (device[name].to_numpy() for name in ("start_ns", "end_ns"))
    number = device["device"].fill_null(-1).to_numpy()
    alone = np.zeros(device.height)
    for device_number in np.unique(number):
        rows = np.flatnonzero(number == device_number)
        alone[rows] = covered_once(start[rows], end[rows]).within(start[rows], end[rows])
    blocks = device["blocks_per_sm"].cast(pl.Float64)
    # Some files write 0 for kernels without a grid; every kernel has a block.
    empty = pl.when(blocks > 0).then((1 - blocks).clip(lower_bound=0))
    return pl.select((pl.Series(alone) * empty).alias("unfilled")).to_series()
