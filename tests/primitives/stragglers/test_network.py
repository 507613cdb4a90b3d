"""Groups that are slow to move data."""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.stragglers.network import slow_links

STEP = 10_000_000.0


def collectives(taken: dict[str, list[int]]) -> pl.DataFrame:
    """By group the transfer of its only collective in each step, on two ranks."""
    rows = [
        (group, f"[{place}]", match * 100 + place, step, ns)
        for place, (group, each) in enumerate(taken.items())
        for match, (step, ns) in enumerate(enumerate(each))
        for _ in range(2)
    ]
    schema = ["group", "group_ranks", "match", "step", "transfer_ns"]
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        pl.lit("all_reduce").alias("collective"), pl.lit(1 << 20).alias("bytes"), pl.lit(2).alias("group_size")
    )


def test_one_of_several() -> None:
    usual = [1_000_000, 1_010_000, 990_000, 1_000_000]
    found = slow_links(collectives({"a": usual, "b": [ns + 500_000 for ns in usual], "c": usual, "d": usual}), STEP)
    assert [(link.group, link.lasting, link.excess_ns, link.expected_ns, link.groups) for link in found] == [
        ("b", True, 2_000_000, 4_000_000, 3)
    ]


def test_in_some_steps() -> None:
    usual = [1_000_000, 1_010_000, 990_000, 1_000_000]
    slow = [1_000_000, 2_000_000, 2_000_000, 1_000_000]
    (found,) = slow_links(collectives({"a": usual, "b": slow, "c": usual, "d": usual}), STEP)
    assert (found.group, found.lasting, found.steps) == ("b", False, (1, 2))


def test_a_lost_collective_does_not_hide_its_step() -> None:
    """Of three collectives a step one was lost, on the slow group in its late steps: the rest tell."""
    one = collectives({each: [1_000_000] * 4 for each in "acd"} | {"b": [1_000_000, 2_000_000, 2_000_000, 1_000_000]})
    rows = pl.concat([one.with_columns(pl.col("match") + 10_000 * n) for n in range(3)])
    lost = (pl.col("group") == "b") & pl.col("step").is_in([1, 2]) & (pl.col("match") < 10_000)
    (found,) = slow_links(rows.filter(~lost), STEP)
    assert (found.group, found.steps, found.excess_ns) == ("b", (1, 2), 2 * 3 * 1_000_000)


def test_a_step_of_which_little_was_recorded_tells_nothing() -> None:
    """The last of eight collectives takes four times as long on all groups; on one, two steps have no other."""
    one = collectives({each: [1_000_000, 1_010_000, 990_000, 1_000_000] for each in "abcd"})
    rows = pl.concat(
        [one.with_columns(pl.col("match") + 10_000 * n, pl.col("transfer_ns") * (4 if n == 7 else 1)) for n in range(8)]
    )
    cut = (pl.col("group") == "b") & pl.col("step").is_in([0, 3]) & (pl.col("match") < 70_000)
    assert slow_links(rows.filter(~cut), STEP) == []


def test_a_group_without_any_like_is_held_against_its_other_steps() -> None:
    (found,) = slow_links(collectives({"a": [1_000_000, 1_010_000, 3_000_000, 990_000, 1_005_000, 3_200_000]}), STEP)
    assert (found.steps, found.groups, found.excess_ns) == ((2, 5), 0, 4_195_000)
    # One that only varies is not.
    assert slow_links(collectives({"a": [1_000_000, 2_000_000, 3_000_000, 1_500_000, 2_500_000]}), STEP) == []


def test_slow_in_every_other_step() -> None:
    """Half of the steps at most: which half is usual is then the faster one."""
    slow = [1_000_000, 1_400_000, 1_010_000, 1_410_000, 990_000, 1_390_000]
    (found,) = slow_links(collectives({"a": slow}), STEP)
    assert (found.steps, found.groups) == ((1, 3, 5), 0)


def noisy(seed: int, slower_ns: int) -> pl.DataFrame:
    """Eight steps of six transfers, each of 0.5 to 8 ms whoever has the core; in three of them all take longer."""
    draw = np.random.default_rng(seed)
    taken = np.exp(draw.uniform(np.log(5e5), np.log(8e6), (6, 8)))
    taken[:, [1, 3, 4]] += slower_ns
    each = [collectives({"a": row.astype(int).tolist()}) for row in taken]
    return pl.concat([frame.with_columns(pl.col("match") + 10_000 * n) for n, frame in enumerate(each)])


def test_where_hosts_move_the_data_the_transfers_tell_one_by_one() -> None:
    found = [slow_links(noisy(seed, 10_000_000), 4 * STEP) for seed in range(20)]
    assert sum([link.steps for link in links] == [(1, 3, 4)] for links in found) >= 17
    assert sum(bool(slow_links(noisy(seed, 0), 4 * STEP)) for seed in range(100)) <= 3


def test_one_of_two_in_some_steps() -> None:
    # The other group and its own other steps say what is usual.
    slow = [1_000_000, 2_000_000, 2_100_000, 1_000_000]
    (found,) = slow_links(collectives({"a": [1_000_000, 1_010_000, 990_000, 1_000_000], "b": slow}), STEP)
    assert (found.group, found.steps, found.groups, found.excess_ns) == ("b", (1, 2), 1, 2_100_000)
    # Both in the same steps, or once alone: nobody is the odd one.
    assert slow_links(collectives({"a": slow, "b": slow}), STEP) == []
    once = [1_000_000, 2_000_000, 990_000, 1_010_000]
    assert slow_links(collectives({"a": once[2:] * 2, "b": once}), STEP) == []


def test_alike_or_unknown() -> None:
    usual = [1_000_000, 1_010_000, 990_000, 1_000_000]
    assert slow_links(collectives({"a": usual, "b": usual[::-1], "c": usual}), STEP) == []
    assert slow_links(collectives({"a": usual}).with_columns(pl.lit(None, pl.Int64).alias("transfer_ns")), STEP) == []
