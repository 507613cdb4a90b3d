"""Compressed frames give back what was put in, as a whole, by column and by block."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rankscope.results import Analysis, CompressedFrame, Inputs, Options, Result, compressed_frames
from rankscope.results.compressed_frames import LARGE_BYTES, BlockFile, Frames, stored, stored_blocks

FRAME = pl.DataFrame(
    {
        "rank": [0, 0, 1, None],
        "name": ["a kernel with a long name", None, "", "a kernel with a long name"],
        "ranks": pl.Series(["[0, 1]", "[0, 1]", None, "[2]"], dtype=pl.Categorical()),
        "share": [0.5, None, float("nan"), -1.0],
        "parts": [[1, 2], [], None, [3]],
    }
)


def test_all_rows_and_some_columns_come_back() -> None:
    kept = CompressedFrame([FRAME.head(1), FRAME.tail(3)])
    assert kept.height == FRAME.height
    assert kept.schema == FRAME.schema
    assert_frame_equal(kept.select(), FRAME)
    assert_frame_equal(kept.select("share", "rank"), FRAME.select("share", "rank"))
    assert [block.height for block in kept.blocks("name")] == [1, 3]
    assert_frame_equal(pickle.loads(pickle.dumps(kept)).select(), FRAME)


def test_only_large_frames_are_compressed() -> None:
    assert stored(FRAME) is FRAME
    rows = LARGE_BYTES // 8
    large = pl.DataFrame({"rank": pl.int_range(rows, eager=True)})
    kept = stored(large)
    assert isinstance(kept, CompressedFrame)
    assert stored(kept) is kept
    assert isinstance(stored_blocks([FRAME, FRAME]), pl.DataFrame)
    blocks = stored_blocks(iter([large.head(3), large.slice(3), large.head(1)]))
    assert isinstance(blocks, CompressedFrame)
    assert_frame_equal(blocks.select(), pl.concat([large, large.head(1)]))
    result = Result(Analysis("some", "Some.", ()), kept)
    assert_frame_equal(result.frame, large)
    assert_frame_equal(result.columns("rank"), large)


def test_frames_share_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed_frames, "_IN_MEMORY_BYTES", 1)
    file = BlockFile()
    kept = [CompressedFrame([FRAME.head(1), FRAME.tail(3)], file), CompressedFrame([FRAME.reverse()], file)]
    kept[0].append(FRAME)
    assert_frame_equal(kept[0].select(), pl.concat([FRAME, FRAME]))
    assert_frame_equal(kept[1].select(), FRAME.reverse())
    assert_frame_equal(pickle.loads(pickle.dumps(kept[0])).select("share"), pl.concat([FRAME, FRAME]).select("share"))


def test_without_a_place_for_files_blocks_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed_frames, "_IN_MEMORY_BYTES", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    kept = CompressedFrame([FRAME.head(1), FRAME.tail(3)])
    assert_frame_equal(kept.select(), FRAME)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_analysis_reads_the_same_from_either(compressed: bool) -> None:
    results = Frames(
        {"some": CompressedFrame([FRAME.head(1), FRAME.tail(3)]) if compressed else FRAME, "other": FRAME.head(1)}
    )
    for inputs in (Inputs(Options(), (), results), Inputs(Options(), (), dict(results))):
        assert_frame_equal(inputs.results["some"], FRAME)
        assert_frame_equal(inputs.columns("some", "name", "rank"), FRAME.select("name", "rank"))
        chosen = inputs.columns("some", "name", "rank", where=pl.col("rank") == 0)
        assert_frame_equal(chosen, FRAME.select("name", "rank").head(2))
        assert_frame_equal(inputs.distinct("some", "name"), FRAME.select("name").head(3))
        assert set(inputs.results) == {"some", "other"}
    assert "some" in results
    assert results.get("none") is None
    assert list(results.only(["other", "none"])) == ["other"]
