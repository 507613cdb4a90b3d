"""The event at which a finding can be seen best: what costs most, in a step that costs as much as most do.

In: results of `evidence_events` and `collectives`. Out: anchors for findings. Rules ask for theirs; findings that
analyses state get them here, by their id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from rankscope.primitives.communicators import POINT_TO_POINT
from rankscope.primitives.hashed_names import names_without_hashes
from rankscope.results import Anchor, Finding, Inputs

_REASONS = {
    "late_launch": "The device is idle until this starts: the host launched it too late",
    "long_calls": "The device is idle until this starts, and the host is in long calls for most of that time",
    "silent_host": "The device is idle until this starts, and the host records no operator for most of that time",
    "late_short_launch": "Nothing runs before this short piece of work: launching takes longer than running it",
    "allocator_call": "The host allocates or frees memory in the driver here",
    "host_wait": "The host waits for the device in this call: at its end the device has run out of work",
    "data_loading": "The host loads data here, and the device has nothing to do",
    "garbage_collection": "Python collects garbage here",
    "compile_overhead": "The compiler's guards, lookups or compilation keep the host busy here",
    "pageable_copy": "This copy is of pageable memory, and nothing else runs on the device meanwhile",
    "unfilled": "This kernel has less than one block per multiprocessor, and runs alone",
    "ordinary_cores": "The longest of the products that run without tensor cores in this step",
    "wide_type": "The longest of the products and convolutions in 32 bits or more in this step",
    "before_launch": "This starts before its launch: the clocks of host and device disagree",
    "memory_peak": "Allocated memory peaks in this operator",
    "step": "More memory is allocated when this step ends than when the one before did",
}
"""What is to be seen at an event of `evidence_events`, by its kind: sentences without names from traces."""
_LATE = frozenset(("straggler", "stall"))
_BUBBLE, _SLOW_LINK, _UNMATCHED, _SKEW = (
    "pipeline-bubble",
    "slow-network",
    "unmatched-collectives",
    "host-device-clock-skew",
)
PEERS = 3
"""Ranks that are shown next to the event."""
_COMPARED = 2
"""Ranks that are shown for comparison where no event of theirs is the same."""
_SHOWN = (
    "rank", "window", "step", "group", "group_ranks", "collective", "bytes", "name", "start_ns", "end_ns",
    "duration_ns", "match", "transfer_ns", "wait_ns",
)  # fmt: skip
_P2P = pl.col("collective").is_in((*POINT_TO_POINT, "send_recv"))
_TIMED = pl.col("start_ns").is_not_null() & pl.col("match").is_not_null()
_STEP = ("window", "step")


def event_anchor(
    inputs: Inputs, kind: str, rank: int, *, steps: Sequence[int] = (), detail: str | None = None
) -> Anchor | None:
    """The event of a kind that costs most, in the rank's step whose cost is the median; None without one.

    Args:
        inputs: of a rule that requires `evidence_events`.
        kind: of `evidence_events`.
        rank: the rank.
        steps: the steps to choose from; all if empty.
        detail: only events with this detail.
    """
    rows = _events(inputs, pl.col("kind") == kind, *([] if detail is None else [pl.col("detail") == detail]))
    if rows is None:
        return None
    own = _in_steps(steps, rows.filter(pl.col("rank") == rank))
    typical = _typical(own.unique([*_STEP, "detail"], maintain_order=True), own, "total_ns")
    if typical.is_empty():
        return None
    row = typical.sort("cost_ns", "start_ns", descending=[True, False]).row(0, named=True)
    same = rows.filter(*(pl.col(name).eq_missing(row[name]) for name in _STEP))
    costs = dict(same.group_by("rank").agg(pl.col("total_ns").sum()).iter_rows())
    known = {info.rank for info in inputs.traces if info.rank is not None}
    others = sorted(known - {rank}, key=lambda each: (costs.get(each, 0), each))
    since = row["since_ns"]
    return replace(_at(row, _REASONS[kind]), since_ns=since, compared=tuple(others[:_COMPARED]))


def collectives_of(inputs: Inputs, where: pl.Expr | None = None) -> pl.DataFrame | None:
    """Of the result of `collectives`, if there is one, what anchors are chosen by and show.

    The rows of all ranks take much memory.

    Args:
        inputs: of a rule.
        where: which rows; None for all.
    """
    return _rows(inputs, where) if "collectives" in inputs.results else None


def _events(inputs: Inputs, *where: pl.Expr) -> pl.DataFrame | None:
    """Of the result of `evidence_events`, if there is one, the rows of some conditions."""
    found = "evidence_events" in inputs.results
    return inputs.columns("evidence_events", where=pl.all_horizontal(where)) if found else None


def _rows(inputs: Inputs, where: pl.Expr | None) -> pl.DataFrame:
    return inputs.columns("collectives", *_SHOWN, where=where)


def collective_anchor(
    inputs: Inputs, rows: pl.DataFrame, reason: str, *, by: str = "duration_ns", typical: bool = True
) -> Anchor | None:
    """The collective that takes longest, in the step with the median; its peers are its other ranks.

    Args:
        inputs: of a rule that requires `collectives`.
        rows: of its result, those to choose from.
        reason: what is to be seen there, in a sentence without names from traces.
        by: the column by which they are compared; rows without a value are left out.
        typical: whether to choose among the rows of the median step only.
    """
    known = rows.filter(pl.col("start_ns").is_not_null() & pl.col(by).is_not_null())
    if "collectives" not in inputs.results or known.is_empty():
        return None
    chosen = known
    if typical:
        first = known.group_by("rank").agg(pl.col(by).sum()).sort(by, "rank", descending=[True, False])["rank"][0]
        own = known.filter(pl.col("rank") == first)
        chosen = _typical(own.group_by(_STEP).agg(pl.col(by).sum()), own, by)
    row = chosen.sort(by, "start_ns", "rank", descending=[True, False, False]).row(0, named=True)
    return _at(row, reason, _same(row, inputs))


def exposed_anchor(inputs: Inputs, rank: int, reason: str) -> Anchor | None:
    """The collective of a rank with most exposed transfer, in the step with the median; none that is mostly waiting.

    Args:
        inputs: of a rule that requires `evidence_events` and `collectives`.
        rank: the rank.
        reason: as for `collective_anchor`.
    """
    is_own = pl.col("rank") == rank
    own = _events(inputs, pl.col("kind") == "exposed_communication", is_own)
    collectives = collectives_of(inputs, is_own)
    if own is None or collectives is None:
        return None
    same = ["rank", "window", "name", "start_ns"]
    rows = own.select(*same, "step", "cost_ns", "total_ns").join(
        collectives.select(*same, "end_ns", "match", "transfer_ns"), on=same, how="inner"
    )
    # Waiting is no transfer: where it is known, only the rest can overlap, and what mostly waits shows none of it.
    mostly_waits = 2 * pl.col("transfer_ns") < pl.col("end_ns") - pl.col("start_ns")
    rows = rows.filter(~mostly_waits.fill_null(False))
    rows = rows.with_columns(pl.min_horizontal("cost_ns", "transfer_ns").alias("exposed"))
    chosen = _typical(rows.unique(_STEP, maintain_order=True), rows, "total_ns")
    if chosen.is_empty():
        return None
    row = chosen.sort("exposed", "start_ns", descending=[True, False]).row(0, named=True)
    return _at(row, reason, _same(row, inputs))


def imbalance_anchor(inputs: Inputs, rank: int, reason: str) -> Anchor | None:
    """The kernel, or operator, with which a rank exceeds the others most; its peers are the same on other ranks."""
    found = _events(inputs, pl.col("kind") == "compute")
    if found is None:
        return None
    rows = found.with_columns(names_without_hashes(found["name"]).alias("shared_name"))
    own, others = rows.filter(pl.col("rank") == rank), rows.filter(pl.col("rank") != rank)
    mean = others.group_by(*_STEP, "shared_name").agg(pl.col("total_ns").mean().alias("mean"))
    more = own.join(mean, on=[*_STEP, "shared_name"], nulls_equal=True).with_columns(
        (pl.col("total_ns") - pl.col("mean")).alias("more")
    )
    worst = more.group_by("shared_name").agg(pl.col("more").median()).filter(pl.col("more") > 0)
    worst = worst.sort("more", "shared_name")
    if worst.is_empty():
        return None
    of_name = more.filter(pl.col("shared_name") == worst["shared_name"][-1])
    row = _typical(of_name, of_name, "more").row(0, named=True)
    is_same = pl.col("shared_name") == row["shared_name"]
    same = others.filter(is_same, *(pl.col(name).eq_missing(row[name]) for name in _STEP))
    peers = same.sort("total_ns", "rank").head(PEERS).iter_rows(named=True)
    return _at(row, reason, [_at(peer, "the same on a rank with less to compute") for peer in peers])


def with_anchors(findings: Sequence[Finding], inputs: Inputs) -> list[Finding]:
    """The findings, each with its anchor.

    A straggler's is the collective that the other ranks wait in longest for it, where it arrives; its peers are those
    who wait longest there. A pipeline bubble's is the longest send or receive of its ranks, its peer the other end.

    Args:
        findings: of rules and analyses.
        inputs: with the results of `collectives` and `evidence_events`, as far as there are any.
    """
    return [replace(each, anchor=_anchor(each, inputs)) if each.anchor is None else each for each in findings]


def _anchor(finding: Finding, inputs: Inputs) -> Anchor | None:
    if finding.id == _SKEW and finding.ranks:
        return event_anchor(inputs, "before_launch", finding.ranks[0])
    if "collectives" not in inputs.results:
        return None
    if finding.id == _UNMATCHED:
        alone = pl.col("match").is_null() & pl.col("rank").is_in(finding.ranks)
        reason = "This collective was matched with none of the other ranks"
        return collective_anchor(inputs, _rows(inputs, alone), reason, typical=False)
    if finding.id in _LATE:
        return _of_late_rank(finding, inputs)
    if finding.id == _BUBBLE:
        return _of_bubble(finding, _rows(inputs, _TIMED & _P2P))
    if finding.id == _SLOW_LINK:
        own = _TIMED & pl.lit(finding.title).str.starts_with(pl.format("Group {} transfers", pl.col("group")))
        rows = _in_steps(finding.steps, _rows(inputs, own))
        reason = "This group transfers its data slower than comparable ones here"
        return collective_anchor(inputs, rows, reason, by="transfer_ns")
    return None


def _of_late_rank(finding: Finding, inputs: Inputs) -> Anchor | None:
    is_late, shared = pl.col("rank").is_in(finding.ranks), _TIMED & ~_P2P
    own = _in_steps(finding.steps, _rows(inputs, shared & is_late))
    same = pl.col("match").is_in(own["match"].unique().implode())
    waiting = _rows(inputs, shared & same & ~is_late & (pl.col("wait_ns") > 0))
    if waiting.is_empty():
        return None
    peers = waiting.sort("wait_ns", "rank", descending=[True, False])
    match, longest = peers.row(0, named=True)["match"], peers.row(0, named=True)["wait_ns"]
    # Of several late ranks the one that waits least was last.
    row = own.filter(pl.col("match") == match).sort("wait_ns", "rank").row(0, named=True)
    if row["wait_ns"] is None or row["wait_ns"] >= longest:
        return None
    others = peers.filter(pl.col("match") == match).head(PEERS).iter_rows(named=True)
    reason = f"Rank {row['rank']} arrives here; the other ranks have been waiting for it in this collective"
    return _at(row, reason, [_at(peer, f"waits for rank {row['rank']}") for peer in others])


def _of_bubble(finding: Finding, rows: pl.DataFrame) -> Anchor | None:
    own = _in_steps(finding.steps, rows.filter(pl.col("rank").is_in(finding.ranks)))
    longest = own.sort("duration_ns", "rank", descending=[True, False], nulls_last=True).head(1)
    if longest.is_empty() or longest["duration_ns"][0] is None:
        return None
    row = longest.row(0, named=True)
    others = rows.filter((pl.col("match") == row["match"]) & (pl.col("rank") != row["rank"])).head(PEERS)
    reason = f"Rank {row['rank']} waits longest for its neighbor here"
    return _at(row, reason, [_at(peer, "the other end") for peer in others.iter_rows(named=True)])


def _same(row: dict[str, object], inputs: Inputs) -> list[Anchor]:
    """A collective on its other ranks."""
    if row["match"] is None:
        return []
    other = pl.col("match").eq(row["match"]) & pl.col("rank").ne(row["rank"])
    others = _rows(inputs, other).sort("rank")
    known = others.filter(pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null())
    return [_at(peer, "the same collective") for peer in known.head(PEERS).iter_rows(named=True)]


def _typical(steps: pl.DataFrame, rows: pl.DataFrame, value: str) -> pl.DataFrame:
    """The rows of the step whose value is the median, the lower of two.

    Args:
        steps: window, step and the value, for each step.
        rows: window, step and any others.
    """
    if steps.is_empty():
        return rows.clear()
    ordered = steps.sort(value, *_STEP, nulls_last=True)
    median = ordered.row((ordered.height - 1) // 2, named=True)
    return rows.filter(*(pl.col(name).eq_missing(median[name]) for name in _STEP))


def _in_steps(steps: Sequence[int], rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("step").is_in(steps)) if steps else rows


def _at(row: dict[str, object], reason: str, peers: Sequence[Anchor] = ()) -> Anchor:
    rank, window, start, end = (int(str(row[name])) for name in ("rank", "window", "start_ns", "end_ns"))
    return Anchor(rank, window, start, end, str(row["name"] or ""), reason, tuple(peers))
