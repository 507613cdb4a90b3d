"""memory_curve by interval: no peak is lost by cutting time into pieces."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests import kineto

import rankscope
from rankscope.primitives.allocations import PIECES


def test_each_piece_holds_its_greatest(tmp_path: Path) -> None:
    # A sawtooth of 2,000 samples, 1 µs apart, beginning at 5 µs.
    held = [(37 * number) % 1009 for number in range(2000)]
    events = [
        kineto.memory(5 + at, 1, allocated=1000 * amount, reserved=2_000_000 + at) for at, amount in enumerate(held)
    ]
    path = kineto.write(tmp_path / "r.json", kineto.trace([kineto.op("aten::empty", 0, 3000), *events], rank=0))
    found = rankscope.open(path, executor="serial").memory_curve(by="interval").to_dicts()
    span = 1999 * 1000 + 1
    greatest: dict[int, int] = defaultdict(int)
    for at, amount in enumerate(held):
        piece = PIECES * at * 1000 // span
        greatest[piece] = max(greatest[piece], 1000 * amount)
    assert [row["allocated"] for row in found] == [greatest[piece] for piece in sorted(greatest)]
    assert [row["at_ns"] for row in found] == [piece * span // PIECES for piece in sorted(greatest)]
    assert found[-1]["reserved"] == 2_001_999
    assert found[-1]["change"] == 2000
    assert {row["device"] for row in found} == {"cuda:0"}


def test_peaks_are_those_of_memory(shared_traces: Path, shared_cache: Path) -> None:
    run = rankscope.open(shared_traces / "gloo-2ranks", executor="serial", run_id="latest")
    outline, peaks = run.memory_curve(by="interval"), run.memory()
    assert peaks.height
    for row in peaks.to_dicts():
        own = outline.filter(
            (outline["rank"] == row["rank"])
            & (outline["device"] == row["device"])
            & (outline["window"] == row["window"])
        )
        assert own["allocated"].max() == row["peak_allocated"]
        assert own["change"].max() == row["change_peak"]
