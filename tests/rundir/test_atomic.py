"""Atomic writes: complete or absent, and never over another process's file where that is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from rankscope.rundir.atomic import atomic_file, claim, write_atomic, write_new


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_atomic(path, "é")
    write_atomic(path, b"2", sync=True)
    assert path.read_bytes() == b"2"
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "a") as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


def test_a_taken_name_is_left_alone(tmp_path):
    names = [write_new(tmp_path / "rank0.json", str(i).encode()).name for i in range(3)]
    assert names == ["rank0.json", "rank0.2.json", "rank0.3.json"]
    assert [(tmp_path / n).read_text() for n in names] == ["0", "1", "2"]


@pytest.mark.parametrize("links", [True, False])
def test_many_claim_one_name_and_none_is_lost(tmp_path, monkeypatch, links):
    if not links:

        def no_link(*_args: object) -> None:
            raise OSError("no hard links here")

        monkeypatch.setattr(os, "link", no_link)
    barrier = threading.Barrier(8)

    def one(i: int) -> None:
        source = tmp_path / f".{i}.tmp"
        source.write_text(str(i))
        barrier.wait()
        claim(source, tmp_path / "a.trace.json.gz")

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert sorted(p.read_text() for p in tmp_path.iterdir()) == [str(i) for i in range(8)]
    assert all(p.name.endswith(".trace.json.gz") for p in tmp_path.iterdir())


def test_processes_with_one_id_write_different_temporary_files(tmp_path):
    """As in two containers that share a directory."""
    code = """
import os, pathlib, sys
os.getpid = lambda: 7
from rankscope.rundir.atomic import atomic_file
with atomic_file(pathlib.Path("a")):
    print([path.name for path in pathlib.Path().iterdir()])
"""
    names = [subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path / each) for each in made(tmp_path)]
    assert names[0] != names[1]
    assert all(b".a.7-" in name for name in names)


def made(folder):
    for name in ("one", "other"):
        (folder / name).mkdir()
        yield name


def test_a_new_file_that_cannot_get_its_name_leaves_nothing(tmp_path, monkeypatch):
    def full(*_args: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="no space"):
        write_new(tmp_path / "a", b"1")
    assert not list(tmp_path.iterdir())
