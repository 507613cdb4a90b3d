"""Two ways to run one job, compared: DDP against FSDP, eager against compiled. Real jobs on the CPU."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from tests.experiments.compare.real_job import PARAMETERS

import rankscope
from rankscope.show.report.diff_table import diff_tables

pytestmark = pytest.mark.slow
SOURCE = Path(__file__).parents[3]


def ran(folder: Path, way: str, ranks: int) -> Path:
    paths = [str(SOURCE / "src"), str(SOURCE), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6", "PYTHONPATH": os.pathsep.join(paths)}
    launched = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [sys.executable, *launched, "tests/experiments/compare/real_job.py", str(folder), way],
        cwd=SOURCE, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def shown(diff: rankscope.Diff) -> str:
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(diff_tables(diff, 40, 150))
    return console.export_text()


def test_memory_of_a_rank_falls_from_ddp_to_fsdp(tmp_path: Path) -> None:
    """With parameters, gradients and Adam's two states DDP holds four times the parameters, two sharded ranks half."""
    diff = rankscope.diff(ran(tmp_path / "ddp", "ddp", 2), ran(tmp_path / "fsdp", "fsdp", 2))
    peak = diff.section("memory").filter(pl.col("name") == "host: peak allocated").row(0, named=True)
    assert peak["a"] > 3.5 * PARAMETERS
    # Half of that, and a block or two that is gathered; the first step begins with the whole model.
    assert peak["b"] < 0.85 * peak["a"]
    collectives = diff.section("collectives")
    assert collectives.filter(pl.col("name").str.starts_with("all_gather") & pl.col("b").is_not_null()).height
    assert "host: peak allocated" in shown(diff)


def test_which_operators_became_which_kernels(tmp_path: Path) -> None:
    pytest.importorskip("torch._inductor")
    eager, compiled = ran(tmp_path / "eager", "eager", 1), ran(tmp_path / "compiled", "compiled", 1)
    diff = rankscope.diff(eager, compiled)
    fused = diff.section("operators").filter(pl.col("method") == "fused")
    assert fused.height, diff.section("operators").select("name", "partner", "method").rows()
    # The compiler's own names list what went in: so do ours, from both sides.
    pairs = dict(fused.select("name", "partner").rows())
    assert any("aten::gelu" in name and "fused" in (partner or "") for name, partner in pairs.items()), pairs
    # Products stay library calls, and are paired by name.
    products = diff.section("operators").filter(pl.col("name").str.contains("mm"))
    assert products.filter(pl.col("a").is_not_null() & pl.col("b").is_not_null()).height
    assert "→" in shown(diff)
