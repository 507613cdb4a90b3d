"""The collectives of one window of a rank: its communication kernels, Gloo's ranges, and calls without either.

Kind, group and size of a kernel come from its metadata; else from the call that launched it
(`rankscope.primitives.host_collectives`), by its External id or because it is open on the launching thread; else from
its name, which can mislead: NCCL runs several collectives through one kernel (`ncclKernel_SendRecv…` up to 2.18,
`ncclDevKernel_Generic` of RCCL), oneCCL an all_reduce through `oneccl_reduce_base`.

In: the tables of one window. Out: a frame with a row per collective.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from rankscope.primitives.activity import gloo_ranges, with_category
from rankscope.primitives.collective_sizes import with_sizes
from rankscope.primitives.collectives import collective_kind
from rankscope.primitives.columns import constant
from rankscope.primitives.host_collectives import (
    GROUP,
    RECORDED,
    combine_records,
    group_label,
    host_collectives,
    last_calls,
    open_calls,
    without_kernels,
)
from rankscope.primitives.kernels import COMMUNICATION
from rankscope.primitives.shapes import first_type, total_elements
from rankscope.primitives.steps import host_steps

# Custom all_reduces of vLLM, SGLang and AITER: type and number of ranks are the first two template arguments.
_CUSTOM = re.compile(r"cross_device_reduce\w*<\s*([\w:]+)\s*,\s*(?:\(int\))?(\d{1,4})\b")
# DeepEP's kernels of one node: the number of ranks is the first number.
_DEEP_EP = re.compile(
    r"intranode::(?:(?:cached_)?notify_)?(?:dispatch|combine)<(?:[^<>]*?,\s*)??(?:\(int\))?(\d{1,4})\s*[,>]"
)
# Libraries with their own communicators: kernels of a process group on the same stream do not show theirs.
_OTHER_LIBRARIES = r"(?i)nvshmem|deep_?ep|(inter|intra)node(_ll)?::|cross_device_reduce|multimem|symm_?mem"
_CUDA_TYPES = {
    "nv_bfloat16": "BFloat16",
    "hip_bfloat16": "BFloat16",
    "bf16": "BFloat16",
    "half": "Half",
    "float": "Float",
}
# Kernels that run several kinds of collectives.
_GENERIC = re.compile(r"SendRecv|Generic", re.IGNORECASE)
_SHARED = ("group", "group_size", "group_ranks")
_LINKED = (*RECORDED, "source", "calls", "peer")
_CONTENT = (
    "row", "start_ns", "end_ns", "launch_ns", "stream", "name", "label", "kernels", "on_device", "group", *_LINKED,
)  # fmt: skip


def rank_collectives(
    window: Mapping[str, pl.DataFrame], groups: Sequence[Mapping[str, Any]], rank: int, extra: str | None
) -> pl.DataFrame:
    """The collectives of a window, in the order of their starts.

    Args:
        window: device_events, runtime_calls, host_ops, annotations and collectives of one trace file.
        groups: the process groups listed in its metadata.
        rank: the rank.
        extra: a regular expression of further kernel names that are communication.

    Returns:
        rows with the times (start_ns, end_ns, launch_ns), stream, name, collective, dtype, in_elements, out_elements,
        bytes, group (null if not named), group_size, group_ranks, sequence (recorded), source_rank,
        destination_rank, peers, source, calls, kernels, on_device, step, and unlaunched: the number of calls in the
        window without a recorded kernel.
    """
    calls = host_collectives(window["host_ops"], window["annotations"], window["collectives"])
    device = window["device_events"].with_row_index("row")
    kernels, used = _kernels(device, window, calls, extra)
    ranges = gloo_ranges(window["host_ops"], window["annotations"])
    gloo = _gloo(ranges, window, groups, rank) if ranges.height else kernels.clear()
    without_kernel = calls.filter(~pl.Series(used, dtype=pl.Boolean) & (pl.col("group_size").fill_null(0) != 1))
    alone = not kernels.height and not gloo.height
    parts = [kernels, gloo, without_kernels(without_kernel)] if alone else [kernels, gloo]
    found = pl.concat([part.select(_CONTENT) for part in parts], how="vertical_relaxed")
    found = _with_step(found, window["annotations"])
    return (
        with_sizes(found, rank)
        .with_columns(pl.lit(0 if alone else without_kernel["backend"].sum(), pl.Int64).alias("unlaunched"))
        .sort("start_ns", "end_ns", "row")
    )


def _kernels(
    device: pl.DataFrame, window: Mapping[str, pl.DataFrame], calls: pl.DataFrame, extra: str | None
) -> tuple[pl.DataFrame, np.ndarray]:
    """Communication kernels, one row per call; and a mask of the calls that launched one."""
    kernels = with_category(device, extra).filter(pl.col("category") == COMMUNICATION)
    recorded_metadata = window["collectives"].filter(
        (pl.col("source") == "device_events") & pl.col("collective").is_not_null()
    )
    joined = kernels.join(recorded_metadata.select(pl.col("row").cast(pl.UInt32), *RECORDED), on="row", how="left")
    call = _linked(joined, window["runtime_calls"], calls)
    has_metadata = joined["collective"].is_not_null().to_numpy()
    used = np.zeros(calls.height, dtype=np.bool_)
    used[call[call >= 0]] = True
    call, gathered = _coalesced(joined, has_metadata, call, window["runtime_calls"], calls)
    used[gathered["orphan"].to_numpy()] = True
    numbered = joined.with_columns(pl.Series("call", call))
    labeled = _from_kernels(numbered, calls) if has_metadata.all() else _from_all(numbered, calls, gathered)
    labeled = _fill_groups(_named(labeled).with_columns(group_label().alias("group")))
    return _once(labeled.with_columns(_kind_of_name(labeled).alias("label"), pl.lit(True).alias("on_device"))), used


def _from_kernels(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Kernels that all have metadata, with the fields of `_from_all`."""
    call = kernels["call"]
    return kernels.with_columns(
        constant("source", "kernel", pl.String, kernels.height),
        constant("calls", 1, pl.Int64, kernels.height),
        calls["peer"].gather(call.set(call < 0, None)).alias("peer"),
    )


def _from_all(kernels: pl.DataFrame, calls: pl.DataFrame, gathered: pl.DataFrame) -> pl.DataFrame:
    """Kernels with collective, size and group from their metadata, else from their call, else from coalesced calls.

    Args:
        kernels: the kernels, each with its ``call`` (a row of `calls`, −1 for none).
        gathered: orphan (a row of `calls`) and kernel, of coalesced calls.
    """
    numbered = kernels.with_row_index("kernel")
    recorded = calls.select(pl.int_range(pl.len()).alias("call"), *_LINKED)
    linked = numbered.join(recorded, on="call", how="left", suffix="_call")
    from_kernel, from_call = pl.col("collective").is_not_null(), pl.col("collective_call").is_not_null()
    by_coalesced = gathered.height > 0  # a join costs more than most kernels' own rows
    if by_coalesced:
        together = combine_records(calls[gathered["orphan"].to_numpy()].with_columns(gathered["kernel"]), "kernel")
        linked = linked.join(together, on="kernel", how="left", suffix="_all")

    def chosen(name: str) -> pl.Expr:
        """A field. Take all fields from one source: a mixture of two would describe neither."""
        chain = pl.when(from_kernel).then(name).when(from_call).then(f"{name}_call")
        return chain.otherwise(f"{name}_all") if by_coalesced else chain.otherwise(None)

    source = pl.when(from_kernel).then(pl.lit("kernel")).when(from_call).then("source")
    number = pl.when(from_kernel).then(1).when(from_call).then("calls")
    if by_coalesced:
        source = source.when(pl.col("collective_all").is_not_null()).then(pl.lit("coalesced"))
    return linked.with_columns(
        *(chosen(name).alias(name) for name in RECORDED),
        source.otherwise(pl.lit("name")).alias("source"),
        number.otherwise("calls_all" if by_coalesced else None).fill_null(1).alias("calls"),
    )


def _linked(kernels: pl.DataFrame, runtime: pl.DataFrame, calls: pl.DataFrame) -> np.ndarray:
    """For each kernel the row of its call, −1 for none."""
    launches = kernels["launch_row"]
    # A graph launch starts the kernels of many calls without naming them.
    graph = runtime["name"].gather(launches).str.contains("Graph").fill_null(False)
    in_graph = (graph | (kernels["graph_id"].fill_null(0) > 0)).to_numpy()
    by_thread = open_calls(
        calls, runtime["pid"].gather(launches), runtime["tid"].gather(launches), kernels["launch_ns"]
    )
    external = kernels["external_id"]
    by_record = _by_id(calls, "records", external)
    by_thread = np.where(by_record >= 0, by_record, by_thread)
    if kernels["launch_ns"].null_count():
        # Old files write the correlation id as External id, which then does not identify operators.
        by_id = kernels["launch_ns"].is_null() & (external != kernels["correlation"].fill_null(-1))
        by_range = np.where(by_id.fill_null(False).to_numpy(), _by_id(calls, "ranges", external), -1)
        by_thread = np.where(by_thread >= 0, by_thread, by_range)
    return np.where(in_graph & (by_record < 0), -1, by_thread).astype(np.int64)


def _by_id(calls: pl.DataFrame, column: str, external: pl.Series) -> np.ndarray:
    ids = (
        calls.select(pl.int_range(pl.len()).alias("call"), pl.col(column).alias("id"))
        .explode("id")
        .filter(pl.col("id") > 0)
        .unique("id", keep="first", maintain_order=True)
    )
    calls_of_ids = external.alias("id").to_frame().join(ids, on="id", how="left", maintain_order="left")
    return np.array(calls_of_ids["call"].fill_null(-1).cast(pl.Int64).to_numpy(), dtype=np.int64)


def _coalesced(
    kernels: pl.DataFrame, has_metadata: np.ndarray, call: np.ndarray, runtime: pl.DataFrame, calls: pl.DataFrame
) -> tuple[np.ndarray, pl.DataFrame]:
    """Calls that launched nothing themselves, with the kernel of the thread's next launch, which is for all of them.

    The range "nccl:coalesced" that torch writes around that launch does not say what was coalesced.

    Returns:
        the kernels' calls, −1 for those that calls were found for; orphan (row in the calls) and kernel.
    """
    launches = kernels["launch_row"]
    name = runtime["name"].gather(launches)
    says_nothing = ((calls["source"] == "range") & (calls["collective"] == "nccl:coalesced")).to_numpy()
    known = (call >= 0) & ~says_nothing[call] if calls.height else call >= 0
    known |= has_metadata
    free = (
        ~known & kernels["launch_ns"].is_not_null().to_numpy() & ~name.str.contains("Graph").fill_null(False).to_numpy()
    )
    orphan = np.ones(calls.height, dtype=np.bool_)
    orphan[call[call >= 0]] = False
    recorded = (calls["source"] == "record").to_numpy() & (calls["group_size"].fill_null(0) != 1).to_numpy()
    rows = np.flatnonzero(orphan & recorded)
    empty = pl.DataFrame(schema={"orphan": pl.Int64, "kernel": pl.UInt32})
    if not rows.size or not free.any():
        return call, empty
    launch_rows = pl.DataFrame(
        [
            runtime["pid"].gather(launches).alias("pid"),
            runtime["tid"].gather(launches).alias("tid"),
            kernels["launch_ns"].alias("start_ns"),
        ]
    ).with_columns(pl.Series("kernel", np.arange(kernels.height)), pl.Series("free", free))
    launch_rows = launch_rows.filter(pl.col("start_ns").is_not_null()).sort("start_ns", maintain_order=True)
    # `last_calls` finds the last one before an instant. Negate and reverse the times to find the next launch; of
    # several kernels of one launch it gives the first.
    launch_rows = launch_rows.reverse()
    turned = launch_rows.with_columns(-pl.col("start_ns"))
    ends = calls[rows]
    following = last_calls(turned, ends["pid"], ends["tid"], -ends["end_ns"])
    has = following >= 0
    kernel = launch_rows["kernel"].to_numpy()[np.maximum(following, 0)]
    has &= launch_rows["free"].to_numpy()[np.maximum(following, 0)]
    coalesced = pl.DataFrame({"orphan": rows[has], "kernel": kernel[has]}).with_columns(
        pl.col("kernel").cast(pl.UInt32)
    )
    call = call.copy()
    call[kernel[has]] = -1
    return call, coalesced


def _named(kernels: pl.DataFrame) -> pl.DataFrame:
    """Type and number of ranks of custom all_reduces, from the template arguments in the name."""
    nameless = kernels["source"] == "name"
    if not nameless.any():
        return kernels
    names = kernels["name"].filter(nameless).unique().drop_nulls()
    types: dict[str, str | None] = {}
    sizes: dict[str, int | None] = {}
    for name in names:
        if (custom := _CUSTOM.search(name)) is not None:
            types[name], sizes[name] = _CUDA_TYPES.get(custom[1].split("::")[-1].lstrip("_")), int(custom[2])
        elif (expert := _DEEP_EP.search(name)) is not None:
            sizes[name] = int(expert[1])
    if not sizes:
        return kernels
    dtype = pl.col("name").replace_strict(types, default=None, return_dtype=pl.String)
    size = pl.col("name").replace_strict(sizes, default=None, return_dtype=pl.Int64)
    by_name = pl.col("source") == "name"
    return kernels.with_columns(
        pl.when(by_name).then(dtype).otherwise("dtype").alias("dtype"),
        pl.when(by_name).then(size).otherwise("group_size").alias("group_size"),
    )


def _kind_of_name(kernels: pl.DataFrame) -> pl.Expr:
    """The label, else the kernel's name; for a generic name, its only label elsewhere."""
    if not kernels["collective"].null_count():
        return pl.col("collective")
    known = kernels.filter(pl.col("collective").is_not_null())
    kinds = {label: collective_kind(label) for label in known["collective"].unique()}
    seen = known.with_columns(pl.col("collective").replace_strict(kinds, default=None, return_dtype=pl.String))
    seen = seen.group_by("name").agg(pl.col("collective").unique().sort().alias("kinds"))
    generic = {
        name: labels[0] if len(labels) == 1 else "unknown"
        for name, labels in seen.iter_rows()
        if name is not None and _GENERIC.search(name)
    }
    by_name = pl.col("name").replace_strict(generic, default=pl.col("name"), return_dtype=pl.String)
    return pl.coalesce("collective", by_name)


def _fill_groups(kernels: pl.DataFrame) -> pl.DataFrame:
    """A kernel without metadata takes the only group of its stream; else its group stays null."""
    if not kernels["group"].null_count():
        return kernels
    known = kernels.filter(pl.col("group").is_not_null()).group_by("device", "stream")
    only = known.agg(
        # One kernel may lack what another has; groups that share a name but not their ranks are different.
        pl.max_horizontal(pl.col(name).drop_nulls().n_unique() for name in _SHARED).alias("groups"),
        *(pl.col(name).drop_nulls().first().alias(f"only_{name}") for name in _SHARED),
    ).filter(pl.col("groups") == 1)
    joined = kernels.join(only, on=["device", "stream"], how="left", maintain_order="left")
    nameless = pl.col("group").is_null() & ~pl.col("name").str.contains(_OTHER_LIBRARIES).fill_null(False)
    return joined.with_columns(
        pl.when(nameless).then("only_group").otherwise("group").alias("group"),
        *(
            pl.when(nameless).then(pl.coalesce(f"only_{name}", name)).otherwise(name).alias(name)
            for name in _SHARED[1:]
        ),
    )


def _once(kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per call: several kernels of a call on a stream are one collective, first start to last end."""
    external = pl.when((pl.col("source") == "kernel") & (pl.col("external_id") > 0)).then("external_id")
    by_call = pl.when(pl.col("call") >= 0).then("call")
    key = pl.struct("device", "stream", by_call.alias("call"), external.alias("external"))
    linked = by_call.is_not_null() | external.is_not_null()
    keyed = kernels.with_columns(
        pl.when(linked).then(key.rank("dense").cast(pl.Int64)).otherwise(-1 - pl.col("row").cast(pl.Int64)).alias("key")
    )
    keyed = keyed.with_columns(pl.lit(1, pl.Int64).alias("kernels"))
    if not keyed["key"].is_duplicated().any():
        return keyed
    # Sizes that differ are each kernel's part; equal ones are the call's total.
    same = pl.struct("in_elements", "out_elements").n_unique() == 1
    sizes = [
        pl.when(same).then(pl.col(name).first()).otherwise(pl.col(name).sum()).alias(name)
        for name in ("in_elements", "out_elements")
    ]
    others = [
        pl.col(name).first()
        for name in keyed.columns
        if name not in ("key", "start_ns", "end_ns", "launch_ns", "kernels", "in_elements", "out_elements")
    ]
    return keyed.sort("start_ns", maintain_order=True).group_by("key", maintain_order=True).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("launch_ns").min(),
        pl.len().cast(pl.Int64).alias("kernels"), *sizes, *others,
    )  # fmt: skip


def _gloo(
    ranges: pl.DataFrame, window: Mapping[str, pl.DataFrame], groups: Sequence[Mapping[str, Any]], rank: int
) -> pl.DataFrame:
    """Gloo's ranges. They do not name a group; if the job has only one set of ranks, it is that one."""
    annotations = window["annotations"]
    columns = ["start_ns", "end_ns", "pid", "tid", "input_dims", "input_types"]
    dims = pl.concat([annotations.filter(~pl.col("on_device")).select(columns), window["host_ops"].select(columns)])
    dims = dims.filter(pl.col("input_dims").is_not_null())
    ranges = ranges.join(
        dims.unique(["start_ns", "end_ns", "pid", "tid"], keep="first"),
        on=["start_ns", "end_ns", "pid", "tid"], how="left", maintain_order="left",
    )  # fmt: skip
    # Without shapes: what rankscope recorded of the call.
    known = window["collectives"].filter(pl.col("source") == "annotations")
    known = known.select(pl.col("row").cast(pl.UInt32), "dtype", "in_elements", "out_elements", "group_size")
    rows = annotations.select(columns[:4]).with_row_index("row").join(known, on="row").drop("row")
    ranges = ranges.join(
        rows.unique(columns[:4], keep="first"), on=columns[:4], how="left", maintain_order="left", nulls_equal=True
    )
    sets = {tuple(sorted(group.get("ranks", ()))) for group in groups}
    ranks = next(iter(sets)) if len(sets) == 1 else None
    sizes = {text: total_elements(text) for text in ranges["input_dims"].unique().drop_nulls()}
    types = {text: first_type(text) for text in ranges["input_types"].unique().drop_nulls()}
    total = pl.col("input_dims").replace_strict(sizes, default=None, return_dtype=pl.Int64)
    gathers = pl.col("name").str.contains("all_?gather")
    size = pl.lit(len(ranks) if ranks else None, pl.Int64)
    # A send or receive runs on the thread that calls it, inside an operator that names the other rank.
    p2p = window["host_ops"].filter(pl.col("name").is_in(["c10d::send", "c10d::recv_"]))
    none = window["collectives"].clear()
    calls = host_collectives(p2p, annotations.clear(), none)
    row = open_calls(calls, ranges["pid"], ranges["tid"], ranges["start_ns"])
    group_rank = calls["peer"].gather(pl.Series(row).set(pl.Series(row) < 0, None)).cast(pl.Int64)
    peer = group_rank.replace_strict(dict(enumerate(ranks or ())), default=None, return_dtype=pl.Int64)
    kind, rank_of = pl.col("name").str.extract(r"(send|recv)"), pl.lit(rank, pl.Int64)
    return ranges.with_row_index("row").with_columns(peer.alias("peer")).with_columns(
        pl.col("name").alias("label"),
        pl.coalesce(total, "in_elements").alias("in_elements"),
        # The output of an all_gather is every rank's part.
        pl.coalesce(pl.when(gathers).then(total * size).otherwise(total), "out_elements").alias("out_elements"),
        pl.coalesce(
            pl.col("input_types").replace_strict(types, default=None, return_dtype=pl.String), "dtype"
        ).alias("dtype"),
        pl.lit("gloo").alias("group"),
        pl.coalesce(size, "group_size").alias("group_size"),
        pl.lit(json.dumps(list(ranks)) if ranks else None, pl.String).alias("group_ranks"),
        *(pl.lit(None, pl.String).alias(name) for name in ("collective", *GROUP[:2])),
        pl.lit(None, pl.Int64).alias("sequence"),
        pl.when(kind == "send").then(rank_of).when(kind == "recv").then("peer").alias("source_rank"),
        pl.when(kind == "recv").then(rank_of).when(kind == "send").then("peer").alias("destination_rank"),
        pl.col("tid").alias("stream"),
        pl.lit(None, pl.Int64).alias("launch_ns"),
        pl.lit("gloo").alias("source"),
        pl.lit(1, pl.Int64).alias("calls"),
        pl.lit(0, pl.Int64).alias("kernels"),
        pl.lit(False).alias("on_device"),
    )  # fmt: skip


def _with_step(found: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """The step whose range the launch starts in; for host ranges, the range's own start."""
    steps = host_steps(annotations).select(
        pl.col("start_ns").alias("step_start"), pl.col("end_ns").alias("step_end"), "step"
    )
    at = pl.when(pl.col("on_device")).then("launch_ns").otherwise("start_ns")
    ordered = found.with_columns(at.alias("at")).sort("at", nulls_last=True)
    joined = ordered.join_asof(steps, left_on="at", right_on="step_start", strategy="backward")
    return joined.with_columns(pl.when(pl.col("at") < pl.col("step_end")).then("step").alias("step"))
