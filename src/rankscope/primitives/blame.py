"""From what ranks did in their steps to who holds the others up, since when, why, and what mending it saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from rankscope.primitives.causes import Cause, cause_of, work_beside
from rankscope.primitives.intervals import Int64
from rankscope.primitives.laggards import OWN as WHOLE
from rankscope.primitives.laggards import Bool, Float, Laggard, excesses, laggards
from rankscope.primitives.mesh import Mesh
from rankscope.primitives.owntime import OWN
from rankscope.primitives.stretches import PARTS

# What is looked at by itself: on a device what is regular, on the host the whole of it and the time without any record.
WATCHED = {
    "compute": ("compute",),
    "copies": ("copies",),
    "allocation": ("allocation",),
    "data_loading": ("data_loading",),
    "host": ("runtime", "operators", "nothing"),
    "nothing": ("nothing",),
}
HALF = 0.5  # of a step: of one cut at its beginning there must be so much
OUTSIDE = 0.5  # a slice of the mesh larger than this is no exception


@dataclass(frozen=True)
class Blamed:
    """Ranks that hold the others up by themselves.

    Attributes:
        ranks: one, or all of a slice of the mesh.
        label: how to call them.
        cause: why.
        excess_ns: own time beyond that of their peers, mean over all steps.
        saving_ns: what a step would gain if they took no longer than the slowest of the others, mean over all steps.
        steps: in which they are late.
        compared: steps in which they could be compared.
        lasting: whether it is all the time.
    """

    ranks: tuple[int, ...]
    label: str
    cause: Cause
    excess_ns: int
    saving_ns: int
    steps: tuple[int, ...]
    compared: int
    lasting: bool


class Standing:
    """The own times of ranks by step, as matrices, and who stands out of them."""

    def __init__(self, own: pl.DataFrame, work: pl.DataFrame, role: Mapping[int, int], *, on_host: bool) -> None:
        """Sort them out.

        Args:
            own: as `own_times` gives them.
            work: rank, step, work, pieces, work_ns, size: what each rank's steps launched.
            role: which program each rank runs.
            on_host: the job computes on its hosts.
        """
        placed = own.with_columns(pl.col("rank").replace_strict(role, default=-2, return_dtype=pl.Int64).alias("role"))
        # Where something was lost the number of collectives differs: such a step cannot be compared.
        alike = placed.filter(pl.col("count") == pl.col("count").mode().min().over("role", "step"))
        # A step that is cut at its beginning lacks the loading, among others.
        length = alike.filter(~pl.col("first"))["elapsed_ns"].median() or alike["elapsed_ns"].median()
        self.step_ns = float(length) if isinstance(length, int | float) else 0.0
        frame = alike.filter(~pl.col("first") | (pl.col("elapsed_ns") > HALF * self.step_ns)).sort("rank", "step")
        self.ranks: Int64 = frame["rank"].unique().sort().to_numpy()
        self.steps: Int64 = frame["step"].unique().sort().to_numpy()
        self.on_host = on_host
        self._row = np.searchsorted(self.ranks, frame["rank"].to_numpy())
        self._column = np.searchsorted(self.steps, frame["step"].to_numpy())
        self.known: Bool = np.zeros((self.ranks.size, self.steps.size), dtype=np.bool_)
        self.known[self._row, self._column] = True
        whole: Bool = np.zeros(self.known.shape, dtype=np.bool_)
        whole[self._row, self._column] = ~frame["first"].to_numpy()
        if whole.any(axis=0).sum() < 2:
            whole = self.known
        numbers = np.zeros(self.ranks.size, dtype=np.int64)
        numbers[self._row] = frame["role"].to_numpy()
        self.role: Int64 = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
        self._parts = {part: self._matrix(frame[part]) for part in PARTS}
        watched = {name: np.sum([self._parts[part] for part in parts], axis=0) for name, parts in WATCHED.items()}
        own_time: Int64 = np.sum([self._parts[part] for part in OWN], axis=0)
        self._own = own_time
        watched |= self._work(work)
        self._launched = work
        looked_at = {name: value for name, value in watched.items() if value.any()}
        self.late: list[Laggard] = []
        if self.ranks.size > 1 and self.step_ns > 0:
            self.late = laggards(
                {WHOLE: own_time, **looked_at}, self.known, whole, self.role, self.step_ns, steady=not on_host
            )
        self.out: Bool = np.zeros(self.ranks.size, dtype=np.bool_)
        self.out[[each.row for each in self.late]] = True
        self.excess: Float = excesses(own_time, self.known, self.role, self.out)

    def _matrix(self, column: pl.Series) -> Int64:
        found: Int64 = np.zeros(self.known.shape, dtype=np.int64)
        found[self._row, self._column] = column.to_numpy()
        return found

    def _work(self, work: pl.DataFrame) -> dict[str, Int64]:
        """What each step launched: as work, at the pace that is usual for each piece, and how much longer it took."""
        each = work.filter(pl.col("rank").is_in(self.ranks) & pl.col("step").is_in(self.steps))
        unit = (
            each.group_by("work", "rank")
            .agg((pl.col("work_ns").sum() / pl.col("pieces").sum()).alias("unit_ns"))
            .group_by("work")
            .agg(pl.col("unit_ns").median())
        )
        sums = (
            each.join(unit, on="work")
            .group_by("rank", "step")
            .agg(
                (pl.col("pieces") * pl.col("unit_ns")).sum().round().cast(pl.Int64).alias("usual"),
                pl.col("work_ns").sum(),
            )
        )
        row = np.searchsorted(self.ranks, sums["rank"].to_numpy())
        column = np.searchsorted(self.steps, sums["step"].to_numpy())
        found = {name: np.zeros(self.known.shape, dtype=np.int64) for name in ("work", "pace")}
        found["work"][row, column] = sums["usual"].to_numpy()
        found["pace"][row, column] = (sums["work_ns"] - sums["usual"]).to_numpy()
        return found

    def saving(self, rows: Sequence[int]) -> int:
        """What a step would gain if these ranks took no longer than the slowest of the others, ns."""
        filled = np.where(np.isfinite(self.excess), self.excess, 0.0)
        inside = np.zeros(self.ranks.size, dtype=np.bool_)
        inside[list(rows)] = True
        theirs = filled[inside].max(axis=0)
        rest = np.maximum(filled[~inside].max(axis=0), 0.0) if not inside.all() else np.zeros(theirs.size)
        return int(np.maximum(theirs - rest, 0.0).sum()) // max(self.steps.size, 1)

    def blamed(self) -> list[Blamed]:
        """Who holds the others up, the weightiest first."""
        return [self._blame(each) for each in self.late]

    def _blame(self, late: Laggard) -> Blamed:
        rank = int(self.ranks[late.row])
        steps = tuple(int(step) for step in self.steps[late.late])
        more = {
            part: int(np.nansum(excesses(value, self.known, self.role, self.out)[late.row][late.late]))
            for part, value in self._parts.items()
            if part in OWN
        }
        peers = self.ranks[(self.role == self.role[late.row]) & ~self.out].tolist()
        cause = cause_of(int(late.weight), more, work_beside(self._launched, rank, peers, steps), on_host=self.on_host)
        return Blamed(
            (rank,),
            f"rank {rank}",
            cause,
            int(late.weight) // max(self.steps.size, 1),
            self.saving([late.row]),
            steps,
            int(np.isfinite(late.excess).sum()),
            late.lasting,
        )

    def by_slice(self, blamed: Sequence[Blamed], slices: Sequence[tuple[str, frozenset[int]]]) -> list[Blamed]:
        """Ranks of one slice of the mesh (a replica, a tensor-parallel group, a host), all late alike, as one.

        Args:
            blamed: single ranks.
            slices: how each is called, and its ranks.
        """
        known = frozenset(self.ranks.tolist())
        left = {each.ranks[0]: each for each in blamed}
        found: list[Blamed] = []
        for label, members in sorted(slices, key=lambda each: -len(each[1])):
            here = members & known
            if not 1 < len(here) < OUTSIDE * len(known) or not here <= left.keys():
                continue
            causes = {left[rank].cause.cause for rank in here}
            if len(causes) > 1:
                continue
            first = max((left[rank] for rank in here), key=lambda each: each.excess_ns)
            rows = np.searchsorted(self.ranks, sorted(here)).tolist()
            found.append(replace(first, ranks=tuple(sorted(here)), label=label, saving_ns=self.saving(rows)))
            left = {rank: each for rank, each in left.items() if rank not in here}
        return sorted([*found, *left.values()], key=lambda each: -each.excess_ns)


def slices_of(mesh: Mesh) -> list[tuple[str, frozenset[int]]]:
    """Slices of the mesh, with what to call them: a coordinate along a dimension, a host, a group along a dimension."""
    by_place = mesh.frame.group_by("dimension", "label").agg(pl.col("rank"))
    by_cell = mesh.frame.filter(pl.col("cell") >= 0).group_by("dimension", "cell").agg(pl.col("rank"))
    return [
        *((label, frozenset(ranks)) for _, label, ranks in by_place.sort("dimension", "label").iter_rows()),
        *(
            (f"the {dimension} group of ranks {', '.join(map(str, sorted(ranks)))}", frozenset(ranks))
            for dimension, _, ranks in by_cell.sort("dimension", "cell").iter_rows()
        ),
    ]
