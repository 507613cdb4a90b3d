"""Arrays next to tables: complete or not there, with the right key and owner."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from rankscope.store import sidecar as beside_module
from rankscope.store.sidecar import read_sidecar, write_sidecar

ARRAYS = {
    "numbers": np.arange(1000, dtype=np.int64),
    "bytes": np.arange(7, dtype=np.uint8),
    "none": np.empty(0, dtype=np.uint32),
    "floats": np.array([0.5, -1.0]),
}


def test_what_is_written_is_read_in_place(tmp_path: Path) -> None:
    assert write_sidecar(tmp_path, "x.bin", "key", {"a": [1, "é"]}, ARRAYS)
    found = read_sidecar(tmp_path, "x.bin", "key")
    assert found is not None
    assert found.facts == {"a": [1, "é"]}
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].tolist() == array.tolist()
    assert not found.arrays["numbers"].flags.writeable
    assert not found.arrays["numbers"].flags.owndata
    assert [file.name for file in tmp_path.iterdir()] == ["x.bin"]


def test_another_key_is_not_found_and_takes_its_place(tmp_path: Path) -> None:
    write_sidecar(tmp_path, "x.bin", "one", {}, ARRAYS)
    assert read_sidecar(tmp_path, "x.bin", "other") is None
    write_sidecar(tmp_path, "x.bin", "other", {}, {})
    assert read_sidecar(tmp_path, "x.bin", "one") is None
    assert read_sidecar(tmp_path, "x.bin", "other") is not None


@pytest.mark.parametrize("cut", [0, 3, 8, 40, -1])
def test_a_file_that_is_cut_is_none(tmp_path: Path, cut: int) -> None:
    write_sidecar(tmp_path, "x.bin", "key", {}, ARRAYS)
    file = tmp_path / "x.bin"
    file.write_bytes(file.read_bytes()[:cut])
    assert read_sidecar(tmp_path, "x.bin", "key") is None


@pytest.mark.parametrize("kind", ["O", "<U4", "V8", "m8[ns]"])
def test_a_header_that_asks_for_objects_is_refused(tmp_path: Path, kind: str) -> None:
    write_sidecar(tmp_path, "x.bin", "key", {}, ARRAYS)
    file = tmp_path / "x.bin"
    data = file.read_bytes()
    wanted = b'"<i8"'
    given = b'"' + kind.encode() + b'"'
    head_end = 8 + int.from_bytes(data[4:8], "little")
    head = data[8:head_end].rstrip().replace(wanted, given)
    file.write_bytes(data[:8] + head.ljust(head_end - 8)[: head_end - 8] + data[head_end:])
    assert read_sidecar(tmp_path, "x.bin", "key") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_what_another_user_has_put_there_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sidecar(tmp_path, "x.bin", "key", {}, ARRAYS)
    (tmp_path / "link.bin").symlink_to(tmp_path / "x.bin")
    assert read_sidecar(tmp_path, "link.bin", "key") is None
    monkeypatch.setattr(beside_module.os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert read_sidecar(tmp_path, "x.bin", "key") is None


def test_a_folder_without_room_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not write_sidecar(tmp_path / "absent", "x.bin", "key", {}, ARRAYS)

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert not write_sidecar(tmp_path, "x.bin", "key", {}, ARRAYS)
    assert list(tmp_path.iterdir()) == []
