"""Fetch the real traces that some tests read: ``python -m tests.fetch_traces [MIRROR]``, or ``make traces MIRROR=URL``.

In comes ``tests/traces.toml``, which names every file's repository, commit, path and git blob hash, and
``tests/recordings.tar.xz``, which holds what is in no repository. Out goes ``tests/traces``, which the tests use when
it is complete. Every file is checked against its hash before it gets its name; after an interruption the same command
goes on. The mirror serves ``OWNER/REPOSITORY/COMMIT/PATH`` (a code host's raw files), by ``https://`` or ``file://``.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import tarfile
import urllib.request
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, urlsplit

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "traces"
MOST_BYTES = 64 << 20
TIMEOUT_S = 60


def blob_hash(data: bytes) -> str:
    """The name that git gives to a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def manifest(path: Path = HERE / "traces.toml") -> dict[str, dict[str, Any]]:
    """Each file by its path under ``tests/traces``: repository, commit, path, blob (of the published file), packed."""
    found: dict[str, dict[str, Any]] = {}
    for source in tomllib.loads(path.read_text(encoding="utf-8"))["source"]:
        for file in source["files"]:
            found[file["to"]] = {"repository": source["repository"], "packed": False, **file}
    return found


def published(target: Path, packed: bool) -> bytes:
    """The content that the blob hash is of: a trace that its repository holds plain is kept compressed here."""
    data = target.read_bytes()
    return gzip.decompress(data) if packed else data


def is_there(target: Path, entry: dict[str, Any]) -> bool:
    """Whether a file has been fetched already."""
    try:
        return blob_hash(published(target, entry["packed"])) == entry["blob"]
    except (OSError, EOFError):
        return False


def fetch(mirror: str, entry: dict[str, Any]) -> bytes:
    """A file from the mirror, checked against its hash; raises ValueError where it is another or too large."""
    url = "/".join((mirror.rstrip("/"), entry["repository"], entry["commit"], quote(entry["path"])))
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        data: bytes = answer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
    if blob_hash(data) != entry["blob"]:
        raise ValueError(f"its blob hash is {blob_hash(data)}, not {entry['blob']}")
    return data


def write(target: Path, data: bytes) -> None:
    """Write a file so that it is there completely or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        aside.write_bytes(data)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def unpack_recordings(archive: Path, folder: Path) -> int:
    """Write the repository's own recordings. A ``.gz`` in the archive is plain, which xz makes much less of."""
    count = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            content = tar.extractfile(member) if member.isfile() else None
            if content is None or path.is_absolute() or ".." in path.parts:
                continue
            data = content.read()
            write(folder / path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
            count += 1
    return count


def main(mirror: str) -> int:
    """Fetch what is missing; 0 if all is there, 1 if a file could not be fetched, 2 without a valid mirror."""
    if urlsplit(mirror).scheme not in ("https", "file"):
        print("make traces MIRROR=URL, where URL/OWNER/REPOSITORY/COMMIT/PATH is a file, by https:// or file://")
        return 2
    complete = FOLDER / "complete.txt"
    complete.unlink(missing_ok=True)
    entries, failed = manifest(), 0
    for name, entry in entries.items():
        if is_there(FOLDER / name, entry):
            continue
        try:
            data = fetch(mirror, entry)
        except (OSError, URLError, ValueError) as error:
            failed += 1
            print(f"{name}: {error}")
            continue
        write(FOLDER / name, gzip.compress(data, mtime=0) if entry["packed"] else data)
    archive = HERE / "recordings.tar.xz"
    if not archive.exists():
        print(f"{archive} is not here: the sets that we recorded are missing")
        return 1
    recorded = unpack_recordings(archive, FOLDER)
    if failed:
        print(f"{failed} of {len(entries)} files could not be fetched; the same command again tries these alone")
        return 1
    write(complete, b"")
    print(f"{len(entries)} fetched files and {recorded} recordings are in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
