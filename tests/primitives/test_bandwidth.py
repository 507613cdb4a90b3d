from __future__ import annotations

import polars as pl
import pytest

from rankscope.primitives.bandwidth import with_waits_and_bandwidth


def rows(*specs: tuple[int, int | None, str, int, int], size: int | None = 2, **more: object) -> pl.DataFrame:
    """Rows of (rank, match, collective, start, end)."""
    return pl.DataFrame(
        [
            {
                "rank": rank, "match": match, "collective": kind, "group_size": size, "bytes": 1000, "window": 0,
                "on_device": True, "start_ns": start, "end_ns": end, "duration_ns": end - start, **more,
            }
            for rank, match, kind, start, end in specs
        ],
        schema_overrides={"match": pl.Int64, "group_size": pl.Int64},
    )  # fmt: skip


def test_the_last_to_come_only_transfers() -> None:
    found = with_waits_and_bandwidth(rows((0, 0, "all_reduce", 0, 100), (1, 0, "all_reduce", 60, 100)), 2)
    assert found["transfer_ns"].to_list() == [40, 40]
    assert found["wait_ns"].to_list() == [60, 0]
    assert found["matched_ranks"].to_list() == [2, 2]
    assert found["estimate"].to_list() == [False, False]


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 2 * 3 / 4),
        ("all_gather", 3 / 4),
        ("reduce_scatter", 3 / 4),
        ("all_to_all", 3 / 4),
        ("broadcast", 1),
        ("reduce", 1),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(kind: str, factor: float) -> None:
    found = with_waits_and_bandwidth(rows(*((rank, 0, kind, 0, 50) for rank in range(4)), size=4), 4)
    assert found["algorithm_bandwidth"][0] == 20.0  # 1000 bytes in 50 ns are 20 GB/s
    assert found["bus_bandwidth"][0] == pytest.approx(20.0 * factor)


def test_without_one_rank_waiting_would_pass_for_transfer() -> None:
    found = with_waits_and_bandwidth(rows((0, 0, "all_reduce", 0, 100), (1, 0, "all_reduce", 60, 100), size=3), 3)
    assert found["transfer_ns"].null_count() == 2
    assert found["matched_ranks"].to_list() == [2, 2]
    unknown = with_waits_and_bandwidth(rows((0, 0, "all_reduce", 0, 100), (1, 0, "all_reduce", 60, 100), size=None), 3)
    assert unknown["wait_ns"].null_count() == 2
    alone = with_waits_and_bandwidth(rows((0, None, "all_reduce", 0, 100)), 1)
    assert alone.select("transfer_ns", "wait_ns", "estimate", "matched_ranks").row(0) == (None, None, None, 1)


def test_a_channel_has_two_ends_whatever_the_group() -> None:
    found = with_waits_and_bandwidth(rows((0, 0, "send", 0, 100), (1, 0, "recv", 60, 100), size=8), 8)
    assert found["wait_ns"].to_list() == [60, 0]
    assert found["estimate"].to_list() == [True, True]


def test_ranges_on_the_host_that_overlap_say_nothing() -> None:
    made = rows(
        (0, 0, "all_reduce", 0, 100), (0, 1, "all_reduce", 50, 140), (1, 0, "all_reduce", 60, 100),
        (1, 1, "all_reduce", 110, 140), (0, 2, "all_reduce", 200, 230), (1, 2, "all_reduce", 210, 230),
        on_device=False,
    )  # fmt: skip
    assert with_waits_and_bandwidth(made, 2)["wait_ns"].to_list() == [None, None, None, None, 10, 0]
    on_device = with_waits_and_bandwidth(made.with_columns(pl.lit(True).alias("on_device")), 2)
    assert on_device["wait_ns"].to_list() == [60, 60, 0, 0, 10, 0]
