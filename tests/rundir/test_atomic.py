"""Atomic writes: complete or absent, and never over another process's file where that is asked for."""

from __future__ import annotations

import os
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
