"""Tables on disk: one folder per trace file, named by what the file is, written whole or not at all.

The key holds path, size, mtime_ns, ctime_ns, inode and a hash of the first and last 64 KiB (for URLs what the file
system tells: ETag, size, modification time), and the schema's version; a changed file has another key. Tables are
zstd Parquet, one file a table, so that a reader takes only the columns it needs. A folder appears by one rename;
of two processes that make the same one, the second finds it there and throws its own away.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import polars as pl

from rankscope.errors import TraceError
from rankscope.store.info import TraceInfo
from rankscope.store.schema import SCHEMA_VERSION, TABLES

_ENDS = 64 << 10
_INFO = "info.json"


def cache_root() -> Path:
    """Where tables are kept: ``RANKSCOPE_CACHE``, else the user's cache directory."""
    given = os.environ.get("RANKSCOPE_CACHE")
    if given:
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rankscope"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "rankscope" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankscope"


def trace_key(path: str) -> str:
    """The key of a trace file as it is now.

    Raises:
        TraceError: the file cannot be looked at.
    """
    try:
        facts = _url_facts(path) if "://" in path else _file_facts(path)
    except FileNotFoundError as error:
        raise TraceError("there is no such file", path=path) from error
    except OSError as error:
        raise TraceError(f"cannot be read: {error}", path=path, hint="check its permissions") from error
    return hashlib.sha256(repr((SCHEMA_VERSION, *facts)).encode()).hexdigest()[:40]


def _file_facts(path: str) -> tuple[object, ...]:
    file = Path(path)
    with file.open("rb") as handle:
        status = os.fstat(handle.fileno())
        ends = hashlib.sha256(handle.read(_ENDS))
        if status.st_size > 2 * _ENDS:
            handle.seek(-_ENDS, os.SEEK_END)
            ends.update(handle.read(_ENDS))
    return (
        str(file.resolve()),
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        ends.hexdigest(),
    )


def _url_facts(path: str) -> tuple[object, ...]:
    system, name = fsspec.core.url_to_fs(path)
    facts: dict[str, Any] = system.info(name)
    told = [facts.get(key) for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated")]
    return (path, facts.get("size"), *map(str, told))


@dataclass(frozen=True)
class CachedTrace:
    """The tables of one trace on disk."""

    folder: Path
    info: TraceInfo

    def scan(self, table: str) -> pl.LazyFrame:
        """A table, lazily; without rows where the trace has none."""
        file = self.folder / f"{table}.parquet"
        return pl.scan_parquet(file) if file.exists() else TABLES[table].empty().lazy()

    def load(self, table: str, columns: Iterable[str] | None = None) -> pl.DataFrame:
        """A table, or some of its columns."""
        lazy = self.scan(table)
        return (lazy if columns is None else lazy.select(list(columns))).collect()


class Cache:
    """The folders of tables under one root."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = cache_root() if root is None else root

    def folder(self, key: str) -> Path:
        """Where the tables of a key are, if they are anywhere."""
        return self.root / f"v{SCHEMA_VERSION}" / key[:2] / key

    def find(self, key: str) -> CachedTrace | None:
        """The tables of a key, if they are here, whole, and our own."""
        folder = self.folder(key)
        try:
            # Another user could have put a folder in a shared cache: what it says would be believed.
            if not _is_own(folder):
                return None
            info = TraceInfo.from_json(json.loads((folder / _INFO).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return CachedTrace(folder, info)

    def store(self, key: str, tables: Mapping[str, pl.DataFrame], info: TraceInfo) -> CachedTrace:
        """Write a trace's tables. Where the root cannot be written, they go to a temporary folder of this user's.

        Raises:
            TraceError: there is no room for them.
        """
        folder = self.folder(key)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside = Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", suffix=".tmp", dir=folder.parent))
        except OSError:
            folder = _fallback_root() / key
            aside = Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", suffix=".tmp", dir=folder.parent))
        try:
            for name, table in tables.items():
                if table.height:
                    table.write_parquet(aside / f"{name}.parquet", compression="zstd", compression_level=1)
            (aside / _INFO).write_text(json.dumps(info.to_json()))
            with suppress(OSError):
                aside.rename(folder)
            if not (folder / _INFO).exists():
                raise OSError(f"cannot put {folder} in place")
        except OSError as error:
            raise TraceError(
                f"its tables cannot be written to the cache: {error}",
                path=info.path,
                hint=f"make room in {self.root}, or set RANKSCOPE_CACHE to another directory",
            ) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return CachedTrace(folder, info)


def _is_own(folder: Path) -> bool:
    getuid = getattr(os, "getuid", None)
    return getuid is None or folder.stat().st_uid == getuid()


def _fallback_root() -> Path:
    user = getattr(os, "getuid", lambda: os.environ.get("USERNAME", "user"))()
    root = Path(tempfile.gettempdir()) / f"rankscope-cache-{user}" / f"v{SCHEMA_VERSION}"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _is_own(root):
        raise OSError(f"{root} belongs to another user")
    return root
