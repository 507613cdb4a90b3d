"""`make traces`: what is fetched is what the manifest names, completely or not at all."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from tests import fetch_traces
from tests.fetch_traces import blob_hash, main, manifest

PLAIN = b'{"traceEvents": []}'


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror of two files, and a checkout whose manifest names them."""
    lines = ["[[source]]", 'repository = "someone/traces"', "files = ["]
    for name, packed in (("a b.json", "false"), ("c.json", "true")):
        to = "set/c.json.gz" if packed == "true" else "set/a.json"
        lines += [
            f'{{ to = "{to}", commit = "c0ffee", path = "{name}", packed = {packed}, blob = "{blob_hash(PLAIN)}" }},'
        ]
        file = tmp_path / "mirror" / "someone" / "traces" / "c0ffee" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(PLAIN)
    (tmp_path / "traces.toml").write_text("\n".join([*lines, "]"]))
    with tarfile.open(tmp_path / "recordings.tar.xz", "w:xz") as tar:
        for name in ("own/rank0.json.gz", "../outside.json", "own/README.md"):
            member = tarfile.TarInfo(name)
            member.size = len(PLAIN)
            tar.addfile(member, io.BytesIO(PLAIN))
    read = manifest(tmp_path / "traces.toml")
    monkeypatch.setattr(fetch_traces, "HERE", tmp_path)
    monkeypatch.setattr(fetch_traces, "FOLDER", tmp_path / "traces")
    monkeypatch.setattr(fetch_traces, "manifest", lambda: read)
    return tmp_path / "mirror"


def test_files_arrive_checked_and_in_their_form(mirror: Path, tmp_path: Path) -> None:
    assert main(mirror.as_uri()) == 0
    found = {
        file.relative_to(tmp_path / "traces").as_posix() for file in (tmp_path / "traces").rglob("*") if file.is_file()
    }
    assert found == {"complete.txt", "set/a.json", "set/c.json.gz", "own/rank0.json.gz", "own/README.md"}
    assert gzip.decompress((tmp_path / "traces" / "set" / "c.json.gz").read_bytes()) == PLAIN
    assert gzip.decompress((tmp_path / "traces" / "own" / "rank0.json.gz").read_bytes()) == PLAIN


def test_another_content_is_refused_and_the_rest_is_kept(
    mirror: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = next(mirror.rglob("c.json"))
    changed.write_bytes(b"{}")
    assert main(mirror.as_uri()) == 1
    assert "set/c.json.gz: its blob hash is" in capsys.readouterr().out
    assert not (tmp_path / "traces" / "complete.txt").exists()
    # Again, with what is there already left as it is.
    changed.write_bytes(PLAIN)
    next(mirror.rglob("a b.json")).unlink()
    assert main(mirror.as_uri()) == 0


def test_a_mirror_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("") == 2
    assert "MIRROR=URL" in capsys.readouterr().out


def test_the_manifest_of_the_repository_is_complete() -> None:
    listed = manifest()
    assert len(listed) > 70
    for name, entry in listed.items():
        assert not Path(name).is_absolute() and ".." not in Path(name).parts
        assert len(entry["blob"]) == 40 and len(entry["commit"]) == 40
        assert entry["packed"] == (name.endswith(".gz") and not entry["path"].endswith(".gz"))
