"""The run in one row: step time, overlap, exposed communication, and the rank with the most local time.

Step time is the median over steps of the slowest rank's window. The parts of a step are means over all ranks and
steps, and shares are of the mean step, Σ windows / their number, because parts add up to a mean and not to a median:

    mean step      = compute + exposed communication + exposed copies + data loading + otherwise idle
    exposed share  = exposed communication / mean step

A cold step counts in the median and not in these means: one that takes more than twice the median, if no other does, or
if all that do are the first ones of their windows. `averaged_steps` is how many are left. What recurs later stays.
Overlap is of the same steps, over all ranks together: Σ overlap / Σ communication (`distributed`).

The slowest rank is the one with the most local time: its window − its exposed communication. In a synchronous job the
other ranks spend the difference waiting inside their collectives. The margin is to the median of the other ranks; below
5 % of the mean step no rank stands out. It is an indication only: a rank can be early in one collective and late in the
next. Ranks with truncated or damaged traces only count in the number of ranks; if every rank's trace is damaged, all
are included, and no rank is the slowest.

How to read it: the largest share says where to look next. Exposed communication: `collectives` and `stragglers`.
Copies: `copies`. Data loading: `data_loading`. Otherwise idle: `idle`. Compute: `kernels` and `operators`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from rankscope.primitives.steps import averaged_steps, count_steps, marked_steps
from rankscope.results import Analysis, Column, Finding, Headline, Inputs, of_judged_ranks, schema_of

COLUMNS = (
    Column("world_size", pl.Int64, "ranks", "ranks in the job according to the traces; null where no trace records it"),
    Column("ranks", pl.Int64, "count", "ranks with a trace"),
    Column(
        "steps",
        pl.Int64,
        "count",
        "distinct steps in the traces; 0 if there are none: each trace then counts as one step, from its first "
        "to its last device event (without a device, all of it)",
    ),
    Column("step_ns", pl.Int64, "ns", "step time: median over steps of the slowest rank's window"),
    Column("longest_step", pl.Int64, "", "the longest step; null without steps"),
    Column("longest_step_ns", pl.Int64, "ns", "its slowest rank's window"),
    Column("averaged_steps", pl.Int64, "count", "steps that the means are of: all, but for cold ones"),
    Column("mean_step_ns", pl.Int64, "ns", "mean window over all ranks and these steps: the sum of the parts below"),
    Column("compute_ns", pl.Int64, "ns", "compute, mean per rank and step"),
    Column(
        "exposed_communication_ns",
        pl.Int64,
        "ns",
        "exposed communication (not overlapped by compute), mean per rank and step",
    ),
    Column("exposed_share", pl.Float64, "ratio", "exposed communication as a share of the mean step"),
    Column(
        "exposed_copies_ns",
        pl.Int64,
        "ns",
        "exposed copies and fills (not overlapped by kernels), mean per rank and step",
    ),
    Column("data_loading_ns", pl.Int64, "ns", "time the device waited for data, mean per rank and step"),
    Column("otherwise_idle_ns", pl.Int64, "ns", "the rest of the mean step: the device was idle for another reason"),
    Column("communication_ns", pl.Int64, "ns", "communication, exposed or not, mean per rank and step"),
    Column(
        "overlap_ratio",
        pl.Float64,
        "ratio",
        "share of the communication in these steps that overlaps with compute; null without communication",
    ),
    Column("busy_share", pl.Float64, "ratio", "share of the mean step in which a device is busy"),
    Column("slowest_rank", pl.Int64, "", "the rank with the most local time; null with a single rank"),
    Column(
        "slowest_own_ns", pl.Int64, "ns", "its local time (window minus exposed communication), mean over its steps"
    ),
    Column("slowest_margin_ns", pl.Int64, "ns", "its local time minus the median of the other ranks'"),
    Column(
        "slowest_margin_share",
        pl.Float64,
        "ratio",
        "the margin as a share of the mean step; below 5 % no rank stands out",
    ),
)
_PARTS = {
    "compute_ns": ("compute_ns",),
    "exposed_communication_ns": ("exposed_communication_ns",),
    "exposed_copies_ns": ("exposed_memcpy_ns", "exposed_memset_ns"),
    "data_loading_ns": ("data_loading_ns",),
    "otherwise_idle_ns": ("runtime_ns", "host_op_ns", "other_ns"),
}
"""Parts of the mean step, from the mutually exclusive columns of `step_time`."""
_BUSY = ("compute_ns", "exposed_communication_ns", "exposed_copies_ns")
"""Those in which a device works."""


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """One row, from the ranks' steps and device times."""
    steps = marked_steps(_complete_ranks(inputs.results["step_time"], inputs))
    slowest = steps.group_by("step", "window").agg(pl.col("window_ns").max())
    longest = slowest.drop_nulls("step").sort("window_ns", "step", "window", descending=[True, False, False])
    recorded = count_steps(steps)
    steps = averaged_steps(steps.filter(pl.col("compute_ns").is_not_null()))
    rows = max(steps.height, 1)
    same = inputs.results["distributed"].join(steps, on=["rank", "window", "step"], how="semi", nulls_equal=True)
    overlap = int(same["overlap_ns"].sum())
    communication = int(same["exposed_communication_ns"].sum()) + overlap
    window = int(steps["window_ns"].sum())
    parts_ns = {name: sum(int(steps[column].sum()) for column in columns) for name, columns in _PARTS.items()}
    row = {
        "world_size": inputs.world_size,
        "ranks": inputs.results["device_time"].height,
        "steps": recorded,
        "step_ns": _rounded(slowest["window_ns"].median()),
        "longest_step": longest["step"].first(),
        "longest_step_ns": longest["window_ns"].first(),
        "averaged_steps": count_steps(steps),
        "mean_step_ns": round(window / rows) if steps.height else None,
        "communication_ns": round(communication / rows) if steps.height else None,
        "overlap_ratio": overlap / communication if communication else None,
        **{name: round(total / rows) if steps.height else None for name, total in parts_ns.items()},
        "exposed_share": parts_ns["exposed_communication_ns"] / window if window else None,
        "busy_share": sum(parts_ns[name] for name in _BUSY) / window if window else None,
        **_slowest(of_judged_ranks(steps, inputs.traces), window / rows),
    }
    return pl.DataFrame([row], schema=schema_of(COLUMNS)), []


def _complete_ranks(frame: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    """The rows of ranks with complete traces: the steps of a truncated one look like a rank that never waits."""
    complete = of_judged_ranks(frame, inputs.traces)
    return complete if complete.height else frame


def _slowest(steps: pl.DataFrame, mean_step: float) -> dict[str, int | float | None]:
    local_time = (
        steps.group_by("rank")
        .agg((pl.col("window_ns") - pl.col("exposed_communication_ns")).mean().alias("own"))
        .sort("own", "rank", descending=[True, False])
    )
    if local_time.height < 2:
        return dict.fromkeys(("slowest_rank", "slowest_own_ns", "slowest_margin_ns", "slowest_margin_share"))
    others = _rounded(local_time["own"][1:].median())
    longest = round(local_time["own"][0])
    margin = None if others is None else longest - others
    return {
        "slowest_rank": int(local_time["rank"][0]),
        "slowest_own_ns": longest,
        "slowest_margin_ns": margin,
        "slowest_margin_share": margin / mean_step if margin is not None and mean_step else None,
    }


def _rounded(value: object) -> int | None:
    return round(value) if isinstance(value, int | float) else None


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    row = frame.row(0, named=True)
    if row["step_ns"] is None or row["mean_step_ns"] is None:
        return None
    values: dict[str, tuple[int | float | str, str]] = {"step": (row["step_ns"], "ns")}
    text = f"{'Step time' if row['steps'] else 'Recorded span (no step is marked)'}: {{step}}{_basis(row)}"
    if row["exposed_share"] is None or not row["communication_ns"]:
        if row["busy_share"] is None:
            return Headline.of(f"{text}.", **values)
        values["busy"] = (row["busy_share"], "ratio")
        return Headline.of(f"{text}; the devices are busy {{busy}} of the time.", **values)
    if not row["exposed_communication_ns"]:
        return Headline.of(f"{text}; all communication overlaps with compute.", **values)
    values |= {"exposed": (row["exposed_communication_ns"], "ns"), "share": (row["exposed_share"], "ratio")}
    if row["mean_step_ns"] == row["step_ns"]:
        return Headline.of(f"{text}, of which {{exposed}} ({{share}}) is exposed communication.", **values)
    values["mean"] = (row["mean_step_ns"], "ns")
    text += "; exposed communication is {exposed} of the mean step of {mean} ({share})."
    return Headline.of(text, **values)


def _basis(row: Mapping[str, Any]) -> str:
    """How the step time is aggregated, where there is a choice."""
    words = ["median"] if row["steps"] > 1 else []
    words += ["slowest rank"] if row["ranks"] > 1 else []
    return f" ({', '.join(words)})" if words else ""


analysis = Analysis(
    name="overview",
    doc=__doc__,
    columns=COLUMNS,
    across_ranks=across_ranks,
    requires=("device_time", "step_time", "distributed"),
    headline=headline,
    shown_empty=True,
)
