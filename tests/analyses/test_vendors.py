"""Every analysis on one run as CUDA, ROCm, XPU and MTIA write it: the same numbers, where all record them.

CUDA's numbers are worked out by hand in each analysis's own tests; here they are the measure for the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests import kineto
from tests.analyses.test_golden import OURS
from tests.analyses.vendors import DEVICES, NAMES, events_of

import rankscope
from rankscope.engine.pipeline import Run

VENDORS = ("rocm", "xpu", "mtia")
# What only CUDA's kernels say, and what follows from it or from the device's model.
NOT_RECORDED = {
    "kernels": ("blocks_per_sm", "occupancy", "unfilled_ns"),
    "utilization": ("sm_efficiency", "occupancy"),
    "devices": ("name", "memory", "multiprocessors", "capability", "peak_tflops"),
    "operators": ("mfu", "tensor_core_unknown_share"),
    "matrix_work": ("unknown_ns", "off_ns", "saving_ns", "narrow_saving_ns"),
    "memory": ("total_memory",),
    # Of XPU's collectives the host's call tells, not the kernel.
    "collectives": ("source",),
}
# What follows from it are events of their own.
EVENTS_NOT_RECORDED = ("unfilled", "ordinary_cores")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    made = {}
    for vendor, device in DEVICES.items():
        folder = tmp_path_factory.mktemp(vendor)
        events = {rank: events_of(vendor, rank) for rank in (0, 1)}
        kineto.write_ranks(folder, events, deviceProperties=[device])
        made[vendor] = rankscope.open(folder, executor="serial")
    return made


def plain(run: Run, name: str, vendor: str) -> pl.DataFrame:
    """A result with CUDA's names, in an order that does not hang on names."""
    back = {own: cudas for cudas, own in NAMES.get(vendor, {}).items()}
    frame = run.analyze(name)[name].finite()
    texts = [column for column, dtype in frame.schema.items() if dtype == pl.String]
    frame = frame.with_columns(pl.col(column).replace(back) for column in texts)
    frame = frame.drop(*(column for column in NOT_RECORDED.get(name, ()) if column in frame.columns))
    if name == "evidence_events":
        frame = frame.filter(~pl.col("kind").is_in(EVENTS_NOT_RECORDED))
    return frame.sort(frame.columns, maintain_order=True) if frame.width and frame.height else frame


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("name", OURS)
def test_the_same_numbers(runs: dict[str, Run], vendor: str, name: str) -> None:
    assert_frame_equal(plain(runs[vendor], name, vendor), plain(runs["cuda"], name, "cuda"), check_exact=False)


def test_something_is_compared(runs: dict[str, Run]) -> None:
    """A comparison of nothing with nothing would hold: what the run has no part of is named."""
    empty = {name for name in OURS if runs["cuda"].analyze(name)[name].frame.is_empty()}
    assert empty <= {
        "all_to_all", "annotations", "compile", "ddp_buckets", "fsdp", "memory_snapshot", "memory_snapshot_by_stack",
        "mesh", "work_by_module", "modules", "pipeline_bubble", "recompute", "recording",
    }  # fmt: skip


def test_what_is_left_out_is_there(runs: dict[str, Run]) -> None:
    for name, columns in NOT_RECORDED.items():
        assert set(columns) <= set(runs["cuda"].analyze(name)[name].frame.columns), name


def test_devices_as_their_vendors_describe_them(runs: dict[str, Run]) -> None:
    columns = ("name", "memory", "multiprocessors", "capability", "peak_tflops")
    found = {vendor: run.devices().select(columns).row(0) for vendor, run in runs.items()}
    assert found == {
        "cuda": ("NVIDIA A100-SXM4-80GB", 85_899_345_920, 108, "8.0", 312.0),
        "rocm": ("AMD Instinct MI300X", 206_141_652_992, 304, "9.4", 1307.4),
        "xpu": ("Intel(R) Data Center GPU Max 1550", 68_719_476_736, 448, None, None),
        "mtia": ("MTIA", None, None, None, None),
    }
    assert runs["xpu"].about()["devices"] == ["Intel(R) Data Center GPU Max 1550"]


@pytest.mark.parametrize("vendor", [*VENDORS, "cuda"])
def test_numbers_by_hand(runs: dict[str, Run], vendor: str) -> None:
    """Rank 0, whole file: from the events of the reference run and those that were put to it."""
    run = runs[vendor]
    rows = {row["rank"]: row for row in run.device_time().to_dicts()}
    # Two products and a collective a step, the gather after it; 150 of the backlog; copies of 30.5, 10 and 2.
    compute = 2 * (200.25 + 150) + 150
    assert rows[0]["compute_ns"] == round(compute * 1e3)
    assert rows[0]["communication_ns"] == round(2 * (300 + 60.125) * 1e3)
    assert rows[0]["memory_ns"] == round((2 * (30.5 + 10 + 2) + 10) * 1e3)
    # A product ends at 500 of its step, the collective runs from 400 to 700.
    assert rows[0]["overlap_ns"] == 2 * 100_000
    kernels = {row["category"] for row in run.kernels().to_dicts()}
    assert kernels == {"compute", "communication", "memory"}
    waits = run.synchronization().filter(pl.col("rank") == 0).to_dicts()
    name = NAMES.get(vendor, {}).get("cudaStreamSynchronize", "cudaStreamSynchronize")
    assert [(row["call"], row["operator"], row["calls"], row["total_ns"]) for row in waits] == [
        (name, "aten::item", 2, 80_000)
    ]
    copies = {row["direction"]: row for row in run.copies().filter(pl.col("rank") == 0).to_dicts() if row["pageable"]}
    assert {direction: (row["calls"], row["bytes"]) for direction, row in copies.items()} == {
        "host to device": (2, 8000), "device to host": (2, 8),
    }  # fmt: skip
    memory = run.memory().filter(pl.col("rank") == 0).row(0, named=True)
    assert memory["device"] == NAMES.get(vendor, {}).get("cuda:0", "cuda:0")
    assert memory["peak_allocated"] == 4_000_000 + 65_536 + 1_114_112
    calls = {row["collective"]: row for row in run.collectives().filter(pl.col("rank") == 0).to_dicts()}
    assert calls["all_reduce"]["bytes"] == 262_144 * 4
    assert calls["all_gather"]["bytes"] == 2000 * 2


def test_queues_of_one_device_are_streams(tmp_path: Path) -> None:
    """Two SYCL queues beside each other are no gap of one another, as two streams are none."""
    events: list[Any] = []
    for number, (queue, at) in enumerate(((64, 0), (65, 10), (64, 50), (65, 60))):
        kernel = kineto.kernel("k", at, 20, correlation=number)
        kernel = {**kernel, "tid": 0, "args": {"device": 0, "correlation": number, "sycl queue": queue}}
        events += [kineto.launch(-5 + number, 1, correlation=number, cat="xpu_runtime"), kernel]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial")
    idle = run.idle().filter(pl.col("stream").is_not_null())
    assert idle.select("stream", "idle_ns").rows() == [(64, 30_000), (65, 30_000)]
