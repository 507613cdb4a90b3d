"""Stragglers from the local times of ranks and steps: which ranks, in which steps, why, and the potential saving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from rankscope.primitives.delay_causes import Cause, compare_work, find_cause
from rankscope.primitives.intervals import Int64
from rankscope.primitives.local_time import LOCAL_PARTS
from rankscope.primitives.outliers import find_outliers
from rankscope.primitives.peer_baseline import LOCAL as WHOLE
from rankscope.primitives.peer_baseline import Bool, Float, Outlier, excess_over_peers, with_lost_filled
from rankscope.primitives.recurring_delay import Pairs, usual_times
from rankscope.primitives.time_breakdown import PARTS

# What is looked at by itself: on a device what is regular, on the host the whole of it and the time without any record.
WATCHED = {
    "compute": ("compute",),
    "copies": ("copies",),
    "allocation": ("allocation",),
    "data_loading": ("data_loading",),
    "host": ("runtime", "operators", "nothing"),
    "nothing": ("nothing",),
}
SHARED = "more_work"
HALF = 0.5  # of a step: of one cut at its beginning there must be so much
SHARED_BY = 3  # ranks that launch a piece of work, to tell its usual pace
ALIKE = 0.5  # of the latest of a slice its other ranks are late by at least: they share one reason
STAGES = 3  # of which one can be the odd one
OUTSIDE = 0.5  # a slice of the mesh larger than this is no exception


@dataclass(frozen=True)
class Straggler:
    """Ranks that delay the others.

    Attributes:
        ranks: one, or all of a slice of the mesh.
        label: how to call them.
        cause: why.
        excess_ns: local time above the median of their peers', mean over all steps.
        saving_ns: potential saving per step if they were as fast as the slowest of the others, mean over all steps;
            for more work, if it were balanced.
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


class LocalTimeComparison:
    """The local times of ranks by step, as matrices, and the outliers among them."""

    def __init__(
        self,
        own: pl.DataFrame,
        work: pl.DataFrame,
        again: pl.DataFrame,
        role: Mapping[int, int],
        *,
        on_host: bool,
    ) -> None:
        """Arrange them by rank and step.

        Args:
            own: as `local_times` gives them.
            work: rank, step, work, ranged, pieces, work_ns, size: what each rank's steps launched.
            again: rank, of_host, and what `recurring_times` gives: the own time that recurs in each two steps.
            role: which program each rank runs.
            on_host: the job computes on its hosts.
        """
        placed = own.with_columns(pl.col("rank").replace_strict(role, default=-2, return_dtype=pl.Int64).alias("role"))
        # Where something was lost the number of collectives differs: such a step cannot be compared. On hosts several
        # run at once, and which of them ends first is nobody's loss.
        count = pl.col("collectives" if on_host else "count")
        alike = placed.filter(count == count.mode().min().over("role", "step"))
        # A step that is cut at its beginning lacks the loading, among others.
        length = alike.filter(~pl.col("first"))["elapsed_ns"].median() or alike["elapsed_ns"].median()
        self.step_ns = float(length) if isinstance(length, int | float) else 0.0
        # All ranks are tied: one whose cut step is twice as long as theirs has lost what tells where it begins.
        cut_alike = pl.col("elapsed_ns").is_between(HALF * self.step_ns, self.step_ns / HALF, closed="none")
        frame = alike.filter(~pl.col("first") | cut_alike).sort("rank", "step")
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
        own_time: Int64 = np.sum([self._parts[part] for part in LOCAL_PARTS], axis=0)
        self._own = own_time
        watched |= self._work(work)
        taken = frame.select("rank", "step", "elapsed_ns")
        # The rank itself may have lost what tells where its steps end.
        sound = again.filter(~pl.col("of_host")).join(taken, on=["rank", "step", "elapsed_ns"], how="semi")
        both = sound.join(
            taken,
            left_on=["rank", "other", "other_elapsed_ns"],
            right_on=["rank", "step", "elapsed_ns"],
            how="semi",
        )
        self.pairs = self._pairs(both)
        self.host_pairs = self._pairs(
            again.filter(pl.col("of_host") & pl.col("rank").is_in(self.ranks)).filter(
                pl.col("step").is_in(self.steps) & pl.col("other").is_in(self.steps)
            )
        )
        self._launched = work
        looked_at = {name: value for name, value in watched.items() if value.any()}
        self.late: list[Outlier] = []
        if self.ranks.size > 1 and self.step_ns > 0:
            self.late = find_outliers(
                {WHOLE: own_time, **looked_at},
                self.known,
                whole,
                self.role,
                self.step_ns,
                pairs=self.pairs,
                host_pairs=None if on_host else self.host_pairs,
                steady=not on_host,
            )
        self.alone: Bool = np.bincount(self.role, minlength=1)[self.role] < 2
        self._slow: dict[int, float] = {}
        if self.alone.sum() > 1 and self.step_ns > 0:
            self.late = sorted([*self.late, *self._without_peers(whole)], key=lambda each: -each.weight)
        if not on_host and self.step_ns > 0:
            self.late = sorted([*self.late, *self._slow_stages(whole)], key=lambda each: -each.weight)
        self.out: Bool = np.zeros(self.ranks.size, dtype=np.bool_)
        self.out[[each.row for each in self.late]] = True
        self.is_outlier: Bool = np.zeros(self.known.shape, dtype=np.bool_)
        for each in self.late:
            self.is_outlier[each.row] = each.late
        self.excess: Float = self._excess(own_time)
        for each in self.late:
            if each.row in self._slow:
                self.excess[each.row] = each.excess

    def _without_peers(self, whole: Bool) -> list[Outlier]:
        """Ranks alone in their program: late beside their own other steps, or slow at what other ranks do too."""
        rows = np.flatnonzero(self.alone)
        alike = np.zeros(rows.size, dtype=np.int64)
        beside = np.where(self.known, self._own - self._usual(self._own), 0)
        pace, ratio = self._pace()
        found: list[Outlier] = []
        for value, lasting in ((beside, False), (pace, True)):
            late = find_outliers(
                {WHOLE: value[rows]}, self.known[rows], whole[rows], alike, self.step_ns, steady=not self.on_host
            )
            found += [
                replace(each, row=int(rows[each.row]))
                for each in late
                if each.lasting == lasting and rows[each.row] not in {other.row for other in found}
            ]
        self._slow |= {each.row: float(np.median(ratio[each.row])) for each in found if each.lasting}
        return found

    def _slow_stages(self, whole: Bool) -> list[Outlier]:
        """All ranks of a stage, where each is as slow: none stands out of its peers, but the stage of the others.

        A stage is as slow as the fastest of its ranks, at what ranks of other stages launch too.
        """
        count = int(self.role.max(initial=-1)) + 1
        taken = {int(self.role[each.row]) for each in self.late}
        if count < STAGES or bool(self.alone.all()):
            return []
        pace, ratio = self._pace()
        members = [np.flatnonzero(self.role == each) for each in range(count)]
        known = np.array([self.known[rows].all(axis=0) for rows in members])
        value = np.array([pace[rows].min(axis=0) for rows in members])
        from_start = np.array([whole[rows].all(axis=0) for rows in members])
        found: list[Outlier] = []
        for each in find_outliers({WHOLE: value}, known, from_start, np.zeros(count, dtype=np.int64), self.step_ns):
            rows = members[each.row]
            if each.lasting and rows.size > 1 and each.row not in taken:
                self._slow |= {int(row): float(np.median(ratio[row])) for row in rows}
                found += [replace(each, row=int(row)) for row in rows]
        return found

    def _usual(self, value: Int64) -> Int64:
        """By rank, the median over its steps; of an even number the lower."""
        held = np.sort(np.where(self.known, value, np.iinfo(np.int64).max), axis=1)
        middle = np.maximum(self.known.sum(axis=1) - 1, 0) // 2
        return np.where(self.known.any(axis=1), held[np.arange(middle.size), middle], 0)[:, None]

    def _pace(self) -> tuple[Int64, Float]:
        """How much longer each step's work took than where other ranks do the same, and that as a ratio.

        The weighted median over pieces that three ranks and more launch: of a device that is slow all are slower, while
        one piece may be another size under the same name.
        """
        each = self._launched.filter(
            pl.col("rank").is_in(self.ranks) & pl.col("step").is_in(self.steps) & (pl.col("work_ns") > 0)
        ).with_columns((pl.col("work_ns") / pl.col("pieces")).alias("unit_ns"))
        usual = (
            each.group_by("work", "rank")
            .agg(pl.col("unit_ns").median())
            .group_by("work")
            .agg(pl.col("unit_ns").median().alias("usual_ns"), pl.len().alias("ranks"))
        )
        ratio: Float = np.ones(self.known.shape)
        taken = np.zeros(self.known.shape)
        weight = pl.col("usual_ns") * pl.col("pieces")
        middle = (
            each.join(usual.filter(pl.col("ranks") >= SHARED_BY), on="work")
            .with_columns((pl.col("unit_ns") / pl.col("usual_ns")).alias("ratio"), weight.alias("weight"))
            .sort("rank", "step", "ratio")
            .with_columns(pl.col("weight").cum_sum().over("rank", "step").alias("until"))
            .with_columns(pl.col("weight").sum().over("rank", "step").alias("all"))
            .filter(2 * pl.col("until") >= pl.col("all"))
            .group_by("rank", "step")
            .agg(pl.col("ratio").min(), pl.col("all").first())
        )
        row = np.searchsorted(self.ranks, middle["rank"].to_numpy())
        column = np.searchsorted(self.steps, middle["step"].to_numpy())
        ratio[row, column], taken[row, column] = middle["ratio"].to_numpy(), middle["all"].to_numpy()
        return np.round((ratio - 1) * taken).astype(np.int64), ratio

    def _excess(self, value: Int64) -> Float:
        """Beside the peers' median; where a rank has none, beside its own usual step."""
        found = excess_over_peers(value, self.known, self.role, self.out)
        own = np.where(self.known, value - self._usual(value), np.nan)
        return np.where(self.alone[:, None], own, found)

    def _matrix(self, column: pl.Series) -> Int64:
        found: Int64 = np.zeros(self.known.shape, dtype=np.int64)
        found[self._row, self._column] = column.to_numpy()
        return found

    def _pairs(self, each: pl.DataFrame) -> Pairs:
        """The recurring own times of each two steps in which a rank can be compared."""
        row = np.searchsorted(self.ranks, each["rank"].to_numpy())
        two = np.stack([np.searchsorted(self.steps, each[name].to_numpy()) for name in ("step", "other")], axis=1)
        pairs, column = np.unique(two, axis=0, return_inverse=True)
        known: Bool = np.zeros((self.ranks.size, len(pairs)), dtype=np.bool_)
        known[row, column.reshape(-1)] = True

        def placed(name: str) -> Int64:
            value: Int64 = np.zeros(known.shape, dtype=np.int64)
            value[row, column.reshape(-1)] = each[name].to_numpy()
            return value

        def by_step(frame: pl.DataFrame, name: str) -> Float:
            told = frame.drop_nulls(name)
            value: Float = np.full((self.ranks.size, self.steps.size), np.nan)
            rows = np.searchsorted(self.ranks, told["rank"].to_numpy())
            value[rows, np.searchsorted(self.steps, told["step"].to_numpy())] = told[name].to_numpy()
            return value

        # The last step is only ever the other one.
        others = each.select("rank", pl.col("other").alias("step"), pl.col("other_paced_ns").alias("paced_ns"))
        paced = pl.concat([each.select("rank", "step", "paced_ns"), others])

        waited = placed("waited_ns")
        return Pairs(
            placed("recurring_ns"),
            placed("most_ns"),
            placed("hiccup_ns"),
            waited,
            usual_times(by_step(each, "usual_ns"), self.role),
            by_step(paced, "paced_ns"),
            known,
            pairs,
        )

    def _work(self, work: pl.DataFrame) -> dict[str, Int64]:
        """What each step launched: as work, at the pace that is usual for each piece, and how much longer it took."""
        each = work.filter(
            pl.col("rank").is_in(self.ranks) & pl.col("step").is_in(self.steps) & (pl.col("ranged") == 1)
        )
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
        lost = self.known.copy()
        lost[row, column] = False
        # Where a step's range was not recorded, what it launched is not known.
        return {name: with_lost_filled(value, self.known & ~lost, lost, self.role) for name, value in found.items()}

    def saving(self, rows: Sequence[int], cause: str) -> int:
        """What a step would gain if these ranks took no longer than the slowest of the others, ns.

        Work does not vanish: where there is more of it, and it is shared out evenly, these ranks keep their part of the
        surplus as the others do. So of n ranks k that have more gain (n − k) / n.
        """
        filled = np.where(np.isfinite(self.excess), self.excess, 0.0)
        inside = np.zeros(self.ranks.size, dtype=np.bool_)
        inside[list(rows)] = True
        theirs = filled[inside].max(axis=0)
        rest = np.maximum(filled[~inside].max(axis=0), 0.0) if not inside.all() else np.zeros(theirs.size)
        gain = int(np.maximum(theirs - rest, 0.0).sum()) // max(self.steps.size, 1)
        if cause == SHARED:
            alike = int(np.isin(self.role, self.role[inside]).sum())
            gain = gain * (alike - int(inside.sum())) // alike
        return gain

    def stragglers(self) -> list[Straggler]:
        """The stragglers, the largest first; without those that are no slower than a rank which is not one."""
        taken = np.where(np.isfinite(self.excess), self.excess, 0.0)
        rest = taken[~self.out].max(axis=0, initial=0.0)
        return [self._straggler(each) for each in self.late if (taken[each.row] > rest)[each.late].any()]

    def _straggler(self, late: Outlier) -> Straggler:
        rank = int(self.ranks[late.row])
        steps = tuple(int(step) for step in self.steps[late.late])
        more = {
            part: int(np.nansum(self._excess(value)[late.row][late.late]))
            for part, value in self._parts.items()
            if part in LOCAL_PARTS
        }
        mine = {part: int(value[late.row][late.late].sum()) for part, value in self._parts.items()}
        usual = {part: mine[part] - each for part, each in more.items()}
        peers = self.ranks[(self.role == self.role[late.row]) & ~self.out].tolist()
        launched = self._launched
        if self.alone[late.row]:
            launched, peers = self._other_steps(rank, steps)
        beside = compare_work(launched, rank, peers, steps)
        if late.row in self._slow:
            longer = 100 * (self._slow[late.row] - 1)
            words = f"the kernels that other stages launch too take {longer:.1f} % longer on it"
            cause = Cause("slow_device", 1.0, words)
        else:
            cause = find_cause(int(late.weight), more, usual, beside, on_host=self.on_host)
        return Straggler(
            (rank,),
            f"rank {rank}",
            cause,
            int(late.weight) // max(self.steps.size, 1),
            self.saving([late.row], cause.cause),
            steps,
            int(np.isfinite(late.excess).sum()),
            late.lasting,
        )

    def _other_steps(self, rank: int, late: Sequence[int]) -> tuple[pl.DataFrame, list[int]]:
        """What a rank launched, with its other steps in place of the peers that it has not."""
        mine = self._launched.filter(pl.col("rank") == rank)
        others = mine.filter(pl.col("step").is_in(self.steps) & ~pl.col("step").is_in(list(late)))
        stand_ins = (
            others.with_columns((-1 - pl.col("step")).alias("rank"))
            .drop("step")
            .join(pl.DataFrame({"step": list(late)}, schema={"step": pl.Int64}), how="cross")
        )
        return pl.concat([mine, stand_ins.select(mine.columns)]), stand_ins["rank"].unique().to_list()

    def by_slice(
        self, stragglers: Sequence[Straggler], slices: Sequence[tuple[str, frozenset[int]]]
    ) -> list[Straggler]:
        """Merge equally late stragglers that fill a slice of the mesh (a replica, a tensor-parallel group, a host).

        Args:
            stragglers: of one rank each.
            slices: how each is called, and its ranks.
        """
        known = frozenset(self.ranks.tolist())
        left = {each.ranks[0]: each for each in stragglers}
        found: list[Straggler] = []
        for label, members in sorted(slices, key=lambda each: -len(each[1])):
            here = members & known
            if not 1 < len(here) < OUTSIDE * len(known) or not here <= left.keys():
                continue
            causes = {left[rank].cause.cause for rank in here}
            by_how_much = [left[rank].excess_ns for rank in here]
            if len(causes) > 1 or min(by_how_much) < ALIKE * max(by_how_much):
                continue
            first = max((left[rank] for rank in here), key=lambda each: each.excess_ns)
            rows = np.searchsorted(self.ranks, sorted(here)).tolist()
            saving = self.saving(rows, first.cause.cause)
            found.append(replace(first, ranks=tuple(sorted(here)), label=label, saving_ns=saving))
            left = {rank: each for rank, each in left.items() if rank not in here}
        return sorted([*found, *left.values()], key=lambda each: -each.excess_ns)
