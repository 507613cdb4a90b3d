"""Type and size of Gloo's ranges from the calls that rankscope recorded: without `record_shapes` the ranges have none.

The trace's metadata lists the rank's calls in their order (`rundir.metadata.TraceMetadata.collectives`). Gloo does the
calls of a group in this order, each in a range that begins after the call. So the n-th range of an operation is its
n-th call, if the calls are complete: else, or if several groups call an operation with different tensors, the ranges
stay without a size.

In: Gloo's ranges and the metadata. Out: rows of the table `collectives`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from rankscope.primitives.activity import GLOO
from rankscope.primitives.collectives import collective_kind
from rankscope.rundir.fields import count, mapping, text
from rankscope.store.schema import TABLES

# How far the trace's clock and the host's may be apart.
_CLOCK_NS = 100_000
# Their sizes are those of one rank's side, or differ between the root and the others.
_SIZED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send", "recv")

Call = tuple[int, Mapping[str, Any]]
"""When it was made, ns of the wall clock, and its kind as the metadata describes it."""


def recorded_calls(annotations: pl.DataFrame, collectives: Mapping[str, object], base_ns: int) -> pl.DataFrame:
    """A row of `collectives` for each of Gloo's ranges whose call is known.

    Args:
        annotations: all rows of the table in their order: start_ns, name, on_device.
        collectives: what the metadata says of the rank's calls.
        base_ns: the wall clock at 0 of the trace's clock.
    """
    calls: dict[str, list[Call]] = defaultdict(list)
    for at, kind in _listed(collectives):
        calls[collective_kind(str(kind.get("operation"))) or ""].append((at, kind))
    rows = annotations.with_row_index("row").filter(~pl.col("on_device") & pl.col("name").str.starts_with(GLOO))
    ranges: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row, start, name in rows.sort("start_ns").select("row", "start_ns", "name").iter_rows():
        ranges[collective_kind(name) or ""].append((base_ns + start, row))
    if "reduce_scatter" in calls and "reduce_scatter" not in ranges:
        # Gloo reduces the whole array on every rank.
        calls["all_reduce"] = sorted([*calls["all_reduce"], *calls.pop("reduce_scatter")], key=lambda call: call[0])
    complete = collectives.get("flight_recorder") == "whole" and not collectives.get("left_out")
    found = [
        _row(row, name, kind)
        for name, own in ranges.items()
        for row, kind in _paired(own, calls.get(name, []), complete=complete)
    ]
    return pl.DataFrame(found, schema_overrides=TABLES["collectives"].schema) if found else pl.DataFrame()


def _listed(collectives: Mapping[str, object]) -> list[Call]:
    kinds, order, times = (collectives.get(name) for name in ("kinds", "order", "us"))
    began = count(collectives.get("began_ns"))
    if not isinstance(kinds, list) or not isinstance(order, list) or not isinstance(times, list) or began is None:
        return []
    known: list[Call] = [
        (began + at * 1000, mapping(kinds[index]))
        for index, at in zip(order, times, strict=False)
        if type(index) is int and type(at) is int and 0 <= index < len(kinds)
    ]
    return known if len(known) == len(order) else []


def _paired(
    ranges: Sequence[tuple[int, int]], calls: Sequence[Call], *, complete: bool
) -> list[tuple[int, Mapping[str, Any]]]:
    """The rows of an operation's ranges with their calls; none if these are not certain."""
    if not calls:
        return []
    # Ranges of calls before the recording.
    own = [(start, row) for start, row in ranges if start >= calls[0][0] - _CLOCK_NS]
    if len(own) > len(calls) or (len(own) < len(calls) and not complete):
        return []
    pairs = list(zip(own, calls, strict=False))
    if any(start < at - _CLOCK_NS for (start, _), (at, _) in pairs):
        return []
    groups = {kind.get("group") for _, kind in calls}
    contents = {(kind.get("dtype"), kind.get("elements"), kind.get("ranks")) for _, kind in calls}
    if len(groups) > 1 and len(contents) > 1:
        return []  # each group has threads of its own
    return [(row, kind) for (_, row), (_, kind) in pairs]


def _row(row: int, name: str, kind: Mapping[str, Any]) -> dict[str, object]:
    elements, ranks = count(kind.get("elements")) or None, count(kind.get("ranks")) or None
    if name not in _SIZED:
        elements = None
    part = elements // ranks if elements and ranks else None
    return {
        "source": "annotations",
        "row": row,
        "collective": text(kind.get("operation")),
        "dtype": text(kind.get("dtype")),
        "in_elements": part if name == "all_gather" else elements,
        "out_elements": elements,
        "group_size": ranks,
    }
