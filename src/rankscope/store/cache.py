"""Tables on disk: one directory per trace file, named by the file's key (`store.key`), either complete or absent.

Tables are zstd Parquet, one file per 65,536 rows, so that a reader takes only the columns it needs. They are written
to a temporary directory that one rename puts in place; if two processes write the same trace, the second discards its
copy. Archives with a run are unpacked there, too. If the root cannot be written, the user's directory below the
system's temporary one is used.

In: keys and tables, and archives. Out: tables on disk, as lazy frames, and directories.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import polars as pl

from rankscope.errors import TraceError
from rankscope.rundir.archives import is_packed_run, unpack_run
from rankscope.store.schema import SCHEMA_VERSION
from rankscope.store.schema import TABLES as SCHEMAS
from rankscope.store.shared_cache import INFO, TABLES, shared_cache, shared_url, unpack_tables
from rankscope.store.spool import FRAGMENT_SUFFIX
from rankscope.store.trace_info import TraceInfo

_INFO = "info.json"
_TEMPORARY = ".tmp"
_ARCHIVES = "archives"
# Small tables are written together: at most this much waits in memory.
_WAITING_BYTES = 4 << 20
# No file takes this long to read: an older temporary directory was left by a process that was killed.
_STALE_S = 24 * 3600.0


class DamagedTablesError(TraceError):
    """Tables in the cache cannot be read: the trace must be read again."""


class CacheWriteError(TraceError):
    """Tables cannot be written to the cache; the trace itself is fine."""


def cache_root() -> Path:
    """Where this machine keeps tables: ``RANKSCOPE_CACHE`` if it is a directory, else the user's cache directory."""
    variable = os.environ.get("RANKSCOPE_CACHE")
    if variable and shared_url() is None:
        return Path(variable).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rankscope"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "rankscope" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankscope"


@dataclass(frozen=True, slots=True)
class CachedTrace:
    """The tables of one trace on disk, or in the shared cache until one of them is needed."""

    place: str  # a `Path` takes five times the memory
    info: TraceInfo

    @property
    def folder(self) -> Path:
        """The directory with its tables."""
        return Path(self.place)

    @property
    def key(self) -> str:
        """Its key in the cache."""
        return self.folder.name

    @property
    def incomplete_steps(self) -> tuple[int, ...]:
        """The numbers of its steps that hold no iteration."""
        return tuple(each["step"] for each in self.info.incomplete_steps)

    def files(self, table: str) -> list[str]:
        """The Parquet files of a table, in the order of its rows. Raises OSError if the tables are gone."""
        if not self.folder.is_dir():
            self._fetch()
        return sorted(map(str, self.folder.glob(f"{table}.*.parquet")))

    def scan(self, table: str) -> pl.LazyFrame:
        """A table, lazily; without rows if the trace has none. Raises OSError if the tables are gone."""
        files = self.files(table)
        rows = pl.scan_parquet(files, glob=False) if files else SCHEMAS[table].empty().lazy()
        return without_steps(rows, self.incomplete_steps) if table == "annotations" else rows

    def load(self, table: str, columns: Iterable[str] | None = None) -> pl.DataFrame:
        """A table, or some of its columns.

        Raises:
            DamagedTablesError: the cached tables cannot be read.
        """
        return self.load_all({table: columns})[table]

    def load_all(self, tables: Mapping[str, Iterable[str] | None]) -> dict[str, pl.DataFrame]:
        """Some columns of several tables, or all for None: together, as a query for each costs more than small tables.

        Raises:
            DamagedTablesError: the cached tables cannot be read.
        """
        try:
            lazy = [
                self.scan(table) if columns is None else self.scan(table).select(list(columns))
                for table, columns in tables.items()
            ]
            return dict(zip(tables, pl.collect_all(lazy), strict=True))
        except (OSError, pl.exceptions.PolarsError) as error:
            raise DamagedTablesError(
                f"its tables in the cache cannot be read: {error}",
                path=self.info.path,
                hint="rankscope cache --clear removes them",
            ) from error

    def _fetch(self) -> None:
        """Bring the tables from the shared cache.

        Raises:
            OSError: they are not there, are damaged, or cannot be written.
        """
        shared = shared_cache()
        content = None if shared is None else shared.read(self.key, TABLES)
        if content is None:
            raise FileNotFoundError(f"{self.folder} is not there any more")
        temporary, folder = _make_folders(self.folder.parents[1], self.key)
        try:
            unpack_tables(content, temporary)
            sizes = {file.name: file.stat().st_size for file in temporary.iterdir()}
            (temporary / _INFO).write_bytes(_info_text(sizes, self.info))
            with suppress(OSError):  # another process may have been faster
                temporary.rename(folder)
        except tarfile.TarError as error:
            raise OSError(f"the shared cache is damaged: {error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    @property
    def bytes(self) -> int:
        """Size of its tables on disk."""
        return sum(file.stat().st_size for file in self.folder.iterdir())


def without_steps(annotations: pl.LazyFrame, incomplete: Sequence[int]) -> pl.LazyFrame:
    """Annotations with the numbers of incomplete steps in the column `incomplete_step` instead of `step`."""
    if not incomplete:
        return annotations
    chosen = pl.col("step").is_in(incomplete)
    return annotations.with_columns(
        pl.when(~chosen).then("step").alias("step"), pl.when(chosen).then("step").alias("incomplete_step")
    )


@dataclass
class TableWriter:
    """Writes a trace's tables into the cache. Use as ``with cache.writer(key, path) as writer``.

    Attributes:
        make_folders: makes the temporary directory, at the first row that is written; returns it and the final one.
        folders: both, once they are needed; the temporary one is removed when the writer's block ends.
    """

    make_folders: Callable[[], tuple[Path, Path]]
    folders: tuple[Path, Path] | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    _waiting: dict[str, pl.DataFrame] = field(default_factory=dict)
    _bytes: int = 0

    def temporary_folder(self) -> Path:
        """The temporary directory. Made late: for a file that is not a trace it would cost milliseconds."""
        if self.folders is None:
            self.folders = self.make_folders()
        return self.folders[0]

    def write(self, name: str, rows: pl.DataFrame) -> None:
        """Append rows to a table; a table without rows has no file."""
        if not rows.height:
            return
        number = sum(file.startswith(f"{name}.") for file in (*self.sizes, *self._waiting))
        self._waiting[f"{name}.{number:04}.parquet"] = rows
        self._bytes += int(rows.estimated_size())
        if self._bytes > _WAITING_BYTES:
            self._write_waiting()

    def _write_waiting(self) -> None:
        """Write the waiting tables together: for a small table, start-up takes a third of the time."""
        # No reader filters rows by value in the files, so statistics are not needed.
        folder = self.temporary_folder()
        sinks = [
            rows.lazy().sink_parquet(
                folder / file, compression="zstd", compression_level=1, statistics=False, lazy=True
            )
            for file, rows in self._waiting.items()
        ]
        pl.collect_all(sinks)
        self.sizes |= {file: (folder / file).stat().st_size for file in self._waiting}
        self._waiting.clear()
        self._bytes = 0

    def commit(self, info: TraceInfo) -> CachedTrace:
        """Put the directory in place; call it last."""
        if self._waiting:
            self._write_waiting()
        temporary, folder = self.folders = self.folders or self.make_folders()
        for fragment in temporary.glob(f".*{FRAGMENT_SUFFIX}"):
            fragment.unlink()
        (temporary / _INFO).write_bytes(text := _info_text(self.sizes, info))
        with suppress(OSError):
            temporary.rename(folder)
            if (shared := shared_cache()) is not None:
                shared.write_trace(folder, text)
            return CachedTrace(str(folder), info)
        if (found := _read(folder)) is not None:
            return found  # another process was faster
        # The existing directory is damaged: move it out of the way.
        broken = temporary.with_name(f"{temporary.name.removesuffix(_TEMPORARY)}-broken{_TEMPORARY}")
        folder.rename(broken)
        temporary.rename(folder)
        shutil.rmtree(broken, ignore_errors=True)
        return CachedTrace(str(folder), info)


class Cache:
    """The tables of all traces, under one root."""

    def __init__(self) -> None:
        self.root = cache_root()

    def _versions(self) -> list[Path]:
        """The directories for tables of this schema, the preferred one first."""
        return [self.root / f"v{SCHEMA_VERSION}", _fallback_root() / f"v{SCHEMA_VERSION}"]

    def find(self, key: str) -> CachedTrace | None:
        """The tables of a key, if they are complete and belong to this user."""
        for version in self._versions():
            if (found := _read(version / key[:2] / key)) is not None:
                return found
        shared = shared_cache()
        info = None if shared is None else shared.read(key, INFO)
        folder = self._versions()[0] / key[:2] / key
        # A directory that is not complete belongs to another user, or has to be replaced.
        with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if info is not None and not folder.exists():
                return CachedTrace(str(folder), TraceInfo.from_json(json.loads(info)["trace"]))
        return None

    @contextmanager
    def writer(self, key: str, path: str) -> Iterator[TableWriter]:
        """A writer for the tables of a key.

        Args:
            path: the trace, for errors.

        Raises:
            CacheWriteError: they cannot be written.
        """
        writer = TableWriter(lambda: self._make_folders(key))
        try:
            yield writer
        except (OSError, pl.exceptions.ComputeError) as error:
            # Name the directory that failed; both if neither could be used.
            roots = [version.parent for version in self._versions()]
            if writer.folders is not None:
                roots = [root for root in roots if root in writer.folders[1].parents]
            variables = "RANKSCOPE_CACHE" if roots == [self.root] else "RANKSCOPE_CACHE (or TMPDIR)"
            raise CacheWriteError(
                f"its tables cannot be written to the cache {' or '.join(map(str, roots))}: {error}",
                path=path,
                hint=f"free space there, or set {variables} to a directory that can be written and has space",
            ) from error
        finally:
            if writer.folders is not None:
                try:
                    shutil.rmtree(writer.folders[0], ignore_errors=True)
                finally:
                    # A signal may interrupt the first attempt.
                    shutil.rmtree(writer.folders[0], ignore_errors=True)

    def _make_folders(self, key: str) -> tuple[Path, Path]:
        preferred, fallback = self._versions()
        with suppress(OSError):
            return _make_folders(preferred, key)
        _make_own_folder(fallback.parent)
        return _make_folders(fallback, key)

    def drop(self, key: str) -> None:
        """Remove the tables of a key."""
        for version in self._versions():
            folder = version / key[:2] / key
            with suppress(OSError):
                if _is_own(folder):
                    shutil.rmtree(folder, ignore_errors=True)

    def unpacked(self, archive: Path) -> Path | None:
        """The directory of an archive that contains a run, unpacked by the first call; None for other files.

        Raises:
            TraceError: it cannot be unpacked.
        """
        status = archive.stat()
        identity = str(archive.absolute()), status.st_size, status.st_mtime_ns, status.st_ino
        key = hashlib.sha256(repr(identity).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        for root in (self.root, _fallback_root()):
            folder = root / _ARCHIVES / key / archive.name
            with suppress(OSError):
                if _is_own(folder):
                    return folder
        return self._unpack(archive, key) if _is_packed_run(*identity) else None

    def _unpack(self, archive: Path, key: str) -> Path:
        folder = self.root / _ARCHIVES
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = Path(tempfile.mkdtemp(suffix=_TEMPORARY, prefix=".", dir=folder))
        except OSError:
            _make_own_folder(_fallback_root())
            folder = _fallback_root() / _ARCHIVES
            folder.mkdir(exist_ok=True, mode=0o700)
            temporary = Path(tempfile.mkdtemp(suffix=_TEMPORARY, prefix=".", dir=folder))
        _sweep(folder)
        try:
            (temporary / archive.name).mkdir()
            unpack_run(archive, temporary / archive.name)
            with suppress(OSError):  # another process may have been faster
                temporary.rename(folder / key)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return folder / key / archive.name

    def entries(self) -> list[CachedTrace]:
        """Every trace whose tables are complete and belong to this user."""
        folders = [folder for version in self._versions() for folder in sorted(version.glob("??/*"))]
        return [found for folder in folders if (found := _read(folder)) is not None]

    def clear(self) -> int:
        """Remove all tables and unpacked archives that belong to this user, of any schema; returns their number."""
        patterns = ("v*/??/*", f"v*/.*{_TEMPORARY}", f"{_ARCHIVES}/*")
        removed = 0
        for folder in [path for root in (self.root, _fallback_root()) for each in patterns for path in root.glob(each)]:
            if _is_own(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed += not folder.exists()
        return removed


@cache
def _is_packed_run(path: str, *_identity: int) -> bool:
    """Cached, as the page checks its sources again and again."""
    return is_packed_run(Path(path))


def _read(folder: Path) -> CachedTrace | None:
    """The tables in a directory, if they are complete and belong to this user."""
    try:
        # In a shared cache another user could have written false tables.
        if not _is_own(folder):
            return None
        written = json.loads((folder / _INFO).read_bytes())
        with os.scandir(folder) as entries:
            sizes = {entry.name: entry.stat().st_size for entry in entries}
        if any(sizes.get(name) != size for name, size in written["tables"].items()):
            return None
        return CachedTrace(str(folder), TraceInfo.from_json(written["trace"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _info_text(sizes: Mapping[str, int], info: TraceInfo) -> bytes:
    return json.dumps({"tables": sizes, "trace": info.to_json()}).encode()


def _make_folders(version: Path, key: str) -> tuple[Path, Path]:
    folder = version / key[:2] / key
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.exists() and not _is_own(folder):
        raise PermissionError(f"{folder} belongs to another user")
    _sweep(version)
    return Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", suffix=_TEMPORARY, dir=version)), folder


def _sweep(version: Path) -> None:
    """Remove temporary directories of killed processes."""
    for folder in version.glob(f".*{_TEMPORARY}"):
        with suppress(OSError):
            if _is_own(folder) and time.time() - folder.stat().st_mtime > _STALE_S:
                shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    status = folder.lstat()
    getuid = getattr(os, "getuid", None)
    return stat.S_ISDIR(status.st_mode) and (getuid is None or status.st_uid == getuid())


def _fallback_root() -> Path:
    user = getattr(os, "getuid", lambda: os.environ.get("USERNAME", "user"))()
    return Path(tempfile.gettempdir()) / f"rankscope-cache-{user}"


def _make_own_folder(folder: Path) -> None:
    """Make a directory in a shared location; one of another user is not used."""
    folder.mkdir(exist_ok=True, mode=0o700)
    if not _is_own(folder):
        raise PermissionError(f"{folder} belongs to another user")
