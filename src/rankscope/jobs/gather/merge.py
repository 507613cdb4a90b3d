"""Merging the parts of a run: missing files are fetched into a staging folder, checked, and moved in.

No file is replaced by a different one, with two exceptions: a later state of a file that ranks rewrite (`states`)
replaces the earlier one, and the complete trace replaces one that is shorter than its manifest here says.

In: a source and a run directory. Out: the files that were copied, and those that could not be.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.errors import RankscopeError
from rankscope.jobs.gather.sources import Source, sha256
from rankscope.jobs.gather.states import changes, is_gathered, later
from rankscope.jobs.gather.traces import find_traces, read_head
from rankscope.rundir.archives import describe_file
from rankscope.rundir.manifest import RankManifest, read_rank_manifest, read_run_manifest
from rankscope.rundir.names import RANKS_FOLDER
from rankscope.rundir.plurals import plural, printable

STAGE = ".gather"
"""Where files are until they are complete, in the run directory; hidden, so that no reader finds them."""
_SHOWN = 5
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How a URL begins, also once ``Path`` has made one slash of two."""


@dataclass(frozen=True)
class Gathered:
    """What was copied from one source."""

    source: str
    files: int
    """How many files it has."""
    new: int
    """How many of them were not here."""
    bytes: int
    """Of the new ones."""


def gather(
    run: Path, sources: Sequence[Source], on_progress: Callable[[Gathered], object] = lambda _: None
) -> list[Gathered]:
    """Copy what the sources have into the run directory.

    Args:
        run: the run directory; created if missing.
        sources: where the parts are.
        on_progress: called after each source.

    Raises:
        RankscopeError: the run directory is a URL, or is missing and there is no source; a source cannot be read; a
            file here differs from the source's of the same name; a part is of
            another run. What has been copied is kept, and the same call continues from there.
    """
    if not run.exists():
        if _URL.match(str(run)):
            raise RankscopeError(
                "is not a directory of this host", path=run, hint="gather into a local directory; URLs can be sources"
            )
        if not sources:
            raise RankscopeError("does not exist", path=run, hint="check the spelling, or name sources to gather from")
    if run.is_file():
        what, hint = describe_file(run)
        raise RankscopeError(what, path=run, hint=hint)
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RankscopeError(f"cannot be made: {error.strerror}", path=run, hint="choose another directory") from error
    done = []
    for source in sources:
        done.append(_copy_from(source, run))
        on_progress(done[-1])
    return done


def _copy_from(source: Source, run: Path) -> Gathered:
    there = {path: size for path, size in source.listing().items() if is_gathered(path)}
    for path in there:
        _check_path(path, source)
        _check_folders(run, path, source)
    here = [path for path in there if os.path.lexists(run / path)]
    theirs = source.digests([path for path in here if _same_size(run / path, there[path])])
    same = {path for path, digest in theirs.items() if sha256(run / path) == digest}
    different = [path for path in here if path not in same]
    # A rank writes its manifest again after each trace: a later state of it is not a different file.
    rewritten = [path for path in different if changes(path)]
    truncated = _truncated(run, there, [path for path in different if path not in rewritten])
    _refuse(source, run, [path for path in different if path not in rewritten and path not in truncated])
    wanted = [*(path for path in there if path not in same and path not in different), *sorted(truncated), *rewritten]
    # A folder for each source, so that an interrupted copy continues there.
    stage = run / STAGE / hashlib.sha256(source.shown.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    if wanted:
        stage.mkdir(parents=True, exist_ok=True)
        source.fetch(wanted, stage)
        short = [path for path in wanted if not _same_size(stage / path, there[path])]
        # The job may still be writing.
        short = [path for path in short if not changes(path)]
        if short:
            raise RankscopeError(
                f"{_names(short)} did not arrive complete: the job is still writing, or the connection broke",
                path=source.shown,
                hint="run the same command again for the rest",
            )
        _check_run(run, stage, source)
        for path in wanted:
            _move(stage, run, path, source, replace=path in truncated)
    _remove_stage(run, stage)
    return Gathered(source.shown, len(there), len(wanted), sum(there[path] for path in wanted))


def _check_path(path: str, source: Source) -> None:
    parts = path.split("/")
    if path.startswith("/") or not path or any(part in ("", ".", "..") for part in parts):
        raise RankscopeError(f"lists {path!r}, which is not a path within a directory", path=source.shown)


def _check_folders(run: Path, path: str, source: Source) -> None:
    """Refuse to write through a symbolic link, or below a file."""
    for folder in [*Path(path).parents][:-1]:
        here = run / folder
        if here.is_symlink():
            raise RankscopeError(
                f"is a symbolic link, and {source.shown} has files in a directory of that name",
                path=here,
                hint="gather into another directory, or replace the link with a directory",
            )
        if here.exists() and not here.is_dir():
            raise RankscopeError(
                f"is a file, and in {source.shown} a directory", path=here, hint="gather into another directory"
            )


def _same_size(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size


def _refuse(source: Source, run: Path, paths: Sequence[str]) -> None:
    if paths:
        raise RankscopeError(
            f"{_names(paths)} here differ from those of {source.shown}; nothing was overwritten",
            path=run,
            hint="gather into another directory, or move these away",
        )


def _truncated(run: Path, there: Mapping[str, int], paths: Sequence[str]) -> set[str]:
    """Files that are shorter here than their rank's manifest here says, and complete there."""
    if not paths:
        return set()
    expected_bytes = {trace.file: trace.bytes for manifest in rank_manifests(run) for trace in manifest.written}
    found = set()
    for path in paths:
        whole, here = expected_bytes.get(path), run / path
        regular = here.is_file() and not here.is_symlink()
        if whole is not None and whole == there[path] and regular and here.stat().st_size < whole:
            found.add(path)
    return found


def _names(paths: Sequence[str]) -> str:
    shown = ", ".join(map(printable, paths[:_SHOWN]))
    return shown + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")


def _check_run(run: Path, stage: Path, source: Source) -> None:
    """Two runs in one place would look like one."""
    ours, theirs = run_ids(run), run_ids(stage)
    if ours and theirs and not theirs & ours:
        raise RankscopeError(
            f"{source.shown} is of {_runs(theirs)}, here is {_runs(ours)}",
            path=run,
            hint="gather each run into a separate directory",
        )


def run_ids(folder: Path) -> set[str]:
    """The runs that the manifests and traces of a folder belong to; what a manifest lists is of its run."""
    ranks = rank_manifests(folder)
    found = {m.run_id for path in folder.glob("run*.json") if (m := read_run_manifest(path)) is not None}
    found |= {manifest.run_id for manifest in ranks}
    listed = {trace.file for manifest in ranks for trace in manifest.written}
    found |= {read_head(path).run_id for file, path in find_traces(folder, listed).items() if file not in listed}
    return {each for each in found if each is not None}


def _runs(ids: set[str]) -> str:
    shown = ", ".join(map(printable, sorted(ids)[:_SHOWN]))
    return f"{plural('run', len(ids))} {shown}"


def rank_manifests(folder: Path, known: Container[Path] = ()) -> list[RankManifest]:
    """The manifests of ranks in a run directory, in the order of ranks; those that cannot be read, and ``known`` files,
    are left out."""
    paths = sorted((folder / RANKS_FOLDER).rglob("*.json")) if (folder / RANKS_FOLDER).is_dir() else []
    read = (read_rank_manifest(path) for path in paths if not path.name.startswith(".") and path not in known)
    found = [manifest for manifest in read if manifest is not None and manifest.rank is not None]
    return sorted(found, key=lambda manifest: (manifest.rank or 0, manifest.restart_count))


def _move(stage: Path, run: Path, path: str, source: Source, *, replace: bool) -> None:
    """Give a complete file its name, unless another has it; with ``replace``, that one is known to be a part of it."""
    staged, target = stage / path, run / path
    try:
        if replace:
            staged.replace(target)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(staged, target)
        except FileExistsError:
            # Another gather has copied it meanwhile, or it is another state of a file that changes.
            _move_over(staged, target, path, source)
            return
        except OSError:
            # No hard links on this file system. Nobody else writes here but another gather, of other files.
            if target.exists():
                _move_over(staged, target, path, source)
            else:
                staged.replace(target)
            return
        staged.unlink()
    except OSError as error:
        raise RankscopeError(
            f"cannot be written: {error.strerror}", path=target, hint="check the free space"
        ) from error


def _move_over(staged: Path, target: Path, path: str, source: Source) -> None:
    """Keep the later of two states of a file; refuse if they are different files."""
    if sha256(staged) != sha256(target):
        newer = later(staged, target, path) if changes(path) else None
        if newer is None:
            _refuse(source, target.parent, [target.name])
        elif newer:
            staged.replace(target)


def _remove_stage(run: Path, stage: Path) -> None:
    """Remove the folder of a source from which all has been copied."""
    shutil.rmtree(stage, ignore_errors=True)
    try:
        (run / STAGE).rmdir()
    except OSError:
        pass  # another gather's stage is in it, or there is none
