"""Why a rank is late: pieces of work by hand, and which cause comes first."""

from __future__ import annotations

import polars as pl
import pytest

from rankscope.primitives.stragglers.causes import WorkDifference, compare_work, find_cause


def launched(rows: list[tuple[int, int, int, int]]) -> pl.DataFrame:
    """rank, work, pieces, work_ns; all in step 1."""
    return pl.DataFrame(rows, schema=["rank", "work", "pieces", "work_ns"], orient="row").with_columns(
        pl.lit(1).alias("step")
    )


def test_more_pieces_and_slower_ones_are_told_apart() -> None:
    peers = [(rank, 7, 10, 1_000) for rank in (1, 2, 3)]
    # Rank 0: ten pieces of 120 instead of 100 each, and four of another kind that its peers have not.
    found = compare_work(launched([(0, 7, 10, 1_200), (0, 8, 4, 400), *peers]), 0, [1, 2, 3], [1])
    assert found == WorkDifference(400, 200, 1_600, 14, 10)


def test_larger_ones_replace_smaller_ones() -> None:
    # A batch twice as large: other shapes, so other pieces; what the peers launch instead is deducted.
    found = compare_work(launched([(0, 8, 10, 2_000), (1, 7, 10, 1_000), (2, 7, 10, 1_000)]), 0, [1, 2], [1])
    assert found is not None
    assert (found.more_ns, found.slower_ns) == (1_000, 0)


def test_what_few_of_the_peers_launch_is_more_work() -> None:
    rows = [(0, 7, 2, 200), (1, 7, 2, 200), (2, 9, 1, 1), (3, 9, 1, 1), (0, 9, 1, 1), (1, 9, 1, 1)]
    found = compare_work(launched(rows), 0, [1, 2, 3], [1])
    assert found is not None
    assert (found.more_ns, found.slower_ns) == (200, 0)


def test_additional_pieces_that_are_shorter_add_what_they_take() -> None:
    # Rank 0 launches ten of 100, as its peers, and eight of 50 under the same name and grid.
    peers = [(rank, 7, 10, 1_000) for rank in (1, 2, 3)]
    found = compare_work(launched([(0, 7, 18, 1_400), *peers]), 0, [1, 2, 3], [1])
    assert found == WorkDifference(400, 0, 1_400, 18, 10)


def test_additional_pieces_of_a_slow_rank_count_at_the_pace_of_its_peers() -> None:
    peers = [(rank, 7, 10, 1_000) for rank in (1, 2, 3)]
    found = compare_work(launched([(0, 7, 20, 2_400), *peers]), 0, [1, 2, 3], [1])
    assert found == WorkDifference(1_000, 200, 2_400, 20, 10)


def test_nothing_launched() -> None:
    assert compare_work(launched([(1, 7, 1, 1)]), 0, [1], [1]) is None


@pytest.mark.parametrize(
    ("more", "work", "on_host", "cause"),
    [
        ({"data_loading": 90, "operators": 20}, None, False, "data_loading"),
        # Its host lacks the time in which the others' run ahead: what is peculiar comes first.
        ({"data_loading": 40, "operators": 60}, None, False, "data_loading"),
        ({"allocation": 35, "operators": 60}, None, False, "memory"),
        ({"nothing": 80}, None, False, "slow_host"),
        ({"compute": 90, "operators": 70}, WorkDifference(0, 85, 1_000, 10, 10), False, "slow_device"),
        ({"compute": 90}, WorkDifference(80, 5, 1_000, 12, 10), False, "more_work"),
        # Slower kernels that the rank's time does not show: they ran while it waited anyway.
        ({"compute": 5, "nothing": 90}, WorkDifference(0, 85, 1_000, 10, 10), False, "slow_host"),
        ({"operators": 90}, WorkDifference(80, 0, 1_000, 10, 10), True, "more_work"),
        ({"operators": 90}, WorkDifference(0, 80, 1_000, 10, 10), True, "slow_host"),
        ({"operators": 20}, None, False, "unclear"),
        ({}, None, False, "unclear"),
    ],
)
def test_which_cause(more: dict[str, int], work: WorkDifference | None, on_host: bool, cause: str) -> None:
    assert find_cause(100, more, {}, work, on_host=on_host).cause == cause


def test_a_slow_host_allocates_slowly_too() -> None:
    # Twice as long for all that it does, allocating among it; the second allocates four times as long, the rest alike.
    usual = {"operators": 30, "runtime": 20, "allocation": 50}
    assert find_cause(100, {"operators": 30, "runtime": 20, "allocation": 50}, usual, None, on_host=False).cause == (
        "slow_host"
    )
    assert find_cause(150, {"allocation": 150}, usual, None, on_host=False).cause == "memory"


def test_a_call_for_memory_that_no_other_rank_makes_counts_with_the_wait_that_it_causes() -> None:
    more = {"allocation": 20, "runtime": 30, "operators": 40}
    for usual, by_calls, cause in (
        ({}, True, "memory"),
        ({}, False, "slow_host"),
        ({"allocation": 5}, True, "slow_host"),
    ):
        assert find_cause(100, more, usual, None, on_host=False, by_calls=by_calls).cause == cause


def test_the_evidence_says_no_more_than_the_numbers() -> None:
    # Where the hosts compute there is no device that could sit idle.
    on_host = find_cause(100, {"data_loading": 90}, {}, None, on_host=True).evidence
    longer = "it takes 0.09 µs longer than the others' median"
    assert on_host == f"in its late steps together {longer}, mostly in its data loader"
    on_device = find_cause(100, {"data_loading": 90}, {}, None, on_host=False).evidence
    assert "its device is idle for 0.09 µs longer than" in on_device
    # The greatest of three parts need not be half of them.
    parts = {"runtime": 25, "operators": 40, "nothing": 25}
    assert find_cause(100, parts, {}, None, on_host=False).evidence.endswith("the largest part of it in operators")


def test_kernels_that_differ_as_those_of_any_two_devices_are_no_slow_device() -> None:
    """A slow host (seed 991006): 33 of 92 µs are kernels that take 0.5 % longer."""
    late = WorkDifference(0, 33, 6_600, 330, 330)
    found = find_cause(92, {"compute": 33, "operators": 59}, {}, late, on_host=False)
    assert found.cause == "slow_host"
