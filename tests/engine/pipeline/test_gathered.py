"""Results of many ranks are those of ranks that are gathered as they are, whatever lies compressed or in files."""

from __future__ import annotations

from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from rankscope.engine.pipeline import Run, graph, open_run
from rankscope.experiments.simulate import Fault, Job, parse_mesh, simulate
from rankscope.results import compressed_frames, packed_parts
from rankscope.results.compressed_frames import StoredFrame, stored
from rankscope.store.part_cache import Part


class _Gathered(list[Part]):
    """The ranks' parts as they are."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._parts: list[Part | None] = [None] * size

    def put(self, position: int, part: Part | None) -> None:
        self._parts[position] = part
        self[:] = [each for each in self._parts if each is not None]


def _diagnosed(folder: Path, monkeypatch: pytest.MonkeyPatch, *, gathered: bool) -> Run:
    if gathered:
        monkeypatch.setattr(graph, "PackedParts", _Gathered)
        monkeypatch.setattr(graph, "stored", _as_it_is)
        monkeypatch.setattr(compressed_frames, "LARGE_BYTES", 1 << 60)
    else:
        monkeypatch.setattr(graph, "stored", _compressed)
        monkeypatch.setattr(packed_parts, "BLOCK", 3)
        monkeypatch.setattr(packed_parts, "BLOCKS", 2)
        monkeypatch.setattr(packed_parts, "_COMPRESSED_FROM", 1)
        for name, size in (("LARGE_BYTES", 1), ("_BLOCK_BYTES", 1 << 12), ("_IN_MEMORY_BYTES", 0)):
            monkeypatch.setattr(compressed_frames, name, size)
    run = open_run(folder, executor="serial")
    run.diagnose()
    return run


def _as_it_is(frame: StoredFrame) -> StoredFrame:
    return frame


def _compressed(frame: StoredFrame) -> StoredFrame:
    return stored(frame, 1)


def test_results_are_those_of_gathered_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = parse_mesh("dp=2,tp=2,pp=2")
    fault = Fault("slow_device", ranks=(5,), magnitude=0.5)
    simulate(tmp_path, Job(ranks=8, steps=4, layers=2, mesh=mesh, faults=(fault,)), costs=False)
    with monkeypatch.context() as patch:
        expected = _diagnosed(tmp_path, patch, gathered=True)
    with monkeypatch.context() as patch:
        found = _diagnosed(tmp_path, patch, gathered=False)
        assert any(isinstance(each.rows, compressed_frames.CompressedFrame) for each in found.results.values())
        assert found.results.keys() == expected.results.keys()
        for name, result in expected.results.items():
            assert_frame_equal(found.results[name].frame, result.frame)
            assert found.results[name].findings == result.findings
            assert found.results[name].headline == result.headline
    assert found.findings == expected.findings
    assert [finding.ranks for finding in found.findings if finding.id == "straggler"] == [(5,)]
