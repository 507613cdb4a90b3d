"""The cache: traces are read once; incomplete tables and those of other users are not used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.kineto import kernel, small_step, trace, write

from rankscope.engine.pipeline import open_run
from rankscope.errors import TraceError
from rankscope.ingest import task
from rankscope.ingest.task import ingest_trace
from rankscope.store import cache as cache_module
from rankscope.store import spool
from rankscope.store.cache import Cache, CachedTrace, DamagedTablesError
from rankscope.store.key import trace_key
from rankscope.store.schema import TABLES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "traces" / "rank0.json", trace(small_step(), rank=0))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the machine's temporary files are."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("the JSON is read again")

    monkeypatch.setattr(task, "read_kineto", fail)


def test_a_second_open_reads_no_json(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ingest_trace(str(file))
    forbid_reading(monkeypatch)
    second = ingest_trace(str(file))
    assert second == first
    assert second.load("device_events").equals(first.load("device_events"))
    assert second.load("flows").schema == TABLES["flows"].schema


def test_only_the_wanted_columns_are_read(file: Path) -> None:
    found = ingest_trace(str(file)).load("device_events", ["name", "start_ns"])
    assert found.columns == ["name", "start_ns"]


def test_a_changed_file_is_another(file: Path) -> None:
    keys = {trace_key(str(file))}
    status = file.stat()
    write(file, trace([*small_step(), kernel("more", 200, 1)], rank=0))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    keys.add(trace_key(str(file)))
    assert ingest_trace(str(file)).load("device_events").height == 4
    # The same bytes and the same time, written again: the inode's change time gives it away.
    data, changed = file.read_bytes(), file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == changed:  # a file system's clock may be a coarse one
        file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    keys.add(trace_key(str(file)))
    assert len(keys) == 3


def test_the_key_of_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        trace_key(str(tmp_path / "none.json"))
    with pytest.raises(TraceError, match="not a regular file"):
        trace_key(str(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    with pytest.raises(TraceError, match="not a regular file"):
        ingest_trace(str(tmp_path / "rank0.json"))


@pytest.mark.skipif(os.name == "nt", reason="permissions are POSIX's")
def test_a_read_only_directory_of_traces(file: Path) -> None:
    file.chmod(0o444)
    file.parent.chmod(0o555)
    try:
        assert open_run(file.parent).ranks == [0]
    finally:
        file.parent.chmod(0o755)
    assert [path.name for path in file.parent.iterdir()] == ["rank0.json"]


def test_a_root_that_cannot_be_written(
    file: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a file in the way"
    blocked.touch()
    monkeypatch.setenv("RANKSCOPE_CACHE", str(blocked / "cache"))
    first = ingest_trace(str(file))
    assert temporary in first.folder.parents
    forbid_reading(monkeypatch)
    assert ingest_trace(str(file)) == first


def test_an_unwritable_cache_is_an_error(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "a file in the way"
    blocked.touch()
    monkeypatch.setenv("RANKSCOPE_CACHE", str(blocked / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(blocked / "tmp"))
    with pytest.raises(TraceError, match="cannot be written to the cache") as caught:
        ingest_trace(str(file))
    assert caught.value.path == str(file)
    assert f"the cache {blocked / 'cache'} or {blocked / 'tmp'}" in caught.value.what
    assert "set RANKSCOPE_CACHE (or TMPDIR)" in (caught.value.hint or "")


def test_a_full_disk_is_named_with_what_to_set(
    file: Path, private_cache: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polars.collect_all", full)
    with pytest.raises(TraceError) as caught:
        open_run(file.parent, executor="serial").load()
    assert f"the cache {private_cache}: " in caught.value.what
    assert "set RANKSCOPE_CACHE to" in (caught.value.hint or "")
    (tmp_path / "in the way").touch()
    monkeypatch.setenv("RANKSCOPE_CACHE", str(tmp_path / "in the way" / "cache"))
    with pytest.raises(TraceError) as caught:
        open_run(file.parent, executor="serial").load()
    assert f"the cache {temporary}" in caught.value.what
    assert "(or TMPDIR)" in (caught.value.hint or "")


def test_a_file_that_is_no_trace_costs_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(cache_module, "_make_folders", lambda version, key: made.append(key))
    for name, content in (("empty.json", b""), ("config.json", b"{}")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError):
            ingest_trace(str(tmp_path / name))
    assert made == []


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs user ids")
def test_folders_of_another_user_are_not_believed(file: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ingest_trace(str(file))
    monkeypatch.setattr(cache_module.os, "getuid", lambda: 12345678)
    assert Cache().find(trace_key(str(file))) is None
    with pytest.raises(TraceError, match="belongs to another user"):
        # Neither that folder nor a fallback of another user is used.
        (temporary / "rankscope-cache-12345678").mkdir()
        ingest_trace(str(file))
    monkeypatch.undo()
    assert theirs.folder.exists()


def test_a_link_in_place_of_a_folder_is_not_believed(file: Path, tmp_path: Path) -> None:
    found = ingest_trace(str(file))
    moved = found.folder.rename(tmp_path / "elsewhere")
    found.folder.symlink_to(moved)
    assert Cache().find(trace_key(str(file))) is None


DAMAGES = {
    "a table is gone": lambda folder: (folder / "device_events.0000.parquet").unlink(),
    "a table is cut": lambda folder: (folder / "device_events.0000.parquet").write_bytes(b"PAR1"),
    "info is gone": lambda folder: (folder / "info.json").unlink(),
    "info is no JSON": lambda folder: (folder / "info.json").write_text('{"tables"'),
    "info is another's": lambda folder: (folder / "info.json").write_text('{"tables": {}, "trace": {"a": 1}}'),
    "info is a list": lambda folder: (folder / "info.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_tables_are_made_again(file: Path, damage: str) -> None:
    first = ingest_trace(str(file))
    wanted = first.load("device_events")
    DAMAGES[damage](first.folder)
    assert Cache().find(trace_key(str(file))) is None
    again = ingest_trace(str(file))
    assert again.folder == first.folder
    assert again.load("device_events").equals(wanted)
    assert Cache().find(trace_key(str(file))) == again
    assert not list(Cache().root.rglob("*.tmp"))


def test_a_damaged_table_is_made_again_when_it_is_read(file: Path) -> None:
    run = open_run(file, executor="serial").load()
    wanted = open_run(file, executor="serial").analyze("device_time")["device_time"].frame
    table = run.loaded.ranks[0][0].folder / "device_events.0000.parquet"
    table.write_bytes(b"\0" * table.stat().st_size)
    with pytest.raises(DamagedTablesError, match="cannot be read"):
        run.loaded.ranks[0][0].load("device_events")
    assert run.analyze("device_time")["device_time"].frame.equals(wanted)


MANY = """
import sys
from rankscope.ingest.task import ingest_trace
found = ingest_trace(sys.argv[1])
print(found.folder, found.load("device_events").height)
"""


def test_two_processes_at_once(tmp_path: Path, private_cache: Path) -> None:
    made = [kernel(f"k{number % 7}", number, 1) for number in range(20_000)]
    file = write(tmp_path / "rank0.json", trace(made))
    workers = [
        subprocess.Popen([sys.executable, "-c", MANY, str(file)], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outputs = {worker.communicate(timeout=300)[0] for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert outputs == {f"{Cache().find(trace_key(str(file))).folder} 20000\n"}  # type: ignore[union-attr]
    assert not list(private_cache.rglob("*.tmp"))


def test_what_killed_processes_left_is_removed_after_a_day(file: Path, private_cache: Path) -> None:
    version = ingest_trace(str(file)).folder.parents[1]
    old, new = version / ".old.tmp", version / ".new.tmp"
    for folder in (old, new):
        folder.mkdir()
        (folder / "device_events.0000.parquet").touch()
    os.utime(old, (time.time() - 90_000,) * 2)
    ingest_trace(str(write(file.with_name("rank1.json"), trace(small_step()))))
    assert not old.exists()
    assert new.exists()


def test_a_failure_leaves_nothing(file: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.TableWriter, "commit", full)
    with pytest.raises(TraceError, match="No space left"):
        ingest_trace(str(file))
    assert [path for path in private_cache.rglob("*") if path.is_file()] == []


def test_entries_and_clear(file: Path, private_cache: Path) -> None:
    one = ingest_trace(str(file))
    two = ingest_trace(str(write(file.with_name("rank1.json"), trace(small_step()))))
    found = Cache().entries()
    assert {entry.folder for entry in found} == {one.folder, two.folder}
    assert all(entry.bytes > 1000 for entry in found)
    assert Cache().clear() == 2
    assert Cache().entries() == []
    assert not any(path.is_file() for path in private_cache.rglob("*"))


def test_info_survives_its_json(file: Path) -> None:
    found = ingest_trace(str(file))
    assert isinstance(found, CachedTrace)
    text = json.dumps(found.info.to_json())
    assert type(found.info).from_json(json.loads(text)) == found.info


def test_a_root_that_looks_like_a_pattern(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKSCOPE_CACHE", str(tmp_path / "cache [1]*"))
    monkeypatch.setattr(spool, "PENDING_BYTES", 0)
    run = open_run(file, executor="serial")
    assert run.analyze("device_time")["device_time"].frame.height == 1
    counted = run.sql("SELECT count(*) AS n FROM device_events")["n"].to_list()
    assert counted == [run.loaded.ranks[0][0].load("device_events").height]
