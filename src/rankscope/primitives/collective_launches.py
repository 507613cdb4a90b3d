"""Collectives with the operator that issued them: `c10d::…` on the host, and the kernel or Gloo's range.

In: a rank's tables. Out: a frame with a row per collective.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from rankscope.primitives.activity import Activity, gloo_ranges, with_category
from rankscope.primitives.call_stack import enclosing, launch_instants
from rankscope.primitives.collectives import collective_kind
from rankscope.primitives.intervals import Int64
from rankscope.primitives.kernels import COMMUNICATION
from rankscope.primitives.shapes import element_bytes, first_argument_type, tensor_elements

C10D = "c10d::"
# The columns that `collective_launches` reads.
READS: Mapping[str, tuple[str, ...]] = {
    "device_events": (
        "start_ns", "end_ns", "name", "kind", "is_collective", "launch_row", "launch_ns",
    ),
    "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth", "parent_row", "input_dims", "input_types"),
    "runtime_calls": ("pid", "tid"),
    "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step", "parent_row", "input_types"),
    "collectives": ("source", "row", "dtype", "in_elements", "out_elements"),
}  # fmt: skip


def collective_launches(window: Mapping[str, pl.DataFrame], extra: str | None = None) -> pl.DataFrame:
    """The collectives that operators issued, in order.

    A kernel belongs to the innermost `c10d::` operator open on the launching thread at the launch. Gloo runs a group's
    collectives in the order in which they were issued: each operator takes the first range that starts after it and
    that no earlier operator took.

    Args:
        window: tables with the columns of `READS`.
        extra: a regular expression of further kernel names that are communication.

    Returns:
        operator_row, kind, pid, tid, issued_ns and issue_end_ns (the operator), start_ns and end_ns (the collective;
        null if it is not in the file), elements (of the full array) and bytes; null if not recorded.
    """
    operators = window["host_ops"].with_row_index("operator_row").with_columns(pl.col("operator_row").cast(pl.Int64))
    calls = operators.filter(pl.col("name").str.starts_with(C10D)).sort("start_ns", maintain_order=True)
    names = calls["name"].unique().drop_nulls().to_list()
    kinds = {name: collective_kind(name.removeprefix(C10D)) for name in names}
    calls = calls.with_columns(
        pl.col("name").replace_strict(kinds, default=None, return_dtype=pl.String).alias("kind"),
        pl.col("start_ns").alias("issued_ns"),
        pl.col("end_ns").alias("issue_end_ns"),
    ).filter(pl.col("kind").is_not_null())
    executed = _kernels(window, calls, extra) if window["device_events"].height else _gloo(window, calls)
    inputs = calls.select("input_dims", "kind", "input_types")
    # An operator's outputs come first among its arguments. The full array of a reduce_scatter is its input.
    shapes = {
        (dims, kind, types): (tensor_elements(dims, int(kind == "reduce_scatter")), first_argument_type(types))
        for dims, kind, types in inputs.unique().rows()
    }
    from_inputs = pl.DataFrame(
        [shapes[key] for key in inputs.rows()], schema={"dims": pl.Int64, "types": pl.String}, orient="row"
    )
    dtypes = pl.coalesce("dtype", "types")
    return (
        pl.concat(
            [calls.select("operator_row", "kind", "pid", "tid", "issued_ns", "issue_end_ns"), executed, from_inputs],
            how="horizontal",
        )
        .with_columns(pl.coalesce("counted", "dims").alias("elements"))
        .with_columns((pl.col("elements") * _width(dtypes, from_inputs, executed)).alias("bytes"))
        .drop("dims", "types", "counted", "dtype")
    )


def exposed_times(collectives: pl.DataFrame, sets: Activity) -> pl.Series:
    """Exposed time of each collective: the part in which the rank did not compute, ns; null without times.

    Args:
        collectives: start_ns, end_ns.
        sets: the rank's activity.
    """
    known = (collectives["start_ns"].is_not_null() & collectives["end_ns"].is_not_null()).to_numpy()
    start, end = collectives["start_ns"].fill_null(0).to_numpy(), collectives["end_ns"].fill_null(0).to_numpy()
    exposed = pl.Series("exposed_ns", (end - start) - sets.compute.within(start, end), dtype=pl.Int64)
    return exposed.set(pl.Series(~known), None)


def _kernels(window: Mapping[str, pl.DataFrame], calls: pl.DataFrame, extra: str | None) -> pl.DataFrame:
    device = (
        with_category(window["device_events"], extra).with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    )
    device = device.filter((pl.col("category") == COMMUNICATION) & pl.col("launch_row").is_not_null())
    threads = launch_instants(device, window["runtime_calls"])
    call_index = enclosing(calls, threads)
    recorded = (
        window["collectives"]
        .filter(pl.col("source") == "device_events")
        .select(pl.col("row").cast(pl.Int64), "dtype", "in_elements", "out_elements")
    )
    size = pl.when(pl.col("kind_of_call") == "all_gather").then("out_elements").otherwise("in_elements")
    by_call = (
        device.with_columns(pl.Series("place", call_index, dtype=pl.Int64))
        .filter(pl.col("place") >= 0)
        .join(recorded, on="row", how="left")
        .with_columns(calls["kind"].gather(call_index[call_index >= 0]).alias("kind_of_call"))
        .group_by("place")
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.when(size.is_not_null().any()).then(size.sum()).alias("counted"),
            pl.col("dtype").drop_nulls().first(),
        )
    )
    all_calls = pl.DataFrame({"place": np.arange(calls.height, dtype=np.int64)})
    return all_calls.join(by_call, on="place", how="left", maintain_order="left").drop("place")


def _gloo(window: Mapping[str, pl.DataFrame], calls: pl.DataFrame) -> pl.DataFrame:
    ranges = gloo_ranges(window["host_ops"], window["annotations"]).sort("start_ns", maintain_order=True)
    dtypes = window["annotations"].select("start_ns", "pid", "tid", "name", "input_types")
    ranges = ranges.join(
        dtypes.unique(["start_ns", "pid", "tid", "name"], keep="first"),
        on=["start_ns", "pid", "tid", "name"],
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )
    range_index = _in_turn(calls["issued_ns"].to_numpy(), ranges["start_ns"].to_numpy())
    rows = pl.Series(range_index).set(pl.Series(range_index < 0), None)
    types = ranges["input_types"].gather(rows)
    return pl.DataFrame(
        {
            "start_ns": ranges["start_ns"].gather(rows),
            "end_ns": ranges["end_ns"].gather(rows),
            "counted": pl.Series([None] * calls.height, dtype=pl.Int64),
            "dtype": pl.Series([first_argument_type(text) for text in types], dtype=pl.String),
        }
    )


def _in_turn(issued_at: Int64, starts: Int64) -> Int64:
    """For each call the first start that is not before it and not taken by an earlier call; −1 if none is left."""
    first = np.searchsorted(starts, issued_at, side="left")
    turn = np.arange(issued_at.size)
    taken = np.maximum.accumulate(first - turn) + turn if issued_at.size else first
    return np.where(taken < starts.size, taken, -1).astype(np.int64)


def _width(dtype: pl.Expr, from_inputs: pl.DataFrame, executed: pl.DataFrame) -> pl.Expr:
    names = {*from_inputs["types"].drop_nulls().unique(), *executed["dtype"].drop_nulls().unique()}
    widths = {name: element_bytes(name) for name in names}
    known = {name: width for name, width in widths.items() if width is not None}
    return dtype.replace_strict(known, default=None, return_dtype=pl.Int64)
