"""The input of the detectors: the times of all ranks and steps, as matrices.

`Observations.of` needs only the local time of each rank in each step, which a log can give without traces. `observe`
makes one from traces, which add the parts of that time, its steady part, the paces and the launched work.

In: local times, or the frames that traces give per rank. Out: `Observations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.primitives.stragglers.peers import Bool, Float, with_lost_filled
from rankscope.primitives.stragglers.timeline import LOCAL_PARTS

IDLE_PARTS = tuple(part for part in LOCAL_PARTS if part not in ("compute", "copies"))
HOST_PARTS = ("runtime", "operators", "nothing")
"""What a host did while its device was idle."""

CUT = 0.5
"""A first step that is cut at its beginning is compared if it is at least this share of a usual step, and at most its
inverse."""

JUMP = 0.25
"""Of a step: a rank whose step is longer or shorter than the others' by more had its clock set meanwhile. Steps end
with the same collectives, up to 0.1 ms on one host."""


@dataclass(frozen=True)
class Observations:
    """The times of ranks and steps. Matrices are (ranks, steps), ns; those of floats have nan where not known.

    Attributes:
        ranks: their numbers, ascending.
        steps: likewise.
        role: (ranks,) which program each runs, from 0: ranks are compared with those of the same one.
        step_ns: how long a step takes.
        on_host: whether the job computes on the CPU.
        known: where a rank can be compared in a step.
        whole: where it was recorded from the step's beginning.
        parts: the parts of the local time; their sum is the local time.
        work: what the launched work usually takes.
        slower: how much longer it took.
        steady: the local time without the hiccups of single places (`paces`).
        host_steady: the same of the host's own time, where a device keeps the time.
        launched: rank, step, work, ranged, pieces, work_ns: what the steps launched.
    """

    ranks: Int64
    steps: Int64
    role: Int64
    step_ns: float
    on_host: bool
    known: Bool
    whole: Bool
    parts: Mapping[str, Int64]
    work: Int64
    slower: Int64
    steady: Float
    host_steady: Float
    launched: pl.DataFrame

    @classmethod
    def of(cls, parts: Mapping[str, Int64], step_ns: float, *, on_host: bool = False) -> Observations:
        """From the parts of the local time alone: ranks and steps from 0, one program.

        Args:
            parts: (ranks, steps) ns each, by names of `LOCAL_PARTS`; one is enough.
            step_ns: how long a step takes.
            on_host: whether the job computes on the CPU.
        """
        ranks, steps = next(iter(parts.values())).shape
        every, none = np.ones((ranks, steps), dtype=np.bool_), np.zeros((ranks, steps), dtype=np.int64)
        unknown: Float = np.full((ranks, steps), np.nan)
        return cls(
            np.arange(ranks), np.arange(steps), np.zeros(ranks, dtype=np.int64), step_ns, on_host, every, every,
            {name: np.asarray(value, dtype=np.int64) for name, value in parts.items()}, none, none,
            unknown, unknown, pl.DataFrame(schema=LAUNCHED),
        )  # fmt: skip

    @property
    def local(self) -> Int64:
        """The local time."""
        total: Int64 = np.sum(list(self.parts.values()), axis=0)
        return total

    @property
    def host(self) -> Int64:
        """The part of the local time in which the host, but for data loading and calls for memory, is what counts."""
        none = np.zeros(self.known.shape, dtype=np.int64)
        total: Int64 = np.sum([self.parts.get(part, none) for part in HOST_PARTS], axis=0)
        return total

    @property
    def alone(self) -> Bool:
        """(ranks,) Whether no other rank runs the same program."""
        found: Bool = np.bincount(self.role, minlength=1)[self.role] < 2
        return found

    @property
    def enough(self) -> bool:
        """Whether there is anything to compare."""
        return self.ranks.size > 1 and self.step_ns > 0


LAUNCHED = pl.Schema(dict.fromkeys(("rank", "step", "work", "ranged", "pieces", "work_ns"), pl.Int64))


def observe(
    local: pl.DataFrame, launched: pl.DataFrame, paces: pl.DataFrame, role: Mapping[int, int], *, on_host: bool
) -> Observations:
    """The observations of traces.

    Args:
        local: as `local_times` gives it.
        launched: rank, step, work, ranged, pieces, work_ns: what each rank's steps launched.
        paces: rank, of_host, and what `step_paces` and `host_paces` give.
        role: which program each rank runs.
        on_host: whether the job computes on the CPU.
    """
    placed = local.with_columns(pl.col("rank").replace_strict(role, default=-2, return_dtype=pl.Int64).alias("role"))
    # A lost collective changes their number, and the wait in it looks like idle time. Such a step is not compared,
    # unless the rank has no complete one: then only the time of its device is. On the CPU several collectives run at
    # once, and which of them ends first costs no rank anything.
    count = pl.col("collectives" if on_host else "count")
    placed = placed.with_columns((count != count.mode().min().over("role", "step")).cast(pl.Int64).alias("lossy"))
    if on_host:
        # Its steps are cut at their ranges, the first one, too.
        placed = placed.with_columns(first=pl.lit(False))
    alike = placed.filter(pl.col("lossy") == 0)
    # A step that is cut at its beginning lacks data loading, among other things.
    length = alike.filter(~pl.col("first"))["elapsed_ns"].median() or alike["elapsed_ns"].median()
    step_ns = float(length) if isinstance(length, int | float) else 0.0
    # Collectives keep the ranks in step: if one's cut step is twice as long, the mark of its beginning is lost.
    cut_alike = pl.col("elapsed_ns").is_between(CUT * step_ns, step_ns / CUT, closed="none")
    none_whole = ~((pl.col("lossy") == 0) & ~pl.col("first")).any().over("rank") & (not on_host)
    compared = placed.filter((pl.col("lossy") == 0) | none_whole)
    compared = compared.filter(~pl.col("first") | cut_alike).sort("rank", "step")
    number = pl.len().over("role", "step")
    compared = compared.with_columns(
        (pl.col("elapsed_ns") - pl.col("elapsed_ns").median().over("role", "step")).alias("off")
    )
    off = _lasting(pl.col("off")) if on_host else pl.col("off").abs()
    # The median is also of the rank itself: of two ranks it is half as far.
    jumped = (off * number > JUMP * step_ns * (number - 1)) & (number > 1)
    frame = compared.filter(pl.col("first") | ~jumped)
    ranks: Int64 = frame["rank"].unique().sort().to_numpy()
    steps: Int64 = frame["step"].unique().sort().to_numpy()
    shape = ranks.size, steps.size

    def matrix(rows: pl.DataFrame, name: str) -> Float:
        value: Float = np.full(shape, np.nan)
        there = rows.drop_nulls(name).filter(pl.col("rank").is_in(ranks) & pl.col("step").is_in(steps))
        place = np.searchsorted(ranks, there["rank"].to_numpy()), np.searchsorted(steps, there["step"].to_numpy())
        value[place] = there[name].to_numpy()
        return value

    known = np.isfinite(matrix(frame, "elapsed_ns"))
    whole = matrix(frame.with_columns((~pl.col("first")).cast(pl.Int64)), "first") == 1
    if not whole.any():
        whole = known
    of_rank = frame.unique("rank", maintain_order=True)["role"].to_numpy()
    programs = np.unique(of_rank, return_inverse=True)[1].astype(np.int64)
    # The collective that ends a step may be lost on this rank, too.
    own = paces.filter(~pl.col("of_host")).join(
        frame.filter(pl.col("lossy") == 0).select("rank", "step", "elapsed_ns"),
        on=["rank", "step", "elapsed_ns"],
        how="semi",
    )
    host = paces.filter(pl.col("of_host") & (not on_host))
    ranged = (pl.col("ranged") == 1) & pl.col("rank").is_in(ranks) & pl.col("step").is_in(steps)
    program = pl.DataFrame({"rank": ranks, "role": programs}, schema={"rank": pl.Int64, "role": pl.Int64})
    work, slower = _work(launched.filter(ranged).join(program, on="rank"), matrix, known, programs)
    lossy = matrix(frame, "lossy") == 1
    parts = {part: np.where(known, matrix(frame, part), np.nan) for part in LOCAL_PARTS}
    for part in IDLE_PARTS:
        parts[part] = with_lost_filled(np.where(lossy, np.nan, parts[part]), lossy, programs)
    return Observations(
        ranks, steps, programs, step_ns, on_host, known, whole,
        {part: np.nan_to_num(value).astype(np.int64) for part, value in parts.items()}, work, slower,
        np.where(known, matrix(own, "steady_ns"), np.nan),
        matrix(host, "steady_ns"), launched,
    )  # fmt: skip


def _lasting(off: pl.Expr) -> pl.Expr:
    """By how much a rank's clock is off from a step on, ns: more than it is at any time before, or less.

    On a host steps do not end with a collective: what a rank does after its last one makes its next step shorter.
    """
    now = off.cum_sum()
    before = now.shift(1, fill_value=0)
    more, less = now.cum_min(reverse=True) - before.cum_max(), before.cum_min() - now.cum_max(reverse=True)
    return pl.max_horizontal(more, less, 0).over("rank")


def _work(
    each: pl.DataFrame, matrix: Callable[[pl.DataFrame, str], Float], known: Bool, role: Int64
) -> tuple[Int64, Int64]:
    """The work that the steps launched, at the usual pace of each piece, and how much longer it took."""
    unit = (
        each.group_by("work", "rank")
        .agg((pl.col("work_ns").sum() / pl.col("pieces").sum()).alias("unit_ns"))
        .group_by("work")
        .agg(pl.col("unit_ns").median())
    )
    # A rank that launches more of a piece than its peers may add shorter ones of that name: at most what they take.
    others = pl.col("pieces").quantile(0.5, "lower").over("role", "step", "work")
    usual_ns = pl.col("pieces") * pl.col("unit_ns")
    least = pl.max_horizontal(pl.min_horizontal(usual_ns, "work_ns"), others * pl.col("unit_ns"))
    sums = (
        each.group_by("rank", "role", "step", "work")
        .agg(pl.col("pieces", "work_ns").sum())
        .join(unit, on="work")
        .with_columns(pl.when(pl.col("pieces") > others).then(least).otherwise(usual_ns).alias("usual"))
        .group_by("rank", "step")
        .agg(pl.col("usual").sum().round(), pl.col("work_ns").sum())
        .with_columns((pl.col("work_ns") - pl.col("usual")).alias("slower"))
    )
    usual, slower = matrix(sums, "usual"), matrix(sums, "slower")
    # Where a step's range was not recorded, what it launched is not known.
    lost = known & ~np.isfinite(usual)
    filled = [np.where(known, value, np.nan) for value in (usual, slower)]
    usual, slower = (np.nan_to_num(with_lost_filled(value, lost, role)) for value in filled)
    return usual.round().astype(np.int64), slower.round().astype(np.int64)
