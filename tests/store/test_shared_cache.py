"""A cache in object storage: what one machine has read and computed, another does not read or compute."""

from __future__ import annotations

import io
import logging
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.analyses.reference import write_reference

import rankscope
from rankscope.engine.executors.remote import settings
from rankscope.engine.pipeline import graph, load
from rankscope.engine.pipeline.run import Run
from rankscope.store import objects
from rankscope.store.cache import Cache, cache_root
from rankscope.store.shared_cache import TABLES, shared_cache, unpack_tables

URL = "common://bucket/cache"


class Common(MemoryFileSystem):
    """A store in memory. It fails while ``broken``."""

    protocol = "common"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    broken = False

    def cat_file(self, path: str, *rest: Any, **options: Any) -> Any:
        if self.broken:
            raise OSError("no route to https://me:secret@host")
        return super().cat_file(path, *rest, **options)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> Any:
        if self.broken:
            raise OSError("no route to https://me:secret@host")
        return super().pipe_file(path, value, **options)


class Machine:
    """A machine with a local cache of its own, and what it reads and computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._patch, self._place = monkeypatch, tmp_path
        self.read: list[str] = []
        self.computed: list[str] = []
        ingest, analyze = load.ingest_trace, graph.analyze_rank

        def reading(path: str, *rest: Any) -> Any:
            self.read.append(Path(path).name)
            return ingest(path, *rest)

        def computing(keys: Any, *rest: Any) -> Any:
            self.computed.extend(name for name, _ in keys)
            return analyze(keys, *rest)

        monkeypatch.setattr(load, "ingest_trace", reading)
        monkeypatch.setattr(graph, "analyze_rank", computing)

    def use(self, name: str) -> None:
        for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
            self._patch.setenv(variable, str(self._place / name))
        self.read.clear()
        self.computed.clear()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.setattr(Common, "store", {})
    monkeypatch.setattr(Common, "pseudo_dirs", [""])
    monkeypatch.setattr(Common, "broken", False)
    monkeypatch.setattr(objects, "FIRST_PAUSE_S", 0.0)
    fsspec.register_implementation("common", Common, clobber=True)
    monkeypatch.setenv("RANKSCOPE_CACHE", f"{URL}/{tmp_path.name}")
    made = Machine(monkeypatch, tmp_path)
    made.use("first")
    return made


def opened(folder: Path) -> Run:
    return rankscope.open(folder, executor="serial")


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


def test_another_machine_reads_and_computes_nothing(machine: Machine, tmp_path: Path) -> None:
    folder = write_reference(tmp_path / "run")
    first = opened(folder).diagnose()
    assert machine.read
    assert "kernels" in machine.computed
    machine.use("second")
    second = opened(folder).diagnose()
    assert [each.to_json() for each in second] == [each.to_json() for each in first]
    assert (machine.read, machine.computed) == ([], [])
    assert files(cache_root()) == []  # no table was needed


def test_tables_are_fetched_when_another_analysis_needs_them(machine: Machine, tmp_path: Path) -> None:
    folder = write_reference(tmp_path / "run")
    whole = opened(folder).step_time()
    kernels = opened(folder).kernels()
    machine.use("second")
    assert opened(folder).step_time().equals(whole)
    assert machine.computed == []
    machine.use("third")
    run = opened(folder)
    operators = run.operators()
    assert machine.read == []
    assert operators.height
    assert any(name.endswith(".parquet") for name in files(cache_root()))
    assert run.kernels().equals(kernels)
    machine.use("second")
    assert opened(folder).operators().equals(operators)
    assert machine.computed == []


def test_lost_tables_are_read_again_from_the_trace(machine: Machine, tmp_path: Path) -> None:
    folder = write_reference(tmp_path / "run")
    opened(folder).load()
    machine.use("second")
    shared = shared_cache()
    assert shared is not None
    for trace in opened(folder).loaded.ranks[0]:
        shared.write(trace.key, TABLES, b"not an archive" * 99)
    found = opened(folder).kernels()
    assert found["rank"].unique().sort().to_list() == [0, 1]


def test_a_store_that_fails_costs_one_warning_and_no_result(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_reference(tmp_path / "run")
    Common.broken = True
    with caplog.at_level(logging.WARNING):
        first = opened(folder).kernels()
        second = opened(folder).kernels()
    assert first.height
    assert second.equals(first)
    (warning,) = caplog.records
    assert "no route to https://<redacted>@host" in warning.getMessage()


def test_workers_get_the_url(machine: Machine, tmp_path: Path) -> None:
    assert settings() == {"RANKSCOPE_CACHE": f"{URL}/{tmp_path.name}"}
    assert "common:" not in str(Cache().root)


def test_only_tables_are_unpacked_and_only_here(tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in ("../out.parquet", "a/in.parquet", "info.json", "host_ops.0000.parquet"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
        link = tarfile.TarInfo("link.parquet")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (tmp_path / "here").mkdir()
    unpack_tables(content.getvalue(), tmp_path / "here")
    assert files(tmp_path) == ["host_ops.0000.parquet"]
