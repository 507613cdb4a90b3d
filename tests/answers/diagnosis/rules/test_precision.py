"""Matrix products and convolutions in 32 bits where 16 would do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed
from tests.answers.diagnosis.rules.test_tensor_cores import findings


def test_fires_for_32_bits_without_tensor_cores(tmp_path: Path) -> None:
    finding = findings(tmp_path, "ampere_sgemm_128x64_nn")["precision"]
    assert finding.severity == "info"
    assert finding.saving_ns == pytest.approx(900_000 * (1 - 19.5 / 312), abs=1)


def test_fires_for_tf32(tmp_path: Path) -> None:
    """On tensor cores already: 16 bits are twice as fast as TF32."""
    finding = findings(tmp_path, "ampere_sgemm_tf32_s1688gemm_128x64")["precision"]
    assert finding.saving_ns == pytest.approx(450_000, abs=1)


def test_names_no_saving_on_the_cpu(tmp_path: Path) -> None:
    made = kineto.op("aten::mm", 0, 0, dims=[[64, 64], [64, 64]], **{"Input type": ["float", "float"]})
    finding = diagnosed(tmp_path, lambda _, at: [{**made, "ts": at + 10, "dur": 900}])["precision"]
    assert finding.saving_ns is None
    assert [each.value for each in finding.evidence] == [900_000, 1_000_000]


def test_does_not_fire_in_16_bits(tmp_path: Path) -> None:
    assert "precision" not in findings(tmp_path, "ampere_bf16_s16816gemm_bf16_128x64", "c10::BFloat16")


def test_does_not_fire_where_types_were_not_recorded(tmp_path: Path) -> None:
    assert "precision" not in diagnosed(tmp_path, lambda _, at: [kineto.op("aten::mm", at + 10, 900)])
