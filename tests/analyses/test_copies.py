"""Copies by kind: worked out by hand, and against a plain reading of real traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests import kineto

import rankscope


def test_kinds_hidden_and_exposed(tmp_path: Path) -> None:
    events = [
        kineto.step(1, 0, 1000),
        kineto.launch(10, 30, name="cudaMemcpyAsync", correlation=1),
        kineto.memcpy(20, 100, name="Memcpy HtoD (Pageable -> Device)", correlation=1, size=400_000),
        kineto.kernel("k", 50, 30),
        kineto.launch(200, 5, name="cudaMemcpyAsync", correlation=2),
        kineto.memcpy(210, 50, name="Memcpy DtoH (Device -> Pinned)", correlation=2, size=1000),
        # Launched outside of the step.
        kineto.launch(1100, 5, name="cudaMemcpyAsync", correlation=3),
        kineto.memcpy(1110, 50, correlation=3, size=1000),
    ]
    rows = {row["name"]: row for row in rankscope.open(kineto.write_ranks(tmp_path, {0: events})).copies().to_dicts()}
    assert len(rows) == 2
    pageable = rows["Memcpy HtoD (Pageable -> Device)"]
    assert (pageable["direction"], pageable["pageable"]) == ("host to device", True)
    assert (pageable["total_ns"], pageable["exposed_ns"], pageable["host_ns"]) == (100_000, 70_000, 30_000)
    assert pageable["bandwidth"] == pytest.approx(4.0)
    assert (pageable["per_step_ns"], pageable["steps"], pageable["calls"]) == (70_000, 1, 1)
    pinned = rows["Memcpy DtoH (Device -> Pinned)"]
    assert (pinned["direction"], pinned["pageable"]) == ("device to host", False)


def test_against_a_plain_reading(shared_traces: Path) -> None:
    folder = shared_traces / "modded-nanogpt-h100-8ranks"
    found = rankscope.open(folder, executor="serial").copies()
    for path in sorted(folder.glob("*.json*"))[:2]:
        content = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
        rank, events = content["distributedInfo"]["rank"], content["traceEvents"]
        spans = [
            (e["ts"], e["ts"] + e["dur"])
            for e in events
            if str(e.get("name")).startswith("ProfilerStep#") and e["cat"] == "user_annotation"
        ]
        launches = {
            e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")
        }
        for row in found.filter(rank=rank).iter_rows(named=True):
            mine = [
                e
                for e in events
                if e.get("cat") == "gpu_memcpy"
                and e["name"] == row["name"]
                and any(a <= launches.get(e["args"]["correlation"], -1) < b for a, b in spans)
            ]
            assert row["calls"] == len(mine)
            assert row["bytes"] == sum(e["args"]["bytes"] for e in mine)
            assert row["total_ns"] == sum(round(e["dur"] * 1000) for e in mine)
