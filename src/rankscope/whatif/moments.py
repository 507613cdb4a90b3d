"""A rank's recording as moments of its host: launches, waits, ends of steps, and what the host did in between.

In: the tables of one file and its collectives. Out: one row per moment (`SCHEMA`), in the order of the host.

The host's time between two moments is divided by `HOST_PARTS`; time in which it waits for its device or for a
collective belongs to none, because waiting is what a replay computes. On the device only the time that work keeps it
busy counts, not when it ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from rankscope.primitives.activity import (
    computing_operators,
    covered_time,
    data_loading_time,
    gloo_ranges,
    with_category,
)
from rankscope.primitives.intervals import EMPTY, Int64, IntervalSet
from rankscope.primitives.kernels import COMMUNICATION, COMPUTE
from rankscope.primitives.steps import Bool, host_steps
from rankscope.primitives.stragglers.timeline import ALLOCATION
from rankscope.primitives.synchronization import host_waits

WORK, COLLECTIVE, WAIT, STEP = range(4)
"""Kinds of moments: a launch of a kernel or copy, a launch of a collective, the host waits, the end of a step."""
HOST_PARTS = ("data_loading", "allocation", "runtime", "operators", "nothing")
"""What the host does, in this precedence; `nothing` is recorded for the rest: Python, or a thread without a core."""

KERNEL_GAP_NS = 1_200
"""Between two kernels that are queued on one stream."""
QUEUED_GAP_NS = 2_000
"""A longer gap is no gap between queued kernels."""
LATENCY_NS = 12_000
"""From a launch to the start of its kernel on an idle device, at most."""
WAKE_NS = 10_000
"""What starts so soon after the end of a collective of another stream was waiting for it, …"""
IDLE_NS = 4_000
"""… if its stream had been idle for so long."""
TOUCH_NS = 1_000
_SHORT_CALL_NS = 20_000
_LONG_CALL_NS = 300_000
_RETURN_NS, LONG_RETURN_NS = 15_000, 200_000
"""A call that returns so soon after the end of device work, and a long one, waited for it."""
_CALL = ("start_ns", "end_ns", "name", "pid", "tid")
_SILENT = "nothing is recorded"
_MAY_WAIT = r"(?i)free|malloc|hostalloc|memcpy"
_GLOO_QUEUED_NS = 1_000_000
"""A Gloo range that begins so soon after the one before it on its thread was queued."""
_LEAST_WAIT_NS = 5_000
_GLOO_RETURN_NS = 50_000
_SLICE_NS = 4_000_000
"""So long a thread of Gloo may be without a core before it records the end of what woke the host (3 ms and more
measured where threads outnumber cores)."""
_NEVER = np.iinfo(np.int64).min // 2

SCHEMA = pl.Schema(
    {
        "kind": pl.Int8,
        "at_ns": pl.Int64,  # of the host
        **{f"{part}_ns": pl.Int64 for part in HOST_PARTS},  # since the moment before
        "device_ns": pl.Int64,  # work: how long it keeps the device busy
        "is_copy": pl.Boolean,
        "latency_ns": pl.Int64,  # from its launch to its start on an idle device; null if its launch is not known
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,  # of work and collectives on their device, of a wait on the host, of a step on both
        "match": pl.Int64,
        "step": pl.Int64,
        "stream": pl.Int64,
        "program": pl.String,  # collectives of one kind and size
        "woken": pl.Int64,  # so many launches later something waited for this collective; null if nothing was seen to
        "awaits": pl.Int64,  # a wait: the collective, as a number in the order of the host; null: the device
        "all_streams": pl.Boolean,  # a wait: for all streams
        "allocates": pl.Boolean,  # a wait: in a call for memory
    }
)
INSTANTS = ("at_ns", "start_ns", "end_ns")


def moments(tables: Mapping[str, pl.DataFrame], collectives: pl.DataFrame, communication: str | None) -> pl.DataFrame:
    """The moments of one file.

    Args:
        tables: device_events, host_ops, runtime_calls, annotations.
        collectives: those of the file, as `collectives` lists them.
        communication: a regular expression of further kernel names that are communication.
    """
    on_device = tables["device_events"].height > 0
    rows = _on_device(tables, collectives, communication) if on_device else _on_host(tables, collectives)
    if rows.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    steps = host_steps(tables["annotations"])
    ends = steps.select(pl.lit(STEP, pl.Int8).alias("kind"), pl.col("end_ns").alias("at_ns"), "step", pl.col("end_ns"))
    rows = pl.concat([rows, ends], how="diagonal_relaxed").sort("at_ns", "kind", maintain_order=True)
    if steps.is_empty():
        last = rows.select(pl.max_horizontal(pl.col("at_ns").max(), pl.col("end_ns").filter(kind=WAIT).max())).item()
        final = pl.DataFrame({"kind": [STEP], "at_ns": [last], "end_ns": [last]}, schema_overrides={"kind": pl.Int8})
        rows = pl.concat([rows, final], how="diagonal_relaxed")
    at = rows["at_ns"].to_numpy()
    layers = _layers(tables, on_device=on_device)
    begins = steps["start_ns"].to_list()[:1] or [int(layer.starts[0]) for layer in layers if len(layer)]
    first = min([int(at[0]), *begins])
    waits = (rows["kind"] == WAIT).to_numpy()
    resume = np.maximum.accumulate(np.where(waits, rows["end_ns"].fill_null(0).to_numpy(), at))
    since = np.minimum(np.concatenate([[first], resume[:-1]]), at)
    parts = _between(layers, since, at)
    rows = rows.with_columns(pl.Series(f"{part}_ns", parts[n]) for n, part in enumerate(HOST_PARTS))
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in SCHEMA.items() if name not in rows.columns]
    return rows.with_columns(missing).select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def _layers(tables: Mapping[str, pl.DataFrame], *, on_device: bool) -> list[IntervalSet]:
    """When the host was in each of `HOST_PARTS` but the last."""
    operators, annotations, calls = tables["host_ops"], tables["annotations"], tables["runtime_calls"]
    loading = data_loading_time(annotations)
    if not on_device:
        computing = computing_operators(operators, gloo_ranges(operators, annotations), without_waits=True)
        return [loading, EMPTY, EMPTY, covered_time(computing)]
    names = [name for name in calls["name"].unique().drop_nulls() if ALLOCATION.search(name)]
    allocating = covered_time(calls.filter(pl.col("name").is_in(names)))
    return [loading, allocating, covered_time(calls), covered_time(operators)]


def _between(layers: Sequence[IntervalSet], since: Int64, at: Int64) -> list[Int64]:
    """How long each part took between instants."""
    covered, reached, parts = EMPTY, np.zeros(at.size, dtype=np.int64), []
    for layer in layers:
        covered = covered | layer
        by_now = covered.before(at) - covered.before(since)
        parts.append(by_now - reached)
        reached = by_now
    return [*parts, at - since - reached]


def _on_device(
    tables: Mapping[str, pl.DataFrame], collectives: pl.DataFrame, communication: str | None
) -> pl.DataFrame:
    device = with_category(tables["device_events"], communication)
    work = device.filter(pl.col("launch_ns").is_not_null() & (pl.col("category") != COMMUNICATION)).sort("start_ns")
    collectives = collectives.filter(pl.col("launch_ns").is_not_null() & (pl.col("source") != "launch"))
    collectives = collectives.sort("launch_ns", "start_ns")
    start, end, launch = (work[name].to_numpy() for name in ("start_ns", "end_ns", "launch_ns"))
    ended = np.concatenate([[_NEVER], np.maximum.accumulate(end)[:-1]]) if end.size else end
    busy = np.maximum(end - np.maximum(start, ended), 0)
    gap = np.where(start - ended <= QUEUED_GAP_NS, np.maximum(start - ended, 0), KERNEL_GAP_NS)
    latency = _latency(start - launch)
    of_collectives = _latency((collectives["start_ns"] - collectives["launch_ns"]).to_numpy())
    rows = pl.concat(
        [
            work.select(
                pl.lit(WORK, pl.Int8).alias("kind"),
                pl.col("launch_ns").alias("at_ns"),
                pl.Series("device_ns", busy + gap),
                (pl.col("category") != COMPUTE).alias("is_copy"),
                pl.lit(latency).alias("latency_ns"),
                "start_ns",
                "end_ns",
            ),
            _collective_moments(collectives, "launch_ns").with_columns(pl.lit(of_collectives).alias("latency_ns")),
            _waits(pl.concat([tables["runtime_calls"].select(_CALL), _silent(tables)]), work, collectives),
        ],
        how="diagonal_relaxed",
    ).sort("at_ns", "kind", maintain_order=True)
    return rows.with_columns(pl.Series("woken", _woken(rows), dtype=pl.Int64))


def _latency(launch_to_start: Int64) -> int:
    return int(min(np.quantile(launch_to_start, 0.02), LATENCY_NS)) if launch_to_start.size else LATENCY_NS


def _collective_moments(collectives: pl.DataFrame, at: str) -> pl.DataFrame:
    program = pl.format("{} {} {}", "collective", pl.col("group_size").fill_null(0), pl.col("bytes").fill_null(0))
    return collectives.select(
        pl.lit(COLLECTIVE, pl.Int8).alias("kind"),
        pl.col(at).alias("at_ns"),
        "start_ns",
        "end_ns",
        "match",
        "step",
        "stream",
        program.alias("program"),
    )


def _waits(calls: pl.DataFrame, work: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """When the host waited for its device: calls that always do, and those that did.

    A call for memory waits now and then: it did if it returned just as the device had finished something. A copy waits
    if its host memory is pageable: it did if its copy had ended when it returned. An allocator that has no memory left
    waits for events, unrecorded, before it frees what they guard. Where calls that wait were not recorded, nothing is
    recorded of the host until the device has finished.
    """
    certain = host_waits(calls).select("start_ns", "end_ns", "name", pl.lit(True).alias("certain"))
    possible = calls.filter(
        (pl.col("name").str.contains(_MAY_WAIT) | (pl.col("name") == _SILENT))
        & (pl.col("end_ns") - pl.col("start_ns") > _SHORT_CALL_NS)
    ).select("start_ns", "end_ns", "name", pl.lit(False).alias("certain"))
    possible = possible.join(certain, on=["start_ns", "end_ns"], how="anti")
    waits = pl.concat([certain, possible, _before_free(calls.filter(pl.col("name") != _SILENT))]).sort("start_ns")
    begin, until = waits["start_ns"].to_numpy(), waits["end_ns"].to_numpy()
    ends = np.sort(np.concatenate([work["end_ns"].to_numpy(), collectives["end_ns"].to_numpy()]))
    ended = _last_before(ends, until + TOUCH_NS)
    copies = (
        work.filter(pl.col("category") != COMPUTE).group_by("launch_ns").agg(pl.col("end_ns").max().alias("copied"))
    )
    copies_end = waits.join(copies, left_on="start_ns", right_on="launch_ns", how="left", maintain_order="left")[
        "copied"
    ]
    copied = copies_end.fill_null(_NEVER).to_numpy()
    is_copy = waits["name"].str.contains("(?i)memcpy").to_numpy()
    is_call = (waits["name"] != _SILENT).to_numpy()
    soon = np.where((until - begin > _LONG_CALL_NS) & is_call, LONG_RETURN_NS, _RETURN_NS)
    last = np.where(is_copy, np.where(copied <= until, copied, _NEVER), ended)
    waited = (last > begin + _LEAST_WAIT_NS) & (until - last < soon)
    kept = waits["certain"].to_numpy() | waited
    # A stream may wait for that of a collective: one that is waited for then ends as the collective does.
    of_collective = np.isin(ended, collectives["end_ns"].to_numpy()) & ~is_copy & waited
    all_streams = waits["name"].str.contains("(?i)device").to_numpy() | of_collective
    allocating = [name for name in waits["name"].unique() if ALLOCATION.search(name)]
    return waits.select(
        pl.lit(WAIT, pl.Int8).alias("kind"),
        pl.col("start_ns").alias("at_ns"),
        "start_ns",
        "end_ns",
        pl.Series("all_streams", all_streams),
        pl.col("name").is_in(allocating).alias("allocates"),
    ).filter(pl.Series(kept))


def _silent(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Long stretches in which nothing is recorded of the host, as calls."""
    recorded = data_loading_time(tables["annotations"]) | covered_time(tables["host_ops"])
    recorded |= covered_time(tables["runtime_calls"])
    begin, until = recorded.ends[:-1], recorded.starts[1:]
    long = until - begin > _LONG_CALL_NS
    values = {"start_ns": begin[long], "end_ns": until[long], "name": _SILENT, "pid": None, "tid": None}
    return pl.DataFrame(values, schema=tables["runtime_calls"].select(_CALL).schema)


def _before_free(calls: pl.DataFrame) -> pl.DataFrame:
    """From a call that allocates to the next call of its thread if that one frees: what lies between may be a wait."""
    following = [pl.col(name).shift(-1).over("pid", "tid") for name in ("start_ns", "name")]
    between = calls.sort("start_ns").with_columns(following[0].alias("until"), following[1].alias("next"))
    allocates, frees = pl.col("name").str.contains("(?i)malloc"), pl.col("next").str.contains("(?i)free")
    between = between.filter(allocates & frees & (pl.col("until") - pl.col("end_ns") > _LONG_CALL_NS))
    return between.select(
        pl.col("end_ns").alias("start_ns"), pl.col("until").alias("end_ns"), "name", pl.lit(False).alias("certain")
    )


def _last_before(ends: Int64, instants: Int64) -> Int64:
    if not ends.size:
        return np.full(instants.size, _NEVER)
    place = np.searchsorted(ends, instants, side="right") - 1
    last: Int64 = np.where(place >= 0, ends[np.maximum(place, 0)], _NEVER)
    return last


def _woken(rows: pl.DataFrame) -> list[int | None]:
    """For each collective how many launches later something was launched that waited for its end.

    Waits of streams are not recorded. What was queued, on a stream that was idle, and starts as a collective of another
    stream ends, waited for it.
    """
    kind = rows["kind"].to_numpy()
    launched = np.flatnonzero(kind <= COLLECTIVE)
    items = rows[launched]
    launch, start, end = (items[name].to_numpy() for name in ("at_ns", "start_ns", "end_ns"))
    stream = items["stream"].fill_null(-1).to_numpy()
    is_collective = items["kind"].to_numpy() == COLLECTIVE
    latency = items["latency_ns"].to_numpy()
    of_work = np.where(is_collective, _NEVER, end)
    done = np.concatenate([[_NEVER], np.maximum.accumulate(of_work)[:-1]])
    free = np.maximum(launch + latency, done)
    for number in np.unique(stream[is_collective]):
        mine = np.flatnonzero(is_collective & (stream == number))
        free[mine[1:]] = np.maximum(free[mine[1:]], end[mine[:-1]])
    collectives = np.flatnonzero(is_collective)
    offsets: list[int | None] = [None] * kind.size
    if not collectives.size:
        return offsets
    by_end = collectives[np.argsort(end[collectives], kind="stable")]
    place = np.searchsorted(end[by_end], start + TOUCH_NS, side="right") - 1
    waker = by_end[np.maximum(place, 0)]
    woken = (place >= 0) & (start - free > IDLE_NS) & (start - end[waker] < WAKE_NS)
    woken &= (launch[waker] < launch) & (stream[waker] != stream)
    for item in np.flatnonzero(woken)[::-1]:  # the first that it woke counts
        if item > waker[item]:
            offsets[launched[waker[item]]] = int(item - waker[item])
    return offsets


def _on_host(tables: Mapping[str, pl.DataFrame], collectives: pl.DataFrame) -> pl.DataFrame:
    """Of a host without a device: Gloo's ranges, and when nothing runs while one lasts, which is a wait for it.

    An idle thread of Gloo takes a collective when the host launches it: the host does not wait then. What a busy thread
    starts was queued, and launched before the wait in which it starts.
    """
    operators, annotations = tables["host_ops"], tables["annotations"]
    ranges = gloo_ranges(operators, annotations)
    computing = covered_time(computing_operators(operators, ranges, without_waits=True))
    exposed = covered_time(ranges) - computing - data_loading_time(annotations)
    collectives = collectives.filter(pl.col("end_ns").is_not_null()).sort("start_ns", "end_ns")
    start, end, stream = (collectives[name].to_numpy() for name in ("start_ns", "end_ns", "stream"))
    queued = np.zeros(start.size, dtype=np.bool_)
    for number in np.unique(stream):
        mine = np.flatnonzero(stream == number)
        between = start[mine[1:]] - end[mine[:-1]]
        queued[mine[1:]] = (between >= 0) & (between < _GLOO_QUEUED_NS)
    begin, until = _divided(exposed, np.unique(start[~queued]))
    awaited, waited = _awaited(start, end, begin, until)
    begin, until, awaited = begin[waited], until[waited], awaited[waited]
    at = start
    if begin.size:
        wait = np.maximum(np.searchsorted(begin, start, side="right") - 1, 0)
        during = queued & (start >= begin[wait]) & (start < until[wait])
        at = np.where(during, begin[wait], start)
    waits = pl.DataFrame({"at_ns": begin, "start_ns": begin, "end_ns": until, "awaits": awaited})
    latency = pl.select(pl.when(~pl.Series(queued, dtype=pl.Boolean)).then(0)).to_series()
    launched = collectives.with_columns(pl.Series("launched_ns", at, dtype=pl.Int64))
    return pl.concat(
        [
            _collective_moments(launched, "launched_ns").with_columns(latency.alias("latency_ns")),
            waits.with_columns(pl.lit(WAIT, pl.Int8).alias("kind")),
        ],
        how="diagonal_relaxed",
    )


def _divided(exposed: IntervalSet, launches: Int64) -> tuple[Int64, Int64]:
    """The beginnings and ends of intervals that are divided at launches within them."""
    begun = np.searchsorted(exposed.starts, launches, side="left")
    within = launches[begun > np.searchsorted(exposed.ends, launches, side="right")]
    begin = np.sort(np.concatenate([exposed.starts, within]))
    until = np.sort(np.concatenate([exposed.ends, within]))
    long = until - begin >= _LEAST_WAIT_NS
    return begin[long], until[long]


def _awaited(start: Int64, end: Int64, begin: Int64, until: Int64) -> tuple[Int64, Bool]:
    """Which collective each wait of a host was for, and whether there is one.

    It is the last to have ended by the end of the wait, and within it. If there is none, it is the next to end of those
    that had begun, if that is recorded late: by no more than `_SLICE_NS`, nor than the wait.
    """
    if not end.size:
        return np.zeros(begin.size, dtype=np.int64), np.zeros(begin.size, dtype=np.bool_)
    by_end = np.argsort(end, kind="stable")
    place = np.searchsorted(end[by_end], until + _GLOO_RETURN_NS, side="right")
    awaited = by_end[np.maximum(place - 1, 0)]
    waited = (place > 0) & (end[awaited] >= begin)
    for wait in np.flatnonzero(~waited):
        latest = until[wait] + min(_SLICE_NS, int(until[wait] - begin[wait]))
        following = by_end[place[wait] : np.searchsorted(end[by_end], latest, side="right")]
        following = following[start[following] < until[wait]]
        if following.size:
            awaited[wait], waited[wait] = following[0], True
    return awaited, waited
