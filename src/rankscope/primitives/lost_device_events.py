"""Launches whose device events are not in the trace: profilers drop kernels without a word.

Of 64 public traces of CUDA and ROCm with device events, each call that launches a kernel or a graph has one. A launch
while a stream is captured has none: its kernel becomes a node of a graph.

In: the calls of a trace, and which of them launched its device events. Out: how many launches there are, and how many
lack their event.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.intervals import Int64

Int32 = npt.NDArray[np.int32]

_LAUNCHES = r"LaunchKernel|LaunchCooperative|GraphLaunch|EnqueueKernelLaunch"
_CAPTURES = "BeginCapture"
_CAPTURED = "EndCapture"


def launches_without_events(calls: pl.DataFrame, launched: Int32) -> tuple[int, int]:
    """The number of calls that launch kernels or graphs, and of those among them without a device event.

    Args:
        calls: name, correlation, start_ns: calls into the device's runtime and driver.
        launched: rows of the calls that launched the recorded device events.
    """
    names = calls["name"].unique().drop_nulls()
    chosen = names.filter(names.str.contains(_LAUNCHES))
    correlation, known = values_and_validity(calls["correlation"])
    is_launch = calls["name"].is_in(chosen.implode()).fill_null(False).to_numpy() & known & (correlation != 0)
    rows = np.flatnonzero(is_launch)
    if not rows.size:
        return 0, 0
    without = rows[~np.isin(correlation[rows], correlation[launched])]
    return rows.size, int((~_captured(calls, names, without)).sum())


def _captured(calls: pl.DataFrame, names: pl.Series, rows: Int64) -> np.ndarray:
    """Whether a stream was captured when these calls were made."""
    start = calls["start_ns"].to_numpy()
    begins, ends = (
        np.sort(
            start[calls["name"].is_in(names.filter(names.str.contains(word)).implode()).fill_null(False).to_numpy()]
        )
        for word in (_CAPTURES, _CAPTURED)
    )
    begun, ended = (np.searchsorted(each, start[rows], side="right") for each in (begins, ends))
    # Of a capture that began before the recording, only the end is known.
    earlier = max(ends.size - begins.size, 0)
    inside: np.ndarray = begun + earlier > ended
    return inside
