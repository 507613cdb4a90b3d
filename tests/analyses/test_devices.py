"""devices: what traces say of the devices they ran on."""

from __future__ import annotations

from pathlib import Path

from tests import kineto

import rankscope


def test_used_devices_of_each_rank(tmp_path: Path) -> None:
    listed = [
        {"id": n, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 80 << 30, "numSms": 108, "computeMajor": 8,
         "computeMinor": 0} for n in range(4)
    ]  # fmt: skip
    ranks = {0: [kineto.kernel("k", 0, 1), kineto.kernel("k", 0, 1, device=2)], 1: [kineto.kernel("k", 0, 1, device=1)]}
    run = rankscope.open(kineto.write_ranks(tmp_path, ranks, deviceProperties=listed), executor="serial")
    found = run.devices()
    assert found.select("rank", "device").rows() == [(0, 0), (0, 2), (1, 1)]
    assert found.select("name", "memory", "multiprocessors", "capability", "peak_tflops", "backend").row(2) == (
        "NVIDIA A100-SXM4-80GB", 80 << 30, 108, "8.0", 312.0, "nccl",
    )  # fmt: skip


def test_no_device_and_one_that_is_not_listed(tmp_path: Path) -> None:
    ranks = {0: [kineto.op("aten::mm", 0, 1)], 1: [kineto.kernel("k", 0, 1, device=5)]}
    rows = rankscope.open(kineto.write_ranks(tmp_path, ranks), executor="serial").devices().to_dicts()
    assert [(row["device"], row["name"], row["memory"]) for row in rows] == [(None, None, None), (5, None, None)]


def test_real_models(shared_traces: Path) -> None:
    for path, name, peak in (
        ("modded-nanogpt-h100-8ranks", "NVIDIA H100 80GB HBM3", 989.4),
        ("tracelens/mi300/resnet_act_checkpoint.json.gz", "AMD Instinct MI300X", 1307.4),
        ("torchrec/ddp-resnet18-2ranks", "Tesla V100-SXM2-16GB", 125.0),
    ):
        found = rankscope.open(shared_traces / path, executor="serial").devices()
        assert set(found.select("name", "peak_tflops").rows()) == {(name, peak)}
