"""all_to_all: bytes between pairs of ranks, roles from mirrored splits, and loads, on built traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from tests import kineto

import rankscope

HIDDEN = 8
"""Elements of a token, two bytes each."""
LOADS = [[10, 20, 30, 140], [10, 20, 30, 140], [20, 20, 20, 140], [0, 40, 20, 140]]
"""Tokens that each rank sends to each: rank 3's experts get 560 of 800, 2.8 times the mean."""


def exchange(at: float, sent: Sequence[int] | str, received: Sequence[int] | str, **more: Any) -> kineto.Event:
    """An all-to-all of tokens."""
    metadata = {"kind": "all_to_allv", "dtype": "BFloat16", "ranks": range(4), "description": "mesh_ep", **more}
    sizes = {"elements": _elements(sent), "out_elements": _elements(received)}
    return kineto.collective(
        at, 5, **{**sizes, **metadata}, **{"In split size": str(sent), "Out split size": str(received)}
    )  # fmt: skip


def _elements(split: Sequence[int] | str) -> int:
    return 0 if isinstance(split, str) else HIDDEN * sum(split)


def layer(rank: int, at: float) -> list[kineto.Event]:
    """An exchange of sizes, a dispatch of tokens and one of their weights, and a combine."""
    sent, received = LOADS[rank], [row[rank] for row in LOADS]
    sizes = exchange(at, [], [], kind="all_to_all", dtype="Long", elements=4, out_elements=4)
    weights = exchange(at + 20, sent, received, elements=sum(sent), out_elements=sum(received), dtype="Float")
    return [sizes, exchange(at + 10, sent, received), weights, exchange(at + 30, received, sent)]


def job(folder: Path, ranks: Sequence[int] = range(4), layers: int = 2) -> pl.DataFrame:
    by_rank = {rank: [e for at in range(layers) for e in layer(rank, 100.0 * at)] for rank in ranks}
    return rankscope.open(kineto.write_ranks(folder, by_rank), executor="serial").all_to_all()


def test_bytes_between_pairs_by_role(tmp_path: Path) -> None:
    found = job(tmp_path)
    assert set(found["role"].unique()) == {"dispatch", "combine", None}
    pairs = {(row["role"], row["rank"], row["peer"]): row for row in found.to_dicts()}
    # Two layers; a token of 8 elements of 2 bytes, and its weight of 4 bytes.
    for rank, sent in enumerate(LOADS):
        for peer, tokens in enumerate(sent):
            dispatch, combine = pairs["dispatch", rank, peer], pairs["combine", peer, rank]
            assert dispatch["sent_bytes"] == 2 * tokens * (2 * HIDDEN + 4)
            assert pairs["dispatch", peer, rank]["received_bytes"] == dispatch["sent_bytes"]
            assert combine["sent_bytes"] == 2 * tokens * 2 * HIDDEN
            assert (dispatch["calls"], dispatch["uneven_calls"], combine["calls"]) == (4, 4, 2)
            # Sizes are exchanged evenly: one number of 8 bytes with each.
            assert pairs[None, rank, peer]["sent_bytes"] == 2 * 8
            assert pairs[None, rank, peer]["uneven_calls"] == 0


def test_the_load_of_each_receiver(tmp_path: Path) -> None:
    found = job(tmp_path).filter(role="dispatch")
    loads = dict(found.select("peer", pl.col("imbalance").round(6)).unique().iter_rows())
    # 40, 100, 100 and 560 tokens of 200 on average.
    assert loads == {0: 0.2, 1: 0.5, 2: 0.5, 3: 2.8}
    run = rankscope.open(tmp_path, executor="serial")
    headline = run.analyze("all_to_all")["all_to_all"].headline
    assert headline is not None
    assert {each.name: each.value for each in headline.values} == {"rank": 3, "times": 2.8}


def test_a_missing_rank_leaves_loads_unknown(tmp_path: Path) -> None:
    found = job(tmp_path, ranks=[0, 1, 2])
    assert found["imbalance"].null_count() == found.height
    # What the others sent is known all the same.
    assert found.filter(role="dispatch", rank=0, peer=3)["sent_bytes"].to_list() == [2 * 140 * 20]


def test_splits_without_a_mirrored_partner_have_no_role(tmp_path: Path) -> None:
    events = [exchange(10, [1, 2, 3, 4], [4, 4, 4, 4]), exchange(20, [2, 2, 2, 4], [1, 2, 3, 4])]
    found = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial").all_to_all()
    assert found["role"].to_list() == [None] * 4
    assert found["sent_bytes"].to_list() == [
        (a + b) * 2 * HIDDEN for a, b in zip((1, 2, 3, 4), (2, 2, 2, 4), strict=True)
    ]


def test_what_is_shortened_or_unknown_is_left_out(tmp_path: Path) -> None:
    events = [
        exchange(10, "[1, 2, ...]", "[1, 2, ...]", elements=24, out_elements=24),
        exchange(20, [1, 2], [2, 1]),
        exchange(25, [1, 2, 3, 10**30], [1, 2, 3, 4], elements=24),
        exchange(30, [1, 2, 3, 4], [1, 2, 3, 4], dtype="Unheard"),
        kineto.collective(40, 5, kind="allreduce"),
        kineto.kernel("void deep_ep::internode_ll::dispatch<true>", 50, 5),
    ]
    found = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial").all_to_all()
    assert found.is_empty()


def test_the_host_tells_where_kernels_do_not(tmp_path: Path) -> None:
    metadata = {
        "Collective name": "all_to_allv", "In msg nelems": 10, "Out msg nelems": 12, "dtype": "Float",
        "In split size": "[4, 6]", "Out split size": "[6, 6]", "Process Group Name": "0",
        "Process Group Description": "undefined", "Process Group Ranks": "[2, 5]", "Group size": 2,
    }  # fmt: skip
    events = [kineto.op("record_param_comms", 0, 5, **metadata), kineto.kernel("ncclDevKernel_SendRecv", 10, 5)]
    found = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial").all_to_all()
    assert found.select("group", "peer", "sent_bytes", "received_bytes").rows() == [("0", 2, 16, 24), ("0", 5, 24, 24)]
