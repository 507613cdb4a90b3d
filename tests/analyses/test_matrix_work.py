"""In which type of numbers each rank computes what tensor cores can do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.test_tensor_cores import A100, product

import rankscope


def test_types_kernels_and_bounds(tmp_path: Path) -> None:
    events = [
        *product(10, 100, "ampere_sgemm_128x64_nn", "float"),
        *product(120, 50, "ampere_sgemm_tf32_s1688gemm_128x64", "float"),
        *product(200, 40, "ampere_bf16_s16816gemm_bf16_128x64", "c10::BFloat16"),
        # The wrapper counts once, with what the operator inside it launched through a third one.
        kineto.op("aten::linear", 299, 30, **{"Input type": ["double"]}),
        kineto.op("aten::addmm", 300, 20, **{"Input type": ["double"]}),
        kineto.op("aten::copy_", 301, 10, external=77),
        kineto.launch(302, 2, correlation=77, external=77),
        kineto.kernel("elementwise", 310, 25, correlation=77, external=77),
        # No work of tensor cores.
        kineto.op("aten::add", 400, 5, external=88, **{"Input type": ["float"]}),
        kineto.launch(401, 2, correlation=88, external=88),
        kineto.kernel("elementwise", 410, 25, correlation=88, external=88),
    ]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events}, deviceProperties=[A100]), executor="serial")
    rows = {row["number"]: row for row in run.matrix_work().iter_rows(named=True)}
    assert set(rows) == {"float32", "bfloat16", "float64"}
    wide = rows["float32"]
    assert (wide["calls"], wide["kernels"], wide["device_ns"], wide["tensor_ns"]) == (2, 2, 150_000, 50_000)
    # 100 µs at 19.5 TFLOP/s, that could be at 156; in 16 bits those at 312, and what is at 156 already too.
    assert wide["saving_ns"] == pytest.approx(100_000 * (1 - 19.5 / 156), abs=1)
    assert wide["narrow_saving_ns"] == pytest.approx(100_000 * (1 - 19.5 / 312) + 50_000 * (1 - 156 / 312), abs=1)
    assert (rows["bfloat16"]["device_ns"], rows["bfloat16"]["saving_ns"]) == (40_000, 0)
    assert rows["bfloat16"]["narrow_saving_ns"] is None
    assert (rows["float64"]["calls"], rows["float64"]["host_ns"], rows["float64"]["device_ns"]) == (1, 20_000, 25_000)


def test_a_call_is_off_tensor_cores_only_if_all_its_names_tell(tmp_path: Path) -> None:
    """A product on ordinary cores beside a kernel of unknown kind is not off; a copy beside it changes nothing."""

    def beside(at: int, name: str) -> list[kineto.Event]:
        identity = at + 1
        return [
            *product(at, 100, "ampere_sgemm_128x64_nn", "float"),
            kineto.launch(at + 6, 1, correlation=identity + 1, external=identity),
            kineto.kernel(name, at + 110, 7, correlation=identity + 1, external=identity),
        ]

    def row(name: str) -> dict[str, object]:
        folder = kineto.write_ranks(tmp_path / name[:8], {0: beside(10, name)}, deviceProperties=[A100])
        return rankscope.open(folder, executor="serial").matrix_work().row(0, named=True)

    known = row("void at::native::vectorized_elementwise_kernel<4>")
    assert (known["device_ns"], known["unknown_ns"], known["off_ns"]) == (107_000, 0, 100_000)
    unknown = row("fused_moe_kernel")
    assert (unknown["device_ns"], unknown["unknown_ns"], unknown["off_ns"]) == (107_000, 7_000, 0)


def test_without_a_device_there_is_no_bound(tmp_path: Path) -> None:
    events = [kineto.op("aten::mm", 10, 90, **{"Input type": ["float", "float"]})]
    row = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial").matrix_work().row(0, named=True)
    assert (row["number"], row["calls"], row["host_ns"]) == ("float32", 1, 90_000)
    assert row["device_ns"] is row["saving_ns"] is row["narrow_saving_ns"] is None
