"""The events at which lost time shows most, per step: where a finding can be seen in the timeline.

For each rank, step and kind the event that costs most (for `exposed_communication` the five most expensive, for
`compute` one for each of the twelve names with most time). An event belongs to the step in whose window it starts
(`step_time`).

    kind                   event                                cost
    late_launch            work that the host launched late     its idle gap, if mostly due to that (`idle --by step`)
    silent_host            work after silence of the host       its idle gap, if mostly due to that (`idle --by step`)
    long_calls             work after a long call, first use    its idle gap, if mostly due to that (`idle --by step`)
    late_short_launch      short work that it launched late     likewise, gaps of at most 100 µs
    allocator_call         driver call that allocates or frees  the part of it in such a gap
    host_wait              call that waits for the device       idle time around its end (`synchronization`)
    data_loading           range that loads data                the part with neither device work nor a runtime call
    garbage_collection     Python's garbage collection          the part in which the device is idle
    compile_overhead       guards, lookups, compiling           the part in which the device is idle
    pageable_copy          copy of pageable memory              the part in which nothing else runs
    exposed_communication  collective                           the part without compute
    unfilled               kernel with few blocks               its time on SMs without a block (`kernels`)
    ordinary_cores         product outside of tensor cores      its duration (`matrix_work`); `detail` is the type
    wide_type              product in 32 bits or more           likewise
    compute                compute kernel, or operator          its duration
    before_launch          event that starts before its launch  by how much
    memory_peak            operator at the peak of memory       0
    step                   the step                             its duration

On the CPU, with no device in the trace, idle means that no operator and no collective runs. `total_ns` adds up the
events of the kind in the step, for `compute` those with the same name. Allocator calls are listed even if they cost
nothing: the device may have had enough to do.

How to read it: findings take their event from here, from the step whose total is the median. `since_ns` is where the
gap begins that the event ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from polars.datatypes import DataTypeClass

from rankscope.primitives.activity import (
    Activity,
    activity,
    computing_operators,
    covered_time,
    data_loading_ranges,
    gloo_ranges,
    with_category,
)
from rankscope.primitives.allocations import device_name
from rankscope.primitives.annotation_origin import garbage_collections
from rankscope.primitives.call_stack import innermost
from rankscope.primitives.columns import constant
from rankscope.primitives.copies import PAGEABLE
from rankscope.primitives.intervals import EMPTY, Int64, IntervalSet
from rankscope.primitives.kernels import COMMUNICATION, COMPUTE
from rankscope.primitives.late_launches import LateLaunches, before_short
from rankscope.primitives.matrix_operators import matrix_operators
from rankscope.primitives.steps import Bool, recorded_span, step_rows, step_windows, with_step_row
from rankscope.primitives.synchronization import host_waits, idle_after, without_profilers_wait
from rankscope.primitives.unfilled import unfilled_time
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Inputs, Tables, schema_of, steps_by_window

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "the step; null for a trace without steps"),
    Column("kind", pl.String, "", "what the event shows"),
    Column("name", pl.String, "", "the event, as recorded"),
    Column("detail", pl.String, "", "the data type, of matrix products; else null"),
    Column("start_ns", pl.Int64, "ns", "when it starts", instant=True),
    Column("end_ns", pl.Int64, "ns", "when it ends", instant=True),
    Column("since_ns", pl.Int64, "ns", "start of the idle gap that it ends; null if there is none", instant=True),
    Column("cost_ns", pl.Int64, "ns", "what it costs"),
    Column("total_ns", pl.Int64, "ns", "cost of all events of the kind in the step"),
)
_COMPUTE, _COMMUNICATION = "compute", "exposed_communication"
_TRANSFERS, _NAMES = 5, 12
"""Events and names of these two kinds that are kept per step."""
_WITHOUT_COST = ("allocator_call", "memory_peak")
LONG_NS = 10_000
"""Shorter kernels cannot fill a device anyway: launching them takes longer."""
_COMPILER = (
    r"^(TorchDynamo Cache Lookup|AOTDispatcher Runtime Wrapper Prologue|Pregraph bytecode)"
    r"|^entire_(frame|backward)_compile"
)
_WIDE = ("float32", "float64")
_EVENT = ("start_ns", "end_ns", "name")
_SCHEMA = schema_of([column for column in COLUMNS if column.name not in ("rank", "window", "step", "total_ns")])
_NO_EVENTS = pl.DataFrame(schema=_SCHEMA)
_RANGES = ("device_events", "host_ops", "runtime_calls", "annotations")


def _window_events(window: Tables, inputs: Inputs) -> pl.DataFrame:
    steps, windows = step_windows(window["annotations"], window["device_events"])
    number, starts, ends = steps["step"], windows.start, windows.end
    host_starts, host_ends = (steps[name].to_numpy() for name in ("start_ns", "end_ns"))
    if not steps.height:
        starts, ends = recorded_span({name: window[name] for name in _RANGES})
        number, host_starts, host_ends = pl.Series("step", [None] * starts.size, dtype=pl.Int64), starts, ends
    sets = activity(window["device_events"], window["host_ops"], window["annotations"], inputs.options.communication)
    on_host = _concat([*_host_events(window, sets), *_peaks(window, inputs), _steps(steps)])
    on_device = _concat([*_gaps(window, inputs), *_kernels(window, inputs, sets, steps)])
    events_in_steps = pl.concat(
        [with_step_row(on_host, host_starts, host_ends), with_step_row(on_device, starts, ends)]
    )
    costliest = _costliest(events_in_steps)
    return costliest.with_columns(number.gather(costliest["step_row"]).alias("step"))


def _costliest(events: pl.DataFrame) -> pl.DataFrame:
    """The most expensive events of each kind and step; of equal ones the shortest, which lies inside the others."""
    keyed = pl.when(pl.col("kind") == _COMPUTE).then(pl.col("name")).otherwise(pl.col("detail")).alias("key")
    ordered = events.with_columns(keyed, (pl.col("end_ns") - pl.col("start_ns")).alias("d")).sort(
        "step_row", "kind", "key", "cost_ns", "d", "start_ns", descending=[False, False, False, True, False, False]
    )
    first, place = _groups(ordered, ["step_row", "kind", "key"])
    cost = ordered["cost_ns"].to_numpy()
    total = np.repeat(np.add.reduceat(cost, first) if first.size else first, np.diff(first, append=cost.size))
    several = (ordered["kind"] == _COMMUNICATION).to_numpy()
    most = ordered.with_columns(pl.Series("total_ns", total, dtype=pl.Int64)).filter(
        pl.Series(place < np.where(several, _TRANSFERS, 1))
    )
    most = most.sort("step_row", "kind", "total_ns", "cost_ns", "key", descending=[False, False, True, True, False])
    _, place = _groups(most, ["step_row", "kind"])
    return most.filter(pl.Series((place < _NAMES) | (most["kind"] != _COMPUTE).to_numpy()))


def _groups(ordered: pl.DataFrame, keys: Sequence[str]) -> tuple[Int64, Int64]:
    """Of rows in the order of some keys, the first row of each group of equal keys; and each row's place in its group.

    Faster than `over`, which looks each key up.
    """
    changes = ordered.select(pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift(1)) for key in keys))
    begins = changes.to_series().to_numpy().copy()
    begins[:1] = True
    first = np.flatnonzero(begins)
    return first, np.arange(begins.size) - np.repeat(first, np.diff(first, append=begins.size))


def _concat(events: Sequence[pl.DataFrame]) -> pl.DataFrame:
    filled = [frame for frame in events if frame.height]
    return pl.concat(filled) if filled else _NO_EVENTS


def _events(kind: str, frame: pl.DataFrame, cost: Int64, detail: str | None = None) -> pl.DataFrame:
    """Events of a kind: those that cost something.

    Args:
        frame: start_ns, end_ns, name; since_ns where there is a gap.
        cost: ns, of each row.
        detail: the column with the details.
    """
    counts = cost > 0 if kind not in _WITHOUT_COST else np.ones(cost.size, dtype=np.bool_)
    number = int(np.count_nonzero(counts))
    if not number:
        return _NO_EVENTS
    # Series, as a query for a filter costs more than most of these.
    rows = pl.Series(counts)

    def column(name: str | None, alias: str, dtype: DataTypeClass) -> pl.Series:
        if name not in frame.columns:
            return constant(alias, None, dtype, number)
        chosen: pl.Series = frame.get_column(name).filter(rows)
        return chosen.alias(alias)

    name = column("name", "name", pl.String)
    return pl.DataFrame(
        [
            constant("kind", kind, pl.String, number),
            name.fill_null("") if name.null_count() else name,
            column(detail, "detail", pl.String),
            column("start_ns", "start_ns", pl.Int64),
            column("end_ns", "end_ns", pl.Int64),
            column("since_ns", "since_ns", pl.Int64),
            pl.Series("cost_ns", cost[counts], dtype=pl.Int64),
        ]
    )


def _duration(frame: pl.DataFrame) -> Int64:
    start, end = _span(frame)
    return end - start


def _span(frame: pl.DataFrame) -> tuple[Int64, Int64]:
    return frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()


def _gaps(window: Tables, inputs: Inputs) -> list[pl.DataFrame]:
    """Work that was launched late, with the gap before it; and allocator calls in such gaps."""
    work = inputs.once("late launches", lambda: LateLaunches.of(window, inputs.options.communication))
    gaps = work.gaps.select(
        pl.col("end_ns").alias("start_ns"),
        pl.col("piece_end_ns").alias("end_ns"),
        "name",
        pl.col("start_ns").alias("since_ns"),
    )
    start, end = _span(work.gaps)
    late = IntervalSet.of(start, end) - work.left_out
    late_short = late & before_short(work.gaps, work.left_out)
    # A gap that is mostly due to other causes would be evidence of those.
    dominant = 2 * late.within(start, end) >= end - start
    waiting = IntervalSet.of(start, end) & work.memory
    silent = work.silent.within(start, end) * work.on_device
    long = work.long_calls.within(start, end) * work.on_device
    return [
        _events("late_launch", gaps, late.within(start, end) * dominant),
        _events("silent_host", gaps, silent * (2 * silent >= end - start)),
        _events("long_calls", gaps, long * (2 * long >= end - start)),
        _events("late_short_launch", gaps, late_short.within(start, end) * dominant),
        _events("allocator_call", work.allocator, waiting.within(*_span(work.allocator))),
    ]


def _host_events(window: Tables, sets: Activity) -> list[pl.DataFrame]:
    """What the host waited for or did while the device was idle."""
    annotations, calls, device = window["annotations"], window["runtime_calls"], window["device_events"]
    waits = without_profilers_wait(host_waits(calls), window["host_ops"], device)
    loading = data_loading_ranges(annotations)
    host_ranges = annotations.filter(~pl.col("on_device"))
    collections = garbage_collections(host_ranges.with_columns(constant("rank", 0, pl.Int32, host_ranges.height)))
    compiler = pl.concat(
        [
            frame.filter(compiles).select(_EVENT) if compiles.any() else _NO_EVENTS.select(_EVENT)
            for frame in (window["host_ops"], host_ranges)
            for compiles in [frame["name"].str.contains(_COMPILER).fill_null(False)]
        ]
    )

    def idle(frame: pl.DataFrame, busy: IntervalSet) -> Int64:
        start, end = _span(frame)
        return end - start - busy.within(start, end)

    events = [
        _events("data_loading", loading, idle(loading, sets.busy | covered_time(calls))),
        # On the CPU the trace cannot show what else could have run.
        _events("garbage_collection", collections, idle(collections, sets.busy if device.height else EMPTY)),
        _events("compile_overhead", compiler, idle(compiler, sets.busy if device.height else EMPTY)),
    ]
    return [*events, _events("host_wait", waits, idle_after(waits, covered_time(device)))]


def _steps(steps: pl.DataFrame) -> pl.DataFrame:
    return _events("step", steps, _duration(steps))


def _peaks(window: Tables, inputs: Inputs) -> list[pl.DataFrame]:
    """The innermost operator at the peak of each device's memory."""
    if window["memory_events"].is_empty():
        return []
    peaks = inputs.results["memory"].select("device", pl.col("peak_at_ns").alias("time_ns")).drop_nulls()
    events, operators = window["memory_events"], window["host_ops"]
    at_peak = events.with_columns(device_name().alias("on")).join(
        peaks, left_on=["time_ns", "on"], right_on=["time_ns", "device"], how="semi"
    )
    at_peak = at_peak.unique(["time_ns", "on"], keep="first", maintain_order=True)
    rows = pl.Series(
        innermost(operators, at_peak.select(pl.col("time_ns").alias("at_ns"), "pid", "tid")), dtype=pl.Int64
    )
    at_peak = at_peak.filter(rows >= 0)
    at_peak_operators = operators[rows.filter(rows >= 0)].select(_EVENT).with_columns(at_peak["on"].alias("detail"))
    return [_events("memory_peak", at_peak_operators, np.zeros(at_peak_operators.height, dtype=np.int64), "detail")]


def _kernels(window: Tables, inputs: Inputs, sets: Activity, steps: pl.DataFrame) -> list[pl.DataFrame]:
    """What the device ran, or without one the operators."""
    device, annotations, operators = window["device_events"], window["annotations"], window["host_ops"]
    extra = inputs.options.communication

    def in_steps(launches: pl.Series) -> Bool:
        return step_rows(steps, launches) >= 0 if steps.height else np.ones(launches.len(), dtype=np.bool_)

    labeled = with_category(device, extra)
    inside = in_steps(device["launch_ns"])
    category, kind = labeled["category"], device["kind"]
    computes = inside & (category == COMPUTE).to_numpy()
    kernels = labeled.filter(pl.Series(computes))
    if device.is_empty():
        gloo = gloo_ranges(operators, annotations)
        compute, transfers = computing_operators(operators, gloo), gloo
    else:
        compute, transfers = kernels, labeled.filter(pl.Series(inside & (category == COMMUNICATION).to_numpy()))
    is_copy = (kind == "memcpy").fill_null(False)
    copies = labeled.filter(pl.Series(inside) & is_copy & pl.col("name").str.contains(PAGEABLE).fill_null(False))
    others = covered_time(device.filter((kind != "memcpy").fill_null(False)))
    calls, products = inputs.once("matrix operators", lambda: matrix_operators(window, None, device, extra))
    products = products.filter(pl.Series(in_steps(products["launch_ns"])))
    wide = (calls if device.is_empty() else products).filter(pl.col("number").is_in(_WIDE))
    off = products.filter("off")

    def alone(frame: pl.DataFrame, other: IntervalSet) -> Int64:
        start, end = _span(frame)
        return end - start - other.within(start, end)

    unfilled = _rounded(unfilled_time(device).filter(pl.Series(computes)))
    before_launch = device.filter(pl.col("launch_ns") > pl.col("start_ns"))
    early = before_launch["launch_ns"].to_numpy() - before_launch["start_ns"].to_numpy()
    return [
        _events(_COMPUTE, compute, _duration(compute)),
        _events(_COMMUNICATION, transfers, alone(transfers, sets.compute)),
        _events("pageable_copy", copies, alone(copies, others)),
        _events("unfilled", kernels, np.where(_duration(kernels) >= LONG_NS, unfilled, 0)),
        _events("ordinary_cores", off, _duration(off), "number"),
        _events("wide_type", wide, _duration(wide), "number"),
        _events("before_launch", before_launch, early.astype(np.int64)),
    ]


def _rounded(times: pl.Series) -> Int64:
    """Times as whole ns, 0 for null."""
    rounded: Int64 = times.round().fill_null(0).cast(pl.Int64).to_numpy()
    return rounded


analysis = Analysis(
    name="evidence_events",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=steps_by_window(COLUMNS, _window_events),
    reads={
        "device_events": (
            "start_ns", "end_ns", "name", "kind", "is_collective", "device", "stream", "op_row",
            "launch_row", "launch_ns",
            "blocks_per_sm",
        ),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth", "parent_row", "input_types"),
        "runtime_calls": ("start_ns", "end_ns", "name", "pid", "tid"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
        "memory_events": ("time_ns", "pid", "tid", "device_type", "device"),
    },
    requires=("memory",),
    in_report=False,
    on_page=False,
)  # fmt: skip
