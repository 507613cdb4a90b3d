"""Speedscope files: balanced frames, in order, and every range of the host in them for its own time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.analyses.reference import write_reference

import rankscope
from rankscope.errors import ConfigError
from rankscope.show.export.speedscope import write_speedscope


def totals(document: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Open time by profile and frame, by the format's rules: each close is that of the innermost open frame."""
    frames = document["shared"]["frames"]
    found: Counter[tuple[str, str]] = Counter()
    for profile in document["profiles"]:
        stack: list[tuple[int, int]] = []
        now = profile["startValue"]
        for event in profile["events"]:
            assert event["at"] >= now
            now = event["at"]
            if event["type"] == "O":
                stack.append((event["frame"], now))
            else:
                frame, since = stack.pop()
                assert frame == event["frame"]
                found[profile["name"], frames[frame]["name"]] += now - since
        assert not stack
        assert now <= profile["endValue"]
    return found


def test_every_range_is_open_for_its_duration(tmp_path: Path, shared_cache: Path) -> None:
    run = rankscope.open(write_reference(tmp_path / "run"), executor="serial")
    written = write_speedscope(run, tmp_path / "out" / "run.speedscope.json")
    document = json.loads((tmp_path / "out" / "run.speedscope.json").read_text())
    expected: Counter[tuple[str, str]] = Counter()
    ranges = 0
    for rank, traces in run.loaded.ranks.items():
        for table in ("annotations", "host_ops", "python_frames", "runtime_calls"):
            rows = traces[0].load(table)
            if table == "annotations":
                rows = rows.filter(~rows["on_device"])
            ranges += rows.height
            for row in rows.iter_rows(named=True):
                name = row["name"].rpartition("): ")[2] if table == "python_frames" else row["name"]
                key = f"rank {rank}, process {row['pid']}, thread {row['tid']}", name
                expected[key] += row["end_ns"] - row["start_ns"]
    assert (written.ranges, written.cut) == (ranges, 0)
    assert totals(document) == expected
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"


def test_crossing_ranges_are_cut_and_python_frames_have_files(tmp_path: Path, shared_cache: Path) -> None:
    events = [
        kineto.event("train.py(12): main", 0, 100, cat="python_function"),
        kineto.event("<built-in method <b>mm</b>>", 10, 20, cat="python_function"),
        kineto.event("model.py(3): forward", 25, 100, cat="python_function"),
        kineto.op("aten::mm", 12, 5),
    ]
    kineto.write(tmp_path / "rank0.json", kineto.trace(events, rank=0))
    run = rankscope.open(tmp_path / "rank0.json", executor="serial")
    path = tmp_path / "x.json"
    written = write_speedscope(run, path, only="python")
    document = json.loads(path.read_text())
    assert (written.ranges, written.cut) == (3, 1)
    assert [(frame["name"], frame.get("file"), frame.get("line")) for frame in document["shared"]["frames"]] == [
        ("main", "train.py", 12),
        ("<built-in method <b>mm</b>>", None, None),
        ("forward", "model.py", 3),
    ]
    assert sorted(totals(document).values()) == [5_000, 20_000, 100_000]


def test_nothing_to_write_is_an_error_and_no_file(tmp_path: Path, shared_cache: Path) -> None:
    run = rankscope.open(write_reference(tmp_path / "run"), executor="serial")
    with pytest.raises(ConfigError, match="no trace of rank 7"):
        write_speedscope(run, tmp_path / "x.json", ranks=[0, 7])
    kineto.write(tmp_path / "d.json", kineto.trace([kineto.kernel("k", 0, 1)], rank=0))
    with pytest.raises(ConfigError, match="no such ranges"):
        write_speedscope(rankscope.open(tmp_path / "d.json", executor="serial"), tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists()
