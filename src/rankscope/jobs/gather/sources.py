"""Where the parts of a run are: a local folder, an archive of one, one behind ssh, or one behind a URL (with fsspec).

A source lists its files with their sizes, gives the SHA-256 of some, and fetches some into a folder. An interrupted
fetch continues the next time.

In: a path, `HOST:DIR` or a URL. Out: names, sizes, digests and files.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import IO, Any, Protocol
from weakref import finalize

from rankscope.errors import ConfigError, RankscopeError
from rankscope.rundir.archives import describe_file, is_packed_run, unpack_run
from rankscope.rundir.directory import is_store_url
from rankscope.rundir.names import RANKS_FOLDER
from rankscope.rundir.plurals import printable

_REMOTE = re.compile(
    r"((?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])):(.*)", re.DOTALL
)
# What every version of scp takes for itself; older ones give the rest to the remote shell.
_PLAIN = re.compile(r"[A-Za-z0-9_.,=+@%/~-]+")
_CHUNK = 200
_TIMEOUT_S = 24 * 3600


class Source(Protocol):
    """Where a part of a run is."""

    @property
    def shown(self) -> str:
        """As the user wrote it."""

    def listing(self) -> dict[str, int]:
        """Bytes of each file by its path, ``/`` between folders; hidden ones are left out."""

    def digests(self, paths: Sequence[str]) -> dict[str, str]:
        """SHA-256 of some of its files, in hexadecimal."""

    def fetch(self, paths: Sequence[str], into: Path) -> None:
        """Copy some of its files into a folder, under their paths, with their times."""


def parse_source(text: str, shell: str = "ssh") -> Source:
    """``HOST:DIR``, ``USER@HOST:DIR``, a URL (``s3://bucket/run``), a folder of this machine, or an archive of one.

    Args:
        text: what the user wrote.
        shell: the remote shell with its options.

    Raises:
        ConfigError: it is none of these.
        RankscopeError: it is another file, or a damaged archive.
    """
    match = _REMOTE.fullmatch(text)
    if text.startswith("-") or "\0" in text:
        raise ConfigError(f"{text!r} is not a source to gather from", hint="HOST:DIR, or a directory")
    if is_store_url(text):
        return StoreFolder(text)
    if match is None or Path(text).exists():
        path = Path(text).expanduser()
        if path.is_file() and not is_packed_run(path):
            what, hint = describe_file(path)
            raise RankscopeError(what, path=text, hint=hint)
        return PackedFolder(text) if path.is_file() else LocalFolder(text)
    if not match[2]:
        raise ConfigError(f"{text!r} names no directory", hint="HOST:DIR, for example node07:/tmp/run")
    return RemoteFolder(text, match[1], match[2], tuple(shlex.split(shell)))


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return _digest(file)


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    for block in iter(lambda: file.read(1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()


def hidden(path: str) -> bool:
    """Whether a file, or a folder that contains it, is hidden."""
    return any(part.startswith(".") for part in PurePosixPath(path).parts)


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine: rsync, else plain copies."""

    shown: str

    @property
    def folder(self) -> Path:
        """The folder."""
        return Path(self.shown).expanduser()

    def listing(self) -> dict[str, int]:
        """Bytes of each file.

        Raises:
            RankscopeError: it cannot be read.
        """
        found: dict[str, int] = {}

        def failed(error: OSError) -> None:
            raise RankscopeError(f"cannot be read: {error.strerror}", path=error.filename or self.shown) from error

        if not self.folder.is_dir():
            raise RankscopeError(
                "is not a directory here", path=self.shown, hint="HOST:DIR for one of another host; check the spelling"
            )
        for folder, folders, files in os.walk(self.folder, onerror=failed):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in files:
                path = Path(folder) / name
                relative = path.relative_to(self.folder).as_posix()
                # A link may lead anywhere; what it leads to is not this run's.
                if path.is_file() and not path.is_symlink() and not hidden(relative):
                    found[relative] = path.stat().st_size
        return found

    def digests(self, paths: Sequence[str]) -> dict[str, str]:
        """SHA-256 of some files."""
        return {path: sha256(self.folder / path) for path in paths}

    def fetch(self, paths: Sequence[str], into: Path) -> None:
        """Copy some files.

        Raises:
            RankscopeError: a file cannot be copied.
        """
        if shutil.which("rsync"):
            _rsync(f"{self.folder.absolute()}/", paths, into, ())
            return
        for path in paths:
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy2(self.folder / path, target)
            except OSError as error:
                raise RankscopeError(f"cannot be copied: {error.strerror}", path=error.filename or path) from error


class PackedFolder(LocalFolder):
    """An archive of a folder, unpacked while it is a source."""

    @cached_property
    def _unpacked(self) -> Path:
        made = Path(mkdtemp(prefix="rankscope-gather-"))
        finalize(self, shutil.rmtree, made, ignore_errors=True)
        unpack_run(Path(self.shown).expanduser(), made)
        return made

    @property
    def folder(self) -> Path:
        """The folder that was packed; the archive may hold its files or the folder itself."""
        top = self._unpacked
        inside = list(top.iterdir())
        packed_itself = len(inside) == 1 and inside[0].is_dir() and inside[0].name not in (RANKS_FOLDER, "measured")
        return inside[0] if packed_itself else top


@dataclass(frozen=True)
class StoreFolder:
    """A folder behind a URL that fsspec knows."""

    shown: str

    def listing(self) -> dict[str, int]:
        """Bytes of each file.

        Raises:
            RankscopeError: it cannot be listed, or has no files.
        """
        system, root = self._open()
        with self._errors("cannot be listed"):
            details = system.find(root, detail=True)
        found = {path[len(root) :].lstrip("/"): int(detail["size"]) for path, detail in details.items()}
        if not found:
            # `find` of some kinds of URL, such as http, passes over an error.
            with self._errors("cannot be listed"), suppress(FileNotFoundError):
                system.ls(root)
            raise RankscopeError("has no files", path=self.shown, hint="check the URL")
        return {path: size for path, size in found.items() if not hidden(path)}

    def digests(self, paths: Sequence[str]) -> dict[str, str]:
        """SHA-256 of some files, which are read for it."""
        system, root = self._open()
        found = {}
        for path in paths:
            with self._errors("cannot be read"), system.open(f"{root}/{path}", "rb") as file:
                found[path] = _digest(file)
        return found

    def fetch(self, paths: Sequence[str], into: Path) -> None:
        """Copy some files.

        Raises:
            RankscopeError: a file cannot be copied.
        """
        system, root = self._open()
        for path in paths:
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            with self._errors("cannot be copied"):
                system.get_file(f"{root}/{path}", str(into / path))

    def _open(self) -> tuple[Any, str]:
        with self._errors("cannot be opened"):
            system, root = import_module("fsspec.core").url_to_fs(self.shown)
            return system, root.rstrip("/")
        raise AssertionError

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise RankscopeError(
                f"this kind of URL needs another package: {error}", path=self.shown, hint="e.g. fsspec and s3fs"
            ) from error
        except Exception as error:  # of whatever package reads this kind of URL
            raise RankscopeError(
                f"{what}: {error}", path=self.shown, hint="check the URL and the access to it"
            ) from error


@dataclass(frozen=True)
class RemoteFolder:
    """A folder behind ssh: rsync where both ends have it, else scp."""

    shown: str
    host: str
    folder: str
    shell: tuple[str, ...] = ("ssh",)

    def listing(self) -> dict[str, int]:
        """Bytes of each file.

        Raises:
            RankscopeError: the host cannot be reached, or the folder is not there.
        """
        out = self._there("find . -type f -printf '%s %P\\0'")
        found = {}
        for entry in out.split(b"\0"):
            size, blank, path = entry.partition(b" ")
            name = path.decode("utf-8", "surrogateescape")
            if blank and size.isdigit() and not hidden(name):
                found[name] = int(size)
        return found

    def digests(self, paths: Sequence[str]) -> dict[str, str]:
        """SHA-256 of some files."""
        if not paths:
            return {}
        names = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)
        # `--zero`: without it, sha256sum escapes odd names.
        out = self._there("xargs -0 sha256sum --zero --", names)
        found = {}
        for entry in out.split(b"\0"):
            digest, blank, path = entry.partition(b"  ")
            if blank:
                found[path.decode("utf-8", "surrogateescape")] = digest.decode("ascii", "replace")
        return found

    def fetch(self, paths: Sequence[str], into: Path) -> None:
        """Copy some files.

        Raises:
            RankscopeError: a file cannot be copied, or there is no program to do it.
        """
        if shutil.which("rsync") and self._there("command -v rsync || true").strip():
            _rsync(f"{self.host}:{self._home()}/", paths, into, ("-s", "-e", shlex.join(self.shell)))
        elif shutil.which("scp"):
            self._scp(paths, into)
        else:
            raise RankscopeError(
                "there is neither rsync nor scp here", path=self.shown, hint="install rsync, here and on that host"
            )

    def _home(self) -> str:
        # `~` is the remote shell's word, and nothing here goes through it unquoted; from home, paths are relative.
        return self.folder.removeprefix("~/").rstrip("/") or ("/" if self.folder.startswith("/") else ".")

    def _there(self, command: str, sent: bytes = b"") -> bytes:
        """What a command prints that runs in the folder, on that host."""
        script = f"cd -- {shlex.quote(self._home())} && {command}"
        # The login shell over there may be any; sh is everywhere.
        line = [*self.shell, self.host.strip("[]"), f"sh -c {shlex.quote(script)}"]
        try:
            done = subprocess.run(line, input=sent, capture_output=True, check=False, timeout=_TIMEOUT_S)
        except OSError as error:
            raise RankscopeError(f"{line[0]} cannot be started: {error.strerror}", path=self.shown) from error
        if done.returncode != 0:
            # 255 is ssh's own; any other status is the remote command's.
            what = "cannot be reached" if done.returncode == 255 else "cannot be read there"
            raise RankscopeError(
                f"{what}: {_last_line(done.stderr)}",
                path=self.shown,
                hint=f"does `{shlex.join([*self.shell, self.host.strip('[]')])} ls {shlex.quote(self.folder)}` work?",
            )
        return done.stdout

    def _scp(self, paths: Sequence[str], into: Path) -> None:
        odd = [path for path in (self._home(), *paths) if not _PLAIN.fullmatch(path)]
        if odd:
            raise RankscopeError(
                f"{odd[0]!r} is not a name that scp can take safely", path=self.shown, hint="install rsync on both"
            )
        by_folder: dict[str, list[str]] = {}
        for path in paths:
            by_folder.setdefault(str(PurePosixPath(path).parent), []).append(path)
        # scp's -S takes a program without options.
        program = ["-S", self.shell[0]] if self.shell[0] != "ssh" else []
        for folder, inside in by_folder.items():
            (into / folder).mkdir(parents=True, exist_ok=True)
            for first in range(0, len(inside), _CHUNK):
                remote = [f"{self.host}:{self._home()}/{path}" for path in inside[first : first + _CHUNK]]
                _run(["scp", "-p", "-q", *program, *remote, f"{into.absolute() / folder}/"], self.shown)


def _rsync(origin: str, paths: Iterable[str], into: Path, options: Sequence[str]) -> None:
    names = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)
    # --partial: the next call continues an interrupted file. A relative path with a colon would be taken for a host.
    line = ["rsync", "--times", "--partial", "--files-from=-", "--from0", *options, origin, f"{into.absolute()}/"]
    _run(line, origin, names)


def _run(line: Sequence[str], shown: str, sent: bytes = b"") -> None:
    try:
        done = subprocess.run(line, input=sent, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except OSError as error:
        raise RankscopeError(f"{line[0]} cannot be started: {error.strerror}", path=shown) from error
    if done.returncode != 0:
        raise RankscopeError(
            f"{line[0]} ended with {done.returncode}: {_last_line(done.stderr)}",
            path=shown,
            hint="what has been copied is kept: the same command continues from there",
        )


def _last_line(output: bytes) -> str:
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    # rsync ends with a line about itself; the error precedes it.
    telling = [line for line in lines if not line.startswith("rsync error:")] or lines
    return printable(telling[-1] if telling else "no reason given")
