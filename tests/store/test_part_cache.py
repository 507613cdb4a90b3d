"""Cached parts: a second analysis computes nothing per rank, and whatever a part depends on makes it new."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from tests.analyses.reference import write_reference
from tests.kineto import small_step, trace, write, write_ranks

from rankscope.analyses import all_analyses, get_analysis
from rankscope.engine.pipeline import graph, open_run, tasks
from rankscope.engine.pipeline.run import Run
from rankscope.results import NOT_ANALYZED
from rankscope.store import part_cache
from rankscope.store.cache import Cache
from rankscope.store.part_cache import find_parts, keep_parts


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The rank and the analysis of each part that was computed."""
    computed: list[tuple[int, str]] = []
    analyze_rank = tasks.analyze_rank

    def noted(wanted: Any, traces: Any, inputs: Any, *rest: Any) -> Any:
        computed.extend((inputs.rank, name) for name, _ in wanted)
        return analyze_rank(wanted, traces, inputs, *rest)

    monkeypatch.setattr(graph, "analyze_rank", noted)
    return computed


def opened(folder: Path) -> Run:
    return open_run(folder, executor="serial")


def everything(folder: Path) -> dict[str, pl.DataFrame]:
    return {name: result.frame for name, result in opened(folder).attempt(*all_analyses()).items()}


def test_a_second_run_computes_no_part_and_gives_the_same_results(
    tmp_path: Path, mapped: list[tuple[int, str]]
) -> None:
    folder = write_reference(tmp_path / "run")
    first = everything(folder)
    assert {name for _, name in mapped} >= {"collectives", "stragglers", "kernels", "operators"}
    mapped.clear()
    second = everything(folder)
    assert mapped == []
    assert list(second) == list(first)
    for name, frame in first.items():
        assert second[name].schema == frame.schema
        assert second[name].equals(frame), name


def test_findings_are_the_same_from_cached_parts(tmp_path: Path) -> None:
    folder = write_reference(tmp_path / "run")
    first, second = ([each.to_json() for each in opened(folder).diagnose()] for _ in range(2))
    assert first == second
    assert first


def test_only_a_changed_file_is_computed_again(tmp_path: Path, mapped: list[tuple[int, str]]) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()})
    opened(folder).kernels()
    mapped.clear()
    write(folder / "rank1.json", trace(small_step(waiting=10), rank=1, world_size=2))
    opened(folder).kernels()
    assert mapped == [(1, "kernels")]


def test_parts_with_requirements_depend_on_the_traces_of_all_ranks(
    tmp_path: Path, mapped: list[tuple[int, str]]
) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()})
    opened(folder).stragglers()
    mapped.clear()
    write(folder / "rank1.json", trace(small_step(waiting=10), rank=1, world_size=2))
    opened(folder).stragglers()
    assert (0, "stragglers") in mapped
    assert (0, "collectives") not in mapped


def test_parts_are_not_cached_if_a_required_result_lacks_a_rank(
    tmp_path: Path, mapped: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()})
    whole = opened(folder).stragglers()
    Cache().clear()
    analysis = get_analysis("collectives")

    def fails_on_rank_1(tables: Any, inputs: Any) -> Any:
        if inputs.rank == 1:
            raise MemoryError
        return analysis.per_rank(tables, inputs)

    fails_on_rank_1.__module__ = "rankscope.analyses.collectives"
    with monkeypatch.context() as patch:
        broken = replace(analysis, per_rank=fails_on_rank_1)
        for module in (graph, tasks):
            patch.setattr(module, "get_analysis", lambda name: broken if name == "collectives" else get_analysis(name))
        assert any(each.id == NOT_ANALYZED for each in opened(folder).analyze("collectives")["collectives"].findings)
        opened(folder).stragglers()
    mapped.clear()
    assert opened(folder).stragglers().equals(whole)
    assert (0, "stragglers") in mapped
    assert [each for each in mapped if each[1] == "collectives"] == [(1, "collectives")]


def test_options_are_part_of_the_inputs(tmp_path: Path, mapped: list[tuple[int, str]]) -> None:
    folder = write_reference(tmp_path / "run")
    whole = opened(folder).device_time()
    one = open_run(folder, steps="10", executor="serial").device_time()
    assert mapped == [(rank, "device_time") for rank in (0, 1)] * 2
    assert not one.equals(whole)
    assert opened(folder).device_time().equals(whole)


def test_changed_code_is_part_of_the_inputs(
    tmp_path: Path, mapped: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_reference(tmp_path / "run")
    opened(folder).kernels()
    mapped.clear()
    monkeypatch.setattr(part_cache, "code_version", lambda: b"another")
    opened(folder).kernels()
    assert mapped == [(0, "kernels"), (1, "kernels")]


def test_the_version_follows_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_cache, "_PACKAGE", tmp_path)
    file = tmp_path / "analyses" / "one.py"
    write(file, b"a = 1\n", None)
    version = part_cache.code_version.__wrapped__
    before = version()
    assert version() == before
    file.write_bytes(b"a = 2\n")
    assert version() != before


def test_parameters_with_other_values_are_not_cached(tmp_path: Path, mapped: list[tuple[int, str]]) -> None:
    folder = write_reference(tmp_path / "run")
    shapes = [opened(folder).operators(by="shape") for _ in range(2)]
    assert mapped == [(rank, "operators") for rank in (0, 1)] * 2
    assert shapes[0].equals(shapes[1])


@pytest.mark.parametrize("content", [b"", b"\x81", b"not a part" * 99])
def test_a_damaged_part_is_computed_again(tmp_path: Path, mapped: list[tuple[int, str]], content: bytes) -> None:
    folder = write_reference(tmp_path / "run")
    whole = opened(folder).kernels()
    (entry,) = [entry for entry in Cache().entries() if entry.info.rank == 0]
    (entry.folder / "analyses.parts").write_bytes(content)
    mapped.clear()
    assert opened(folder).kernels().equals(whole)
    assert mapped == [(0, "kernels")]


def test_a_truncated_frame_is_computed_again(tmp_path: Path, mapped: list[tuple[int, str]]) -> None:
    folder = write_reference(tmp_path / "run")
    whole = opened(folder).kernels()
    (entry,) = [entry for entry in Cache().entries() if entry.info.rank == 0]
    part = entry.folder / "analyses.parts"
    stored = part_cache._Stored
    found = msgspec.msgpack.decode(part.read_bytes(), type=dict[str, stored])["kernels"]
    cut = {name: frame[: len(frame) // 2] for name, frame in found.frames.items()}
    part.write_bytes(msgspec.msgpack.encode({"kernels": stored(found.digest, cut, found.single)}))
    mapped.clear()
    assert opened(folder).kernels().equals(whole)
    assert mapped == [(0, "kernels")]


def test_a_part_without_columns_and_one_of_several_frames(tmp_path: Path) -> None:
    write_ranks(tmp_path / "run", {0: small_step()})
    opened(tmp_path / "run").load()
    traces = Cache().entries()
    for part in (pl.DataFrame(), {"a": pl.DataFrame({"x": [1, None]}), "b": pl.DataFrame()}):
        keep_parts(traces, {"an_analysis": (b"1", part), "another": (b"1", pl.DataFrame({"y": [1]}))})
        keep_parts(traces, {"another": (b"2", pl.DataFrame())})
        found = find_parts(traces, {"an_analysis": b"1", "a_third": b"1"}).get("an_analysis")
        frames = [found] if isinstance(found, pl.DataFrame) else list((found or {}).values())
        wanted = [part] if isinstance(part, pl.DataFrame) else list(part.values())
        assert isinstance(found, pl.DataFrame) == isinstance(part, pl.DataFrame)
        assert all(one.equals(other) for one, other in zip(frames, wanted, strict=True))
        assert find_parts(traces, {"an_analysis": b"2"}) == {}
        assert list(find_parts(traces, {"an_analysis": b"1", "another": b"2"})) == ["an_analysis", "another"]


def test_a_cleared_cache_stays_cleared(tmp_path: Path) -> None:
    write_ranks(tmp_path / "run", {0: small_step()})
    opened(tmp_path / "run").load()
    (entry,) = Cache().entries()
    shutil.rmtree(entry.folder)
    keep_parts([entry], {"kernels": (b"1", pl.DataFrame())})
    assert not entry.folder.exists()
