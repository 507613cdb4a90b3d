"""Why a rank is late: the part of its time that is longer than its peers', and its additional work.

1. `compare_work` compares the work launched in the late steps with that of the peers, piece by piece.
2. `find_cause` chooses among what is longer: the work, its pace, the device's idle time by what the host did meanwhile.
3. Specific causes come before a slow host: while the others wait, their hosts run ahead, so that of a late rank seems
   slow.

In: the parts of a rank's time and its work in its late steps, and its peers'. Out: a `Cause` with its evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rankscope.store.account import SHAPES, STACKS

# The parts of a rank's time that belong to each cause.
PARTS_OF_CAUSE = {
    "data_loading": ("data_loading",),
    "memory": ("allocation", "copies"),
    "slow_host": ("runtime", "operators", "nothing"),
    "slow_network": ("communication",),
}
PART_TEXTS = {
    "data_loading": "in its data loader",
    "allocation": "allocating or freeing device memory",
    "copies": "copying",
    "runtime": "in runtime calls",
    "operators": "in operators",
    "nothing": "with nothing recorded on the host (asleep, descheduled, or in Python)",
    "communication": "in the collectives of another group",
}
EXPLAINS = 0.5
"""Of the lateness: a cause that accounts for less than half is not the cause."""
PECULIAR = 0.3
"""Of the lateness, for causes other than a slow host, which come first: a late rank also lacks the time in which the
others wait and their hosts run ahead, so its host appears slow by up to the same amount (simulated, seeds 0-99)."""
SLOWER = 0.01
"""Of its peers' kernels: devices of one kind differ by less (by 0.5 % on the rank of a slow host, simulated)."""

CAUSES = {
    "slow_device": "its device is slow",
    "more_work": "it has more work",
    "data_loading": "it waits for data",
    "slow_host": "its host takes longer",
    "garbage_collection": "Python collects garbage",
    "descheduled": "other programs run on its core",
    "code": "its script takes longer",
    "operators": "its operators take longer",
    "pace": "more work in each operator, or a slower core",
    "silent": "nothing that takes longer is recorded",
    "memory": "it waits for memory or copies",
    "slow_network": "its network is slow",
    "unclear": "no recorded cause explains it",
}
HOST_CAUSES = ("slow_host", "garbage_collection", "descheduled", "code", "operators", "pace", "silent")
"""What a slow host turns out to be, where something names it: all cost the host's time."""


def class_of(cause: str) -> str:
    """The cause without its name: `slow_host` for all that costs the host's time."""
    return "slow_host" if cause in HOST_CAUSES else cause


CAUSES_OF_SEVERAL = {
    **CAUSES,
    "slow_device": "their devices are slow",
    "more_work": "they have more work",
    "data_loading": "they wait for data",
    "slow_host": "their hosts take longer",
    "descheduled": "other programs run on their cores",
    "code": "their scripts take longer",
    "operators": "their operators take longer",
    "pace": "more work in each operator, or slower cores",
    "memory": "they wait for memory or copies",
    "slow_network": "their network is slow",
}
"""The same for several hosts or slices of the mesh."""
STALLS = {
    **CAUSES,
    "slow_device": "its device was slow",
    "more_work": "it had more work",
    "data_loading": "it waited for data",
    "slow_host": "its host was late to launch",
    "memory": "it waited for memory or copies",
}
"""The same for a single step."""
ADVICE = {
    "slow_device": "Check this device's clocks, temperature and neighbors, or replace it.",
    "more_work": "Balance the work across ranks: batch sizes, sequence lengths, experts, uneven shards.",
    "data_loading": "Give its data loader more workers, prefetch further, or check the storage it reads from.",
    "garbage_collection": (
        "Call gc.collect(), gc.freeze() and gc.disable() before the loop, and gc.collect(1) every few hundred steps, "
        "on all ranks in the same step."
    ),
    "descheduled": "End what else runs on its cores, or bind each rank to cores of its own.",
    "code": "Look at what its script does there.",
    "operators": "Compare these operators on this rank and another one: `rankscope analyze operators`.",
    "memory": "Check for allocation retries and copies: free memory, a fixed batch shape, expandable segments.",
    "slow_network": "Check the links between the ranks of its group.",
}
RECORDINGS = {
    STACKS: "Record stacks on this rank (--with-stack): they name what its host does.",
    SHAPES: "Record shapes (--record-shapes): they tell more work from a slower core.",
}
_OPEN = {"slow_host": (STACKS,), "silent": (STACKS,), "pace": (SHAPES,), "unclear": (STACKS, SHAPES)}
"""What would tell more about a cause, if it was recorded."""
_COMPARE = "Compare its timeline with another rank's: `rankscope report`."
SHARED_CORES = (
    "Gloo's threads move the data on the cores that the ranks compute on: check that some are free, and between hosts "
    "the interface that it uses (GLOO_SOCKET_IFNAME)."
)
"""What to do about slow transfers on the CPU."""


@dataclass(frozen=True)
class Cause:
    """Why a rank is late.

    Attributes:
        cause: one of the causes, or `unclear`.
        share: how much of the lateness it explains, 0 to 1.
        evidence: the numbers behind it, as a sentence.
        named: the cause by the name of what takes longer, as a phrase; empty where it has none.
        advice: what to do about what is named; empty for the general advice on the cause.
        longer: what else takes longer than on the peers, the longest first, as phrases.
        record: what would tell more; empty for what generally does, where there is no advice.
    """

    cause: str
    share: float
    evidence: str
    named: str = ""
    advice: str = ""
    longer: tuple[str, ...] = ()
    record: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The cause as a phrase."""
        return self.named or CAUSES.get(self.cause, self.cause)

    def what_to_do(self, recorded: Collection[str]) -> str:
        """The advice on it.

        Args:
            recorded: what the rank's files hold (`TraceInfo.recorded`): it is not asked for.
        """
        wanted = self.record or (() if self.advice else _OPEN.get(self.cause, ()))
        more = [RECORDINGS[kind] for kind in wanted if kind not in recorded]
        return " ".join(filter(None, (self.advice or ADVICE.get(self.cause, ""), *more))) or _COMPARE


@dataclass(frozen=True)
class WorkDifference:
    """What a rank's late steps launched, compared with its peers' median.

    Attributes:
        more_ns: time of pieces that only this rank has, less that of pieces that only they have.
        slower_ns: by how much common pieces take longer on it.
        work_ns: time of all its pieces.
        pieces: how many it launched.
        pieces_others: the peers' median.
    """

    more_ns: int
    slower_ns: int
    work_ns: int
    pieces: int
    pieces_others: int


def compare_work(work: pl.DataFrame, rank: int, peers: Sequence[int], steps: Sequence[int]) -> WorkDifference | None:
    """A rank's launched work compared with that of its peers, by piece of work.

    A piece that most peers do not launch counts entirely as more work; one that they launch as often is slower by the
    difference between its mean duration and theirs.

    Args:
        work: rank, step, work (which piece), pieces, work_ns.
        rank: the rank.
        peers: the ranks it is compared with.
        steps: its late steps.
    """
    here = work.filter(pl.col("step").is_in(list(steps)))
    others = here.filter(pl.col("rank").is_in(list(peers)))
    count = others.group_by("step").agg(pl.col("rank").n_unique().alias("ranks"))
    mine = here.filter(pl.col("rank") == rank).group_by("step", "work").agg(pl.col("pieces", "work_ns").sum())
    if mine.is_empty() or others.is_empty():
        return None
    each = others.group_by("step", "work", "rank").agg(pl.col("pieces", "work_ns").sum())
    # The median over all peers, of whom some may not have launched it at all.
    theirs = (
        each.group_by("step", "work")
        .agg(
            pl.col("pieces").sort(descending=True),
            (pl.col("work_ns") / pl.col("pieces")).median().alias("unit_ns"),
        )
        .join(count, on="step")
        .with_columns(((pl.col("ranks") - 1) // 2).alias("middle"))
        .with_columns(pl.col("pieces").list.get(pl.col("middle"), null_on_oob=True).fill_null(0))
    )
    both = mine.join(theirs, on=["step", "work"], how="full", coalesce=True, suffix="_others").with_columns(
        pl.col("pieces", "work_ns", "pieces_others").fill_null(0)
    )
    own_unit = pl.col("work_ns") / pl.when(pl.col("pieces") > 0).then("pieces")
    unit = pl.coalesce("unit_ns", own_unit)
    surplus = pl.col("pieces") - pl.col("pieces_others")
    shared = pl.min_horizontal("pieces", "pieces_others")
    slower = shared * (pl.coalesce(own_unit, unit) - unit)
    # A surplus counts at its peers' pace, but adds no more than what it takes: it may be of shorter ones of that name.
    shorter = pl.when(surplus > 0).then(pl.min_horizontal(pl.col("work_ns") - pl.col("pieces") * unit, 0)).otherwise(0)
    row = both.filter(pl.col("step").is_in(mine["step"].unique().to_list())).select(
        (surplus * unit + shorter).sum().alias("more"),
        pl.when(surplus > 0).then(pl.max_horizontal(slower, 0)).otherwise(slower).sum().alias("slower"),
        pl.col("work_ns", "pieces", "pieces_others").sum(),
    )
    found = row.row(0, named=True)
    return WorkDifference(
        round(found["more"] or 0),
        round(found["slower"] or 0),
        found["work_ns"],
        found["pieces"],
        found["pieces_others"],
    )


def find_cause(
    late: int,
    more: Mapping[str, int],
    usual: Mapping[str, int],
    work: WorkDifference | None,
    *,
    on_host: bool,
    by_calls: bool = False,
) -> Cause:
    """The cause that explains a rank's lateness.

    Args:
        late: its excess over its peers in its late steps, ns.
        more: by part, its excess over its peers in these steps, ns.
        usual: by part, the time of its peers in these steps, ns.
        work: what it launched in these steps, compared with its peers.
        on_host: whether the job computes on the CPU, where slow operators mean a slow host.
        by_calls: whether it stands out most by its calls for memory.
    """
    if late <= 0:
        return Cause("unclear", 0.0, "it never arrived last on its own account")
    parts = _of_calls(more) if by_calls and not usual.get("allocation") else _of_host(more, usual)
    found = [*_by_work(late, more, work, on_host=on_host), *_by_parts(late, parts, on_host=on_host)]
    peculiar = [each for each in found if each.cause != "slow_host" and each.share >= PECULIAR]
    chosen = max(peculiar or found, key=lambda each: each.share, default=None)
    if chosen is None:
        return Cause("unclear", 0.0, "nothing recorded takes longer than on the other ranks")
    if not peculiar and chosen.share < EXPLAINS:
        return Cause("unclear", chosen.share, f"at most {100 * chosen.share:.0f} % is explained: {chosen.evidence}")
    return chosen


def _of_calls(more: Mapping[str, int]) -> dict[str, int]:
    """Count the host's excess as allocation: a call that no other rank makes stops the device, which then waits."""
    host = ("runtime", "operators", "nothing")
    caused = sum(max(more.get(part, 0), 0) for part in host)
    return {**more, **dict.fromkeys(host, 0), "allocation": more.get("allocation", 0) + caused}


def _of_host(more: Mapping[str, int], usual: Mapping[str, int]) -> dict[str, int]:
    """Count longer allocations as the host's, as far as it is as much slower at everything: memory is no cause then."""
    host = ("runtime", "operators")
    taken = sum(usual.get(part, 0) for part in host)
    slower = max(sum(more.get(part, 0) for part in host), 0) / taken if taken > 0 else 0.0
    moved = round(min(max(more.get("allocation", 0), 0), slower * usual.get("allocation", 0)))
    return {**more, "allocation": more.get("allocation", 0) - moved, "runtime": more.get("runtime", 0) + moved}


def _by_parts(late: int, more: Mapping[str, int], *, on_host: bool) -> list[Cause]:
    causes = []
    for cause, names in PARTS_OF_CAUSE.items():
        total = sum(more.get(name, 0) for name in names)
        if total <= 0:
            continue
        main = max(names, key=lambda name: more.get(name, 0))
        # Parts that are shorter than the peers' can make the sum smaller than its largest part.
        most = "mostly" if 2 * more[main] > total else "the largest part of it"
        # A job that computes on the CPU has no device that could be idle.
        takes = "it takes" if on_host or cause in ("slow_network", "memory") else "its device is idle for"
        longer = f"{takes} {duration(total)} longer than the others' median"
        words = f"in its late steps together {longer}, {most} {PART_TEXTS[main]}"
        causes.append(Cause(cause, min(total / late, 1.0), words))
    return causes


def _by_work(late: int, more: Mapping[str, int], work: WorkDifference | None, *, on_host: bool) -> list[Cause]:
    if work is None:
        return []
    # At most what the rank's time shows: work that runs while it waits anyway makes no rank late.
    longer = more.get("operators" if on_host else "compute", 0)
    what = "operators" if on_host else "kernels"
    counts = f"{work.pieces:,} {what}, the others {work.pieces_others:,}"
    others = max(work.work_ns - work.more_ns - work.slower_ns, 1)
    found = []
    if work.more_ns > 0:
        words = (
            f"{what} launched in its late steps together take {duration(work.more_ns)} more than the others' median "
            f"(+{100 * work.more_ns / others:.1f} %) because there are more or larger ones ({counts})"
        )
        found.append(Cause("more_work", max(min(work.more_ns, longer) / late, 0.0), words))
    if work.slower_ns > SLOWER * others and not on_host:
        words = (
            f"the same kernels take {duration(work.slower_ns)} longer than the others' median in its late steps "
            f"together (+{100 * work.slower_ns / others:.1f} %; {counts})"
        )
        found.append(Cause("slow_device", max(min(work.slower_ns, longer) / late, 0.0), words))
    return [Cause(each.cause, min(each.share, 1.0), each.evidence) for each in found]


def duration(nanoseconds: float) -> str:
    """A duration with its unit, in three digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds / 1e3:.3g} µs"
