"""Critical path: the chain of work and waiting that determines how long a step takes.

For each complete step (`step_time`) one row per rank for the rank's own path and, with several ranks, one row per rank
for its share of the path across all ranks. The path is followed backwards from the end of the step's window: what ran
then is on it, and before it what it waited for last, and so on until the window begins. The time columns are exclusive
and sum to `path_ns` exactly; for a rank's own path that is its window.

A device event waited for the event before it on its stream (`kernel_gap`), or for its launch if that began when the
stream was already done (`launch`), as in `idle`. If an event of another stream ended more than 5 µs after both, it
waited for the one that ended last. A launch, and any stretch of a host thread, waited for what its thread did before,
or, after a gap, for the thread that was busy last if that was more than 100 µs later. A call that waits for the device
(`cudaStreamSynchronize`, …) waited for the last device event that ended during it. Time in which nothing is recorded
between two of these is `other`: Python, or work that is not profiled.

    own path:     collective = wait (until the last rank has arrived, on aligned clocks) + communication (the rest)
    across ranks: the path changes to the rank that arrived last, at its arrival; nothing on it is waiting

Arrivals closer together than the clocks' residual are not waiting. Only recorded ranks can be waited for, so with
ranks missing `communication` includes waiting for them. Operations that are not matched count as communication.

The method is that of the last arrival: Yang and Miller, Critical path analysis for the execution of parallel and
distributed programs (1988); HolisticTraceAnalysis computes the longest path of a similar graph for one rank.

How to read it: shortening anything that is not on the path does not shorten the step, and shortening what is on it
helps only until another chain is as long. A path that is mostly `compute` is device-bound; much `launch`, `runtime`,
`host_op` and `other` means that the host cannot keep up; across ranks, a rank with more of the path than the others
delays them (`stragglers`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rankscope.primitives.clocks import base_times
from rankscope.primitives.critical_path import chains, reachable, with_waits
from rankscope.primitives.dependencies import CATEGORIES, CODE
from rankscope.primitives.intervals import Int64
from rankscope.primitives.marked_nodes import READS, last_arrivals, marked_nodes
from rankscope.primitives.steps import distinct_steps
from rankscope.results import Analysis, Column, Finding, Headline, Inputs, Tables, by_window, concat_ranks, schema_of

_DOCS = {
    "compute": "kernels computed",
    "communication": "collectives that all recorded ranks had reached, and other communication",
    "wait": "a collective waited for the last rank to arrive; 0 on the path across ranks",
    "copies": "memory copies and fills",
    "kernel_gap": "the device was idle between an event and the one that it waited for",
    "launch": "from the start of a launch to the start of its event, which waited for it",
    "runtime": "the host was in a runtime or driver call",
    "data_loading": "the host loaded data",
    "host_op": "the host was in an operator",
    "other": "the host recorded nothing",
}
_WORDS = {
    "wait": "waiting for other ranks",
    "copies": "memory copies",
    "kernel_gap": "gaps between kernels",
    "launch": "launch latency",
    "runtime": "runtime calls",
    "data_loading": "data loading",
    "host_op": "host operators",
    "other": "time in which the host recorded nothing",
}
TIMES = tuple(Column(f"{name}_ns", pl.Int64, "ns", _DOCS[name]) for name in CATEGORIES)
COLUMNS = (
    Column("path", pl.String, "", "`rank`: the rank's own path; `all ranks`: its share of the path across ranks"),
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`; null for a trace without steps"),
    Column("rank", pl.Int64, "", "the rank"),
    Column("path_ns", pl.Int64, "ns", "time on the path: the sum of the categories"),
    *TIMES,
    Column("waits_for", pl.Int64, "", "the rank that it waits for longest; null if for none"),
)
# A rank's result: its matched collectives and step ends, with the time on the path back to the previous one.
_MARKED = (
    *(
        Column(name, pl.Int64, "", "")
        for name in ("rank", "window", "step", "match", "start_ns", "end_ns", "own_ns", "previous")
    ),
    *TIMES,
)  # fmt: skip
OWN_PATH, ACROSS_RANKS = "rank", "all ranks"


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's matched collectives and ends of steps, with the path between them."""
    parts = [
        _window_path(window, inputs, window_number).with_columns(
            pl.lit(inputs.rank, pl.Int64).alias("rank"), pl.lit(window_number, pl.Int64).alias("window")
        )
        for window_number, window in enumerate(by_window(tables, inputs))
    ]
    return concat_ranks(parts, _MARKED)


def _window_path(window: Tables, inputs: Inputs, number: int) -> pl.DataFrame:
    in_file = pl.col("window") == number
    steps = inputs.results["step_time"].filter(in_file & (pl.col("window_ns") > 0)).sort("start_ns")
    collectives = inputs.results["collectives"].filter(in_file)
    path_nodes = marked_nodes(window, collectives, steps, inputs.options.communication)
    nodes, clipped, marked, match = path_nodes.nodes, path_nodes.clipped, path_nodes.marked, path_nodes.match
    path = chains(nodes, clipped, marked)
    step = steps["step"].gather(clipped.window[marked])
    return pl.DataFrame(
        {
            "step": step,
            "match": pl.select(pl.when(pl.Series(match >= 0)).then(pl.Series(match, dtype=pl.Int64))).to_series(),
            "start_ns": nodes.start[marked],
            "end_ns": nodes.end[marked],
            "own_ns": clipped.own_ns[marked],
            "previous": path.previous,
            **{column.name: path.time[:, code] for code, column in enumerate(TIMES)},
        }
    )


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Each rank's own path, and the path across ranks."""
    rows = concat_ranks(parts, _MARKED)
    if not rows.height:
        return pl.DataFrame(schema=schema_of(COLUMNS)), []
    named, (rows,) = distinct_steps([rows])
    last, arrived, end = last_arrivals(rows, inputs.results["clock"], base_times(inputs.traces))
    count = rows.height
    start = rows["end_ns"].to_numpy() - rows["own_ns"].to_numpy()
    chain = rows.select(column.name for column in TIMES).to_numpy()
    # A collective is two nodes: its time, which leads to the chain before it on this rank or on the last to arrive.
    first = rows.with_row_index("node").select(pl.col("node").min().over("rank", "window")).to_series().to_numpy()
    previous = rows["previous"].to_numpy()
    back = np.where(previous >= 0, first.astype(np.int64) + previous, -1)
    ends = np.flatnonzero(rows["match"].is_null().to_numpy())
    number = np.arange(count)
    waiting = with_waits(start, rows["end_ns"].to_numpy(), arrived)
    on_own_path = reachable(np.concatenate([count + number, back]), count + ends)
    own_paths = _sums(rows, on_own_path, waiting, chain, last).with_columns(pl.lit(OWN_PATH).alias("path"))
    frames = [own_paths]
    if rows["rank"].n_unique() > 1 and end.any():
        # Per step the rank that ended last, among those with aligned clocks.
        latest = rows.select("step", pl.Series("end", end), pl.Series("node", number))[ends].filter(pl.col("end") > 0)
        begins = latest.sort("end", "node").group_by("step").agg(pl.col("node").last())["node"].to_numpy()
        passing = waiting.copy()
        passing[:, CODE["wait"]] = 0
        on_across_path = reachable(np.concatenate([count + last, back]), count + begins)
        across_path = _sums(rows, on_across_path, passing, chain, number)
        frames.append(across_path.with_columns(pl.lit(ACROSS_RANKS).alias("path")))
    frame = pl.concat(frames).sort(pl.col("path") == OWN_PATH, "step", "rank", nulls_last=False, maintain_order=True)
    frame = frame.with_columns(pl.col("step").replace(named))
    return frame.select(pl.col(column.name).cast(column.dtype) for column in COLUMNS), []


def _sums(
    rows: pl.DataFrame, on_path: np.ndarray, node_time: np.ndarray, chain: np.ndarray, last: Int64
) -> pl.DataFrame:
    """Time of the paths by rank and step, with the rank that each waits for longest."""
    count = rows.height
    time = node_time * on_path[:count, None] + chain * on_path[count:, None]
    ranks = rows["rank"].to_numpy()
    wait = np.where(last != np.arange(count), time[:, CODE["wait"]], 0)
    keyed = rows.select("step", "rank").with_columns(
        *(pl.Series(column.name, time[:, code]) for code, column in enumerate(TIMES)),
        pl.Series("for", ranks[last]),
        pl.Series("waited", wait),
    )
    used = keyed.filter(pl.Series(on_path[:count] | on_path[count:]))
    longest = (
        used.group_by("step", "rank", "for").agg(pl.col("waited").sum())
        .filter(pl.col("waited") > 0)
        .sort("waited", "for", descending=[True, False])
        .group_by("step", "rank", maintain_order=True)
        .agg(pl.col("for").first().alias("waits_for"))
    )  # fmt: skip
    return (
        used.group_by("step", "rank")
        .agg(pl.col(column.name).sum() for column in TIMES)
        .with_columns(pl.sum_horizontal(column.name for column in TIMES).alias("path_ns"))
        .join(longest, on=["step", "rank"], how="left", nulls_equal=True)
        .select("step", "rank", "path_ns", *(column.name for column in TIMES), "waits_for")
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    across_ranks_rows = frame.filter(pl.col("path") == ACROSS_RANKS)
    rows = across_ranks_rows if across_ranks_rows.height else frame
    total = int(rows["path_ns"].sum())
    if total <= 0:
        return None
    totals = {name: int(rows[f"{name}_ns"].sum()) for name in CATEGORIES}
    most = max(totals, key=lambda name: totals[name])
    values: dict[str, tuple[int | float | str, str]] = {
        "part": (totals[most] / total, "ratio"),
        "what": (_WORDS.get(most, most), ""),
    }
    if not across_ranks_rows.height:
        return Headline.of("Largest part of the critical path: {part} {what}.", **values)
    by_rank = rows.group_by("rank").agg(pl.col("path_ns").sum()).sort("path_ns", "rank", descending=[True, False])
    rank, on_rank = by_rank.row(0)
    text = "The critical path across ranks is {part} {what}; {share} of it is on rank {rank}."
    return Headline.of(text, **values, share=(on_rank / total, "ratio"), rank=(rank, ""))


analysis = Analysis(
    name="critical_path",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    headline=headline,
    reads=READS,
    requires=("collectives", "clock", "step_time"),
)
