"""idle by device: idle's rows of whole devices, side by side."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from tests.analyses.reference import write_reference

import rankscope


def test_causes_are_those_of_idle_and_sum_up(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    rows = run.idle().filter(pl.col("stream").is_null()).to_dicts()
    found = run.idle(by="device").to_dicts()
    assert [row["rank"] for row in found] == [0, 1]
    for row in found:
        causes = {name: value for name, value in row.items() if name.endswith("_ns") and name != "idle_ns"}
        for name, value in causes.items():
            cause = name.removesuffix("_ns")
            assert value == sum(r["idle_ns"] for r in rows if r["rank"] == row["rank"] and r["cause"] == cause)
        assert sum(causes.values()) == row["idle_ns"] > 0
        assert {r["cause"] for r in rows} <= {name.removesuffix("_ns") for name in causes}
