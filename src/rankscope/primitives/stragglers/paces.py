"""Steps place by place: what a step takes without the hiccups of single places.

Hosts have hiccups: now one operator takes ten times as long as usual, now another. In a step of a few milliseconds one
of them is a tenth of the step, as much as a fault worth reporting. So the local time of a step is cut at the ends of
its pieces of work (kernels and copies of the busiest stream; without a device top-level operators). The time before a
piece belongs to it: the gap in which the device waited for its launch, and the piece itself. Of steps with nearly the
same pieces,

    steady time of a step = Σ over places min(time there, `HICCUP` · the usual time there)
where the usual time is the median over the steps. A hiccup is cut off, while a fault that recurs at the same place is
not, nor is a host that is slow everywhere.

In: one rank's steps and pieces of work. Out: the steady time of each step.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.activity import (
    computing_operators,
    covered_time,
    gloo_ranges,
    with_category,
)
from rankscope.primitives.intervals import Int64
from rankscope.primitives.kernels import COMMUNICATION
from rankscope.primitives.steps import host_steps
from rankscope.primitives.synchronization import host_waits

HICCUP = 2.0
"""Times the usual time of a place: one operator call in a hundred takes more than five times its median (measured)."""
ALIKE = 2
"""So many steps must do the same for the usual time to be known."""
COMMON = 0.9
"""Two steps do the same if they share so many of their pieces: some events are lost, and some steps also log."""
COLUMNS = ("step", "elapsed_ns", "steady_ns")


@dataclass(frozen=True)
class StepBounds:
    """When each step begins and ends, and a rank's own time by then, ns; arrays, by step ascending."""

    step: Int64
    begin: Int64
    begin_own: Int64
    end: Int64
    end_own: Int64

    @classmethod
    def of(cls, collectives: pl.DataFrame) -> StepBounds:
        """From the last collective of one step to that of the next; else from the step's own first.

        Args:
            collectives: step (null where not recorded), end_ns, own_ns (own time by the end).
        """
        before, after = pl.col("step").forward_fill(), pl.col("step").backward_fill()
        # A step whose range was lost, or began before the file, lies next to its neighbors.
        guess = pl.when(before.is_null()).then(after - 1).when(after.is_null() | (after == before + 2)).then(before + 1)
        found = (
            collectives.sort("end_ns")
            .with_columns(pl.coalesce("step", guess).alias("step"))
            .drop_nulls("step")
            .group_by("step")
            .agg(pl.col("end_ns", "own_ns").first().name.suffix("_first"), pl.col("end_ns", "own_ns").last())
            .sort("step")
        )
        follows = (pl.col("step") == pl.col("step").shift(1) + 1).fill_null(False)
        begin = (pl.when(follows).then(pl.col(n).shift(1)).otherwise(f"{n}_first") for n in ("end_ns", "own_ns"))
        frame = found.select(
            "step", *(each.alias(n) for each, n in zip(begin, ("begin", "begin_own"), strict=True)), "end_ns", "own_ns"
        )
        return cls(*(frame[name].to_numpy() for name in frame.columns))


def device_places(
    device: pl.DataFrame, operators: pl.DataFrame, annotations: pl.DataFrame, extra: str | None
) -> tuple[Int64, Int64]:
    """Where a rank's time is cut: ends of pieces of work, ns, ascending, and a number for the kind of each piece.

    Args:
        device: device_events: start_ns, end_ns, name, kind, is_collective, stream.
        operators: host_ops, read where there is no device.
        annotations: likewise.
        extra: a regular expression of further kernel names that are communication.
    """
    if device.height:
        works = with_category(device, extra).filter(pl.col("category") != COMMUNICATION)
        # Pieces of one stream end in the order of the program; those of several in any.
        length = (pl.col("end_ns") - pl.col("start_ns")).sum()
        busiest = works.group_by("stream").agg(length.alias("ns")).sort("ns", "stream")["stream"]
        found = works.filter(pl.col("stream").eq_missing(busiest[-1])) if busiest.len() else works
    else:
        found = computing_operators(operators, gloo_ranges(operators, annotations), without_waits=True)
    return _places(found.sort("end_ns", "start_ns"))


def host_paces(operators: pl.DataFrame, runtime: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """The steps of the host, cut at the ends of top-level operators, without calls in which it waits for the device.

    A host that runs ahead may be slow at no cost, and the device of one that fell behind by chance waits although the
    host is not slow. Only a host that itself takes longer is slow.

    Args:
        operators: host_ops: end_ns, name, depth.
        runtime: runtime_calls: start_ns, end_ns, name.
        annotations: start_ns, end_ns, name, on_device, step.
    """
    steps = host_steps(annotations).unique("step", keep="first", maintain_order=True).sort("step")
    at, code = _places(operators.filter(pl.col("depth") == 0).sort("end_ns"))
    calls = covered_time(host_waits(runtime))
    start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    own, begun, ended = (each - calls.before(each) for each in (at, start, end))
    return step_paces(at, code, own, StepBounds(steps["step"].to_numpy(), start, begun, end, ended))


def _places(found: pl.DataFrame) -> tuple[Int64, Int64]:
    code = found.select(pl.col("name").rank("dense").fill_null(0).cast(pl.Int64)).to_series()
    return found["end_ns"].to_numpy(), code.to_numpy()


def step_paces(at: Int64, code: Int64, own: Int64, bounds: StepBounds) -> pl.DataFrame:
    """The steady time of each step of a trace.

    Args:
        at: ends of pieces, ns, ascending.
        code: the kind of each.
        own: the rank's own time by then, ns.
        bounds: of the steps.

    Returns:
        step, elapsed_ns, and steady_ns (null where no other step does the same).
    """
    first = np.searchsorted(at, bounds.begin, side="right")
    last = np.maximum(np.searchsorted(at, bounds.end, side="right"), first)
    cuts = [
        _Cut(_keys(code[i:j]), own[i:j], *each)
        for i, j, *each in zip(first, last, bounds.begin_own, bounds.end_own, strict=True)
    ]
    steady: list[int | None] = [None] * len(cuts)
    for same in _alike(cuts):
        if len(same) < ALIKE:
            continue
        places = functools.reduce(np.intersect1d, [cuts[i].keys for i in same])
        held = np.stack([cuts[i].times(places) for i in same])
        usual = np.sort(held, axis=0)[(len(same) - 1) // 2]
        for i, times in zip(same, held, strict=True):
            steady[i] = int(np.minimum(times, HICCUP * np.maximum(usual, 0)).sum())
    columns = (bounds.step.tolist(), (bounds.end - bounds.begin).tolist(), steady)
    return pl.DataFrame([pl.Series(name, each, pl.Int64) for name, each in zip(COLUMNS, columns, strict=True)])


@dataclass(frozen=True)
class _Cut:
    """A step: the kinds of its pieces, and the own time by their ends, by its beginning and by its end."""

    keys: Int64
    own: Int64
    begin: int
    end: int

    def times(self, places: Int64) -> Int64:
        """The time at each place, in the order of ``places``; last what is left of the step."""
        there = np.flatnonzero(np.isin(self.keys, places))
        found = np.diff(np.concatenate([[self.begin], self.own[there], [self.end]]))
        # Threads take turns: pieces that come in another order keep their names.
        order = np.argsort(self.keys[there], kind="stable")
        return np.append(found[:-1][order], found[-1])


def _keys(code: Int64) -> Int64:
    """A number for each piece: its kind, and its position among those of its kind."""
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if code.size else order
    number = np.empty_like(code)
    number[order] = np.arange(code.size) - np.repeat(begins, np.diff(np.append(begins, code.size)))
    return code * (1 << 32) + number


def _alike(cuts: Sequence[_Cut]) -> list[list[int]]:
    """Groups of steps that do the same, except for a few pieces."""
    groups: list[list[int]] = []
    for i, cut in enumerate(cuts):
        for group in groups:
            first = cuts[group[0]].keys
            common = np.intersect1d(first, cut.keys).size
            if common and common >= COMMON * max(first.size, cut.keys.size):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups
