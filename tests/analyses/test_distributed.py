"""distributed, collective_summary by kind and by rank: two ranks that meet in collectives, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run

US = 1000


def job(folder: Path) -> Run:
    """One step of 1 ms; rank 1 computes until 350 µs and comes 150 µs late to one collective, first to the next.

    The third is of rank 0 alone: nobody knows how long it waited.
    """
    of_rank: dict[int, list[kineto.Event]] = {}
    for rank, busy, calls in ((0, 200, ((250, 450), (650, 700), (800, 840))), (1, 250, ((400, 450), (600, 700)))):
        events = [
            kineto.step(3, 0, 1000),
            kineto.launch(10, 2, correlation=1),
            kineto.kernel("gemm", 100, busy, correlation=1),
        ]
        for number, (start, end) in enumerate(calls):
            events += [
                kineto.launch(20 + number, 1, correlation=10 + number),
                kineto.collective(
                    start, end - start, elements=1000 * (number + 1), sequence=number, correlation=10 + number
                ),
            ]
        of_rank[rank] = events
    return rankscope.open(kineto.write_ranks(folder, of_rank), executor="serial")


def micro(row: dict[str, Any]) -> dict[str, int]:
    return {name.removesuffix("_ns"): value // US for name, value in row.items() if name.endswith("_ns")}


def test_both_divisions_by_hand(tmp_path: Path) -> None:
    zero, one = job(tmp_path).distributed().to_dicts()
    # Compute 100–300; communication 250–450, 650–700 and 800–840; transfer is the last 50 µs of each that is matched.
    assert micro(zero) == {
        "window": 1000, "computation": 150, "overlap": 50, "exposed_communication": 240, "neither": 560,
        "transfer": 100, "synchronizing": 150, "unmatched": 40,
        "exposed_transfer": 100, "exposed_synchronizing": 100, "exposed_unmatched": 40,
    }  # fmt: skip
    assert micro(one) == {
        "window": 1000, "computation": 250, "overlap": 0, "exposed_communication": 150, "neither": 600,
        "transfer": 100, "synchronizing": 50, "unmatched": 0,
        "exposed_transfer": 100, "exposed_synchronizing": 50, "exposed_unmatched": 0,
    }  # fmt: skip
    assert (zero["rank"], zero["step"], one["rank"]) == (0, 3, 1)


def test_the_sentence_is_over_all_ranks(tmp_path: Path) -> None:
    headline = job(tmp_path).analyze("distributed")["distributed"].headline
    assert headline is not None
    assert {each.name: each.value for each in headline.values} == {
        "share": pytest.approx(440 / 2000),
        "overlap": pytest.approx(50 / 440),
        "waiting": pytest.approx(200 / 440),
        "unknown": pytest.approx(40 / 440),
    }


def test_operations_of_each_rank(tmp_path: Path) -> None:
    zero, one = job(tmp_path).collective_summary(by="kind").to_dicts()
    assert micro(zero) == {"total": 290, "mean": 96, "transfer": 100, "mean_transfer": 50, "wait": 150}
    assert zero["mean_ns"] == 96_667  # a third of 290 µs
    assert (zero["calls"], zero["measured"], zero["bytes"], zero["mean_bytes"]) == (3, 2, 24_000, 8_000)
    assert micro(one) == {"total": 150, "mean": 75, "transfer": 100, "mean_transfer": 50, "wait": 50}
    assert (one["collective"], one["calls"], one["bytes"], one["estimate"]) == ("all_reduce", 2, 12_000, False)


def test_order_of_arrival(tmp_path: Path) -> None:
    zero, one = job(tmp_path).collective_summary(by="rank").to_dicts()
    # Before the first collective of a group more was recorded on one rank than on the other: it is not compared.
    # Two ends tell the clocks to 100 µs: whether rank 0 came 50 µs late is not known.
    assert (zero["first"], zero["last"], zero["between"], zero["collectives"]) == (0, 0, 1, 1)
    assert (one["first"], one["last"], one["mean_place"], one["last_share"]) == (0, 0, 0.0, 0.0)
    assert one["max_lateness_ns"] == -50 * US
    assert zero["max_lateness_ns"] == zero["median_lateness_ns"] == 50 * US


def plain_sums(events: Sequence[tuple[int, int]]) -> int:
    """The length of a union, nanosecond by nanosecond's ends, without rankscope's intervals."""
    total, reached = 0, -(1 << 62)
    for start, end in sorted(events):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def test_on_the_eight_h100(shared_traces: Path, shared_cache: Path) -> None:
    run = rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial")
    found = run.distributed()
    steps = {(row["rank"], row["step"]): row for row in run.step_time().to_dicts()}
    calls = run.collectives().to_dicts()
    assert found.height == len(steps) == 32
    for row in found.to_dicts():
        step = steps[row["rank"], row["step"]]
        assert row["window_ns"] == step["window_ns"]
        # What step_time calls compute has communication beside it or not.
        assert row["computation_ns"] + row["overlap_ns"] == step["compute_ns"]
        assert row["exposed_communication_ns"] == step["exposed_communication_ns"]
        parts = ("computation_ns", "overlap_ns", "exposed_communication_ns", "neither_ns")
        assert sum(row[part] for part in parts) == row["window_ns"]
        low, high = step["start_ns"], step["start_ns"] + step["window_ns"]
        mine = [call for call in calls if call["rank"] == row["rank"]]
        moving = [
            (max(low, call["end_ns"] - call["transfer_ns"]), min(high, call["end_ns"]))
            for call in mine
            if call["transfer_ns"] is not None
        ]
        assert row["transfer_ns"] == plain_sums([each for each in moving if each[1] > each[0]])
        whole = [(max(low, call["start_ns"]), min(high, call["end_ns"])) for call in mine]
        together = row["transfer_ns"] + row["synchronizing_ns"] + row["unmatched_ns"]
        assert together == row["overlap_ns"] + row["exposed_communication_ns"]
        assert together == plain_sums([each for each in whole if each[1] > each[0]])
    operations = run.collective_summary(by="kind")
    for rank in run.ranks:
        own = operations.filter(operations["rank"] == rank).to_dicts()
        assert {row["collective"]: row["total_ns"] for row in own} == {
            kind: sum(c["duration_ns"] for c in calls if c["rank"] == rank and c["collective"] == kind)
            for kind in {c["collective"] for c in calls if c["rank"] == rank}
        }
