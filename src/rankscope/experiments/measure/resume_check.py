"""Check whether an experiment can be resumed: the script, the files it loads and the options must be unchanged.

In: the state that an experiment was started with, and finished jobs. Out: an error that names what changed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankscope.errors import ConfigError
from rankscope.experiments.measure.jobs import THREADS, Outcome, Target
from rankscope.rundir.manifest import redact
from rankscope.rundir.measurement import digest_of

HINT = "give a new directory with -o, or restore the settings that it was started with"


def state_of(target: Target) -> dict[str, Any]:
    """The script and its state: an edited script is a different one. Secrets are stored as a digest only."""
    path = Path(target.file)
    text = digest_of(path.read_bytes()) if path.is_file() else None
    return {
        "script": shlex.join(redact(target.words)),
        "arguments": digest_of("\0".join(target.words).encode(errors="surrogateescape")),
        "text": text,
        THREADS: os.environ.get(THREADS, "1"),
    }


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences, in words."""
    if not before:
        return ["by another version of rankscope"]
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if "script" in names:
        names = [name for name in names if name not in ("arguments", "text")]
    words = []
    for name in names:
        if name == "arguments":
            words.append("another key, token or password among the script's arguments")
        elif name == "text":
            words.append("the script has changed since")
        else:
            words.append(f"{name} {_shown(before.get(name))} then, {_shown(now.get(name))} now")
    return words


def _shown(value: object) -> str:
    return "not given" if value is None else "given" if value is True else str(value)


def refuse_edited(kept: Iterable[Outcome], out: Path, measurement: str) -> None:
    """Refuse to resume if a file that the script loads has changed.

    Args:
        kept: the finished jobs.
        out: the experiment's directory.
        measurement: its name.

    Raises:
        ConfigError: a file has changed.
    """
    known: dict[str, str] = {}
    for outcome in kept:
        known |= outcome.sources
    edited = [path for path, digest in known.items() if (now := _digest_at(path)) is not None and now != digest]
    if edited:
        raise ConfigError(
            f"holds jobs of `measure {measurement}` that were started differently: {_files(edited)}, which the script "
            f"loads, {'has' if len(edited) == 1 else 'have'} changed since",
            path=out,
            hint=HINT,
        )


def refuse_mixed(outcome: Outcome, before: Sequence[Outcome], out: Path) -> None:
    """Refuse a job whose source files differ from those of earlier jobs: a file was edited between them.

    Args:
        outcome: the job that has just ended.
        before: the earlier jobs.
        out: the experiment's directory.

    Raises:
        ConfigError: a file was edited.
    """
    for other in before:
        files = outcome.sources.keys() & other.sources.keys()
        edited = sorted(path for path in files if outcome.sources[path] != other.sources[path])
        if edited:
            raise ConfigError(
                f"{_files(edited)} {'was' if len(edited) == 1 else 'were'} changed while this experiment ran: "
                f"{outcome.folder.name} ran a different program from {other.folder.name}",
                path=out,
                hint="restore it and run the same command again, or give a new directory with -o",
            )


def _digest_at(path: str) -> str | None:
    """None for a missing file: the job may have created and removed it."""
    try:
        return digest_of(Path(path).read_bytes())
    except OSError:
        return None


def _files(paths: Sequence[str]) -> str:
    """Up to three paths, relative to the working directory."""
    here = Path.cwd()
    shown = [str(p.relative_to(here)) if p.is_relative_to(here) else str(p) for p in map(Path, sorted(paths)[:3])]
    return ", ".join(shown) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
