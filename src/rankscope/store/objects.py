"""Objects behind URLs (``s3://…``, ``https://…``, or another kind that fsspec knows): their identity, and their bytes.

An object is read as a stream, in blocks; an attempt that fails is repeated from where it stopped. Credentials come from
where fsspec takes them (the environment, its configuration files, those of the store's own tools). They are not kept,
and what a URL itself contains of them is cut from every message.

In: a URL. Out: what identifies its current content, and a file object.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from rankscope.errors import without_credentials

T = TypeVar("T")

Facts = tuple[object, ...]
"""What identifies the current content of an object."""

ATTEMPTS = 3
"""The packages of some stores try again themselves; that of HTTP does not."""
FIRST_PAUSE_S, PAUSE_FACTOR = 1.0, 4.0
HTTP_LIMIT_S = 30.0
"""How long a server may send nothing. The package of S3 has limits of its own; that of HTTP would wait five minutes."""
_BLOCK_BYTES = 8 << 20
_AT_ONCE = 256
_HOPELESS = (ImportError, FileNotFoundError, IsADirectoryError, PermissionError, io.UnsupportedOperation)
"""Trying again does not help."""


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it.

    Raises:
        ImportError, ValueError: there is none for this kind of URL.
    """
    import fsspec  # only if needed: its import takes a third of a worker's start

    options: dict[str, Any] = {}
    if url.lower().startswith(("http://", "https://")) and "client_kwargs" not in fsspec.config.conf.get("http", {}):
        import aiohttp  # fsspec needs it for HTTP

        limits = aiohttp.ClientTimeout(total=None, sock_connect=HTTP_LIMIT_S, sock_read=HTTP_LIMIT_S)
        options = {"client_kwargs": {"timeout": limits}}
    found: tuple[Any, str] = fsspec.core.url_to_fs(url, **options)
    return found


def object_facts(url: str) -> Facts:
    """What identifies the current content of an object.

    Raises:
        OSError, ImportError, ValueError: it cannot be asked for.
    """
    system, name = file_system(url)
    info = repeated(lambda: system.info(name))
    dates = (info.get(key) for key in ("LastModified", "Last-Modified", "mtime", "updated", "last_modified", "created"))
    return listed_facts(url, info) or (without_credentials(url), info.get("size"), *map(str, dates))


def listed_facts(url: str, info: Mapping[str, Any]) -> Facts | None:
    """What identifies the content of an object in a listing; None if the listing does not contain it.

    Args:
        info: the object's entry.
    """
    tag = next((info[key] for key in ("ETag", "etag", "md5Hash") if info.get(key)), None)
    # A signed URL is another one each time.
    return None if tag is None else (url.partition("?")[0], info.get("size"), str(tag).strip('"'))


def open_object(url: str) -> io.RawIOBase:
    """The bytes of an object, as a file that can be read and, if the store can, positioned.

    Raises:
        OSError, ImportError, ValueError: it cannot be opened.
    """
    file = _Object(url)
    file.open()
    return file


def read_objects(urls: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
    """The contents of small objects, fetched many at a time; None for what cannot be read."""
    wanted = list(urls)
    for begin in range(0, len(wanted), _AT_ONCE):
        chunk = wanted[begin : begin + _AT_ONCE]
        system, _ = file_system(chunk[0])
        names = [system._strip_protocol(url) for url in chunk]
        found = system.cat(names, on_error="return")
        contents = found if isinstance(found, dict) else {names[0]: found}
        for url, name in zip(chunk, names, strict=True):
            content = contents.get(name)
            yield url, content if isinstance(content, bytes) else None


def repeated(attempt: Callable[[], T]) -> T:
    """The result of something that asks a store, tried again if the store fails.

    Raises:
        OSError, ImportError: the last attempt failed, too.
    """
    pause = FIRST_PAUSE_S
    for number in range(ATTEMPTS):
        try:
            return attempt()
        except Exception as error:
            reason = _reason(error)
            if isinstance(reason, _HOPELESS):
                raise
            if number == ATTEMPTS - 1:
                # The error itself may contain the URL with its credentials.
                raise OSError(without_credentials(f"{type(reason).__name__}: {reason}")) from None
        time.sleep(pause)
        pause *= PAUSE_FACTOR
    raise AssertionError


def _reason(error: Exception) -> BaseException:
    """What is behind an error: over HTTP, what does not answer is reported as a missing file."""
    cause = error.__cause__
    # The package of S3 has its own error, with the response, behind that of a file that is really missing.
    is_other = isinstance(error, FileNotFoundError) and cause is not None and not hasattr(cause, "response")
    return cause if is_other and cause is not None else error


class _Object(io.RawIOBase):
    """An object that is read from where an earlier attempt stopped."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self._position = url, 0
        self._file: Any = None

    def open(self) -> None:
        """Ask the store for it now.

        Raises:
            OSError, ImportError, ValueError: it cannot be opened.
        """
        repeated(self._opened)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._opened().seekable())

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to another position."""
        self._position = int(self._opened().seek(offset, whence))
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """At most this many bytes."""
        data = repeated(lambda: self._read(size))
        self._position += len(data)
        return data

    def close(self) -> None:
        """Close it."""
        self._drop()
        super().close()

    def _read(self, size: int) -> bytes:
        try:
            return bytes(self._opened().read(size))
        except BaseException:
            self._drop()
            raise

    def _opened(self) -> Any:
        if self._file is None:
            system, name = file_system(self._url)
            file = system.open(name, "rb", block_size=_BLOCK_BYTES)
            try:
                _move(file, self._position)
            except BaseException:
                file.close()
                raise
            self._file = file
        return self._file

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _move(file: Any, position: int) -> None:
    """Continue at a position; where the store sends objects only from their beginning, read up to it."""
    if not position:
        return
    if file.seekable():
        file.seek(position)
        return
    left = position
    while left and (data := file.read(min(left, _BLOCK_BYTES))):
        left -= len(data)
    if left:
        raise EOFError("the object is shorter than before")
