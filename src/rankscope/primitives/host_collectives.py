"""Calls of collectives on the host, and which kernels they launched.

A call appears as up to three nested ranges: c10d's operator (`c10d::allreduce_`, with its tensors),
`record_param_comms` (with the metadata, since torch 2.1) and the backend's range (`nccl:all_reduce`, `xccl:…`, with the
shape of its input). A kernel belongs to the call that is open on the launching thread. That also holds for XCCL, whose
`record_param_comms` has ended by then but whose operator has not (torch-xpu-ops #5486). Coalesced calls launch one
kernel when the last has ended: it belongs to all calls without a kernel since the last launch. A kernel of a device
graph belongs to no call: the host's calls at that time were captured, or will be replayed.

In: a rank's tables. Out: a frame of calls, and the call of each kernel.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.collectives import collective_kind
from rankscope.primitives.columns import constant
from rankscope.primitives.intervals import Int64
from rankscope.primitives.shapes import first_type, parsed_list, total_elements
from rankscope.rundir.fields import rank

RECORD = "record_param_comms"
RANGE = r"^(nccl|rccl|xccl|oneccl|hccl|ucc|mpi|msccl|torch_ucc):"
OPERATOR = "c10d::"
# Recorded like a collective, but without a transfer.
_NOT_COLLECTIVES = ("wait", "init", "_coalesced_manager", "startCoalescing", "endCoalescing")
# c10d's operators that take the output first and the input second; others work in place.
_OUT_THEN_IN = r"^c10d::(_?allgather|_?reduce_scatter|_?alltoall|gather|scatter)"

_POINT_TO_POINT = ["c10d::send", "c10d::recv_"]

GROUP = ("group_name", "group_description", "group_ranks", "group_size")
RECORDED = (
    "collective", "dtype", "in_elements", "out_elements", *GROUP, "sequence", "source_rank", "destination_rank",
)  # fmt: skip
_AGREED = ("dtype", *GROUP, "source_rank", "destination_rank")
_OPERATOR_COLUMNS = ("start_ns", "end_ns", "pid", "tid", "name", "external_id", "input_dims", "input_types")


def host_collectives(operators: pl.DataFrame, annotations: pl.DataFrame, metadata: pl.DataFrame) -> pl.DataFrame:
    """The calls of a rank, in the order of threads and starts.

    Args:
        operators: host_ops, all rows in their order: start_ns, end_ns, pid, tid, name, external_id, input_dims,
            input_types, concrete_inputs.
        annotations: start_ns, end_ns, pid, tid, name, external_id, on_device, input_dims, input_types.
        metadata: collectives: source, row and the columns of `RECORDED`.

    Returns:
        call, pid, tid, start_ns, end_ns, the columns of `RECORDED`, ``source`` (`record`, or `range` if only names and
        shapes of ranges are known), ``calls`` (the number of recorded calls in it), ``peer`` (rank in the group that a
        send or recv names), ``records`` and ``ranges`` (External ids), ``backend`` (whether there is more than c10d's
        operator, unlike for Gloo's calls, which run on another thread).
    """
    name = pl.col("name")
    known = metadata.filter((pl.col("source") == "host_ops") & pl.col("collective").is_not_null())
    known = known.filter(~pl.col("collective").is_in(_NOT_COLLECTIVES)).select(pl.col("row").cast(pl.UInt32), *RECORDED)
    calls_and_ranges = operators.with_row_index("row").filter(
        name.str.starts_with(OPERATOR) | name.str.contains(RANGE) | (name == RECORD)
    )
    ranges = annotations.filter(~pl.col("on_device") & name.str.contains(RANGE)).select(_OPERATOR_COLUMNS)
    rows = pl.concat([calls_and_ranges.join(known, on="row", how="left"), ranges], how="diagonal")
    of_c10d = pl.when(name.str.starts_with(OPERATOR)).then(pl.lit("operator"))
    level = pl.when(name == RECORD).then(pl.lit("record")).otherwise(of_c10d.otherwise(pl.lit("range")))
    rows = _outermost(rows.with_columns(level.alias("level")), "call")
    calls = rows.group_by("call", maintain_order=True).agg(
        pl.col("pid").first(), pl.col("tid").first(), pl.col("start_ns").min(), pl.col("end_ns").max(),
        pl.col("external_id").filter((pl.col("level") == "record") & pl.col("collective").is_not_null())
        .alias("records"),
        pl.col("external_id").filter(pl.col("level") != "record").alias("ranges"),
        (pl.col("level") != "operator").any().alias("backend"),
    )  # fmt: skip
    merged = combine_records(_outermost(rows.filter(pl.col("collective").is_not_null()), "inner", first=True), "call")
    joined = calls.join(merged, on="call", how="left")
    if not joined["collective"].null_count() and not joined["dtype"].null_count():
        # Names and shapes would add nothing but the other end of a send or receive.
        joined = joined.with_columns(constant("source", "record", pl.String, joined.height))
        if rows["name"].is_in(_POINT_TO_POINT).any():
            return joined.join(_peers(_operators(rows)), on="call", how="left")
        return joined.with_columns(constant("peer", None, pl.Int64, joined.height))
    joined = joined.join(_from_names(rows), on="call", how="left", suffix="_shown")
    has = pl.col("collective").is_not_null()
    return joined.with_columns(
        *(pl.coalesce(column, f"{column}_shown").alias(column) for column in ("collective", "dtype")),
        *(
            pl.when(has).then(column).otherwise(f"{column}_shown").alias(column)
            for column in ("in_elements", "out_elements")
        ),
        pl.when(has).then(pl.lit("record")).otherwise(pl.lit("range")).alias("source"),
        pl.col("calls").fill_null(1),
    ).filter(pl.col("collective").is_not_null())


def combine_records(records: pl.DataFrame, by: str) -> pl.DataFrame:
    """Merge recorded calls that are one operation: the values they share, and the sum of their sizes.

    Sends together with receives are `send_recv`; other combinations of kinds are `coalesced`.
    """
    if not records[by].is_duplicated().any():
        one = records.select(by, "collective", *_AGREED, "in_elements", "out_elements", "sequence")
        return one.with_columns(constant("calls", 1, pl.Int64, one.height))
    kinds = {label: collective_kind(label) or label for label in records["collective"].unique().drop_nulls()}
    kind = pl.col("collective").replace_strict(kinds, default=None, return_dtype=pl.String)
    p2p = kind.is_in(["send", "recv"]).all()
    label = (
        pl.when(kind.n_unique() == 1)
        .then(pl.col("collective").first())
        .when(p2p)
        .then(pl.lit("send_recv"))
        .otherwise(pl.lit("coalesced"))
    )
    agreed = [pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()).alias(name) for name in _AGREED]
    return records.group_by(by, maintain_order=True).agg(
        label.alias("collective"),
        *agreed,
        *(
            pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).sum()).alias(name)
            for name in ("in_elements", "out_elements")
        ),
        pl.col("sequence").min(),
        pl.len().cast(pl.Int64).alias("calls"),
    )


def _outermost(rows: pl.DataFrame, name: str, *, first: bool = False) -> pl.DataFrame:
    """Number ranges by their outermost enclosing range; `first` keeps only the outermost ones."""
    ordered = rows.sort("pid", "tid", "start_ns", -pl.col("end_ns"), maintain_order=True)
    reach = pl.col("end_ns").cum_max().shift(1).over("pid", "tid")
    begins = (pl.col("start_ns") >= reach).fill_null(True)
    if first:
        return ordered.filter(begins)
    return ordered.with_columns((begins.cast(pl.Int64).cum_sum() - 1).alias(name))


def _from_names(rows: pl.DataFrame) -> pl.DataFrame:
    """Facts about calls from names and shapes of ranges: call, collective, dtype, in_elements, out_elements, peer."""
    sizes = {text: total_elements(text) for text in rows["input_dims"].unique().drop_nulls()}
    types = {text: first_type(text) for text in rows["input_types"].unique().drop_nulls()}
    operators = _operators(rows)
    # An operator's arguments are lists of shapes: of the output and the input, or of the array it changes in place.
    outputs = {text: total_elements(text, argument=0) for text in operators["input_dims"].unique().drop_nulls()}
    inputs = {text: total_elements(text, argument=1) for text in operators["input_dims"].unique().drop_nulls()}
    dims, types_of = pl.col("input_dims"), pl.col("input_types")
    type_name = types_of.replace_strict(types, default=None, return_dtype=pl.String)
    two = pl.col("name").str.contains(_OUT_THEN_IN)
    output = dims.replace_strict(outputs, default=None, return_dtype=pl.Int64)
    into = dims.replace_strict(inputs, default=None, return_dtype=pl.Int64)
    of_operator = operators.select(
        "call",
        pl.col("name").alias("operator"),
        type_name.alias("operator_dtype"),
        pl.when(two).then(into).otherwise(output).alias("operator_in"),
        output.alias("operator_out"),
    ).join(_peers(operators), on="call", how="left")
    of_range = (
        rows.filter(pl.col("level") == "range")
        .unique("call", keep="first", maintain_order=True)
        .select(
            "call",
            pl.col("name").alias("range"),
            type_name.alias("dtype"),
            dims.replace_strict(sizes, default=None, return_dtype=pl.Int64).alias("in_elements"),
        )
    )
    both = of_range.join(of_operator, on="call", how="full", coalesce=True)
    return both.select(
        "call",
        pl.coalesce("range", "operator").alias("collective"),
        pl.coalesce("dtype", "operator_dtype").alias("dtype"),
        pl.coalesce("in_elements", "operator_in").alias("in_elements"),
        pl.col("operator_out").alias("out_elements"),
        "peer",
    )


def _operators(rows: pl.DataFrame) -> pl.DataFrame:
    """The first c10d operator of each call."""
    return rows.filter(pl.col("level") == "operator").unique("call", keep="first", maintain_order=True)


def _peers(operators: pl.DataFrame) -> pl.DataFrame:
    """The other end of sends and receives: call, peer."""
    found = operators.filter(pl.col("name").is_in(_POINT_TO_POINT))
    peers = {text: _peer(text) for text in found["concrete_inputs"].unique().drop_nulls()}
    peer = pl.col("concrete_inputs").replace_strict(peers, default=None, return_dtype=pl.Int64)
    return found.select("call", peer.alias("peer"))


def _peer(concrete: str) -> int | None:
    """The other rank that `c10d::send(tensors, group, rank, tag)` names, as a rank in the group."""
    values = parsed_list(concrete)
    try:
        return rank(int(values[2])) if values is not None and len(values) == 4 else None
    except (ValueError, TypeError, OverflowError):
        return None


def open_calls(calls: pl.DataFrame, pid: pl.Series, tid: pl.Series, at: pl.Series) -> Int64:
    """For each instant of a thread the row of the open call; −1 if there is none or a value is null."""
    rows = last_calls(calls, pid, tid, at)
    end = calls["end_ns"].to_numpy()
    inside = rows >= 0
    if inside.any():
        inside[inside] = at.to_numpy()[inside] < end[rows[inside]]
    return np.where(inside, rows, -1).astype(np.int64)


def last_calls(calls: pl.DataFrame, pid: pl.Series, tid: pl.Series, at: pl.Series) -> Int64:
    """For each instant of a thread the row of the last call that had begun; −1 if there is none or a value is null."""
    ends = calls.select("pid", "tid", pl.col("start_ns").alias("at"), pl.int_range(pl.len()).alias("row"))
    instants = pl.DataFrame([pid.alias("pid"), tid.alias("tid"), at.alias("at")]).with_columns(
        pl.int_range(pl.len()).alias("asked")
    )
    together = pl.concat([ends, instants], how="diagonal_relaxed").sort(
        "pid", "tid", "at", "asked", nulls_last=False, maintain_order=True
    )
    found = together.with_columns(pl.col("row").forward_fill().over("pid", "tid")).filter(pl.col("asked").is_not_null())
    known = pl.col("at").is_not_null() & pl.col("pid").is_not_null() & pl.col("tid").is_not_null()
    row = found.sort("asked").select(pl.when(known).then("row").fill_null(-1).cast(pl.Int64)).to_series()
    return np.array(row.to_numpy(), dtype=np.int64)


def group_label() -> pl.Expr:
    """The name of a process group with its description."""
    description = pl.col("group_description")
    plain = pl.col("group_name")
    return (
        pl.when(description.is_not_null() & (description != "") & (description != "undefined"))
        .then(pl.format("{} {}", plain, description))
        .otherwise(plain)
    )


def without_kernels(calls: pl.DataFrame) -> pl.DataFrame:
    """Rows for calls without a recorded kernel: only the time of the call is known."""
    return calls.with_row_index("row").with_columns(
        pl.col("start_ns").alias("launch_ns"),
        pl.lit(None, pl.Int64).alias("stream"),
        pl.col("collective").alias("label"),
        pl.col("collective").alias("name"),
        pl.lit("launch").alias("source"),
        pl.lit(0, pl.Int64).alias("kernels"),
        pl.lit(False).alias("on_device"),
        group_label().alias("group"),
    )
