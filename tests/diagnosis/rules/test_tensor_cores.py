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
    return {finding.id: finding for finding in run.diagnose()}


def test_speaks_where_tf32_is_off(tmp_path: Path) -> None:
    finding = findings(tmp_path, "ampere_sgemm_128x64_nn")["tensor_cores"]
    assert finding.severity == "warning"
    # 19.5 TFLOP/s without tensor cores, 156 with TF32.
    assert finding.saving_ns == pytest.approx(900_000 * (1 - 19.5 / 156), abs=1)
    assert "TF32" in finding.advice


def test_speaks_where_sizes_keep_16_bit_numbers_off(tmp_path: Path) -> None:
    finding = findings(tmp_path, "some_gemv_kernel", "c10::BFloat16")["tensor_cores"]
    assert finding.saving_ns == pytest.approx(900_000 * (1 - 19.5 / 312), abs=1)
    assert "multiples of 8" in finding.advice


def test_is_silent_where_they_are_used(tmp_path: Path) -> None:
    assert "tensor_cores" not in findings(tmp_path, "ampere_bf16_s16816gemm_bf16_128x64", "c10::BFloat16")


def test_is_silent_where_the_device_is_not_known(tmp_path: Path) -> None:
    assert "tensor_cores" not in findings(tmp_path, "ampere_sgemm_128x64_nn", device={"id": 0, "name": "Some GPU"})
