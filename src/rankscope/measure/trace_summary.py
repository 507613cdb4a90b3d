"""Summarize the recorded window of a job: means over steps, for the rank with the most exposed communication.

In: the traces of a job. Out: means per step, in ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from rankscope.errors import RankscopeError
from rankscope.measure.results import TraceSummary
from rankscope.pipeline import open_run
from rankscope.primitives.clocks import base_times, with_arrivals
from rankscope.primitives.intervals import union_length_by
from rankscope.store.trace_info import TraceInfo

_PARTS = ("compute_ns", "exposed_communication_ns", "data_loading_ns", "window_ns")
NOTHING_RECORDED = "no window was recorded: the traced figures are missing"
_MANY_RANKS = 8
"""Above this, starting several processes is faster than reading in one."""


def summarize_trace(folder: Path, result_folder: Path) -> tuple[TraceSummary | None, str | None]:
    """Read the traces of a job.

    Args:
        folder: its run directory.
        result_folder: the directory of the result file.

    Returns:
        The summary, or None; and why it is None.
    """
    try:
        ranks = len(list(folder.glob("*.trace.json*")))
        run = open_run(folder, executor="processes" if ranks > _MANY_RANKS else "serial")
        results = run.attempt("step_time", "distributed", "collectives", "clock")
        steps = results["step_time"].frame.filter(pl.col("step").is_not_null())
        exchanged = results["distributed"].frame.filter(pl.col("step").is_not_null())
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
    of_worst = exchanged.filter(pl.col("rank") == worst["rank"])
    hidden = int(of_worst["overlap_ns"].sum())
    communication = int(of_worst["exposed_communication_ns"].sum()) + hidden
    wait, reduces = None, None
    if "collectives" in results:
        of_rank = results["collectives"].frame.filter((pl.col("rank") == worst["rank"]) & pl.col("step").is_not_null())
        if of_rank.height:
            reduces = of_rank.filter(pl.col("collective") == "all_reduce").height / worst["steps"]
            if of_rank["wait_ns"].null_count() == 0:
                wait = of_rank["wait_ns"].sum()
            elif "clock" in results:
                wait = waiting_time(results["collectives"].frame, results["clock"].frame, run.traces, worst["rank"])
    window = worst["window_ns"]
    exposed = worst["exposed_communication_ns"]
    other = window - worst["compute_ns"] - exposed - worst["data_loading_ns"]
    try:
        run_path = str(folder.resolve().relative_to(result_folder.resolve()))
    except ValueError:
        run_path = str(folder)
    return (
        TraceSummary(
            run=run_path,
            steps=worst["steps"],
            window_ns=round(window),
            compute_ns=round(worst["compute_ns"]),
            communication_ns=round(communication / worst["steps"]),
            exposed_communication_ns=round(exposed),
            overlap_ratio=hidden / communication if communication else None,
            exposed_share=exposed / window if window else 0.0,
            wait_ns=None if wait is None else round(wait / worst["steps"]),
            data_loading_ns=round(worst["data_loading_ns"]),
            other_ns=round(other),
            all_reduces=reduces,
        ),
        None,
    )


def waiting_time(collectives: pl.DataFrame, clock: pl.DataFrame, traces: Sequence[TraceInfo], rank: int) -> int | None:
    """How long a rank waited in collectives for ranks that arrived later, ns: the union over its collectives.

    Gloo's ranges overlap, so the duration of a collective does not separate waiting from transfer; the arrival times
    on aligned clocks do. It is as exact as the alignment: `clock` gives the residual.

    Args:
        collectives: the result of `collectives`.
        clock: the result of `clock`.
        traces: the run's files.
        rank: the rank that waits.

    Returns:
        None if a rank of a collective was not recorded, or if the clocks cannot be aligned.
    """
    rows = collectives.filter(pl.col("step").is_not_null() & pl.col("peers").is_null())
    of_rank = rows.filter(pl.col("rank") == rank)
    ranks = collectives["rank"].n_unique()
    if not of_rank.height or of_rank.filter(pl.col("matched_ranks") < pl.col("group_size").fill_null(ranks)).height:
        return None
    rows = rows.filter(pl.col("match").is_in(of_rank["match"].implode()))
    arrivals = with_arrivals(rows, clock, base_times(traces))
    if arrivals.height < rows.height:
        return None
    spans = arrivals.with_columns(pl.col("arrival_ns").max().over("match").alias("last_ns")).select(
        "rank",
        pl.col("arrival_ns").alias("start_ns"),
        # A rank that has what it needs continues: the root of a broadcast does not wait.
        pl.min_horizontal("last_ns", pl.col("arrival_ns") + pl.col("duration_ns")).alias("end_ns"),
    )
    return int(union_length_by(spans.filter(pl.col("rank") == rank), ["rank"], "waited_ns")["waited_ns"].sum())
