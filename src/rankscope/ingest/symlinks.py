"""Decide which symbolic links are followed: a link may lead anywhere, and in circles.

A link is followed if it belongs to the reader, to the administrator, or to the owner of its target (as with Apache's
SymLinksIfOwnerMatch): so no other user can direct a reader to the reader's own files from a shared directory. A linked
directory is searched like any other, inside or outside of the named one, once; links in it are not followed. Nor is a
link to a parent of a searched directory, as it would lead back.

In: the links found in a directory. Out: whether each is followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rankscope.ingest.source import is_url, local_path

FOREIGN = "its owner is not the owner of its target"
TO_PARENT = "it leads to a parent directory"
NESTED = "it is inside a linked directory"


class Symlinks:
    """The directories that are searched, and the links that were not followed.

    Args:
        sources: paths of which those that are directories are searched.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        folders = [local_path(source) for source in sources if not is_url(source)]
        self._searched = [_real(folder) for folder in folders]
        self.unfollowed: list[tuple[str, str]] = []
        """Links that were not followed, and why."""

    def follow(self, link: Path) -> bool:
        """Whether to search the directory that a link leads to; if so, it counts as searched from now on."""
        target = _real(link)
        if self.searched(target):
            return False
        if any(target in root.parents for root in self._searched):
            self.unfollowed.append((str(link), TO_PARENT))
            return False
        if not self.may_read(link):
            return False
        self._searched.append(target)
        return True

    def may_read(self, path: Path) -> bool:
        """Whether a path may be read: it is not a link, or one whose owner is trusted for its target."""
        try:
            if not path.is_symlink() or _is_trusted(path.lstat().st_uid, path.stat().st_uid):
                return True
        except OSError:
            return True  # its target is missing: opening it raises the error
        self.unfollowed.append((str(path), FOREIGN))
        return False

    def skip(self, links: Iterable[Path]) -> None:
        """Do not follow links in linked directories; record those that are not searched anyway."""
        self.unfollowed += [(str(link), NESTED) for link in links if not self.searched(_real(link))]

    def searched(self, target: Path) -> bool:
        """Whether a directory is in a searched one, and not hidden in it."""
        return any(
            target.is_relative_to(root) and not any(part.startswith(".") for part in target.relative_to(root).parts)
            for root in self._searched
        )


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # resolve() raises on a link to itself in older Pythons


def _is_trusted(owner: int, target: int) -> bool:
    reader = getattr(os, "geteuid", lambda: owner)()  # not on Windows: there, making a link needs a privilege
    return owner in (reader, 0, target)
