"""A cache in object storage (``RANKSCOPE_CACHE=s3://…``), which machines share besides the local cache of each.

A trace has three objects: ``KEY.json``, its metadata, written last; ``KEY.tar``, its tables, which a machine fetches
when it needs one of them; and ``KEY.parts``, the parts of analyses. A store that fails counts as empty, with one
warning per process: that costs time, and no result. Whoever can write to it can change results.

In: a key, and contents. Out: the contents of the same key, from any machine.
"""

from __future__ import annotations

import io
import logging
import os
import tarfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from rankscope.errors import without_credentials
from rankscope.store.objects import file_system, repeated
from rankscope.store.schema import SCHEMA_VERSION

logger = logging.getLogger(__name__)

T = TypeVar("T")

INFO, TABLES, PARTS = "json", "tar", "parts"
"""The objects of a trace, by their endings."""
_TABLE_SUFFIX = ".parquet"


def shared_url() -> str | None:
    """The URL of the shared cache, if one is configured."""
    variable = os.environ.get("RANKSCOPE_CACHE", "")
    return variable.rstrip("/") if "://" in variable and not variable.lower().startswith("file://") else None


def shared_cache() -> SharedCache | None:
    """The shared cache, if one is configured."""
    url = shared_url()
    return None if url is None else _of_url(url)


@lru_cache(4)
def _of_url(url: str) -> SharedCache:
    return SharedCache(url)


class SharedCache:
    """A cache behind a URL.

    Args:
        url: where; below it there is a directory for each version of the tables.
    """

    def __init__(self, url: str) -> None:
        self._url, self._failed = url, False

    def read(self, key: str, kind: str) -> bytes | None:
        """An object of a trace; None if it is not there."""

        def get() -> bytes | None:
            system, path = file_system(self._of(key, kind))
            try:
                return bytes(system.cat_file(path))
            except FileNotFoundError:
                return None

        return self._attempt(get)

    def write(self, key: str, kind: str, content: bytes) -> None:
        """Write an object of a trace."""

        def put() -> None:
            system, path = file_system(self._of(key, kind))
            system.pipe_file(path, content)

        self._attempt(put)

    def write_trace(self, folder: Path, info: bytes) -> None:
        """Write a trace's tables and metadata.

        Args:
            folder: the trace's directory in the local cache, named by its key.
            info: the metadata.
        """
        self.write(folder.name, TABLES, _packed(folder))
        self.write(folder.name, INFO, info)

    def _of(self, key: str, kind: str) -> str:
        return f"{self._url}/v{SCHEMA_VERSION}/{key[:2]}/{key}.{kind}"

    def _attempt(self, attempt: Callable[[], T]) -> T | None:
        if self._failed:
            return None
        try:
            return repeated(attempt)
        except Exception as error:
            self._failed = True
            where = without_credentials(self._url)
            reason = without_credentials(f"{type(error).__name__}: {error}")
            logger.warning("the shared cache %s is not used from here on: %s", where, reason)
            return None


def _packed(folder: Path) -> bytes:
    """The tables in a directory, as an archive."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for file in sorted(folder.glob(f"*{_TABLE_SUFFIX}")):
            archive.add(file, file.name)
    return content.getvalue()


def unpack_tables(content: bytes, folder: Path) -> None:
    """Write the tables of an archive into a directory, whatever else it contains.

    Raises:
        OSError, tarfile.TarError: it is damaged, or the directory cannot be written.
    """
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            # A name with a directory could lead elsewhere.
            if file is not None and member.name.endswith(_TABLE_SUFFIX) and Path(member.name).name == member.name:
                (folder / member.name).write_bytes(file.read())
