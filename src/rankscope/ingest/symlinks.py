"""Which symbolic links in a directory are followed: a link may lead anywhere, and round in circles.

A link counts as meant if it belongs to who reads, to the administrator, or to the owner of what it leads to (like
Apache's SymLinksIfOwnerMatch): nobody can lead a reader into the reader's own files with a link in a shared directory.
A linked folder is searched like any other, be it inside the directory that was named or outside, once; links in it
lead no further. A link to a folder around one that is searched is left alone, for it would lead back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rankscope.ingest.source import is_url, local_path

FOREIGN = "it belongs to somebody else than what it leads to"
AROUND = "it leads to a folder around this one"
DEEPER = "it is a link inside a linked folder"


class Symlinks:
    """What is searched, as far as links lead.

    Args:
        sources: paths of which those that are directories are searched.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        folders = [local_path(each) for each in sources if not is_url(each)]
        self._searched = [_real(folder) for folder in folders]
        self.left: list[tuple[str, str]] = []
        """Links that were left alone, and why."""

    def follow(self, link: Path) -> bool:
        """Whether to search the folder that a link leads to; from then on it is among those that are searched."""
        target = _real(link)
        if self.searched(target):
            return False
        if any(target in root.parents for root in self._searched):
            self.left.append((str(link), AROUND))
            return False
        if not self.meant(link):
            return False
        self._searched.append(target)
        return True

    def meant(self, path: Path) -> bool:
        """Whether a path may be read: it is no link, or one of somebody who may lead there."""
        try:
            if not path.is_symlink() or _may_lead(path.lstat().st_uid, path.stat().st_uid):
                return True
        except OSError:
            return True  # it leads nowhere: whoever opens it says so
        self.left.append((str(path), FOREIGN))
        return False

    def leave(self, links: Iterable[Path]) -> None:
        """Lead no further than one link; what is searched all the same is not worth a word."""
        self.left += [(str(link), DEEPER) for link in links if not self.searched(_real(link))]

    def searched(self, target: Path) -> bool:
        """Whether a folder lies in one that is searched, not hidden in it."""
        return any(
            target.is_relative_to(root) and not any(part.startswith(".") for part in target.relative_to(root).parts)
            for root in self._searched
        )


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # resolve() raises on a link to itself in older Pythons


def _may_lead(owner: int, target: int) -> bool:
    reader = getattr(os, "geteuid", lambda: owner)()  # Windows knows no such owners: there links take rights to make
    return owner in (reader, 0, target)
