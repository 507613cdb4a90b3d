"""What a snapshot says: hand-worked ones, the real one, and one beside a trace."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.analyses.reference import write_reference

import rankscope
from rankscope.analyses import all_analyses

FRAMES = {
    "model": [{"name": "unwind", "filename": "x.cpp", "line": 0}, {"name": "fwd", "filename": "m.py", "line": 3}],
    "loss": [{"name": "step", "filename": "t.py", "line": 9}],
}  # fmt: skip


def block(size: int, state: str, who: str | None = None, *, asked: int | None = None, at: int = 0) -> dict[str, Any]:
    made: dict[str, Any] = {"size": size, "state": state, "requested_size": size if asked is None else asked}
    return made | ({"frames": FRAMES[who]} if who else {}) | ({"address": at} if at else {})


def event(action: str, address: int, size: int, who: str = "model") -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": FRAMES[who], "time_us": 1}


def a_snapshot() -> dict[str, Any]:
    """Two segments; a history in which 100 of `loss` come and go on top of what is still there."""
    return {
        "segments": [
            {
                "device": 0, "address": 1000, "total_size": 1000, "allocated_size": 600, "active_size": 700,
                "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": True,
                "blocks": [
                    block(400, "active_allocated", "model", asked=390, at=1000),
                    block(100, "inactive", at=1400),
                    block(200, "active_allocated", "loss", at=1500),
                    block(100, "active_pending_free", "loss", at=1700),
                    block(200, "inactive", at=1800),
                ],
            },
            {
                "device": 0, "address": 9000, "total_size": 500, "segment_type": "small", "segment_pool_id": (0, 1),
                "blocks": [block(500, "inactive", at=9000)],
            },
        ],
        "device_traces": [
            [
                event("segment_alloc", 9000, 500),
                event("free_requested", 5000, 50),
                event("free_completed", 5000, 50),
                event("alloc", 1500, 200, "loss"),
                event("alloc", 9000, 100, "loss"),
                event("oom", 0, 99999),
                event("free_requested", 9000, 100, "loss"),
                event("free_completed", 9000, 100, "loss"),
            ]
        ],
    }  # fmt: skip


def opened(folder: Path, content: dict[str, Any], name: str = "rank3.memory.pickle") -> rankscope.Run:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(content))
    return rankscope.open(folder / name, executor="serial")


def test_a_snapshot_by_hand(tmp_path: Path) -> None:
    run = opened(tmp_path, a_snapshot())
    assert run.memory_snapshot().to_dicts() == [
        {
            "rank": 3, "window": 0, "device": 0, "segments": 2, "reserved": 1500, "allocated": 600, "pending": 100,
            "free": 800, "free_blocks": 3, "largest_free": 500, "fragmentation": 1 - 500 / 800, "idle_segments": 500,
            "scattered": 300,
            "private_pools": 500, "expandable": 1000, "rounding": 10, "history": 8,
            # 400 throughout, 50 of before until it is freed, then 200 and 100 more.
            "peak_allocated": 700, "out_of_memory": 1,
        }
    ]  # fmt: skip
    stacks = (
        run.memory_snapshot(by="stack").select("stack", "bytes", "blocks", "share", "peak_bytes", "peak_blocks").rows()
    )
    assert stacks == [("m.py:3 fwd", 400, 1, 400 / 600, 400, 1), ("t.py:9 step", 200, 1, 200 / 600, 300, 2)]


def test_without_a_history(tmp_path: Path) -> None:
    content = a_snapshot()
    del content["device_traces"]
    for segment in content["segments"]:
        for one in segment["blocks"]:
            # As older files are: no address, no requested size, stacks in a history of each block.
            one.pop("requested_size")
            one.pop("address")
            one["history"] = [{"frames": one.pop("frames", [])}]
    run = opened(tmp_path, content, "mem.pickle")
    row = run.memory_snapshot().row(0, named=True)
    assert row["peak_allocated"] is row["rounding"] is None
    assert (row["allocated"], row["history"], row["rank"]) == (600, 0, 0)
    assert run.memory_snapshot(by="stack")["stack"].to_list() == ["m.py:3 fwd", "t.py:9 step"]
    assert run.memory_snapshot(by="stack")["peak_bytes"].to_list() == [None, None]


def test_a_snapshot_beside_the_traces_changes_no_other_number(tmp_path: Path) -> None:
    names = [name for name in all_analyses() if name not in ("memory_snapshot", "memory_snapshot_by_stack")]
    alone = rankscope.open(write_reference(tmp_path / "alone"), executor="serial").analyze(*names)
    folder = write_reference(tmp_path / "both")
    (folder / "rank1_iter10_11.memory.pickle").write_bytes(pickle.dumps(a_snapshot()))
    (folder / "rank1.flight.pickle").write_bytes(b"not read")
    run = rankscope.open(folder, executor="serial")
    both = run.analyze(*names)
    for name in names:
        assert both[name].frame.equals(alone[name].frame), name
        assert both[name].findings == alone[name].findings, name
    assert run.memory_snapshot()["rank"].to_list() == [1]
    assert not run.loaded.findings


def test_a_trace_has_no_snapshot(tmp_path: Path) -> None:
    run = rankscope.open(kineto.write(tmp_path / "rank0.json", kineto.trace(kineto.small_step())), executor="serial")
    assert run.memory_snapshot().height == run.memory_snapshot(by="stack").height == 0


@pytest.mark.usefixtures("shared_cache")
def test_the_real_snapshot(shared_traces: Path) -> None:
    content = pickle.loads((shared_traces / "verl/mem.pickle").read_bytes())
    run = rankscope.open(shared_traces / "verl/mem.pickle", executor="serial")
    row = run.memory_snapshot().row(0, named=True)
    sizes: Counter[str] = Counter()
    stacks: dict[str | None, int] = defaultdict(int)
    free = []
    for segment in content["segments"]:
        sizes["reserved"] += segment["total_size"]
        for one in segment["blocks"]:
            sizes[one["state"]] += one["size"]
            if one["state"] == "inactive":
                free.append(one["size"])
            if one["state"] == "active_allocated":
                frames = [f for f in one.get("frames", []) if f["filename"].endswith(".py")] or one.get("frames", [])
                lines = [f"{f['filename'][-200:]}:{f['line']} {f['name'][:200]}" for f in frames[:64]]
                stacks["\n".join(lines) or None] += one["size"]
                sizes["rounding"] += one["size"] - one["requested_size"]
    assert (row["reserved"], row["allocated"]) == (sizes["reserved"], sizes["active_allocated"])
    assert row["allocated"] == sum(segment["allocated_size"] for segment in content["segments"])
    assert (row["free_blocks"], row["largest_free"], row["free"]) == (len(free), max(free), sum(free))
    assert row["rounding"] == sizes["rounding"]
    assert dict(run.memory_snapshot(by="stack").select("stack", "bytes").rows()) == stacks
