"""Is what is measured still what an experiment was begun with? The script, what it loads, and what was chosen."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankscope.errors import ConfigError
from rankscope.measure.jobs import THREADS, Outcome, Target
from rankscope.rundir.manifest import redact
from rankscope.rundir.measurement import digest_of

HINT = "give a new directory with -o, or go on with what it was begun with"


def state_of(target: Target) -> dict[str, Any]:
    """What is run, and in which state: an edited script is another one. Secrets are not written down, and still told
    apart."""
    path = Path(target.file)
    text = digest_of(path.read_bytes()) if path.is_file() else None
    return {
        "script": shlex.join(redact(target.words)),
        "arguments": digest_of("\0".join(target.words).encode(errors="surrogateescape")),
        "text": text,
        THREADS: os.environ.get(THREADS, "1"),
    }


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, what is not as it was."""
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
            words.append("the script has been changed since")
        else:
            words.append(f"{name} {_told_of(before.get(name))} then, {_told_of(now.get(name))} now")
    return words


def _told_of(value: object) -> str:
    return "not given" if value is None else "given" if value is True else str(value)


def refuse_edited(kept: Iterable[Outcome], out: Path, measurement: str) -> None:
    """What the script loads may not have changed since, no more than the script itself.

    Args:
        kept: jobs that are finished.
        out: the experiment's directory.
        measurement: its name.

    Raises:
        ConfigError: a file has.
    """
    known: dict[str, str] = {}
    for outcome in kept:
        known |= outcome.sources
    edited = [path for path, digest in known.items() if (now := _digest_at(path)) is not None and now != digest]
    if edited:
        raise ConfigError(
            f"holds jobs of `measure {measurement}` that were begun otherwise: {_files(edited)}, which the script "
            f"loads, {'has' if len(edited) == 1 else 'have'} been changed since",
            path=out,
            hint=HINT,
        )


def refuse_mixed(outcome: Outcome, before: Sequence[Outcome], out: Path) -> None:
    """Somebody may have edited a file between one job and the next.

    Args:
        outcome: the job that has just ended.
        before: those before it.
        out: the experiment's directory.

    Raises:
        ConfigError: somebody did.
    """
    for other in before:
        files = outcome.sources.keys() & other.sources.keys()
        edited = sorted(path for path in files if outcome.sources[path] != other.sources[path])
        if edited:
            raise ConfigError(
                f"{_files(edited)} {'was' if len(edited) == 1 else 'were'} changed while this experiment ran: "
                f"{outcome.folder.name} ran another program than {other.folder.name}",
                path=out,
                hint="put it back and start the same command again, or give a new directory with -o",
            )


def _digest_at(path: str) -> str | None:
    """Of a file that is there; what the job made itself may be gone."""
    try:
        return digest_of(Path(path).read_bytes())
    except OSError:
        return None


def _files(paths: Sequence[str]) -> str:
    """Some of them, as seen from here."""
    here = Path.cwd()
    shown = [str(p.relative_to(here)) if p.is_relative_to(here) else str(p) for p in map(Path, sorted(paths)[:3])]
    return ", ".join(shown) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
