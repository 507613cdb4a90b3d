"""Summarize the recorded window of a job: means over steps, for the rank with the most exposed communication.

In: the traces of a job. Out: means per step, in ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from rankscope.engine.pipeline import Run, open_run
from rankscope.errors import RankscopeError
from rankscope.experiments.measure.results import TraceSummary
from rankscope.primitives.activity import activity
from rankscope.primitives.clocks import base_times, with_arrivals
from rankscope.primitives.intervals import IntervalSet
from rankscope.store.trace_info import TraceInfo

_PARTS = ("compute_ns", "exposed_communication_ns", "data_loading_ns", "window_ns")
NOTHING_RECORDED = "no window was recorded: the traced figures are missing"
_MANY_RANKS = 8
"""Above this, starting several processes is faster than reading in one."""
_READS = {
    "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective"),
    "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
    "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device"),
}


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
    waits, reduces = None, None
    if "collectives" in results:
        of_rank = results["collectives"].frame.filter((pl.col("rank") == worst["rank"]) & pl.col("step").is_not_null())
        if of_rank.height:
            reduces = of_rank.filter(pl.col("collective") == "all_reduce").height / worst["steps"]
            if of_rank["wait_ns"].null_count() == 0:
                waits = IntervalSet.of(of_rank["start_ns"], of_rank["start_ns"] + of_rank["wait_ns"])
            elif "clock" in results:
                waits = waiting_time(results["collectives"].frame, results["clock"].frame, run.traces, worst["rank"])
    try:
        exposed_wait = None if waits is None else _exposed(waits, steps.filter(pl.col("rank") == worst["rank"]), run)
    except (OSError, RankscopeError):
        exposed_wait = None  # the tables were removed from the cache meanwhile
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
            wait_ns=None if waits is None else round(waits.length / worst["steps"]),
            exposed_wait_ns=None if exposed_wait is None else round(exposed_wait / worst["steps"]),
            rank=worst["rank"],
            data_loading_ns=round(worst["data_loading_ns"]),
            other_ns=round(other),
            all_reduces=reduces,
        ),
        None,
    )


def _exposed(waits: IntervalSet, steps: pl.DataFrame, run: Run) -> int:
    """The part of the waiting that is in communication without compute, in a rank's steps.

    Args:
        waits: when the rank waits.
        steps: the rank's rows of `step_time`.
        run: the job's run, with one trace per rank.
    """
    (trace,) = run.loaded.ranks[steps["rank"][0]]
    tables = trace.load_all(_READS)
    sets = activity(tables["device_events"], tables["host_ops"], tables["annotations"])
    begin = steps["start_ns"].to_numpy()
    return int(((waits & sets.communication) - sets.compute).within(begin, begin + steps["window_ns"].to_numpy()).sum())


def waiting_time(
    collectives: pl.DataFrame, clock: pl.DataFrame, traces: Sequence[TraceInfo], rank: int
) -> IntervalSet | None:
    """When a rank waited in collectives for ranks that arrived later, by the clock of its trace.

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
    late = arrivals.select("rank", "start_ns", "duration_ns", pl.col("arrival_ns").max().over("match") - "arrival_ns")
    late = late.filter(pl.col("rank") == rank)
    # A rank that has what it needs continues: the root of a broadcast does not wait.
    waited = late.select(pl.min_horizontal("arrival_ns", "duration_ns")).to_series()
    return IntervalSet.of(late["start_ns"], late["start_ns"] + waited)
