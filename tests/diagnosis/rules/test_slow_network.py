"""A group moves its data slower than the run shows to be possible."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.diagnosis.rules.steps import STEP, diagnosed, work

import rankscope


def reduce(at: float, dur: float, mega: int, group: str) -> list[kineto.Event]:
    identity = round(at * 16) + 9
    return [
        kineto.launch(at - 5, 3, correlation=identity),
        kineto.collective(
            at, dur, correlation=identity, ranks=(0, 1), elements=mega * 250_000, group=group, description=group,
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


def test_equal_sizes_are_another_findings_matter(tmp_path: Path) -> None:
    """Groups that differ at one size: `stragglers` compares them (slow-network)."""

    def make(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 300), *reduce(at + 320, 100, 4, "1"), *reduce(at + 450, 500, 4, "2")]

    assert "slow_network" not in diagnosed(tmp_path, make, ranks=2)
