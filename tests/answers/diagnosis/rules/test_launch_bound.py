"""The device waits for the host to launch."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work


def make(at: float, gap: float) -> list[kineto.Event]:
    """Two kernels of 300 µs, `gap` µs between them, in which the host is in an operator."""
    return [
        *work(at + 10, 300),
        kineto.op("my::slow", at + 20, 285 + gap),
        *work(at + 310 + gap, 300),
    ]


def test_fires_where_the_host_is_late(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: make(at, 200))["launch_bound"]
    assert finding.severity == "warning"
    # Between steps the host records nothing for longer than a host that launches would, but for the launch of 3 µs
    # itself, in three of four steps.
    assert finding.saving_ns == 200_000 + 3_000
    assert finding.evidence[-1].value == "my::slow"
    assert finding.advice.startswith("Look at my::slow")


def test_many_short_operators_are_advised_to_launch_less(tmp_path: Path) -> None:
    def short(_: int, at: float) -> list[kineto.Event]:
        events = [event for n in range(8) for event in work(at + 10 + 100 * n, 60)]
        return [*events, *(kineto.op(f"my::slow{n % 2}", at + 20 + 100 * n, 85) for n in range(8))]

    assert diagnosed(tmp_path, short)["launch_bound"].advice.startswith("Launch less")


def test_a_step_that_stands_out_does_not_count(tmp_path: Path) -> None:
    """35 µs late in two of three steps or less, 298 µs in the first: 4 % of a step, not 12."""
    finding = diagnosed(tmp_path, lambda _, at: make(at, 300 if at == 0 else 30), steps=3)["launch_bound"]
    assert finding.saving_ns == 35_000
    assert [each.value for each in finding.evidence if each.name == "left out as unusual: step 0, at most"] == [298_000]


def test_does_not_fire_about_one_step_of_three(tmp_path: Path) -> None:
    assert "launch_bound" not in diagnosed(tmp_path, lambda _, at: make(at, 300 if at == 0 else 2), steps=3)


def test_does_not_fire_about_driver_calls_for_memory_and_long_ones(tmp_path: Path) -> None:
    """Of 200 µs in which the device waits, 190 are in cudaFree, or in a launch that loads its kernel's code."""
    for name in ("cudaFree", "hipMalloc", "cudaHostAlloc", "cudaLaunchKernel"):

        def calls(_: int, at: float, name: str = name) -> list[kineto.Event]:
            return [*make(at, 200), kineto.launch(at + 312, 190, name=name)]

        found = diagnosed(tmp_path / name, calls)
        assert found["launch_bound"].saving_ns == 13_000


def test_does_not_fire_where_launches_are_early(tmp_path: Path) -> None:
    """The same gap, but the second kernel was launched long before it began: it waited for something else."""

    def early(_: int, at: float) -> list[kineto.Event]:
        return [
            *work(at + 10, 300),
            kineto.op("my::slow", at + 20, 485),
            kineto.launch(at + 30, 3, correlation=round(at) + 3),
            kineto.kernel("gemm", at + 510, 300, correlation=round(at) + 3),
        ]

    assert "launch_bound" not in diagnosed(tmp_path, early)


def test_does_not_fire_about_data_loading(tmp_path: Path) -> None:
    def loads(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 300), kineto.loading(at + 310, 195), *work(at + 510, 300)]

    assert "launch_bound" not in diagnosed(tmp_path, loads)
