"""Memory grows with every step."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.test_memory_limit import GIB, findings

MIB = 1 << 20


def ends(*sizes: int) -> list[kineto.Event]:
    """One allocation a step, after which so much is allocated."""
    return [
        kineto.memory(1000 * step + 500, MIB, allocated=size, reserved=2 * GIB, address=4096 + step)
        if step == 0 or size > sizes[step - 1]
        else kineto.memory(1000 * step + 500, -MIB, allocated=size, reserved=2 * GIB, address=4095 + step)
        for step, size in enumerate(sizes)
    ]


def test_fires_where_every_step_keeps_something(tmp_path: Path) -> None:
    finding = findings(tmp_path, *ends(*(GIB + n * MIB for n in range(6))), steps=6)["memory_growth"]
    assert finding.severity == "warning"
    assert finding.evidence[0].value == MIB
    assert finding.evidence[1].value == 4
    # 15 GiB less five MiB are left.
    assert finding.evidence[3].value == 15 * 1024 - 5


def test_does_not_fire_where_it_comes_and_goes(tmp_path: Path) -> None:
    assert "memory_growth" not in findings(tmp_path, *ends(*(GIB + (n % 2) * MIB for n in range(6))), steps=6)


def test_does_not_fire_about_the_first_steps(tmp_path: Path) -> None:
    """What the optimizer makes at first stays, and that is all."""
    sizes = [GIB, GIB + MIB, GIB + MIB + 0, GIB + 2 * MIB, GIB + MIB, GIB + 2 * MIB]
    assert "memory_growth" not in findings(tmp_path, *ends(*sizes), steps=6)
