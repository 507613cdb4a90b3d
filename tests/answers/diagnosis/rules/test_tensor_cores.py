"""Matrix products and convolutions that tensor cores could do, and do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto

import rankscope
from rankscope.results import Finding

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}


def product(at: float, dur: float, kernel: str, number: str) -> list[kineto.Event]:
    identity = round(at) + 1
    return [
        kineto.op("aten::mm", at, 8, external=identity, dims=[[64, 64], [64, 64]], **{"Input type": [number, number]}),
        kineto.launch(at + 2, 3, correlation=identity, external=identity),
        kineto.kernel(kernel, at + 10, dur, correlation=identity, external=identity),
    ]


def findings(
    folder: Path, kernel: str, number: str = "float", device: kineto.Event | None = None
) -> dict[str, Finding]:
    events: list[kineto.Event] = []
    for n in range(4):
        events += [kineto.step(n, 1000 * n, 1000), *product(1000 * n + 10, 900, kernel, number)]
    run = rankscope.open(kineto.write_ranks(folder, {0: events}, deviceProperties=[device or A100]), executor="serial")
    return {finding.id: finding for finding in run.diagnosis().stated}


def test_fires_where_tf32_is_off(tmp_path: Path) -> None:
    finding = findings(tmp_path, "ampere_sgemm_128x64_nn")["tensor_cores"]
    assert finding.severity == "warning"
    # 19.5 TFLOP/s without tensor cores, 156 with TF32.
    assert finding.saving_ns == pytest.approx(900_000 * (1 - 19.5 / 156), abs=1)
    assert "TF32" in finding.advice


def test_fires_where_sizes_keep_16_bit_numbers_off(tmp_path: Path) -> None:
    finding = findings(tmp_path, "ampere_fp16_sgemm_fp16_128x64_nn", "c10::Half")["tensor_cores"]
    assert finding.saving_ns == pytest.approx(900_000 * (1 - 19.5 / 312), abs=1)
    assert "multiples of 8" in finding.advice


def test_does_not_fire_where_they_are_used(tmp_path: Path) -> None:
    assert "tensor_cores" not in findings(tmp_path, "ampere_bf16_s16816gemm_bf16_128x64", "c10::BFloat16")


UMMA = (
    "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collective13CollectiveMmaINS1_"
    "35MainloopSm100TmaUmmaWarpSpecializedILi13ELi2ELi4ENS5_IJNS4_1CILi1EEENSA_ILi4EEESB_EEEEE"
)


@pytest.mark.parametrize("number", ["float", "c10::BFloat16", "c10::Float8_e4m3fn"])
@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(UMMA, id="CUTLASS 3, mangled"),
        pytest.param(UMMA[:96], id="CUTLASS 3, cut before the instruction"),
        pytest.param("fused_moe_kernel", id="Triton"),
        pytest.param("triton_tem_fused_addmm_native_layer_norm_0", id="a template of Inductor"),
        pytest.param("void gemv2T_kernel_val<int, int, float, float>", id="a product with a vector"),
        pytest.param("Cijk_Alik_Bljk_HB_GB_MT64x64x16_SE_K1", id="Tensile, without the instruction"),
    ],
)
def test_does_not_fire_where_the_name_does_not_tell(tmp_path: Path, kernel: str, number: str) -> None:
    assert "tensor_cores" not in findings(tmp_path, kernel, number)


def test_does_not_fire_where_the_device_is_not_known(tmp_path: Path) -> None:
    assert "tensor_cores" not in findings(tmp_path, "ampere_sgemm_128x64_nn", device={"id": 0, "name": "Some GPU"})
