"""Stragglers: the ranks that stand out, why, and the potential saving; and slices of the mesh that are late as one.

1. `find_late_ranks` compares the ranks of each program.
2. A rank alone in its program is compared with its own other steps. For kernels that other programs launch too, the
   pace of a program is compared with theirs: all of its ranks may be equally slow (a stage on one slow host).
3. The cause of each comes from its late steps alone (`causes`).
4. Its saving is what a step would gain if it took no longer than the slowest of the others: the replay of a step that
   is one stretch of local time and one collective. Where there are traces, `whatif.late_ranks` replays them instead.

In: `Observations`. Out: stragglers with cause and saving, and a verdict for each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.primitives.statistics import Significance, Verdict
from rankscope.primitives.stragglers.causes import CAUSES_OF_SEVERAL, STALLS, Cause, compare_work, duration, find_cause
from rankscope.primitives.stragglers.detectors import TESTS, always_late, detectable, find_late_ranks, stalled_once
from rankscope.primitives.stragglers.measures import ALLOCATION, LOCAL
from rankscope.primitives.stragglers.observations import Observations
from rankscope.primitives.stragglers.peers import Bool, Float, excess_over_peers, usual
from rankscope.primitives.stragglers.suspects import Late
from rankscope.primitives.stragglers.thresholds import Thresholds

LOADING = "data_loading"
SHARED_BY = 3
"""So many ranks must launch a piece of work for its usual pace to be known: of two, either could be the slow one."""
ALIKE = 0.5
"""Ranks of a slice share one cause if each is late by at least this share of the latest (simulated slow hosts)."""
PROGRAMS = 3
"""So many programs are needed for one to stand out: of two, either could be the slow one."""
NEARLY_ALL = 0.9
"""Of a rank's excess: of a smaller share, a title says of how much it is."""
OUTSIDE = 0.5
"""Of all ranks: a larger slice of the mesh does not stand out from the others."""


@dataclass(frozen=True)
class Straggler:
    """Ranks that delay the others.

    Attributes:
        ranks: one, or all of a slice of the mesh.
        label: their name for display.
        cause: why.
        excess_ns: local time above the median of their peers' in the late steps, mean over the compared steps.
        hidden: whether it is late in every step, but for hiccups of its peers: then the late steps are the others.
        saving_ns: potential saving per step; None if it is not known.
        together_with: stragglers that are as late: only if these are fixed too, something is gained.
        together_ns: so much; None if it is not known.
        steps: those in which they are late; all, if they are late on average.
        late_steps: how many of these have an excess.
        compared: steps in which they could be compared.
        kind: the name of the detector that found it.
        verdict: the test, and the number of steps.
        passing: whether it was late in the recorded steps only, according to a log of many more.
    """

    ranks: tuple[int, ...]
    label: str
    cause: Cause
    excess_ns: int
    hidden: bool
    saving_ns: int | None
    together_with: tuple[int, ...]
    steps: tuple[int, ...]
    late_steps: int
    compared: int
    kind: str
    verdict: Verdict
    passing: bool = False
    together_ns: int | None = None

    @property
    def lasting(self) -> bool:
        """Whether they are late in every step."""
        return self.kind == always_late.__name__

    @property
    def once(self) -> bool:
        """Whether it is a stall in one step."""
        return self.kind == stalled_once.__name__

    @property
    def is_past(self) -> bool:
        """Whether it need not happen again."""
        return self.once or self.passing

    @property
    def title(self) -> str:
        """A sentence: who delays the others, when, and why."""
        called = self.label.capitalize() if len(self.ranks) == 1 else self.label
        if self.once:
            return f"{called} stalled once, in step {self.steps[0]}: {self._named or STALLS[self.cause.cause]}"
        if self.passing:
            return f"{called} was late in the recorded steps, not in the others that are logged: {self._cause}"
        when = "" if self.lasting else " in some steps"
        if " and " in self.label:
            return f"{called} delay the other ranks{when}: {self._named or CAUSES_OF_SEVERAL[self.cause.cause]}"
        return f"{called} delays the other ranks{when}: {self._cause}"

    @property
    def _named(self) -> str:
        """The cause by the name of what takes longer; empty if it has none.

        What it costs is the saving, which follows a title. Only what need not happen again has none: then the title
        has how long it took.
        """
        if not self.cause.named or not self.is_past:
            return self.cause.named
        excess = self.excess_ns * (self.compared if self.once else 1)
        took, all_of_it = duration(self.cause.share * excess), duration(excess)
        if self.cause.share < NEARLY_ALL:
            took = f"{took} of {all_of_it}"
        return f"{self.cause.named}, {took}{'' if self.once else ' per step'}"

    @property
    def _cause(self) -> str:
        return self._named or self.cause.text


class Comparison:
    """The ranks of a run compared: who is late, by how much, and why.

    Attributes:
        seen: what was observed.
        late: the ranks that stand out, the largest excess first.
        excess: (ranks, steps) local time less the peers' median, ns; nan where not compared.
        is_late: (ranks, steps) where a rank stands out.
    """

    def __init__(self, seen: Observations, limits: Thresholds | None = None) -> None:
        """Compare them."""
        self.seen, self.limits = seen, limits or Thresholds()
        self._known_causes: dict[int, Cause] = {}
        self.late: list[Late] = []
        if seen.enough:
            self.late = find_late_ranks(seen, self.limits)
            self.late += self._late_alone()
            self.late += self._slow_programs()
            self.late += self._loading_alone()
            self.late.sort(key=lambda each: -each.weight)
        self._out: Bool = np.zeros(seen.ranks.size, dtype=np.bool_)
        self._out[[each.row for each in self.late]] = True
        self.is_late: Bool = np.zeros(seen.known.shape, dtype=np.bool_)
        self.excess: Float = self._excess(seen.local)
        for each in self.late:
            self.is_late[each.row] |= each.steps
            if each.row in self._known_causes:
                self.excess[each.row] = each.excess

    def _found_in(self, value: Float, rows: Int64) -> list[Late]:
        """The ranks that stand out among these rows, by one matrix alone."""
        whole = np.isfinite(value) & self.seen.whole[rows]
        alike = replace(
            Observations.of(
                {LOCAL: np.nan_to_num(value).astype(np.int64)}, self.seen.step_ns, on_host=self.seen.on_host
            ),
            known=np.isfinite(value),
            whole=whole if whole.any() else np.isfinite(value),
        )
        return find_late_ranks(alike, self.limits) if rows.size > 1 else []

    def _late_alone(self) -> list[Late]:
        """Ranks alone in their program that are late in some steps, compared with their own others."""
        rows = np.flatnonzero(self.seen.alone)
        own = np.where(self.seen.known, self.seen.local, np.nan)[rows]
        found = self._found_in(own - usual(own), rows) if rows.size else []
        return [replace(each, row=int(rows[each.row])) for each in found if not each.lasting]

    def _slow_programs(self) -> list[Late]:
        """The ranks of a program that is slower than others at work that these launch, too.

        None of its ranks stands out from its peers, or there is only one. A program is as slow as its fastest rank.
        """
        seen = self.seen
        members = [np.flatnonzero(seen.role == each) for each in range(int(seen.role.max(initial=-1)) + 1)]
        if len(members) < PROGRAMS or seen.on_host:
            return []
        pace, ratio = self._pace()
        value = np.array([pace[rows].min(axis=0) for rows in members])
        taken = {int(seen.role[each.row]) for each in self.late}
        found = []
        for each in self._found_in(value, np.array([rows[0] for rows in members])):
            if each.lasting and each.row not in taken:
                for row in members[each.row].tolist():
                    longer = 100 * (float(np.nanmedian(ratio[row])) - 1)
                    words = f"the kernels that other stages launch too take {longer:.1f} % longer on it"
                    self._known_causes[row] = Cause("slow_device", 1.0, words)
                    found.append(replace(each, row=row))
        return found

    def _loading_alone(self) -> list[Late]:
        """Ranks alone in their program that wait for data in every step: that is no work, so it needs no peers."""
        seen, taken = self.seen, {each.row for each in self.late}
        waits = np.where(seen.known, seen.parts.get(LOADING, 0), np.nan)
        least = self.limits.enough * seen.step_ns
        found = []
        for row in np.flatnonzero(seen.alone & (seen.known & seen.whole).any(axis=1)).tolist():
            shortest = waits[row, seen.known[row] & seen.whole[row]].min()
            if shortest > least and row not in taken:
                words = f"its device waits for data for at least {100 * shortest / seen.step_ns:.1f} % of every step"
                self._known_causes[row] = Cause(LOADING, 1.0, words)
                found.append(Late(row, LOADING, seen.known[row], always_late.__name__, waits[row], shortest / least))
        return found

    def _pace(self) -> tuple[Float, Float]:
        """How much longer each step's work took than the same work on other ranks, ns, and as a ratio.

        The median over pieces that at least three ranks launch: on a slow device all are slower, while a single piece
        may have another size under the same name.
        """
        seen = self.seen
        each = seen.launched.filter(
            pl.col("rank").is_in(seen.ranks) & pl.col("step").is_in(seen.steps) & (pl.col("work_ns") > 0)
        ).with_columns((pl.col("work_ns") / pl.col("pieces")).alias("unit_ns"))
        of_rank = each.group_by("work", "rank").agg(pl.col("unit_ns").median())
        shared = of_rank.group_by("work").agg(pl.col("unit_ns").median().alias("usual_ns"), pl.len().alias("ranks"))
        middle = (
            each.join(shared.filter(pl.col("ranks") >= SHARED_BY), on="work")
            .group_by("rank", "step")
            .agg(
                (pl.col("unit_ns") / pl.col("usual_ns")).median().alias("ratio"),
                (pl.col("usual_ns") * pl.col("pieces")).sum().alias("all"),
            )
        )
        ratio: Float = np.where(seen.known, 1.0, np.nan)
        taken = np.zeros(seen.known.shape)
        place = (
            np.searchsorted(seen.ranks, middle["rank"].to_numpy()),
            np.searchsorted(seen.steps, middle["step"].to_numpy()),
        )
        ratio[place], taken[place] = middle["ratio"].to_numpy(), middle["all"].to_numpy()
        return np.where(seen.known, (ratio - 1) * taken, np.nan), ratio

    def _excess(self, value: Int64 | Float) -> Float:
        """Time above the peers' median; for a rank without peers, above its own usual step."""
        known = np.where(self.seen.known, value, np.nan)
        found = excess_over_peers(known, self.seen.role, self._out)
        return np.where(self.seen.alone[:, None], known - usual(known), found)

    def saving(self, rows: Sequence[int], steps: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """The gain per step if these ranks took no longer than the slowest of the others, ns, mean over all steps.

        Args:
            rows: the ranks.
            steps: the steps in which they are late; others are ignored.

        Returns:
            the gain, and other stragglers that are as late as these, if the gain is more than twice as large once they
            are fixed, too.
        """
        taken = np.where(np.isin(self.seen.steps, list(steps)), np.nan_to_num(self.excess), 0.0)
        inside = np.zeros(self.seen.ranks.size, dtype=np.bool_)
        inside[list(rows)] = True
        theirs = taken[inside].max(axis=0)

        def beyond(others: Bool) -> float:
            return float(np.maximum(theirs - taken[others].max(axis=0, initial=0.0), 0.0).sum())

        gain, alone = beyond(~inside), beyond(~inside & ~self._out)
        as_late = self._out & ~inside & (2 * taken.sum(axis=1) >= theirs.sum())
        too = self.seen.ranks[as_late].tolist() if alone > 2 * gain else []
        return int(gain) // max(self.seen.steps.size, 1), tuple(too)

    def stragglers(self) -> list[Straggler]:
        """The stragglers, the largest first; without those that cost next to nothing (`saving`).

        A rank costs nothing if other ranks, which are no stragglers, are as late in the same steps. If several
        stragglers are equally late, fixing one of them gains nothing: each names the others.
        """
        least = max(self.limits.least_saving * self.seen.step_ns, 1)
        return [each for each in self.late_ranks() if each.once or each.together_with or (each.saving_ns or 0) >= least]

    def late_ranks(self) -> list[Straggler]:
        """The ranks that stand out, the largest excess first, whether or not that costs anything."""
        found = [self._straggler(each) for each in self.late]
        unclear = [each for each in found if each.cause.cause == "unclear" and not (each.lasting or each.together_with)]
        return [each for each in found if each.once or each not in unclear]

    def of_rank(self, rank: int, least_ns: float) -> Straggler | None:
        """A rank that is known to be late otherwise, as these steps show it; None if they do not have it.

        Args:
            rank: the rank.
            least_ns: its late steps are those with so much excess; without any there is no cause.
        """
        row = int(np.searchsorted(self.seen.ranks, rank))
        if row == self.seen.ranks.size or self.seen.ranks[row] != rank or not np.isfinite(self.excess[row]).any():
            return None
        steps: Bool = np.nan_to_num(self.excess[row], nan=-1.0) >= least_ns
        return self._straggler(Late(row, LOCAL, steps, always_late.__name__, self.excess[row], 1.0))

    def peers(self, rank: int) -> list[int]:
        """The ranks with the same program that are not late themselves; of late ones alone, these."""
        row = int(np.searchsorted(self.seen.ranks, rank))
        alike = (self.seen.role == self.seen.role[row]) & (np.arange(self.seen.ranks.size) != row)
        usual_ones = alike & ~self._out
        found: list[int] = self.seen.ranks[usual_ones if usual_ones.any() else alike].tolist()
        return found

    def verdicts(self) -> dict[int, Verdict | None]:
        """For each rank whether it is significantly late, or whether there are too few steps to tell: they would show
        no delay that is not very large (`least_delays`).

        A single stall does not make a rank a straggler. Of a rank that is alone in its program nobody knows whether it
        takes too long in every step: None if it is not late in some.
        """
        late = {each.row: each for each in self.late if each.kind != stalled_once.__name__}
        found: dict[int, Verdict | None] = {}
        for row, rank in enumerate(self.seen.ranks.tolist()):
            n = (int(np.isfinite(self.excess[row]).sum()),)
            if row in late:
                found[rank] = Verdict(Significance.SIGNIFICANT, TESTS[late[row].kind], n)
            elif self.seen.alone[row]:
                found[rank] = None
            elif n == (0,) or not self.least_delays[row] <= self.limits.stated * self.seen.step_ns:
                found[rank] = Verdict(Significance.TOO_FEW, "", n)
            else:
                found[rank] = Verdict(Significance.NOT_SIGNIFICANT, TESTS[always_late.__name__], n)
        return found

    @cached_property
    def least_delays(self) -> Float:
        """(ranks,) The least delay per step that these steps would show on each rank, ns; inf: they would show none."""
        return detectable(self.seen, self.limits)

    def _straggler(self, late: Late) -> Straggler:
        seen, rank = self.seen, int(self.seen.ranks[late.row])
        steps = tuple(int(step) for step in seen.steps[late.steps])
        cause = self._known_causes.get(late.row)
        # What its peers lose to hiccups in other steps is not deducted from what it loses in its own late ones.
        chosen = late.steps & (late.excess > 0) if late.hidden else late.steps
        lost = int(np.nansum(late.excess[chosen]))
        if cause is None:
            more = {part: int(np.nansum(self._excess(value)[late.row][chosen])) for part, value in seen.parts.items()}
            mine = {part: int(value[late.row][chosen].sum()) for part, value in seen.parts.items()}
            others = {part: mine[part] - each for part, each in more.items()}
            peers = seen.ranks[(seen.role == seen.role[late.row]) & ~self._out].tolist()
            launched, peers = self._other_steps(rank, steps) if seen.alone[late.row] else (seen.launched, peers)
            beside = compare_work(launched, rank, peers, seen.steps[chosen].tolist())
            cause = find_cause(lost, more, others, beside, on_host=seen.on_host, by_calls=late.measure == ALLOCATION)
        compared = int(np.isfinite(late.excess).sum())
        return Straggler(
            (rank,),
            f"rank {rank}",
            cause,
            (lost if late.hidden else int(late.weight)) // compared,
            late.hidden,
            *self.saving([late.row], steps),
            steps,
            int((late.excess[late.steps] > 0).sum()),
            compared,
            late.kind,
            Verdict(Significance.SIGNIFICANT, TESTS[late.kind], (compared,)),
        )

    def _other_steps(self, rank: int, late: Sequence[int]) -> tuple[pl.DataFrame, list[int]]:
        """What a rank launched, with its other steps in place of peers, which it does not have."""
        mine = self.seen.launched.filter(pl.col("rank") == rank)
        others = mine.filter(pl.col("step").is_in(self.seen.steps) & ~pl.col("step").is_in(list(late)))
        stand_ins = (
            others.with_columns((-1 - pl.col("step")).alias("rank"))
            .drop("step")
            .join(pl.DataFrame({"step": list(late)}, schema={"step": pl.Int64}), how="cross")
        )
        return pl.concat([mine, stand_ins.select(mine.columns)]), stand_ins["rank"].unique().to_list()

    def by_slice(
        self, stragglers: Sequence[Straggler], slices: Sequence[tuple[str, frozenset[int]]]
    ) -> list[Straggler]:
        """Merge equally late stragglers that make up slices of the mesh (a replica, a tensor-parallel group, hosts).

        Args:
            stragglers: of one rank each.
            slices: the name of each, and its ranks.
        """
        known = frozenset(self.seen.ranks.tolist())
        # If a rank is always late and also stalled once, the stall is not merged.
        left = {each.ranks[0]: each for each in sorted(stragglers, key=lambda each: not each.once)}
        besides = [each for each in stragglers if left[each.ranks[0]] is not each]
        found: list[Straggler] = []
        for label, members in sorted(slices, key=lambda each: -len(each[1])):
            here = members & known
            if not 1 < len(here) < OUTSIDE * len(known) or not here <= left.keys():
                continue
            causes = {(left[rank].cause.cause, left[rank].once) for rank in here}
            by_how_much = [left[rank].excess_ns for rank in here]
            if len(causes) > 1 or min(by_how_much) < ALIKE * max(by_how_much):
                continue
            found.append(self._together([left[rank] for rank in here], label, here))
            left = {rank: each for rank, each in left.items() if rank not in here}
        return sorted([*self._alike(found), *left.values(), *besides], key=lambda each: -each.excess_ns)

    def _together(self, stragglers: Sequence[Straggler], label: str, ranks: frozenset[int]) -> Straggler:
        """Merge several into one, with the cause of the latest rank."""
        first = max(stragglers, key=lambda each: each.excess_ns)
        rows = np.searchsorted(self.seen.ranks, sorted(ranks)).tolist()
        steps = sorted({step for each in stragglers for step in each.steps})
        saving_ns, too = self.saving(rows, steps)
        return replace(first, ranks=tuple(sorted(ranks)), label=label, saving_ns=saving_ns, together_with=too)

    def _alike(self, slices: Sequence[Straggler]) -> list[Straggler]:
        """Merge slices of one dimension that are always and equally late, such as two hosts: they share one cause."""
        found: list[Straggler] = []
        for each in slices:
            dimension, _, coordinate = each.label.partition("=")
            other = next(
                (
                    one
                    for one in found
                    if coordinate
                    and one.label.partition("=")[0] == dimension
                    and one.lasting
                    and each.lasting
                    and one.cause.cause == each.cause.cause
                    and min(one.excess_ns, each.excess_ns) >= ALIKE * max(one.excess_ns, each.excess_ns)
                ),
                None,
            )
            if other is None:
                found.append(each)
            else:
                label, ranks = f"{other.label} and {each.label}", frozenset((*other.ranks, *each.ranks))
                found[found.index(other)] = self._together([other, each], label, ranks)
        return found
