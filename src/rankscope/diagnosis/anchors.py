"""The event at which a finding can be seen best: of findings about collectives that ranks wait in.

In: findings, and the result of `collectives`. Out: the findings, with an anchor where there is such an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from rankscope.primitives.communicators import POINT_TO_POINT
from rankscope.results import Anchor, Finding

_LATE = frozenset(("straggler", "stall"))
_BUBBLE = "pipeline-bubble"
PEERS = 3
_P2P = pl.col("collective").is_in((*POINT_TO_POINT, "send_recv"))


def with_anchors(findings: Sequence[Finding], collectives: pl.DataFrame) -> list[Finding]:
    """The findings, each with its anchor.

    A straggler's is the collective that the other ranks wait in longest for it, where it arrives; its peers are those
    who wait longest there. A pipeline bubble's is the longest send or receive of its ranks, its peer the other end.

    Args:
        collectives: the result of the analysis.
    """
    timed = collectives.filter(pl.col("start_ns").is_not_null() & pl.col("match").is_not_null())
    return [replace(each, anchor=_anchor(each, timed)) if each.anchor is None else each for each in findings]


def _anchor(finding: Finding, rows: pl.DataFrame) -> Anchor | None:
    if finding.id in _LATE:
        return _of_late_rank(finding, rows.filter(~_P2P))
    if finding.id == _BUBBLE:
        return _of_bubble(finding, rows.filter(_P2P))
    return None


def _of_late_rank(finding: Finding, rows: pl.DataFrame) -> Anchor | None:
    is_late = pl.col("rank").is_in(finding.ranks)
    own = _in_steps(finding, rows.filter(is_late))
    waiting = rows.filter(~is_late & (pl.col("wait_ns") > 0)).join(own.select("match").unique(), on="match", how="semi")
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
    own = _in_steps(finding, rows.filter(pl.col("rank").is_in(finding.ranks)))
    longest = own.sort("duration_ns", "rank", descending=[True, False], nulls_last=True).head(1)
    if longest.is_empty() or longest["duration_ns"][0] is None:
        return None
    row = longest.row(0, named=True)
    others = rows.filter((pl.col("match") == row["match"]) & (pl.col("rank") != row["rank"])).head(PEERS)
    reason = f"Rank {row['rank']} waits longest for its neighbour here"
    return _at(row, reason, [_at(peer, "the other end") for peer in others.iter_rows(named=True)])


def _in_steps(finding: Finding, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("step").is_in(finding.steps)) if finding.steps else rows


def _at(row: dict[str, object], reason: str, peers: Sequence[Anchor] = ()) -> Anchor:
    rank, window, start, end = (int(str(row[name])) for name in ("rank", "window", "start_ns", "end_ns"))
    return Anchor(rank, window, start, end, str(row["name"] or ""), reason, tuple(peers))
