"""The cause of a late host by its name: what takes longer than on its peers, per step.

Where a host is late, the parts of its time say only that: it is in operators, or in nothing that was recorded. What is
recorded by name (`host_items`) and what the step log knows of its thread (`step_log`) say more. In this order:

1. Python's garbage collection, if its ranges or the log's counter have half of the excess; other programs on its core,
   if its thread waited for that for three tenths, and did not run for much longer than its peers', or mostly sleep.
2. All operators, as many as on the peers, if they have more of it than stretches in which nothing is recorded.
3. A function of the job, if stacks are recorded and one has half of it: the innermost that explains most of it.
4. One operator with half of it, or more operators.
5. The place in the job's code that the log's samples have half of it in.
6. The stretch in which nothing is recorded, by what is before and after it.

To what is named from 2. on, more work included, the innermost module or named range with most of the excess is added;
where nothing else has a name, it is the cause.

In: the items of a late rank and its peers, and what the log has of it. Out: the `Cause` with a name and an advice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from rankscope.primitives.stragglers.causes import ADVICE, EXPLAINS, PECULIAR, Cause, duration
from rankscope.primitives.stragglers.host_items import (
    COLLECTION,
    FUNCTION,
    GAP,
    MODULE,
    OPERATOR,
    OPERATORS,
    SHAPES,
)
from rankscope.primitives.stragglers.host_scopes import BETWEEN, function_place
from rankscope.primitives.stragglers.thread_excess import CodePlace, ThreadExcess
from rankscope.store.account import SHAPES as RECORDED_SHAPES
from rankscope.store.account import STACKS

_SCHEMA = pl.Schema(
    {"kind": pl.String, "label": pl.String}
    | dict.fromkeys(("excess_ns", "ns", "others_ns", "count", "others_count"), pl.Float64)
)
_NEAR = 1.5
"""Factors that differ by less are similar."""
_SEVERAL = 3
_LONGER = 1.2
"""A smaller factor does not say that all operators take longer."""
_HARDLY = 0.25
"""Of a rank's time at a place: peers with less are hardly there."""
_ALIKE = 0.02
"""Counts of operators that differ by less are equal."""
_MOST = 0.8
"""Of the largest excess of any function, or module: the innermost one with so much explains it."""
_WORTH = 0.1
"""Of the excess: smaller items are not listed."""
_LISTED = 3
LOADING, MORE_WORK = "data_loading", "more_work"
OF_ALL_OPERATORS = ("pace", "slow_host")
NAMED_BY_ITEMS = ("slow_host", "unclear")
"""Causes that say no more than which part of the time is longer."""


def excesses(
    items: pl.DataFrame, rank: int, peers: Sequence[int], steps: Sequence[int], *, on_host: bool
) -> pl.DataFrame:
    """By how much each item is longer than on the median of the peers, per step.

    It is the median of the steps, of two the less: what a host does once is not why it is late in each.

    Args:
        items: rank, step, kind, label, ns, count.
        rank: the late rank.
        peers: whom to compare it with.
        steps: its late steps.
        on_host: whether the job computes on the CPU. With a device, a step of the comparison begins with the last
            collective of the one before, so that what is late may be at the end of that one.

    Returns:
        kind, label, excess_ns, ns, others_ns, count, others_count, the largest excess first.
    """
    late = pl.DataFrame({"late": list(steps)}, schema={"late": pl.Int64})
    owner = late.with_columns(step="late")
    if not on_host:
        owner = pl.concat([owner, late.with_columns(step=pl.col("late") - 1)])
    here = items.filter(pl.col("rank").is_in([rank, *peers])).join(owner, on="step")
    sums = here.group_by("rank", "late", "kind", "label").agg(pl.col("ns", "count").sum())
    names = sums.filter(pl.col("rank") == rank).select("kind", "label").unique()
    ranks = pl.DataFrame({"rank": [rank, *peers]}, schema={"rank": pl.Int64})
    # A rank that does not have an item has none of it.
    full = names.join(late, how="cross").join(ranks, how="cross")
    full = full.join(sums, on=["rank", "late", "kind", "label"], how="left")
    full = full.with_columns(pl.col("ns", "count").fill_null(0))
    own, amounts = pl.col("rank") == rank, ("ns", "count")
    per_step = full.group_by("kind", "label", "late").agg(
        *(pl.col(name).filter(own).first() for name in amounts),
        *(pl.col(name).filter(~own).median().alias(f"others_{name}") for name in amounts),
    )
    per_step = per_step.with_columns((pl.col("ns") - pl.col("others_ns")).alias("excess_ns"))
    values = pl.col("ns", "others_ns", "count", "others_count", "excess_ns")
    found = per_step.group_by("kind", "label").agg(values.quantile(0.5, "lower"))
    return found.sort("excess_ns", "label", descending=[True, False])


def recurs(items: pl.DataFrame, rank: int, peers: Sequence[int], steps: Sequence[int], least_ns: float) -> float:
    """How much longer per step a rank is at one place, in every step, where its peers hardly are; 0: nowhere.

    A hiccup of a host hits another place in each step, and a slow core makes all operators longer, which the peers
    have, too. So a stretch without events, a function or a garbage collection that only this rank has, in each of a few
    steps, is no chance.

    Args:
        items: rank, step, kind, label, ns, count.
        rank: the rank.
        peers: whom to compare it with.
        steps: the compared steps.
        least_ns: the least of a step that counts.
    """
    places = items.filter(pl.col("kind").is_in([GAP, FUNCTION, COLLECTION]) & pl.col("step").is_in(list(steps)))
    mine = places.filter(pl.col("rank") == rank)
    others = (
        places.filter(pl.col("rank").is_in(list(peers)))
        .group_by("kind", "label", "step")
        .agg(pl.col("ns").max().alias("others_ns"))
    )
    per_step = mine.join(others, on=["kind", "label", "step"], how="left").with_columns(
        pl.col("others_ns").fill_null(0)
    )
    found = (
        per_step.group_by("kind", "label")
        .agg(pl.len().alias("n"), (pl.col("ns") - pl.col("others_ns")).alias("more"), pl.col("ns", "others_ns").sum())
        .filter(
            (pl.col("n") == len(steps))
            & (pl.col("others_ns") <= _HARDLY * pl.col("ns"))
            & (pl.col("more").list.min() >= least_ns)
            & (pl.col("more").list.min() >= EXPLAINS * pl.col("more").list.mean())
        )
    )
    return float(found.select(pl.col("more").list.mean().max()).item() or 0.0)


def named(
    cause: Cause, excess_ns: float, items: pl.DataFrame | None, thread: ThreadExcess | None, *, logged_ns: float = 0.0
) -> Cause:
    """The cause with a name, as far as something has one.

    Args:
        cause: by the parts of the rank's time.
        excess_ns: its excess per late step of the trace, as `excesses` takes it; 0 without a trace.
        items: of `excesses`; None without a trace.
        thread: what the log has of it; None without a log.
        logged_ns: its excess per step of the log.
    """
    if cause.named:
        return cause
    if cause.cause == LOADING:
        return _in_loader(cause, thread, logged_ns)
    if cause.cause == MORE_WORK:
        return _in_module(cause, items, excess_ns)
    if cause.cause not in NAMED_BY_ITEMS:
        return cause
    operators = None if state(thread, logged_ns) == "asleep" else _by_operators(items, excess_ns, thread, logged_ns)
    of_all = operators if operators is not None and operators.cause in OF_ALL_OPERATORS else None
    found = (
        _by_counters(items, excess_ns, thread, logged_ns)
        or _by_core(thread, logged_ns)
        or of_all
        or _by_function(items, excess_ns)
        or operators
        or _by_place(thread, logged_ns)
        or _by_gap(items, excess_ns, thread, logged_ns)
        or cause
    )
    if found.cause not in ("descheduled", "garbage_collection"):
        found = _in_module(found, items, excess_ns)
        if found.named and _lacks_core(thread, logged_ns):
            found = replace(found, named=f"{found.named}; other programs run on its core, too")
    return replace(found, evidence=cause.evidence or found.evidence, longer=_longer(items, excess_ns))


def _lacks_core(thread: ThreadExcess | None, logged_ns: float) -> bool:
    return thread is not None and logged_ns > 0 and (thread.ready_ns or 0) >= PECULIAR * logged_ns


def _by_counters(
    items: pl.DataFrame | None, excess_ns: float, thread: ThreadExcess | None, logged_ns: float
) -> Cause | None:
    """Python's garbage collection, and where in the job's code."""
    collected = float(_of_kind(items, COLLECTION)["excess_ns"].sum())
    share = collected / excess_ns if excess_ns else 0.0
    if thread is not None and logged_ns:
        share = max(share, thread.collecting_ns / logged_ns)
    if share < EXPLAINS:
        return None
    where = _where(thread, logged_ns)
    advice = f"Make fewer objects in {where}. {ADVICE['garbage_collection']}" if where else ""
    what = f"Python collects garbage{f', in {where}' if where else ''}"
    return _cause("garbage_collection", share, what, advice)


def _by_core(thread: ThreadExcess | None, logged_ns: float) -> Cause | None:
    """Other programs on its core, unless it also has much more to run, or mostly sleeps: both make it wait for a core
    more often."""
    if thread is None or not _lacks_core(thread, logged_ns) or (thread.running_ns or 0) >= PECULIAR * logged_ns:
        return None
    if state(thread, logged_ns) == "asleep":
        return None
    where = _where(thread, logged_ns)
    what = f"other programs run on its core{f', while it is in {where}' if where else ''}"
    return _cause("descheduled", (thread.ready_ns or 0) / logged_ns, what)


def _where(thread: ThreadExcess | None, logged_ns: float) -> str:
    """The function of the job that has most of the excess, if it is not the loop's own."""
    if thread is None or thread.place is None or thread.in_loop or thread.place_ns < EXPLAINS * logged_ns:
        return ""
    return "" if thread.place.function.startswith("<") else str(thread.place)


def _innermost(items: pl.DataFrame | None, kind: str, excess_ns: float) -> dict[str, Any] | None:
    """Of the items that others enclose, the innermost one that explains most; None if none has half of the excess."""
    scopes = _of_kind(items, kind)
    if scopes.is_empty() or scopes["excess_ns"][0] < EXPLAINS * excess_ns:
        return None
    explains = scopes.filter(pl.col("excess_ns") >= _MOST * scopes["excess_ns"][0])
    return explains.sort("count", "excess_ns", descending=True).row(0, named=True)


def _in_module(cause: Cause, items: pl.DataFrame | None, excess_ns: float) -> Cause:
    """The cause with the module or named range that it is in."""
    row = _innermost(items, MODULE, excess_ns)
    if row is None:
        return cause
    if cause.named or cause.cause == MORE_WORK:
        return replace(cause, named=f"{cause.text}, in {row['label']}")
    advice = f"Look at {row['label']}: on the other ranks it takes {duration(row['others_ns'])} per step."
    return _cause("code", row["excess_ns"] / excess_ns, f"it takes longer in {row['label']}", advice)


def _by_function(items: pl.DataFrame | None, excess_ns: float) -> Cause | None:
    row = _innermost(items, FUNCTION, excess_ns)
    if row is None:
        return None
    label, _, caller = row["label"].partition(BETWEEN)
    place = function_place(caller or label)
    if place is None:
        return None
    file, line, function = place
    called = CodePlace(file, line, function)
    what = f"it calls {_builtin(label)} in {called}" if caller else f"it runs {called}"
    advice = f"Look at {called}: on the other ranks it takes {duration(row['others_ns'])} per step."
    return _cause("code", row["excess_ns"] / excess_ns, what, advice)


def _builtin(name: str) -> str:
    """`sleep` of ``<built-in function sleep>``."""
    return name.strip("<>").removeprefix("built-in function ").removeprefix("built-in method ").split(" of ")[0]


def _by_operators(
    items: pl.DataFrame | None, excess_ns: float, thread: ThreadExcess | None, logged_ns: float
) -> Cause | None:
    every, each = _of_kind(items, OPERATORS), _of_kind(items, OPERATOR)
    # Net of those in which the peers wait for their devices, nothing might be left.
    slower = each.filter(pl.col("excess_ns") > 0)
    longer = float(slower["excess_ns"].sum())
    # What peers have between other operators has another name next to one that only this rank has.
    only_here = set(each.filter(pl.col("others_count") == 0)["label"])
    gaps = _of_kind(items, GAP).select("label", "excess_ns").iter_rows()
    silent = max((excess for label, excess in gaps if only_here.isdisjoint(label.split(BETWEEN))), default=0.0)
    if every.is_empty() or longer < EXPLAINS * excess_ns or silent > longer:
        return None
    all_of_them, first = every.row(0, named=True), each.row(0, named=True)
    share = longer / excess_ns
    at = _at_place(thread, logged_ns)
    if first["excess_ns"] >= EXPLAINS * longer and _stands_out(first, all_of_them):
        advice = f"Look at where {first['label']} is called on this rank{at}."
        return _cause("operators", first["excess_ns"] / excess_ns, f"{_calls(first)}{at}", advice)
    times = float(slower["ns"].sum()) / max(float(slower["others_ns"].sum()), 1.0)
    count, others = float(slower["count"].sum()), float(slower["others_count"].sum())
    more = count / max(others, 1)
    if more >= _NEAR or more - 1 >= EXPLAINS * (times - 1):
        counts = f"{all_of_them['count']:,.0f} instead of {all_of_them['others_count']:,.0f} per step"
        return _cause(MORE_WORK, share, f"it runs more operators ({counts}){at}")
    factors = _factors(each)
    has_shapes = all_of_them["label"] == SHAPES
    if factors is None or (has_shapes and factors[1] > _NEAR * factors[0]):
        return _cause("operators", share, f"its operators take longer, most of all {first['label']}", _SHAPES)
    least, most = (f"{each:.2g}" for each in factors)
    how_much = least if least == most else f"{least} to {most}"
    what = f"{first['label']} and others take {how_much} times as long"
    if has_shapes:
        return _cause("slow_host", share, f"a slower core: of equal shapes, {what}", _SLOW_CORE)
    advice = "Compare its batch size and sequence lengths with the other ranks'."
    cause = _cause("pace", share, f"more work in each operator, or a slower core: {what}", advice)
    return replace(cause, record=(RECORDED_SHAPES,))


_SLOW_CORE = "Check the clock frequency of its cores, and which other programs share them or their memory."
_SHAPES = "Compare these operators on this rank and another one: `rankscope analyze operators`."


def _factors(operators: pl.DataFrame) -> tuple[float, float] | None:
    """The least and the largest factor by which operators take longer, without the extremes, if several do; else None.

    Args:
        operators: of `excesses`.
    """
    longer = operators.filter((pl.col("excess_ns") > 0) & (pl.col("others_ns") > 0)).with_columns(
        (pl.col("ns") / pl.col("others_ns")).alias("factor")
    )
    excess = float(operators.filter(pl.col("excess_ns") > 0)["excess_ns"].sum())
    if longer.height < _SEVERAL or float(longer["excess_ns"].sum()) < _MOST * excess:
        return None
    ordered = longer.sort("factor")
    reached = ordered["excess_ns"].cum_sum() / longer["excess_ns"].sum()
    low, high = (float(ordered["factor"][min(int((reached < at).sum()), ordered.height - 1)]) for at in (0.1, 0.9))
    return (low, high) if low >= _LONGER else None


def _stands_out(one: dict[str, float], every: dict[str, float]) -> bool:
    """Whether one operator is longer by a larger factor than all are, and not because there are more of all."""
    if one["count"] * max(every["others_count"], 1) <= _NEAR * every["count"] * one["others_count"] and (
        every["count"] > _NEAR * every["others_count"]
    ):
        return False
    rest, others = every["ns"] - one["ns"], every["others_ns"] - one["others_ns"]
    return one["ns"] * max(others, 1) > 1.5 * rest * max(one["others_ns"], 1)


def _calls(row: dict[str, Any]) -> str:
    count, others = row["count"], row["others_count"]
    if abs(count - others) <= _ALIKE * max(others, 1):
        more = row["excess_ns"] / max(count, 1)
        calls = f"{count:.3g} calls, each {duration(more)} longer" if count > 1 else "one call"
        return f"{row['label']} takes longer ({calls})"
    counts = f"({count:,.0f} instead of {others:,.0f} per step)"
    return f"it runs {row['label']} more often {counts}" if count > others else f"{row['label']} takes longer {counts}"


def _at_place(thread: ThreadExcess | None, logged_ns: float) -> str:
    """Where in the job's code the log's samples have most of the excess; empty if nowhere."""
    if thread is None or thread.place is None or thread.place_ns < EXPLAINS * logged_ns:
        return ""
    return f", {_preposition(thread.place)} {thread.place}"


def _preposition(place: CodePlace) -> str:
    return "at" if place.function.startswith("<") else "in"


def _by_place(thread: ThreadExcess | None, logged_ns: float) -> Cause | None:
    if thread is None or thread.place is None or thread.place_ns < EXPLAINS * logged_ns:
        return None
    does = {"asleep": "sleeps or is blocked", "running": "runs"}.get(state(thread, logged_ns), "is")
    where = f"{_preposition(thread.place)} {thread.place}"
    what = f"it runs {thread.place}" if does == "runs" else f"it {does} {where}"
    advice = f"Look at {thread.place}, where the other ranks spend less time."
    return _cause("code", thread.place_ns / logged_ns, what, advice)


def _in_loader(cause: Cause, thread: ThreadExcess | None, logged_ns: float) -> Cause:
    """Waiting for data, by the function of the job that loads it in the loop's own thread."""
    where = _where(thread, logged_ns)
    if not where:
        return cause
    advice = f"Look at {where}, or give the data loader workers (num_workers) and let them prefetch."
    return replace(cause, named=f"it waits for data, in {where}", advice=advice)


def _by_gap(
    items: pl.DataFrame | None, excess_ns: float, thread: ThreadExcess | None, logged_ns: float
) -> Cause | None:
    gaps = _of_kind(items, GAP)
    if gaps.is_empty() or gaps["excess_ns"][0] < EXPLAINS * excess_ns:
        return None
    row = gaps.row(0, named=True)
    before, _, after = row["label"].partition(BETWEEN)
    does = {"asleep": ": it sleeps or is blocked", "running": ": it runs Python"}.get(state(thread, logged_ns), "")
    where = f"between {before} and {after}" if before and after else f"after {before}" if before else f"before {after}"
    what = f"nothing is recorded {where}{does}"
    cause = _cause("silent", row["excess_ns"] / excess_ns, what, f"Look at what the script does {where}.")
    return replace(cause, record=(STACKS,))


def state(thread: ThreadExcess | None, logged_ns: float) -> str:
    """What most of the excess is: `asleep`, `running`, `ready`; empty if that is not known."""
    if thread is None or not logged_ns:
        return ""
    parts = {"asleep": thread.asleep_ns, "running": thread.running_ns, "ready": thread.ready_ns}
    name, most = max(((name, value or 0) for name, value in parts.items()), key=lambda each: each[1])
    return name if most >= EXPLAINS * logged_ns else ""


def _of_kind(items: pl.DataFrame | None, kind: str) -> pl.DataFrame:
    return pl.DataFrame(schema=_SCHEMA) if items is None else items.filter(pl.col("kind") == kind)


def _longer(items: pl.DataFrame | None, excess_ns: float) -> tuple[str, ...]:
    """What is longer, the longest first."""
    if items is None or items.is_empty():
        return ()
    rows = items.filter(pl.col("kind").is_in([OPERATOR, GAP]) & (pl.col("excess_ns") >= _WORTH * excess_ns))
    return tuple(
        f"{_phrase(row['kind'], row['label'])}: {duration(row['excess_ns'])}"
        for row in rows.head(_LISTED).iter_rows(named=True)
    )


def _phrase(kind: str, label: str) -> str:
    if kind != GAP:
        return label
    before, _, after = label.partition(BETWEEN)
    return f"nothing recorded between {before or 'the beginning'} and {after or 'the end'}"


def _cause(code: str, share: float, what: str, advice: str = "") -> Cause:
    return Cause(code, min(max(share, 0.0), 1.0), what, named=what, advice=advice)
