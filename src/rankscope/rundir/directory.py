"""Run directories given as a path or as a ``file:`` URL: a job writes to nothing else; to others it uploads copies.

In: the text. Out: a path, or an error; whether it is a URL to upload to.
"""

from __future__ import annotations

import os
import re

from rankscope.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
# No query and no fragment: people who write `file:///scratch/run#2` have a directory `run#2`.
_FILE = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.IGNORECASE | re.DOTALL)


def path_of_file_url(text: str) -> str | None:
    """The path in a ``file:`` URL of this host, as it is written there; None if the text is not one."""
    found = _FILE.fullmatch(text)
    return None if found is None else found[1]


def is_store_url(named: object) -> bool:
    """Whether this is a URL (``s3://bucket/run``) that files are uploaded to, and not a path of this host."""
    found = _SCHEME.match(named) if isinstance(named, str) else None
    return found is not None and found[1].lower() != "file" and found.string.startswith("/", found.end())


def directory_of(named: str | os.PathLike[str]) -> str:
    """The path of a directory that is named by its path or by a ``file:`` URL.

    Raises:
        ConfigError: a URL of something that is not a directory of this host (``s3://…``, ``file://another-host/…``).
    """
    text = os.fspath(named)
    found = _SCHEME.match(text)
    if found is None:
        return text
    if found[1].lower() == "file":
        from urllib.request import url2pathname  # it loads an HTTP client, and TLS

        path = url2pathname(path_of_file_url(text) or "")
        if path.strip("/") and "\0" not in path:
            return path
    elif not text.startswith("//", found.end() - 1):
        return text  # a folder with the name `a:`
    raise ConfigError(
        f"{text!r} is not a directory that a job can write to",
        hint="name a directory on a file system that all hosts see, and copy the run when the job has ended: traces "
        "behind URLs are read where they are",
    )


def absolute_directory(named: str | os.PathLike[str]) -> str:
    """The absolute path of a directory, as :func:`directory_of` reads it; ``~`` is the home directory.

    Raises:
        ConfigError: as of :func:`directory_of`.
    """
    path = os.path.expanduser(directory_of(named))  # noqa: PTH111  # Path's raises for an unknown user
    try:
        return os.path.abspath(path)  # noqa: PTH100  # links stay
    except OSError:  # the working directory is gone
        return path
