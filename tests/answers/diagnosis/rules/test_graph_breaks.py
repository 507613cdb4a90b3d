"""torch.compile breaks the graph or recompiles it."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work


def make(at: float, *regions: str, lookup: float = 40) -> list[kineto.Event]:
    events = []
    for number, region in enumerate(regions):
        begin = at + 10 + 300 * number
        events += [
            kineto.annotation("TorchDynamo Cache Lookup", begin, lookup, cat="cpu_op"),
            kineto.annotation(f"Torch-Compiled Region: {region}", begin + lookup + 1, 200, cat="cpu_op"),
        ]
    return [kineto.op(each["name"], each["ts"], each["dur"]) for each in events]


def test_fires_where_there_are_pieces(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: make(at, "0/0", "1/0", "2/0"))["graph_breaks"]
    assert finding.severity == "warning"
    # Without a device all of it counts; one graph would keep one lookup of the three.
    assert finding.saving_ns == 2 * 40_000
    assert "3 graphs" in finding.title


def test_fires_where_it_is_compiled_again(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: make(at, "0/1", lookup=80))["graph_breaks"]
    assert finding.evidence[1].value == 1


def test_does_not_fire_where_it_is_whole(tmp_path: Path) -> None:
    assert "graph_breaks" not in diagnosed(tmp_path, lambda _, at: make(at, "0/0"))


def test_does_not_fire_where_nothing_is_compiled(tmp_path: Path) -> None:
    assert "graph_breaks" not in diagnosed(tmp_path, lambda _, at: [kineto.op("aten::mm", at, 900)])


def test_does_not_fire_where_the_device_works_on(tmp_path: Path) -> None:
    """The lookups take 120 µs, all of which the device works on what was launched before."""
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 5, 990), *make(at, "0/0", "1/0", "2/0")])
    assert "graph_breaks" not in found
