"""Find the traces in a path, a glob, a list or a URL.

In: a path, a glob, a list or a URL. Out: the paths of traces and of files next to them.
"""

from __future__ import annotations

import errno
import glob
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.errors import NoTracesError, RankscopeError, without_credentials
from rankscope.ingest.manifests import why_no_traces
from rankscope.ingest.run_files import (
    HEAD_BYTES,
    is_hang_dump,
    is_manifest,
    is_rank_manifest_path,
    is_result_file,
    is_run_file_name,
    is_run_manifest,
    starts_a_result,
)
from rankscope.ingest.source import is_url, local_path
from rankscope.ingest.symlinks import Symlinks
from rankscope.rundir.names import DATABASE_SUFFIXES, PERFETTO_ENDINGS, process_path, split_process
from rankscope.store.cache import Cache
from rankscope.store.objects import Facts, file_system, listed_facts, repeated

# What Nsight Systems and rocprofv3 call their databases; other programs use these names, too: the tables decide.
TRACE_SUFFIXES = (
    ".json", ".json.gz", ".json.zst", ".json.zstd", ".tar.gz", ".tgz", ".tar.zst", ".zip", *DATABASE_SUFFIXES,
    *PERFETTO_ENDINGS,
)  # fmt: skip
SNAPSHOT_SUFFIXES = (".memory.pickle", "memory_snapshot.pickle")
# Memory snapshots as torchtitan and SGLang name them.
_SNAPSHOT = re.compile(r"\d{6}_step_\d+\.pickle|.+-TP-\d+-memory(-\w+)?\.pickle", re.IGNORECASE)
# torchtitan's structured logs, one per rank and source.
_TITAN_LOG = re.compile(r".+\.global_rank_\d+\.[\w-]+\.jsonl")
# SGLang puts the traces of all ranks into one more file.
_MERGED = re.compile(r"merged-(.+)\.trace\.json(\.gz)?")

# Dumps of the Flight Recorder, one per rank: TORCH_NCCL_DEBUG_INFO_TEMP_FILE and the number of the rank.
_FLIGHT_RECORDER = re.compile(r"(.*(?:_dump|nccl_trace_rank|fr_trace|comm_lib_trace_rank)_)\d+")

# Where a directory has no trace, so many directories in it are searched for what another command reads.
_FOLDERS_FOR_HINT = 1000

_CHECK_URL = "check the URL and the access to it"


@dataclass
class Found:
    """The files of a source: traces, manifests, and what was left out.

    Attributes:
        traces: paths or URLs in natural order (`rank2` before `rank10`).
        folders: the directories that were searched.
        run_manifests: run manifests in them (`run.json`).
        rank_manifests: manifests of ranks in them.
        denied: directories among them that could not be listed, and archives that could not be unpacked, and why.
        unfollowed: symbolic links among them that were not followed, and why.
        doubled: files that repeat the traces of other files, and were left out.
        named: whether the user named each file, so that each must be a trace.
        objects: what identifies objects behind URLs, as far as listings show it.
        logs: torchtitan's structured logs in the directories, which are read where there is no trace.
    """

    traces: list[str]
    folders: list[str] = field(default_factory=list)
    run_manifests: list[str] = field(default_factory=list)
    rank_manifests: list[str] = field(default_factory=list)
    denied: list[RankscopeError] = field(default_factory=list)
    unfollowed: list[tuple[str, str]] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    named: bool = False
    objects: dict[str, Facts] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)


def natural(path: str) -> tuple[object, ...]:
    """A sort key under which `rank2` comes before `rank10`."""
    # Not `isdigit`, which also holds for `²`.
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path))


def find_traces(source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Found:
    """The traces of a source.

    Args:
        source: a directory (searched recursively), an archive of one, a file, a glob, a URL that fsspec knows, or
            several of these.

    Raises:
        NoTracesError: there is no such path, or nothing in it that could be a trace.
    """
    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    found = Found([], named=len(sources) > 0)
    links = Symlinks(os.fspath(entry) for entry in sources)
    for entry in sources:
        _add(os.fspath(entry), found, links)
    found.unfollowed = links.unfollowed
    found.traces = sorted(_without_duplicates(found.traces), key=natural)
    if not found.named:
        doubled = _merged(found.traces)
        found.doubled = sorted(doubled, key=natural)
        found.traces = [path for path in found.traces if path not in doubled]
    if not sources:
        raise NoTracesError("no path was given", hint="name a directory with traces, or trace files")
    return found


def _other_reader_hint(folder: Path) -> str | None:
    """What reads a directory's files if they are dumps of a hung job, or pickles of any name; else None."""
    pickles: list[Path] = []
    dumps: list[Path] = []
    for place, folders, files in itertools.islice(os.walk(folder), _FOLDERS_FOR_HINT):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=natural)
        dumps += [path for name in files if _is_dump(path := Path(place, name))][:1]
        pickles += [Path(place, name) for name in files if name.endswith((".pickle", ".pkl"))]
    if dumps:
        jobs = [shlex.quote(str(path.parent)) for path in dumps]
        if len(jobs) == 1:
            return f"{dumps[0].name} looks like a dump of a hung job; what it shows: rankscope hang {jobs[0]}"
        return (
            f"{len(jobs)} directories in it have what looks like dumps of hung jobs; read those of one job: "
            f"rankscope hang {jobs[0]}"
        )
    if not pickles:
        return None
    first = min(pickles, key=lambda path: natural(str(path)))
    return f"if {first.name} is a memory snapshot, name the file itself: rankscope summary {shlex.quote(str(first))}"


def _is_dump(path: Path) -> bool:
    """Whether a file looks like a dump of a hung job: the Flight Recorder's, or rankscope's own."""
    return bool(_FLIGHT_RECORDER.fullmatch(path.name)) or (is_result_file(str(path)) and is_hang_dump(_head(path)))


def _add(source: str, found: Found, links: Symlinks) -> None:
    if is_url(source):
        _add_url(source, found)
        return
    path = local_path(source)
    try:
        is_folder, is_there = path.is_dir(), path.exists()
    except OSError as error:
        # Files in a directory without permission cannot even be looked up.
        raise _denied(error, str(path)) from error
    if is_folder:
        denied = len(found.denied)
        traces = list(_in_directory(path, found, links)) or found.logs
        if not traces and found.denied[denied:]:
            raise found.denied[denied]
        if not traces:
            raise NoTracesError(
                f"no trace in this directory{why_no_traces(found.rank_manifests)}",
                path=str(path),
                hint=_other_reader_hint(path)
                or "did the job reach its active steps, and did it finish? Traces are files such as *.json and "
                "*.json.gz (docs/formats.md lists the others)",
            )
        found.traces += traces
        found.folders.append(str(path))
        found.named = False
    elif is_there:
        _add_file(path, found, links)
    elif (file := Path(split_process(str(path))[0])) != path and file.is_file():
        found.traces.append(str(path))  # as findings name it
    elif any(sign in source for sign in "*?["):
        names = glob.glob(str(path), recursive=True)  # noqa: PTH207  # pathlib needs a directory to start from
        matches = [match for match in names if not Path(match).is_dir()]
        if not matches:
            fixed = Path(*itertools.takewhile(lambda part: not any(sign in part for sign in "*?["), path.parts))
            if fixed.is_dir() and not os.access(fixed, os.R_OK | os.X_OK):
                raise _denied(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), str(fixed))
            raise NoTracesError("nothing matches this pattern", path=source, hint="quote it, and check its folder")
        found.traces += [path for match in matches for path in _traces_in(match)]
    else:
        raise NoTracesError("there is no such file or directory", path=source, hint="check the spelling of the path")


def _add_file(path: Path, found: Found, links: Symlinks) -> None:
    """Add a trace, or the contents of an archive with several as if it were their directory.

    An archive that cannot be unpacked is read as one trace, with findings on what is wrong and what is not read.
    """
    folder = None
    try:
        folder = Cache().unpacked(path)
    except RankscopeError as error:
        found.denied.append(error)
    except OSError as error:
        found.denied.append(RankscopeError(f"cannot be unpacked: {error.strerror or error}", path=path))
    if folder is None:
        found.traces += _traces_in(str(path))
    else:
        _add(str(folder), found, links)


def _traces_in(path: str) -> list[str]:
    """A file as a trace, or a path for each rank of a database of several."""
    if not path.lower().endswith(DATABASE_SUFFIXES):
        return [path]
    from rankscope.ingest.sqlite_trace import rank_count  # few runs need it

    number = rank_count(path)
    return [path] if number == 1 else [process_path(path, place) for place in range(number)]


def _without_duplicates(paths: Iterable[str]) -> list[str]:
    """Paths without duplicates: a link is left out if its target is among them."""
    files: dict[tuple[int, int] | str, str] = {}
    for path in dict.fromkeys(paths):
        key: tuple[int, int] | str = path
        if not is_url(path):
            try:
                status = Path(path).stat()
            except OSError:
                pass
            else:
                # On a file system without inode numbers all are 0.
                key = (status.st_dev, status.st_ino) if status.st_ino else path
        if key not in files or (Path(files[key]).is_symlink() and not Path(path).is_symlink()):
            files[key] = path
    return list(files.values())


def _merged(paths: Sequence[str]) -> set[str]:
    """The files that were merged from other files in the list."""
    names: dict[str, list[str]] = {}
    for path in paths:
        folder, name = _split(path)
        names.setdefault(folder, []).append(name)
    merged = set()
    for path in paths:
        folder, name = _split(path)
        match = _MERGED.fullmatch(name)
        # The names of the parts may have a prefix before the id of the profile.
        if match and any(f"-{match[1]}-TP-" in f"-{other}" for other in names[folder]):
            merged.add(path)
    return merged


def _split(path: str) -> tuple[str, str]:
    *folder, name = re.split(r"[/\\]", path)
    return "/".join(folder), name


def _denied(error: OSError, path: str) -> NoTracesError:
    why = (error.strerror or str(error)).lower()
    return NoTracesError(f"cannot be read: {why}", path=path, hint="check its owner and permissions")


def _in_directory(directory: Path, found: Found, links: Symlinks) -> Iterator[str]:
    linked: list[Path] = []
    deeper: list[Path] = []
    yield from _walk(directory, found, links, linked)
    for link in linked:
        if links.follow(link):
            yield from _walk(link, found, links, deeper)
    links.skip(deeper)


def _walk(directory: Path, found: Found, links: Symlinks, linked: list[Path]) -> Iterator[str]:
    """The traces in a directory and below; links to other directories are collected in `linked`."""

    def failed(error: OSError) -> None:
        found.denied.append(_denied(error, str(error.filename or directory)))

    for folder, folders, files in os.walk(directory, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        linked += [path for name in folders if (path := Path(folder) / name).is_symlink()]
        for name in files:
            path = Path(folder) / name
            if is_run_manifest(name):
                found.run_manifests.append(str(path))
            elif is_rank_manifest_path(path.as_posix()) and is_manifest(_head(path)):
                found.rank_manifests.append(str(path))
            elif is_result_file(str(path)) and starts_a_result(_head(path)):
                continue  # one per rank: as traces, each would cost a task that fails
            elif _is_candidate(name) and links.may_read(path):
                yield from _traces_in(str(path))
            elif _TITAN_LOG.fullmatch(name) and links.may_read(path):
                found.logs.append(str(path))


def _head(path: Path) -> bytes:
    """The first bytes of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""


def _is_candidate(name: str) -> bool:
    lower = name.lower()
    if name.startswith("."):
        return False
    if lower.endswith(TRACE_SUFFIXES + SNAPSHOT_SUFFIXES):
        return not is_run_file_name(lower)
    return _SNAPSHOT.fullmatch(name) is not None


def _add_url(source: str, found: Found) -> None:
    is_http = source.lower().startswith("http")
    is_folder = False
    try:
        system, path = file_system(source)
        if any(sign in path for sign in "*?[") and not is_http:
            listed = repeated(lambda: system.glob(path, detail=True))
        # Asked whether a file is a folder, an HTTP file system would fetch all of it and look for links.
        elif not (is_http and _is_candidate(_name_of(path))) and repeated(lambda: system.isdir(path)):
            # Stores give long listings in pages, which fsspec joins.
            listed, is_folder = repeated(lambda: system.find(path, detail=True)), True
        else:
            # An HTTP file system says that what takes too long does not exist: reading it gives the reason.
            listed = {path: {}} if is_http or repeated(lambda: system.exists(path)) else {}
    except ImportError as error:
        raise NoTracesError(
            f"this kind of URL needs another package: {error}", path=source, hint="install it, e.g. s3fs for s3://"
        ) from error
    except Exception as error:
        raise NoTracesError(f"cannot be listed: {error}", path=source, hint=_CHECK_URL) from error
    traces = []
    for name, info in listed.items():
        url, base = system.unstrip_protocol(name), _name_of(name)
        if is_folder and is_run_manifest(base):
            found.run_manifests.append(url)
        elif is_folder and is_rank_manifest_path(name):
            found.rank_manifests.append(url)
        elif not is_folder or _is_candidate(base):
            traces.append(url)
            if (facts := listed_facts(url, info)) is not None:
                found.objects[url] = facts
    if not traces:
        raise NoTracesError("no trace at this URL", path=source, hint=_CHECK_URL)
    found.traces += traces
    if is_folder:
        found.named = False
        found.folders.append(without_credentials(source.rstrip("/")))


def _name_of(path: str) -> str:
    return path.partition("?")[0].rsplit("/", 1)[-1]
