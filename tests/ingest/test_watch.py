"""Traces that appear while one looks: whole ones alone, whoever writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.ingest import test_nsight as nsight
from tests.kineto import small_step, trace, write

from rankscope.ingest.watch import Watch


def names(watch: Watch) -> list[str] | None:
    found = watch.look()
    return None if found is None else [Path(path).name for path in found.traces]


def content(rank: int) -> bytes:
    return json.dumps(trace(small_step(), rank=rank)).encode()


def test_what_is_there_at_first_is_no_news(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", trace(small_step(), rank=0))
    watch = Watch([str(tmp_path)])
    assert names(watch) is None
    assert names(watch) is None


def test_a_file_written_in_place_counts_once_it_rests(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", trace(small_step(), rank=0))
    watch = Watch([str(tmp_path)])
    whole = content(1)
    file = tmp_path / "rank1.json"
    for part in (whole[:50], whole[50:90], whole[90:]):
        with file.open("ab") as out:
            out.write(part)
        assert names(watch) is None  # it has changed since the last look
    assert names(watch) == ["rank0.json", "rank1.json"]
    assert names(watch) is None


def test_every_process_of_a_report_appears_once_it_rests(tmp_path: Path) -> None:
    write(tmp_path / "rank9.json", trace(small_step(), rank=9))
    watch = Watch([str(tmp_path)])
    for pid in (4, 5):
        nsight.export(tmp_path / "node.sqlite", pid=pid, rank=None)
        assert names(watch) is None
    assert names(watch) == ["node.sqlite#process0", "node.sqlite#process1", "rank9.json"]
    assert names(watch) is None


def test_a_file_in_its_ranks_manifest_counts_at_once(tmp_path: Path) -> None:
    write(tmp_path / "rank0_iter1_1.trace.json", trace(small_step(), rank=0))
    watch = Watch([str(tmp_path)])
    file = tmp_path / "rank1_iter1_1.trace.json"
    file.write_bytes(content(1))
    (tmp_path / "ranks").mkdir()
    written = [{"file": file.name, "bytes": file.stat().st_size}]
    manifest = {"schema_version": 1, "run_id": "r", "rank": 1, "written": written}
    (tmp_path / "ranks" / "rank1.json").write_text(json.dumps(manifest))
    assert names(watch) == ["rank0_iter1_1.trace.json", file.name]


def test_a_file_that_is_written_anew_is_waited_for(tmp_path: Path) -> None:
    first = tmp_path / "rank0.json"
    first.write_bytes(content(0))
    watch = Watch([str(tmp_path)])
    (tmp_path / "rank1.json").write_bytes(content(1))
    assert names(watch) is None
    first.write_bytes(content(0)[:80])
    assert names(watch) is None  # the other one rests, this one changes
    first.write_bytes(content(0) + b" ")
    assert names(watch) is None
    assert names(watch) == ["rank0.json", "rank1.json"]


def test_a_file_that_goes_is_news_and_an_empty_one_is_none(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_bytes(content(rank))
    watch = Watch([str(tmp_path)])
    (tmp_path / "rank2.json").touch()
    assert names(watch) is None
    (tmp_path / "rank1.json").unlink()
    assert names(watch) == ["rank0.json"]
    (tmp_path / "rank0.json").unlink()
    assert names(watch) is None  # what is shown stays


def test_temporary_files_and_a_directory_to_come(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    watch = Watch([str(folder)])
    assert names(watch) is None
    folder.mkdir()
    (folder / ".rank0.json.tmp").write_bytes(content(0))
    assert names(watch) is None
    assert names(watch) is None
    os.rename(folder / ".rank0.json.tmp", folder / "rank0.json")  # noqa: PTH104
    assert names(watch) is None
    assert names(watch) == ["rank0.json"]


@pytest.mark.parametrize(("sources", "supported"), [(["a", "b/*.json"], True), (["a", "s3://bucket/run"], False)])
def test_urls_are_not_watched(sources: list[str], supported: bool) -> None:
    assert Watch.supports(sources) is supported
