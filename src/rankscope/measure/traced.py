"""What the recorded window of a job says of its step: means over steps, of the rank that has the most exposed."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from rankscope.errors import RankscopeError
from rankscope.measure.results import Traced
from rankscope.pipeline import open_run

_PARTS = ("compute_ns", "exposed_communication_ns", "data_loading_ns", "window_ns")
NOTHING_RECORDED = "no window was recorded: the traced figures are missing"
_MANY_RANKS = 8
"""From here on, reading in one process would take longer than starting several."""


def read_traced(folder: Path, beside: Path) -> tuple[Traced | None, str | None]:
    """Read the traces of a job.

    Args:
        folder: its run directory.
        beside: the directory that the result is written into.

    Returns:
        What they say, or None; and why None.
    """
    try:
        ranks = len(list(folder.glob("*.trace.json*")))
        run = open_run(folder, executor="processes" if ranks > _MANY_RANKS else "serial")
        results = run.attempt("step_time", "device_time", "collectives")
        steps = results["step_time"].frame.filter(pl.col("step").is_not_null())
        device = results["device_time"].frame
    except RankscopeError as error:
        return None, f"the recorded window cannot be read: {error}"
    except KeyError:
        return None, NOTHING_RECORDED
    if steps.is_empty():
        return None, "the recorded window holds no step"
    means = steps.group_by("rank").agg(*(pl.col(name).mean() for name in _PARTS), pl.len().alias("steps"))
    worst = means.sort(pl.col("exposed_communication_ns") / pl.col("window_ns"), "rank", descending=True).row(
        0, named=True
    )
    whole = device.filter(pl.col("rank") == worst["rank"]).row(0, named=True)
    wait, reduces = None, None
    if "collectives" in results:
        mine = results["collectives"].frame.filter((pl.col("rank") == worst["rank"]) & pl.col("step").is_not_null())
        if mine.height:
            reduces = mine.filter(pl.col("collective") == "all_reduce").height / worst["steps"]
            if mine["wait_ns"].null_count() == 0:
                wait = round(mine["wait_ns"].sum() / worst["steps"])
    window = worst["window_ns"]
    exposed = worst["exposed_communication_ns"]
    other = window - worst["compute_ns"] - exposed - worst["data_loading_ns"]
    try:
        where = str(folder.resolve().relative_to(beside.resolve()))
    except ValueError:
        where = str(folder)
    return (
        Traced(
            run=where,
            steps=worst["steps"],
            window_ns=round(window),
            compute_ns=round(worst["compute_ns"]),
            communication_ns=round(whole["communication_ns"] / worst["steps"]),
            exposed_communication_ns=round(exposed),
            overlap_ratio=whole["overlap_ratio"],
            exposed_share=exposed / window if window else 0.0,
            wait_ns=wait,
            data_loading_ns=round(worst["data_loading_ns"]),
            other_ns=round(other),
            all_reduces=reduces,
        ),
        None,
    )
