"""Advice fits the device and what is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from rankscope.answers.diagnosis.advice import autocast
from rankscope.primitives.device_peaks import half_precision


def device(name: str, major: int | None = None) -> dict[str, Any]:
    return {"name": name, "compute": [major, 0]}


@pytest.mark.parametrize(
    ("devices", "number"),
    [
        ([device("NVIDIA H100 80GB HBM3", 9)], "bfloat16"),
        ([device("NVIDIA GeForce RTX 3090", 8)], "bfloat16"),
        ([device("NVIDIA GeForce RTX 2080 Ti", 7)], "float16"),
        ([device("Tesla V100-SXM2-32GB", 7)], "float16"),
        ([device("NVIDIA A100-SXM4-80GB", 8), device("Tesla V100-SXM2-16GB", 7)], "float16"),
        ([device("AMD Instinct MI300X", 9)], "bfloat16"),
        ([device("Tesla P100-PCIE-16GB", 6)], None),
        ([device("", 9)], None),
        ([device("NVIDIA H100 80GB HBM3", 9), device("Intel(R) Data Center GPU Max 1550")], None),
        ([device("NVIDIA Something New")], None),
        ([], None),
    ],
)
def test_sixteen_bits_that_the_devices_have(devices: list[dict[str, Any]], number: str | None) -> None:
    assert half_precision(devices) == number
    assert ("bfloat16" in autocast(number).partition("(")[0]) is (number != "float16")
    assert ("GradScaler" in autocast(number)) is (number != "bfloat16")
