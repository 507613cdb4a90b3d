"""Durations that TraceLens's own tests state for a trace of rank 0 of 8."""

from __future__ import annotations

from pathlib import Path

import rankscope


def test_tracelens_figures(shared_traces: Path, shared_cache: Path) -> None:
    trace = next((shared_traces / "tracelens" / "mi300").glob("resnet_act_checkpoint*"))
    summary = rankscope.open(trace, executor="serial").collective_summary()
    found = {(row["collective"], row["bytes"]): row for row in summary.iter_rows(named=True)}
    for key, total_ns in {
        ("all_reduce", 8816192 * 2): 26_798_240,
        ("all_reduce", 2873320 * 2): 20_338_798,
        ("broadcast", 19_200): 43_675,
        ("broadcast", 160): 19_597,
    }.items():
        assert (found[key]["count"], found[key]["total_ns"]) == (3, total_ns)
        # Seven of eight ranks are not here: nothing can be said of waiting.
        assert (found[key]["measured"], found[key]["wait_ns"], found[key]["bus_bandwidth"]) == (0, None, None)
