"""A group moves its data slower than the run shows to be possible."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import STEP, diagnosed, work

import rankscope
from rankscope.answers.diagnosis.rules import slow_network
from rankscope.results import Inputs, Options


def reduce(at: float, dur: float, mega: int, group: str, ranks: tuple[int, ...] = (0, 1)) -> list[kineto.Event]:
    identity = round(at * 16) + 9
    return [
        kineto.launch(at - 5, 3, correlation=identity),
        kineto.collective(
            at, dur, correlation=identity, ranks=ranks, elements=mega * 250_000, group=group, description=group,
            stream=20 + int(group),
        ),
    ]  # fmt: skip


def test_fires_where_a_larger_one_is_slower(tmp_path: Path) -> None:
    """1 MB in 50 µs: 20 GB/s. 4 MB in 500 µs: 8."""

    def make(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 300), *reduce(at + 320, 50, 1, "1"), *reduce(at + 400, 500, 4, "1")]

    finding = diagnosed(tmp_path, make, ranks=2)["slow_network"]
    assert finding.severity == "warning"
    # At 20 GB/s it would take 200 µs.
    assert finding.saving_ns == 300_000


def test_does_not_fire_where_larger_is_faster(tmp_path: Path) -> None:
    def make(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 300), *reduce(at + 320, 50, 1, "1"), *reduce(at + 400, 190, 4, "1")]

    assert "slow_network" not in diagnosed(tmp_path, make, ranks=2)


def test_does_not_fire_where_groups_may_lie_on_other_hosts(tmp_path: Path) -> None:
    """Nobody knows whether the second group crosses hosts, where the first one's bandwidth cannot be reached."""

    def make(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 300), *reduce(at + 320, 50, 1, "1"), *reduce(at + 400, 500, 4, "2")]

    assert "slow_network" not in diagnosed(tmp_path, make, ranks=2)


def test_saves_at_most_what_its_own_ranks_have_exposed(tmp_path: Path) -> None:
    """Compute covers all but 20 µs of the slow group; another group, on other ranks, is exposed for 500."""

    def make(rank: int, at: float) -> list[kineto.Event]:
        if rank < 2:
            return [*work(at + 330, 560), *reduce(at + 320, 50, 1, "1"), *reduce(at + 400, 500, 4, "1")]
        return [*work(at + 10, 100), *reduce(at + 320, 500, 8, "2", ranks=(2, 3))]

    finding = diagnosed(tmp_path, make, ranks=4)["slow_network"]
    assert (finding.ranks, finding.saving_ns) == ((0, 1), 20_000)


def test_groups_within_one_host_are_compared(tmp_path: Path) -> None:
    def make(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 300), *reduce(at + 320, 50, 1, "1"), *reduce(at + 400, 500, 4, "2")]

    by_rank = {
        rank: [e for n in range(4) for e in (kineto.step(n, STEP * n, STEP), *make(rank, STEP * n))] for rank in (0, 1)
    }
    run = rankscope.open(kineto.write_ranks(tmp_path, by_rank, host_name="node1"), executor="serial")
    finding = next(each for each in run.diagnosis().stated if each.id == "slow_network")
    assert "20 GB/s" in finding.title
    assert finding.saving_ns == 300_000


@pytest.mark.parametrize(
    ("placement", "exposed_us", "fires"),
    [("within hosts", 650, False), (None, 650, False), ("across hosts", 200, False), ("across hosts", 650, True)],
)
def test_on_the_cpu_only_exposed_transfers_across_hosts_are_judged(
    tmp_path: Path, placement: str | None, exposed_us: int, fires: bool
) -> None:
    def make(_: int, at: float) -> list[kineto.Event]:
        reduces = [kineto.annotation("gloo:all_reduce", at + 220 + 80 * n, 50 + 550 * n, tid=9) for n in (0, 1)]
        return [kineto.op("aten::mm", at + 10, 860 - exposed_us), *reduces]

    by_rank = {
        rank: [e for n in range(6) for e in (kineto.step(n, STEP * n, STEP), *make(rank, STEP * n))] for rank in (0, 1)
    }
    run = rankscope.open(kineto.write_ranks(tmp_path, by_rank), executor="serial")
    size = {"collective": "all_reduce", "dtype": "float", "group_size": 2, "group": "0", "hosts": 2, "measured": 6}
    summary = pl.DataFrame(
        [
            {**size, "bytes": 10**6, "transfer_ns": 50_000.0, "bus_bandwidth": 20.0},
            {**size, "bytes": 4 * 10**6, "transfer_ns": 600_000.0, "bus_bandwidth": 6.7},
        ]
    ).with_columns(estimate=False, placement=pl.lit(placement, pl.String))
    results = {name: run.analyze(name)[name].frame for name in slow_network.rule.requires}
    found = slow_network.find(Inputs(Options(), run.traces, results={**results, "collective_summary": summary}))
    assert bool(found) is fires
    assert not fires or "GLOO_SOCKET_IFNAME" in found[0].advice


def test_equal_sizes_are_another_findings_matter(tmp_path: Path) -> None:
    """Groups that differ at one size: `stragglers` compares them (slow-network)."""

    def make(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 300), *reduce(at + 320, 100, 4, "1"), *reduce(at + 450, 500, 4, "2")]

    assert "slow_network" not in diagnosed(tmp_path, make, ranks=2)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_smaller_transfers_is_that_of_all_pairs(seed: int) -> None:
    draw = random.Random(seed)
    rows: list[dict[str, Any]] = [
        {
            "collective": draw.choice(["all_reduce", "all_gather"]),
            "dtype": draw.choice(["Float", None]),
            "bytes": draw.choice([1, 2, 3, 4]) * 1_000_000,
            "group": draw.choice(["1", "2", "3", None]),
            "group_size": 8,
            "hosts": draw.choice([1, 2, None]),
            "bus_bandwidth": round(draw.uniform(1, 100), 3),
        }
        for _ in range(60)
    ]
    expected: dict[tuple[object, ...], float] = {}
    for row, other in itertools.product(rows, rows):
        same = row["collective"] == other["collective"] and row["dtype"] == other["dtype"]
        alike = any(row[key] is not None and row[key] == other[key] for key in ("group", "hosts"))
        if same and alike and other["bytes"] < row["bytes"]:
            place = tuple(row[name] for name in slow_network._ROW)
            expected[place] = max(expected.get(place, 0.0), other["bus_bandwidth"])
    schema = {"dtype": pl.String, "group": pl.String, "hosts": pl.Int64}
    found = slow_network._best_of_smaller(pl.DataFrame(rows, schema_overrides=schema))
    assert {tuple(row[:-1]): row[-1] for row in found.iter_rows()} == expected
