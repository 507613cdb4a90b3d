"""One rank receives much more than the others in all-to-alls."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.analyses.test_all_to_all import exchange
from tests.answers.diagnosis.rules.steps import diagnosed

HOT = [[10, 10, 10, 50]] * 4
EVEN = [[20, 22, 20, 18]] * 4


def layer(loads: list[list[int]], rank: int, at: float) -> list[kineto.Event]:
    sent, received = loads[rank], [row[rank] for row in loads]
    return [exchange(at + 10, sent, received), exchange(at + 30, received, sent)]


def test_fires_where_one_ranks_experts_get_most(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda rank, at: layer(HOT, rank, at), ranks=4)["exchange_imbalance"]
    # 200 of 320 tokens, of 80 on average; a token is 16 bytes.
    assert (finding.severity, finding.ranks, finding.saving_ns) == ("warning", (3,), None)
    assert finding.title == "Rank 3 receives 2.5 times the mean of its group in dispatched tokens"
    numbers = {each.name: each.value for each in finding.evidence}
    assert numbers["rank 3 receives per step"] == 200 * 16
    assert numbers["mean of the group per step"] == 80 * 16
    assert numbers["relative to the mean"] == 2.5
    assert numbers["exchanges of a rank"] == 4


def test_does_not_fire_where_loads_are_alike(tmp_path: Path) -> None:
    assert "exchange_imbalance" not in diagnosed(tmp_path, lambda rank, at: layer(EVEN, rank, at), ranks=4)


def test_does_not_fire_where_a_rank_is_missing(tmp_path: Path) -> None:
    assert "exchange_imbalance" not in diagnosed(tmp_path, lambda rank, at: layer(HOT, rank, at), ranks=3)
