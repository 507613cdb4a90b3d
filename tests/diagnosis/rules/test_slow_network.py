"""A group moves its data slower than the run shows to be possible."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.diagnosis.rules.steps import diagnosed, work


def reduce(at: float, dur: float, mega: int, group: str) -> list[kineto.Event]:
    identity = round(at * 16) + 9
    return [
        kineto.launch(at - 5, 3, correlation=identity),
        kineto.collective(
            at, dur, correlation=identity, ranks=(0, 1), elements=mega * 250_000, group=group, description=group,
            stream=20 + int(group),
        ),
    ]  # fmt: skip


def test_speaks_where_a_larger_one_is_slower(tmp_path: Path) -> None:
    """1 MB in 50 µs: 20 GB/s. 4 MB in 500 µs: 8."""

    def make(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 300), *reduce(at + 320, 50, 1, "1"), *reduce(at + 400, 500, 4, "2")]

    finding = diagnosed(tmp_path, make, ranks=2)["slow_network"]
    assert finding.severity == "warning"
    # At 20 GB/s it would take 200 µs.
    assert finding.saving_ns == 300_000


def test_is_silent_where_larger_is_faster(tmp_path: Path) -> None:
    def make(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 300), *reduce(at + 320, 50, 1, "1"), *reduce(at + 400, 190, 4, "2")]

    assert "slow_network" not in diagnosed(tmp_path, make, ranks=2)
