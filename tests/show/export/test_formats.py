"""Results as Arrow files, read by another implementation."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl
import pytest
from tests.analyses.reference import write_reference

import rankscope
from rankscope.show.export.formats import to_arrow


def test_an_arrow_file_has_the_rows(tmp_path: Path, shared_cache: Path) -> None:
    run = rankscope.open(write_reference(tmp_path / "run"), executor="serial")
    for name in ("kernels", "collectives", "step_time"):
        result = run.analyze(name)[name]
        written = pl.read_ipc(io.BytesIO(to_arrow(result, run.about())))
        assert written.columns == result.frame.columns
        assert written.height == result.frame.height > 0
        assert written.cast(pl.String).equals(result.finite().cast(pl.String))


def test_another_implementation_reads_it(tmp_path: Path, shared_cache: Path) -> None:
    arrow = pytest.importorskip("pyarrow.feather")
    run = rankscope.open(write_reference(tmp_path / "run"), executor="serial")
    result = run.analyze("kernels")["kernels"]
    path = tmp_path / "kernels.arrow"
    path.write_bytes(to_arrow(result, run.about()))
    table = arrow.read_table(path)
    assert table.column("total_ns").to_pylist() == result.frame["total_ns"].to_list()
    assert table.column("name").to_pylist() == result.frame["name"].to_list()
