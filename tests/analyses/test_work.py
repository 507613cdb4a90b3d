"""What each step ran, against the reference run worked out by hand."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.analyses.reference import write_reference

import rankscope


def test_kernels_and_operators_by_step(tmp_path: Path) -> None:
    rows = rankscope.open(write_reference(tmp_path)).work().filter(rank=0, step=10).to_dicts()
    kernels = {
        (r["name"], r["operator"], r["shapes"]): (r["calls"], r["total_ns"]) for r in rows if r["kind"] == "kernel"
    }
    assert kernels["ampere_sgemm_128x64_nn", "aten::mm", "[[64,512],[512,512]]"] == (2, 200_250 + 150_000)
    assert kernels["Memcpy HtoD (Pinned -> Device)", "aten::to", "[[64,512]]"] == (1, 30_500)
    operators = {(r["name"], r["shapes"]): (r["calls"], r["total_ns"]) for r in rows if r["kind"] == "operator"}
    # 60 µs, of which 40 in aten::mm.
    assert operators["aten::linear", "[[64,512],[512,512]]"] == (1, 20_000)
    assert operators["aten::mm", "[[64,512],[512,512]]"] == (2, 40_000 + 30_000)


def test_a_kernel_without_external_id_belongs_to_the_open_operator(tmp_path: Path) -> None:
    events = [
        kineto.op("aten::mm", 10, 20, dims=[[4, 4]]),
        kineto.launch(15, 2, correlation=1),
        kineto.kernel("gemm", 20, 30, correlation=1),
    ]
    run = rankscope.open(kineto.write(tmp_path / "r.json", kineto.trace(events, rank=0)), executor="serial")
    assert run.work().filter(kind="kernel").select("operator", "shapes").rows() == [("aten::mm", "[[4,4]]")]


def test_the_backlog_is_of_no_step(tmp_path: Path) -> None:
    frame = rankscope.open(write_reference(tmp_path)).work()
    assert frame.filter(name="backlog_gemm")["step"].to_list() == [None, None]
    assert rankscope.open(write_reference(tmp_path), steps="11").work()["step"].unique().to_list() == [11]
