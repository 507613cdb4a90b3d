"""The directories that an agent may read: those that were named when the server was started, and nothing else.

An agent names a directory as ``ROOT`` or ``ROOT/sub/dir``, where ROOT is the name that `list_runs` gives. Absolute
paths, ``..`` and symbolic links that lead out of the directories are refused; so are traces behind such links.

In: directories, and names from an agent. Out: paths within the directories, or a refusal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath

from rankscope.errors import ConfigError, NoTracesError
from rankscope.ingest.discover import Found, find_traces
from rankscope.ingest.source import is_url
from rankscope.rundir.hang_dump import HANG_FOLDER
from rankscope.rundir.names import split_process
from rankscope.rundir.watch_files import WATCH_FOLDER

OUTSIDE = "it leads out of the directories that the server was started with"
MAX_NAME = 1_000
MAX_FOLDERS = 20_000
"""Directories that are looked at for jobs."""
MAX_ENTRIES = 200_000
"""Files that are checked for links before a directory is read."""
_HINT = "list_runs names the directories; write ROOT or ROOT/sub/dir"


@dataclass(frozen=True)
class Root:
    """A directory that may be read, and its name for agents."""

    name: str
    path: Path


class Roots:
    """All directories that may be read.

    Args:
        folders: directories of this machine.

    Raises:
        ConfigError: one of them is not a directory.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        roots: list[Root] = []
        for given in folders:
            if is_url(given) or not Path(given).expanduser().is_dir():
                raise ConfigError("is not a directory of this machine", path=given, hint="name directories with runs")
            path = Path(os.path.realpath(Path(given).expanduser()))
            if path in [root.path for root in roots]:
                continue
            taken = {root.name for root in roots}
            name = path.name or "root"
            names = (name if number == 1 else f"{name}-{number}" for number in range(1, len(taken) + 2))
            roots.append(Root(next(each for each in names if each not in taken), path))
        self.all = tuple(roots)

    def contains(self, path: str | os.PathLike[str]) -> bool:
        """Whether a path, after all links, is in one of the directories."""
        real = Path(os.path.realpath(split_process(os.fspath(path))[0]))
        return any(real.is_relative_to(root.path) for root in self.all)

    def folder(self, name: str) -> Path:
        """The directory that an agent names.

        Raises:
            ConfigError: it is not below one of the directories, or there is no such directory.
        """
        parts = name.strip("/").split("/")
        invalid = (
            len(name) > MAX_NAME
            or name.startswith("/")
            or any(not part.isprintable() for part in parts)
            or any(part in ("", ".", "..") or "\\" in part or PureWindowsPath(part).drive for part in parts)
        )
        root = next((root for root in self.all if root.name == parts[0]), None)
        if invalid or root is None:
            raise ConfigError("this is not the name of a directory that may be read", hint=_HINT)
        path = root.path.joinpath(*parts[1:])
        # One answer for what is outside and for what does not exist: nothing is revealed about other directories.
        if not path.is_dir() or not self.contains(path):
            raise ConfigError("there is no such directory below those that the server was started with", hint=_HINT)
        return path

    def checked(self, name: str) -> Path:
        """The directory that an agent names, if all links below it stay in the directories.

        Raises:
            ConfigError: there is no such directory, or a link in it leads out.
        """
        folder = self.folder(name)
        for count, path in enumerate(_entries(folder)):
            if count > MAX_ENTRIES:
                raise ConfigError(f"more than {MAX_ENTRIES} files", path=name, hint="name a directory below it")
            if path.is_symlink() and not self.contains(path):
                link = path.relative_to(folder).as_posix()
                raise ConfigError(f"the link {link} in it is refused: {OUTSIDE}", path=name, hint="remove the link")
        return folder

    def traces(self, root: Root) -> Found:
        """The traces in one of the directories, without those behind links that lead out.

        Raises:
            NoTracesError: there is none.
        """
        found = find_traces(str(root.path))
        outside = [path for path in found.traces if not self.contains(path)]
        found = replace(
            found,
            traces=[path for path in found.traces if path not in set(outside)],
            run_manifests=[path for path in found.run_manifests if self.contains(path)],
            rank_manifests=[path for path in found.rank_manifests if self.contains(path)],
            unfollowed=[*found.unfollowed, *((path, OUTSIDE) for path in outside)],
        )
        if not found.traces:
            raise NoTracesError(f"no trace in this directory: {len(outside)} behind links that lead out of it")
        return found

    def jobs(self) -> list[dict[str, object]]:
        """Directories with the log of a watched job, or with dumps of a hung one, by the names that agents use."""
        found: list[dict[str, object]] = []
        seen = 0
        for root in self.all:
            for place, folders, _ in os.walk(root.path):
                seen += 1
                if seen > MAX_FOLDERS:
                    return found
                has = {name for name in folders if name in (WATCH_FOLDER, HANG_FOLDER)}
                folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in has)
                if has:
                    below = Path(place).relative_to(root.path).as_posix()
                    name = root.name if below == "." else f"{root.name}/{below}"
                    found.append({"folder": name, "watched": WATCH_FOLDER in has, "hang": HANG_FOLDER in has})
        return found


def _entries(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))
